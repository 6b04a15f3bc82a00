"""Writes a set of small files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_managed_files
short_description: Keeps a set of small files on a host
description:
  - Writes all files of a set in one call, and removes files of an earlier call that are no longer
    named.
  - Remembers earlier files and restores them when a file is removed from the set, unless the file
    has changed since.
version_added: 0.1.0
options:
  files:
    description: The files by path, each with C(content) and optionally C(mode) (octal, quoted).
    type: dict
    default: {}
  folders:
    description: Folders to make, even if no file lies in them. They are never removed.
    type: list
    elements: path
    default: []
  documents:
    description: JSON documents of the set. Each becomes C(NAME.json) in I(documents_folder).
    type: dict
    default: {}
  documents_folder:
    description: The folder of these documents.
    type: path
  record:
    description: The file that remembers the set. Each set needs its own.
    type: path
    required: true
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: Shows the differences.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure podman knows the hooks
  oci_decorator.drivers._provision_managed_files:
    record: /var/lib/oci-decorator/files.json
    files:
      /etc/containers/oci/hooks.d/10-oci-decorator.json:
        content: "{{ lookup('ansible.builtin.template', 'hook.json.j2') }}"
"""

RETURN = r"""
paths:
  description: The files that were changed or would be changed.
  returned: always
  type: list
  elements: str
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import (
    Change,
    ManagedFiles,
)

_MODE = "0644"
_FOLDER_MODE = 0o755
_OCTAL = 8


def planned(managed: ManagedFiles, files: dict[str, dict[str, Any]]) -> list[Change]:
    """Return what has to change so that a host has these files and no others of the set."""
    wished = [
        managed.wish(path, file["content"], int(str(file.get("mode", _MODE)), _OCTAL))
        for path, file in files.items()
    ]
    gone = [managed.restore(path) for path in managed.records if path not in files]
    return [change for change in (*wished, *gone) if change is not None]


def as_files(documents: dict[str, Any], folder: str | None) -> dict[str, dict[str, Any]]:
    """Return documents as files of a set."""
    return {
        f"{folder}/{name}.json": {"content": json.dumps(document, indent=4) + "\n"}
        for name, document in documents.items()
    }


def main() -> None:
    """Write and take back."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "default": {}},
            "folders": {"type": "list", "elements": "path", "default": []},
            "documents": {"type": "dict", "default": {}},
            "documents_folder": {"type": "path"},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    documents = module.params["documents"]
    if documents and not module.params["documents_folder"]:
        module.fail_json(msg="'documents' need a 'documents_folder'.")
    files = {**module.params["files"], **as_files(documents, module.params["documents_folder"])}
    managed = ManagedFiles(module.params["record"])
    changes = planned(managed, files)
    stale = [path for path in managed.records if path not in files]
    folders = [folder for folder in module.params["folders"] if not Path(folder).is_dir()]
    if not module.check_mode:
        for folder in folders:
            Path(folder).mkdir(parents=True, mode=_FOLDER_MODE)
        managed.make(changes, module.atomic_move)
        if stale:
            managed.forget(stale, module.atomic_move)
    module.exit_json(
        changed=bool(changes or folders),
        paths=[*folders, *(change.path for change in changes)],
        diff=[change.diff() for change in changes],
    )


if __name__ == "__main__":
    main()
