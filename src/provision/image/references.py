"""Names of images, as Docker reads them."""

from __future__ import annotations


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
