"""Troubles in what admins write: provision.toml, and the engines' own settings."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from provision.doctor.finding import Finding
from provision.doctor.scene import Scene

_RUNTIME = "oci-decorator"
_DAEMON_JSON = "etc/docker/daemon.json"
_DROP_IN = "etc/containers/containers.conf.d/50-oci-decorator.conf"
# In the order in which podman reads them: containers.conf(5).
_CONTAINERS_CONF = (
    "usr/share/containers/containers.conf",
    "usr/share/containers/containers.conf.d/*.conf",
    "etc/containers/containers.conf",
    "etc/containers/containers.conf.d/*.conf",
)


def catalogue(scene: Scene) -> Iterator[Finding]:
    """The folders of drivers that provision.toml names are there."""
    for folder in scene.config.catalogue:
        if not (scene.root / folder.lstrip("/")).is_dir():
            yield Finding(
                "warn",
                f"catalogue names {folder}, and there is no such folder",
                "its drivers are unknown; where provision brings one of the same name, that one is"
                " taken instead",
                "put the folder there, or take it out of catalogue in"
                " /etc/provision/provision.toml",
            )


def policy(scene: Scene) -> Iterator[Finding]:
    """provision.toml does not leave the work to the boot."""
    if scene.drivers and not scene.config.policy.prebuild:
        yield Finding(
            "warn",
            "[policy] prebuild is false",
            "a host that boots a new kernel has no drivers until they are built then: minutes",
            "prebuild = true in /etc/provision/provision.toml",
        )


def runtime(scene: Scene) -> Iterator[Finding]:
    """The runtime oci-decorator that engines know is the installed one, and it is there."""
    known = dict(_podman(scene.root))
    if known:
        name, programs = next(reversed(known.items()))
        if _DROP_IN in known and programs != known[_DROP_IN]:
            yield Finding(
                "warn",
                f"/{name} gives podman another oci-decorator than /{_DROP_IN}",
                "drop-ins are read in the order of their names, and the last one counts",
                f"take oci-decorator out of /{name}",
            )
        yield from _missing(scene.root, name, programs)
    if programs := _docker(scene.root):
        yield from _missing(scene.root, _DAEMON_JSON, programs)


def _missing(root: Path, name: str, programs: tuple[str, ...]) -> Iterator[Finding]:
    # Docker looks for a bare name along its PATH, which isn't ours to know.
    is_known = all(program.startswith("/") for program in programs)
    if is_known and not any((root / program.lstrip("/")).is_file() for program in programs):
        yield Finding(
            "warn",
            f"/{name} has the runtime oci-decorator, and there is no {' or '.join(programs)}",
            "the program was moved or removed; no container starts with this runtime",
            "install it again (the role provision_hook does), or take the runtime out",
        )


def _podman(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the files that say what podman's oci-decorator is; the last one counts."""
    for pattern in _CONTAINERS_CONF:
        for path in sorted(root.glob(pattern)):
            try:
                programs = tomllib.loads(path.read_text())["engine"]["runtimes"][_RUNTIME]
            except (OSError, ValueError, KeyError, TypeError):
                # It says nothing of it, or podman itself refuses it.
                continue
            if isinstance(programs, list) and programs:
                yield str(path.relative_to(root)), tuple(map(str, programs))


def _docker(root: Path) -> tuple[str, ...]:
    """Return what Docker's oci-decorator is; empty: it has none."""
    try:
        entry: object = json.loads((root / _DAEMON_JSON).read_text())["runtimes"][_RUNTIME]
    except (OSError, ValueError, KeyError, TypeError):
        # As above.
        return ()
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return (path,) if isinstance(path, str) else ()
