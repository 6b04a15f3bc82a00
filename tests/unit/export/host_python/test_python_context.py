"""The rendered Dockerfile against the one that is kept.

After a change that was meant, ``UPDATE_GOLDEN=1 pytest tests/unit/export/host_python`` writes the
file again; then read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from provision.export.host_python.python_context import render_python, templates_of
from unit.export.host_python.pins import TEMPLATES, python_pin

_KEPT = Path(__file__).parent / "data/Dockerfile"


def test_the_rendered_dockerfile_is_the_one_kept() -> None:
    found = render_python(python_pin(), templates_of(TEMPLATES))["Dockerfile"].decode()
    if os.environ.get("UPDATE_GOLDEN"):
        _KEPT.write_text(found)
    assert found == _KEPT.read_text()


def test_nothing_depends_on_the_machine_that_builds() -> None:
    text = _KEPT.read_text()
    for word in ("uname", "nproc", "$(", "`"):
        assert word not in text


def test_the_context_has_what_the_dockerfile_copies_but_the_sources() -> None:
    pin = python_pin()
    files = render_python(pin, templates_of(TEMPLATES))
    assert set(files) == {"Dockerfile", "apt-sources.sh", "bundle.json", "bundle.py"}
    plan = json.loads(files["bundle.json"])
    assert plan == {
        "prefix": "/opt/provision/python",
        "version": "3.11.2",
        "digest": pin.digest,
        "distro": "debian:12",
        "package": "3.11.2-6+deb12u9",
    }


def test_every_input_changes_the_digest() -> None:
    one = python_pin()
    assert one.digest == python_pin().digest
    assert one.digest != python_pin(prefix="/srv/python").digest
    templates = templates_of(TEMPLATES)
    changed = {**templates.helpers, "bundle.py": b"pass\n"}
    assert templates.digest != type(templates)(templates.sources, changed).digest


@pytest.mark.parametrize("prefix", ["/opt", "opt/python", "/opt/my python", "/opt/../etc", "/"])
def test_a_prefix_is_a_plain_path_of_two_folders_or_more(prefix: str) -> None:
    with pytest.raises(ValidationError):
        python_pin(prefix=prefix)
