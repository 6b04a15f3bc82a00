"""What is generated: pages of the reference are the code's, manuals and scripts are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from provision.cli import COMMANDS
from provision.errors import NotFoundError
from reference import completion, manual, pages
from reference.commands import decorator, everything, provision

_EPOCH = 1_700_000_000


def test_no_page_is_stale() -> None:
    assert [str(page.relative_to(REPOSITORY)) for page in pages.stale()] == [], "make reference"


def test_every_command_and_table_has_its_part() -> None:
    found = {
        part
        for page in (REPOSITORY / "docs/reference").glob("*.md")
        for part in pages.parts(page.read_text())
    }
    shown = {name for kind, name in found if kind == "command"}
    # Of a group, each command may have a part of its own.
    for name in (f"provision {name}" for name in COMMANDS):
        assert any(one == name or one.startswith(f"{name} ") for one in shown), name
    assert {("settings", "top"), ("settings", "policy"), ("vendor-file", "file")} <= found


def test_a_stale_page_is_found_and_an_unknown_part_refused(tmp_path: Path) -> None:
    folder = tmp_path / "docs/reference"
    folder.mkdir(parents=True)
    schema = "provision-toml.schema.json"
    (folder / schema).write_text((REPOSITORY / "docs/reference" / schema).read_text())
    page = folder / "page.md"
    part = "# Own\n\n<!--made: command {}-->\nold\n<!--end-->\n\nbelow\n"
    page.write_text(part.format("provision facts"))
    (text,) = pages.stale(tmp_path).values()
    assert text.startswith("# Own\n")
    assert "[Shared](#shared-options): `--catalogue`" in text
    assert "\nold\n" not in text
    assert text.endswith("<!--end-->\n\nbelow\n")
    page.write_text(text)
    assert pages.stale(tmp_path) == {}
    page.write_text(part.format("provision gone"))
    with pytest.raises(NotFoundError):
        pages.stale(tmp_path)


def test_every_command_has_a_manual_that_names_its_options() -> None:
    made = manual.pages("1.2.3", _EPOCH)
    assert set(made) == {"provision.8", *(f"provision-{name}.8" for name in COMMANDS)}
    for name, text in made.items():
        assert text.startswith(f'.TH {name.removesuffix(".8").upper()} 8 "2023-11-14"')
        assert not re.search(r"(?m)^\.(?!(?:[A-Z]{1,2}|br)\b)", text), name
    for command in everything(provision()):
        if len(command.words) > 1:
            page = made["-".join(command.words[:2]) + ".8"]
            for option in command.options:
                assert option.names[-1].replace("-", "\\-") in page


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_complete_every_command(shell: str) -> None:
    script = completion.of_decorator(shell)
    for command in everything(decorator()):
        for option in command.options:
            name = option.names[-1]
            assert (name.removeprefix("--") if shell == "fish" else name) in script
    assert "_PROVISION_COMPLETE" in completion.of_provision(shell)
