"""What building and pulling work with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from provision.build.image import open_engine
from provision.build.request import DriverRequest
from provision.build.resolve import Resolved, resolve_pin
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.progress import Progress


@dataclass
class Job:
    """Settings, progress, and an engine, which is opened at its first use."""

    settings: Settings
    progress: Progress

    @cached_property
    def engine(self) -> Engine:
        """The container engine."""
        return open_engine(self.settings)

    def resolve(self, request: DriverRequest) -> Resolved:
        """Return the Pin of a request."""
        return resolve_pin(self.settings, lambda: self.engine, request, progress=self.progress)

    def close(self) -> None:
        """Close the connections to the engine; its next use opens them again."""
        if "engine" in vars(self):
            self.engine.close()
            del self.engine
