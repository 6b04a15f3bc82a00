"""What the Ansible role has to know of the files, so that it can take them back.

The role keeps ledgers of what it wrote, and of what was there before; a file that is in none is
foreign to it. Format and places are those of its modules ``provision_managed_files`` and
``provision_config``, and of ``oci-decorator configure`` (``hooks/src/configure/record.rs``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from provision.ignition.engine_files import DAEMON_JSON

FOLDER = "/var/lib/oci-decorator"
_FILES = f"{FOLDER}/files.json"
_RUNTIMES = f"{FOLDER}/runtimes.json"
_CONFIG = f"{FOLDER}/config.json"
PROVISION_TOML = "/etc/provision/provision.toml"
_MODE = 0o644


def ledgers(texts: Mapping[str, str], *, daemon_json: str | None) -> dict[str, str]:
    """Return the texts of the ledgers, by path.

    Args:
        texts: The files, by path.
        daemon_json: What Docker's would be otherwise; None: there would be none.
    """
    own = (DAEMON_JSON, PROVISION_TOML)
    files = {path: _record(text, None) for path, text in texts.items() if path not in own}
    config = {path: _record(text, None) for path, text in texts.items() if path == PROVISION_TOML}
    engines = {
        path: _engines_record(text, daemon_json)
        for path, text in texts.items()
        if path == DAEMON_JSON
    }
    found = {_FILES: files, _RUNTIMES: engines, _CONFIG: config}
    return {
        path: json.dumps(records, indent=2, sort_keys=True) + "\n"
        for path, records in found.items()
        if records
    }


def _record(text: str, original: str | None) -> dict[str, object]:
    return {
        "original": original,
        "mode": None if original is None else _MODE,
        "folders": [],
        "written": [hashlib.sha256(text.encode()).hexdigest()],
    }


def _engines_record(text: str, original: str | None) -> dict[str, object]:
    return {
        "original": original,
        "written": [text],
        "runtimes": ["oci-decorator"],
        "folders": [],
    }
