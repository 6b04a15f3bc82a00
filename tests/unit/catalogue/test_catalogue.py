"""Finding drivers and reading their folders."""

from pathlib import Path

import pytest

from provision import files
from provision.catalogue import Catalogue, load_entry
from provision.config import catalogue_folders
from provision.errors import ConfigError, NotFoundError
from provision.files import templates_dir
from unit.recipes import RECIPE


def driver(catalogue: Path, name: str, text: str = RECIPE) -> Path:
    folder = catalogue / name
    (folder / "patches").mkdir(parents=True)
    (folder / "driver.toml").write_text(text.replace("made-up", name))
    (folder / "patches/fix.patch").write_bytes(b"--- a\n+++ b\n")
    return folder


def test_a_later_folder_masks_an_earlier_one(tmp_path: Path) -> None:
    driver(tmp_path / "one", "made-up")
    folder = driver(tmp_path / "two", "made-up")
    folders = [tmp_path / "one", tmp_path / "missing", tmp_path / "two"]
    assert Catalogue(folders).entry("made-up").folder == folder


def test_all_mistakes_of_a_folder_are_named_together(tmp_path: Path) -> None:
    folder = driver(tmp_path, "made-up")
    text = RECIPE.replace('name = "made-up"', 'name = "other"') + (
        '\n[[patches]]\nfile = "fix.patch"\nreason = "again"\n'
        '\n[[patches]]\nfile = "gone.patch"\nreason = "why"\n'
    )
    (folder / "driver.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_entry(folder)
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        "name: 'other' must be the folder's name, 'made-up'",
        "patches.1.file: 'fix.patch' is named twice",
        f"patches.2.file: there is no file '{folder}/patches/gone.patch'",
    ]


def test_an_installation_keeps_them_in_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECKOUT", tmp_path / "lib")
    monkeypatch.setattr(files, "_INSTALLED", tmp_path / "share/provision")
    (tmp_path / "share/provision/templates").mkdir(parents=True)
    assert templates_dir() == tmp_path / "share/provision/templates"
    with pytest.raises(NotFoundError):
        catalogue_folders()


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ('"make", "other"', '"make", "a\\nb"', "flavours.other.build.command.1"),
        ('["other.ko"]', '["a\\u0007.ko"]', "flavours.other.build.modules.0"),
        ('"/usr/lib64/made-up/"', '"/usr/lib\\u0000/"', "files.0.to"),
        ('["MIT"]', '["M\\u0007IT"]', "flavours.plain.licences.0"),
        ('"fix.patch"', f'"{"x" * 90}.patch"', "patches.0.file"),
    ],
)
def test_what_a_dockerfile_or_a_context_cant_take_is_a_mistake_of_the_file(
    tmp_path: Path, old: str, new: str, path: str
) -> None:
    assert old in RECIPE
    folder = driver(tmp_path, "made-up", RECIPE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_entry(folder)
    assert [mistake.path for mistake in caught.value.mistakes] == [path]


def test_a_patch_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.catalogue.MAX_BYTES", 10)
    folder = driver(tmp_path, "made-up")
    with pytest.raises(ConfigError) as caught:
        load_entry(folder)
    assert "is larger than 10 bytes" in str(caught.value.details)


def test_every_shipped_recipe_says_what_was_run_of_it() -> None:
    entries, problems = Catalogue(catalogue_folders()).entries()
    assert not problems
    assert [entry.recipe.name for entry in entries if not entry.recipe.proven] == []
