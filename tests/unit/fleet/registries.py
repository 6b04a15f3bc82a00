"""Several registries in memory, each with repositories."""

from __future__ import annotations

from collections import defaultdict

from kit.memory_registry import MemoryRegistry, MemoryRepository
from provision.build.workspace import Settings
from provision.registry.names import Reference


class Registries:
    """Registries by host; repositories come into being when they are written to.

    Attributes:
        stored: By ``host/repository``.
    """

    def __init__(self) -> None:
        self.stored: dict[str, MemoryRegistry] = defaultdict(MemoryRegistry)

    def connect(self, settings: Settings, reference: Reference) -> MemoryRepository:
        """Return a repository, in place of one over a network."""
        del settings
        stored = self.stored[reference.name]
        stored.hosts = {reference.registry}
        return MemoryRepository(stored, reference)
