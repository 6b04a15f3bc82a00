"""Where templates come from, and their digest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden.pins import REPOSITORY
from provision.build.dockerfile import load_templates
from provision.errors import NotFoundError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "templates", tmp_path / "templates"))


@pytest.mark.parametrize("name", ["Dockerfile.apt.j2", "macros/source.j2", "apt/install.sh"])
def test_digest_changes_with_every_file(folder: Path, name: str) -> None:
    before = load_templates(folder, "debian").digest
    path = folder / name
    path.write_text(path.read_text() + "\n")
    assert load_templates(folder, "debian").digest != before


def test_digest_changes_with_a_name(folder: Path) -> None:
    before = load_templates(folder, "debian").digest
    (folder / "macros/source.j2").rename(folder / "macros/other.j2")
    assert load_templates(folder, "debian").digest != before


def test_digest_ignores_what_no_dockerfile_is_made_from(folder: Path) -> None:
    before = load_templates(folder, "debian").digest
    (folder / "README.md").write_text("other")
    (folder / "Dockerfile.other.j2").write_text("other")
    assert load_templates(folder, "debian").digest == before


def test_unknown_distro_lists_the_known_ones(folder: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        load_templates(folder, "plan9")
    assert "'plan9'" in caught.value.message
    assert "debian" in str(caught.value.resolution)
