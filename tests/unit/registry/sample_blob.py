"""An empty registry in memory, a blob to transfer, and credentials."""

from __future__ import annotations

import pytest

from provision.registry.credentials import Credentials
from provision.registry.manifests import Descriptor
from unit.registry.memory import MemoryRegistry, digest_of

SECRET = Credentials("me", "secret")


BLOB = bytes(range(256)) * 40_000


def descriptor(data: bytes) -> Descriptor:
    return Descriptor(mediaType="x/y", digest=digest_of(data), size=len(data))


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()
