"""The login for a registry that ``docker login`` and ``podman login`` left on this machine.

Only who writes it down for others needs it: skopeo and engines find credentials, and ask their
helpers, by themselves. Source: containers-auth.json(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from provision.documents import refusing


class _Entry(BaseModel):
    auth: str | None = None


class _AuthFile(BaseModel):
    auths: dict[str, _Entry] = {}


def default_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that may hold logins, in order of precedence."""
    if auth_file := environment.get("REGISTRY_AUTH_FILE"):
        return (Path(auth_file),)
    home = Path(environment.get("HOME") or "/root")
    runtime = environment.get("XDG_RUNTIME_DIR")
    containers = Path(runtime, "containers") if runtime else Path(f"/run/containers/{os.getuid()}")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker")
    return containers / "auth.json", config / "containers/auth.json", docker / "config.json"


def stored_login(registry: str, files: Sequence[Path]) -> str | None:
    """Return name and password for a registry in base64, as ``auth`` has them; None: there is none.

    Args:
        registry: ``host[:port]``.
        files: Files of Docker or podman; missing ones are skipped.
    """
    for file in files:
        if not file.is_file():
            continue
        with refusing(f"'{file}' has no logins that can be read."):
            auths = _AuthFile.model_validate_json(file.read_bytes() or b"{}").auths
        for key in (registry, f"https://{registry}", f"https://{registry}/v1/"):
            if (entry := auths.get(key)) and entry.auth:
                return entry.auth
    return None
