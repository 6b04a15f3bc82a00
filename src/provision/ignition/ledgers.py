"""What the Ansible role has to know of the files, so that it can take them back.

The role keeps ledgers of what it wrote, and of what was there before; a file that is in none is
somebody else's to it. Format and places are those of its modules ``files`` and ``runtime``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from provision.ignition.engines import DAEMON_JSON

FOLDER = "/var/lib/oci-decorator"
_FILES = f"{FOLDER}/files.json"
_RUNTIMES = f"{FOLDER}/runtimes.json"
_MODE = 0o644


def ledgers(texts: Mapping[str, str], *, daemon_json: str | None) -> dict[str, str]:
    """Return the texts of the ledgers, by path.

    Args:
        texts: The files, by path.
        daemon_json: What Docker's would be otherwise; None: there would be none.
    """
    files = {path: _record(text, None) for path, text in texts.items() if path != DAEMON_JSON}
    engines = {
        path: _record(text, daemon_json) for path, text in texts.items() if path == DAEMON_JSON
    }
    found = {_FILES: files, _RUNTIMES: engines}
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
