"""Writes the folder to serve: the files that machines fetch, and their configuration."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import UsageError
from provision.export.ignition.machine import Machine, butane, configuration, fetched
from provision.export.ignition.preparation import Prepared
from provision.export.ignition.wheels import bundles_folder, environment_name, have_bundle
from provision.files import sync_directory, write_atomic
from provision.progress import Progress, Step

CONFIG = "config.ign"
BUTANE_FILE = "provision.bu"
_SHORT = 12
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Served:
    """A file that machines fetch."""

    name: str
    url: str
    size: int
    # Of its content, as 128 hexadecimal digits.
    sha512: str

    def contents(self) -> dict[str, Any]:
        """Return it as content that a machine fetches."""
        return fetched(self.url, self.sha512)


@dataclass(frozen=True, slots=True)
class Written:
    """The written files."""

    config: Served
    files: tuple[Served, ...]
    environment: str
    changed: bool


def check_output(folder: Path) -> None:
    """Refuse a folder that has foreign files."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise UsageError(
            f"'{folder}' has other files.", resolution="Name an empty folder, or a new one."
        )


def write(prepared: Prepared, folder: Path, *, progress: Progress) -> Written:
    """Write all files, and the configuration that names them last.

    File names contain checksums, so that machines can still boot with an earlier configuration.

    Args:
        folder: The folder; made if it is missing.
    """
    progress(Step(1, _STEPS, "gather the wheels that provision needs"))
    bundle = prepared.bundle
    if not isinstance(bundle, Path):
        bundle = have_bundle(bundle, bundles_folder(os.environ), progress=progress)
    environment = environment_name(bundle, prepared.python)
    progress(Step(2, _STEPS, "copy what machines fetch"))
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    hook = prepared.hook
    python = _serve(prepared.python.path, ".tar.gz", folder, prepared.url)
    wheels = _serve(bundle, ".tar", folder, prepared.url)
    program = _serve(hook, "", folder, prepared.url) if hook is not None else None
    progress(Step(3, _STEPS, f"write {CONFIG}"))
    machine = Machine(
        provision_toml=prepared.provision_toml,
        environment=environment,
        python=python.contents(),
        bundle=wheels.contents(),
        hook=program.contents() if program else None,
        texts=prepared.texts,
        daemon_json=prepared.daemon_json,
    )
    config, changed = _write_configuration(machine, prepared, folder)
    files = tuple(served for served in (python, wheels, program) if served is not None)
    is_new = any(served.name not in before for served in files)
    return Written(config, files, environment, changed=changed or is_new)


def _write_configuration(machine: Machine, prepared: Prepared, folder: Path) -> tuple[Served, bool]:
    """Write the configuration and its Butane file; return the first, and whether any changed."""
    text = configuration(machine)
    config = _described(CONFIG, text.encode(), prepared.url)
    snippet = butane(prepared.variant, source=config.url, sha512=config.sha512)
    changed = write_atomic(folder / CONFIG, text)
    return config, write_atomic(folder / BUTANE_FILE, snippet) or changed


def _described(name: str, content: bytes, url: str) -> Served:
    return Served(name, f"{url}/{name}", len(content), hashlib.sha512(content).hexdigest())


def _serve(path: Path, suffix: str, folder: Path, url: str) -> Served:
    """Copy a file into the folder, under a name with its checksum."""
    sha512 = _sha512(path)
    name = f"{path.name.removesuffix(suffix)}-{sha512[:_SHORT]}{suffix}"
    target = folder / name
    if not target.is_file() or _sha512(target) != sha512:
        draft = folder / f".{name}.draft"
        shutil.copyfile(path, draft)
        draft.chmod(0o644)
        draft.replace(target)
        sync_directory(folder)
    return Served(name, f"{url}/{name}", target.stat().st_size, sha512)


def _sha512(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha512").hexdigest()
