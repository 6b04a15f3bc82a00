"""Removes files and folders in one go."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: removed
short_description: Has none of these files and folders on a host
description:
  - Removes files, links and folders with all that is in them, in one call.
options:
  paths:
    description: What shall not be there.
    type: list
    elements: path
    required: true
  empty:
    description: Folders that go as well, in this order, if nothing is left in them.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Says what would go.
    support: full
  diff_mode:
    description: Shows it.
    support: full
author:
  - The authors of provision and oci-decorator
"""

EXAMPLES = r"""
- name: Ensure nothing is left
  oci_decorator.drivers.removed:
    paths: [/var/lib/provision, /etc/provision]
    empty: [/opt/provision]
"""

RETURN = r"""
paths:
  description: What went, or would go.
  returned: always
  type: list
  elements: str
"""

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def remaining(folder: Path, gone: set[Path]) -> list[Path]:
    """Return what a folder will hold once some paths are gone."""
    return [path for path in folder.iterdir() if path not in gone]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> None:
    """Remove."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "required": True},
            "empty": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    named = map(Path, module.params["paths"])
    gone = [path for path in named if path.exists() or path.is_symlink()]
    for folder in map(Path, module.params["empty"]):
        if folder.is_dir() and not remaining(folder, set(gone)):
            gone.append(folder)
    if not module.check_mode:
        for path in gone:
            _remove(path)
    paths = [str(path) for path in gone]
    diff = {"before": "".join(f"{path}\n" for path in paths), "after": ""}
    module.exit_json(changed=bool(gone), paths=paths, diff=diff)


if __name__ == "__main__":
    main()
