"""Removes what provision installed on a host, and nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_removal
short_description: Removes what provision installed on a host, and lists what stays
description:
  - Removes the files, links and folders that C(provision) made, in one call. Foreign files, such as
    a key beside C(provision.toml), stay and are returned as C(kept).
version_added: 0.1.0
options:
  paths:
    description: Files to remove, and folders to remove with everything in them.
    type: list
    elements: path
    default: []
  stores:
    description: Folders of C(provision)'s store. Only what C(provision) made in them is removed.
      Copies of foreign files stay.
    type: list
    elements: path
    default: []
  empty:
    description: Folders to remove in this order if they are empty.
    type: list
    elements: path
    default: []
  report:
    description: Folders whose files are listed in C(kept), if they are still there.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Reports what would be removed and what would stay.
    support: full
  diff_mode:
    description: Shows the differences.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure nothing of provision is left
  oci_decorator.drivers._provision_removal:
    paths: [/run/provision]
    stores: [/var/lib/provision]
    empty: [/etc/provision]
    report: [/etc/provision, /var/lib/provision]
"""

RETURN = r"""
paths:
  description: What was removed or would be removed.
  returned: always
  type: list
  elements: str
kept:
  description: Foreign files that stay.
  returned: always
  type: list
  elements: str
"""

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.removal import (
    emptied,
    files_left,
    store_parts,
)


def planned(paths: list[str], stores: list[str], empty: list[str]) -> list[Path]:
    """Return what goes: a folder after what is in it."""
    named = map(Path, paths)
    gone = [path for path in named if path.exists() or path.is_symlink()]
    for store in map(Path, stores):
        gone += store_parts(store)[0]
        gone += emptied(store, gone)
    for folder in map(Path, empty):
        is_folder = folder not in gone and not folder.is_symlink() and folder.is_dir()
        if is_folder and all(path in gone for path in folder.iterdir()):
            gone.append(folder)
    return gone


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Remove."""
    paths = {"type": "list", "elements": "path", "default": []}
    module = AnsibleModule(
        argument_spec={"paths": paths, "stores": paths, "empty": paths, "report": paths},
        supports_check_mode=True,
    )
    given = module.params
    gone = planned(given["paths"], given["stores"], given["empty"])
    kept = [str(path) for folder in given["report"] for path in files_left(Path(folder), gone)]
    if not module.check_mode:
        for path in gone:
            if path.exists() or path.is_symlink():
                _remove(path)
    names = [str(path) for path in gone]
    diff = {"before": "".join(f"{name}\n" for name in names), "after": ""}
    module.exit_json(changed=bool(gone), paths=names, kept=kept, diff=diff)


if __name__ == "__main__":
    main()
