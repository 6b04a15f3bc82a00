"""Writes the folder to serve: the files that machines fetch, and their Ignition configuration.

Sources: https://coreos.github.io/ignition/configuration-v3_3/, https://coreos.github.io/butane/specs/
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from provision.errors import UsageError
from provision.export.ignition.preparation import (
    BIN,
    PROGRAM,
    PROVISION_TOML,
    RUNTIME,
    VENDORS,
    Prepared,
    Variant,
    managed_records,
    render,
)
from provision.export.ignition.preparation import FOLDER as RECORDS
from provision.export.ignition.wheels import bundles_folder, environment_name, have_bundle
from provision.files import sync_directory, write_atomic
from provision.progress import Step, report

CONFIG = "config.ign"
BUTANE_FILE = "provision.bu"
# For each distro, the version of Butane's format that makes Ignition's 3.3.0.
_BUTANE: Mapping[Variant, str] = {"fcos": "1.4.0", "flatcar": "1.0.0"}
_FOLDER = "/opt/provision"
_STAGED = f"{_FOLDER}/first-boot"
_UNIT = "provision-first-boot.service"
_SHORT = 12
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Served:
    """A file that machines fetch."""

    # Its name in the folder.
    name: str
    url: str
    size: int
    # Of its content, as 128 hexadecimal digits.
    sha512: str

    @property
    def hash(self) -> str:
        """Its checksum, as Ignition writes it."""
        return f"sha512-{self.sha512}"

    def contents(self) -> dict[str, Any]:
        """Return it as content that a machine fetches and verifies."""
        return {"source": self.url, "verification": {"hash": self.hash}}


@dataclass(frozen=True, slots=True)
class Written:
    """The written files."""

    config: Served
    # The files that machines fetch besides.
    files: tuple[Served, ...]
    # Name of the virtual environment on machines.
    environment: str
    changed: bool


def check_output(folder: Path) -> None:
    """Refuse a folder that has foreign files."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise UsageError(
            f"'{folder}' has other files.", resolution="Name an empty folder, or a new one."
        )


def write(prepared: Prepared, folder: Path) -> Written:
    """Write all files, and the configuration that names them last.

    File names contain checksums, so that machines can still boot with an earlier configuration.
    """
    report(Step(1, _STEPS, "gather the wheels that provision needs"))
    bundle = prepared.bundle
    if not isinstance(bundle, Path):
        bundle = have_bundle(bundle, bundles_folder(os.environ))
    environment = environment_name(bundle, prepared.python)
    report(Step(2, _STEPS, "copy what machines fetch"))
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    files = {
        f"{_STAGED}/python.tar.gz": _serve(prepared.python.path, ".tar.gz", folder, prepared.url),
        f"{_FOLDER}/provision.tar": _serve(bundle, ".tar", folder, prepared.url),
    }
    if prepared.hook is not None:
        files[PROGRAM] = _serve(prepared.hook, "", folder, prepared.url)
    report(Step(3, _STEPS, f"write {CONFIG}"))
    text = _configuration(prepared, files, environment)
    sha512 = hashlib.sha512(text.encode()).hexdigest()
    config = Served(CONFIG, f"{prepared.url}/{CONFIG}", len(text.encode()), sha512)
    # It merges the configuration into the admin's own.
    butane = render(
        "provision.bu.j2",
        variant=prepared.variant,
        version=_BUTANE[prepared.variant],
        source=config.url,
        hash=config.hash,
    )
    changed = any(served.name not in before for served in files.values())
    changed |= write_atomic(folder / CONFIG, text)
    changed |= write_atomic(folder / BUTANE_FILE, butane)
    return Written(config, tuple(files.values()), environment, changed=changed)


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


def _configuration(prepared: Prepared, fetched: Mapping[str, Served], environment: str) -> str:
    """Return the configuration of a machine; the same contents give the same text.

    3.3.0 is the newest version of the format that Ignition 2.14 reads.

    Args:
        fetched: Files that the machine fetches, by their path there.
        environment: Name of its virtual environment.
    """
    texts = {**prepared.texts, PROVISION_TOML: prepared.provision_toml}
    records = managed_records(texts, daemon_json=prepared.daemon_json)
    files = {
        **{path: (0o644, served.contents()) for path, served in fetched.items()},
        f"{_STAGED}/first-boot.sh": (0o755, _inline(render("first-boot.sh"))),
        **{path: (0o644, _inline(text)) for path, text in texts.items()},
        **{path: (0o600, _inline(text)) for path, text in records.items()},
    }
    folders = {_FOLDER, _STAGED, BIN, "/etc/provision", RECORDS}
    links = []
    if PROGRAM in fetched:
        files[PROGRAM] = (0o755, fetched[PROGRAM].contents())
        folders |= {"/etc/oci-decorator", VENDORS}
        links = [{"path": RUNTIME, "target": "oci-decorator", "overwrite": True}]
    unit = render(f"{_UNIT}.j2", staged=_STAGED, environment=environment)
    document = {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [{"path": path, "mode": 0o755} for path in sorted(folders)],
            # An existing file is replaced, so that Ignition can run again after a failure.
            "files": [
                {"path": path, "mode": mode, "contents": contents, "overwrite": True}
                for path, (mode, contents) in sorted(files.items())
            ],
            "links": links,
        },
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": unit}]},
    }
    return json.dumps(document, indent=2) + "\n"


def _inline(text: str) -> dict[str, Any]:
    """Return a text as inline content: https://www.rfc-editor.org/rfc/rfc2397."""
    return {"source": f"data:,{quote(text, safe='')}"}
