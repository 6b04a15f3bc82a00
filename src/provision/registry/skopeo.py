"""Copies images between registries and OCI image layouts, by skopeo.

skopeo compares each content with its digest, mounts what a registry has already, retries, and knows
what admins have set up for their registries: ``registries.conf``, ``certs.d``, ``auth.json``.
Digests stay the same, so signatures do. Source: skopeo-copy(1).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, WrongContentError
from provision.registry.names import Reference
from provision.registry.tokens import DeniedError
from provision.run import LONG_LIMIT_S, run

# Variables that say where skopeo finds credentials.
_CREDENTIALS = ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG")
# What skopeo prints, by what it means; the first that is found counts.
_CAUSES: tuple[tuple[type[ProvisionError], tuple[str, ...]], ...] = (
    (WrongContentError, ("Digest did not match", "does not match provided manifest digest")),
    (NotFoundError, ("manifest unknown", "name unknown", "repository name not known", "no image")),
    (DeniedError, ("unauthorized", "authentication required", "denied", "403 (Forbidden)")),
    (
        UnreachableError,
        ("connection refused", "no such host", "timeout", "x509:", "pinging container registry"),
    ),
)
_RESOLUTION = (
    "Run the command that failed by hand. skopeo uses 'docker login' and 'podman login', and"
    " [registry] of /etc/provision/provision.toml."
)


@dataclass(frozen=True, slots=True)
class Layout:
    """An OCI image layout in a folder; its images have tags."""

    folder: Path


@dataclass(frozen=True, slots=True)
class Registry:
    """A repository of a registry, and how it is reached.

    Attributes:
        reference: The repository.
        ca: File with the authorities of its certificate; None: skopeo's and the system's.
        plain_http: Whether it has no TLS.
        auth_file: File with its credentials; None: those that skopeo finds.
    """

    reference: Reference
    ca: Path | None = None
    plain_http: bool = False
    auth_file: Path | None = None

    @contextmanager
    def options(self, side: str) -> Iterator[list[str]]:
        """Yield the options that reach it as the source (``src``) or the target (``dest``)."""
        found = [f"--{side}-authfile={self.auth_file}"] if self.auth_file else []
        is_local = self.reference.is_loopback and self.ca is None
        if self.plain_http or is_local:
            found.append(f"--{side}-tls-verify=false")
        with tempfile.TemporaryDirectory(prefix="provision-ca-") as folder:
            if self.ca is not None:
                Path(folder, "registry.crt").symlink_to(self.ca)
                found.append(f"--{side}-cert-dir={folder}")
            yield found


def copy(source: Registry | Layout, name: str, target: Registry | Layout, tag: str) -> None:
    """Copy an image, or all images of an index, to a tag.

    Args:
        source: Where it is.
        name: Its tag there, or, in a registry, its digest.
        target: Where it goes.
        tag: Its tag there.

    Raises:
        NotFoundError: The source does not have it, or skopeo is not installed.
        WrongContentError: A content is not what its digest says.
        DeniedError: A registry denies this host access.
        UnreachableError: A registry kept failing.
        ProvisionError: skopeo failed for another reason, such as a full disk.
    """
    argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests"]
    argv.append("--retry-times=3")
    with ExitStack() as stack:
        for side, place in (("src", source), ("dest", target)):
            if isinstance(place, Registry):
                argv += stack.enter_context(place.options(side))
        argv += [_name(source, name), _name(target, tag)]
        known = {key: os.environ[key] for key in _CREDENTIALS if key in os.environ}
        done = run(argv, why="copy images", check=False, env=known, timeout=LONG_LIMIT_S)
    if done.returncode:
        raise _error(f"{argv[-2]} could not be copied to {argv[-1]}.", done.stderr)


def _name(place: Registry | Layout, name: str) -> str:
    if isinstance(place, Layout):
        return f"oci:{place.folder}:{name}"
    return f"docker://{place.reference.name}{'@' if name.startswith('sha256:') else ':'}{name}"


def _error(message: str, stderr: str) -> ProvisionError:
    for kind, texts in _CAUSES:
        if any(text in stderr for text in texts):
            return kind(message, resolution=_RESOLUTION, details=stderr.strip())
    return ProvisionError(message, resolution=_RESOLUTION, details=stderr.strip())
