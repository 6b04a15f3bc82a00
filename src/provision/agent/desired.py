"""What provision.toml asks for, in models that load in a moment.

Reading and validating the file takes longer than all else that a run with nothing to do does; so
what came out of it is kept beside the store, under a fingerprint of what went in.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import provision
from provision.agent.model import Desired, DesiredDriver
from provision.errors import InUseError
from provision.files import remove_drafts, write_atomic
from provision.rootfs import in_root
from provision.store.layout import STORE
from provision.store.locks import switching

CONFIG = Path("etc/provision/provision.toml")
_KEPT = STORE / ".desired.json"


def load_desired(
    root: Path = Path("/"), *, catalogues: Sequence[Path] = (), keep: bool = False
) -> Desired:
    """Return what the host under ``root`` should have.

    Args:
        root: Root of the host.
        catalogues: Further folders of drivers.
        keep: Whether to keep what was read, for the next time.

    Raises:
        ConfigError: provision.toml has mistakes; all of them are named.
        NotFoundError: provision's own catalogue or templates are missing.
    """
    key = _key(root, catalogues)
    kept = _kept(root)
    if kept is not None and kept["key"] == key:
        return _from_json(kept["desired"])
    # Loads the models of provision.toml.
    desired: Desired = importlib.import_module("provision.agent.read_config").read(root, catalogues)
    if keep:
        # A store that can't be written is the business of whoever writes more into it.
        with suppress(OSError, InUseError), switching(root):
            path = in_root(root, _KEPT, follow=False)
            remove_drafts(path)
            write_atomic(path, json.dumps({"key": key, "desired": asdict(desired)}) + "\n")
    return desired


def last_desired(root: Path) -> Desired | None:
    """Return what the host should have had when provision.toml was last understood."""
    kept = _kept(root)
    return None if kept is None else _from_json(kept["desired"])


def _kept(root: Path) -> Mapping[str, Any] | None:
    try:
        kept = json.loads(in_root(root, _KEPT).read_text())
        return {"key": kept["key"], "desired": kept["desired"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(root: Path, catalogues: Sequence[Path]) -> str:
    """Return a fingerprint of the file, and of the program that reads it."""
    path = in_root(root, CONFIG)
    text = path.read_bytes() if path.exists() else b""
    # Where the program lies decides which catalogue and templates are its own.
    program = (provision.__version__, provision.__file__, sys.prefix, sys.version, str(root))
    parts = [*program, *map(str, catalogues)]
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + text).hexdigest()


def _from_json(data: Mapping[str, Any]) -> Desired:
    drivers = tuple(DesiredDriver(**driver) for driver in data["drivers"])
    return Desired(**{**data, "drivers": drivers, "catalogue": tuple(data["catalogue"])})
