"""The format of Pins stands for our own part of a build: templates, scripts, data of distros.

A Pin has that integer and no checksum of these files, so that an upgrade of provision alone renews
no Pin. In return, a change of how artifacts are made stops here until someone decides about it.
"""

from __future__ import annotations

import hashlib
import json
import os

from golden import test_golden, test_rpm
from golden.pins import REPOSITORY
from kit.cache import code_of
from provision.build.dockerfile import TREE, load_templates
from provision.pin import FORMAT

_KEPT = REPOSITORY / "tests/golden/format.json"
_CHANGED = """
{names} changed. Can the same inputs now give other modules or files?
Then raise FORMAT in src/provision/pin.py, and say so in CHANGELOG.md: hosts build again.
If not (a comment, a message, a new driver), leave it. Then: UPDATE_GOLDEN=1 pytest tests/golden
"""


def _made() -> dict[str, bytes]:
    """What of ours is in builds: Dockerfiles without labels, scripts without Python's comments."""
    dockerfiles = {
        case: test_golden.dockerfile(case) for case in (*test_golden.CASES, *test_golden.TREE_CASES)
    }
    rpm = {f"{case}, rpm": test_rpm.dockerfile(case) for case in (*test_rpm.CASES, test_rpm.NVIDIA)}
    made = {
        f"Dockerfile of {case}": text.partition("LABEL")[0].encode()
        for case, text in (dockerfiles | rpm).items()
    }
    for family in (load_templates("rpm"), load_templates(TREE)):
        for name, content in family.helpers.items():
            # Both families have one of that name.
            key = f"{name} of {family.dockerfile}" if name == "install.sh" else name
            made[key] = code_of(content) if name.endswith(".py") else content
    return made


def test_a_build_that_changed_has_another_format() -> None:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(_made().items())}
    if os.environ.get("UPDATE_GOLDEN"):
        _KEPT.write_text(json.dumps({"format": FORMAT, "files": digests}, indent=1) + "\n")
    kept = json.loads(_KEPT.read_text())
    changed = [
        name for name in digests | kept["files"] if digests.get(name) != kept["files"].get(name)
    ]
    assert (changed, kept["format"]) == ([], FORMAT), _CHANGED.format(names=", ".join(changed))
