"""Names of images and architectures, as Docker reads them."""

from __future__ import annotations

from provision.errors import NotFoundError

# Docker's names of what `uname -m` prints.
# Source: https://github.com/containerd/platforms/blob/v1.0.0/database.go
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}


def engine_architecture(architecture: str) -> str:
    """Return Docker's name of what ``uname -m`` prints.

    Raises:
        NotFoundError: Nothing is built for it.
    """
    known = _ARCHITECTURES.get(architecture)
    if known is None:
        raise NotFoundError(
            f"The architecture '{architecture}' is not supported.",
            resolution=f"There are {', '.join(_ARCHITECTURES)}.",
        )
    return known


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split ``name:tag`` or ``name@digest``; a registry's port is not a tag."""
    if "@" in reference:
        name, digest = reference.split("@", 1)
        return _without_tag(name), digest
    name = _without_tag(reference)
    return name, reference[len(name) + 1 :] or None


def names_registry(reference: str) -> bool:
    """Return whether an image's name says which registry it comes from, and so is not local.

    podman calls its local images ``localhost/NAME``.
    Source: https://docs.docker.com/reference/cli/docker/image/tag/#description
    """
    host, slash, _ = reference.partition("/")
    return bool(slash) and ("." in host or ":" in host)


def _without_tag(reference: str) -> str:
    folder, slash, last = reference.rpartition("/")
    return folder + slash + last.split(":", 1)[0]
