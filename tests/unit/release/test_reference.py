"""What is generated: pages of the reference are the code's, manuals and scripts are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from kit.cache import REPOSITORY
from provision.cli import COMMANDS
from provision.errors import NotFoundError
from reference import completion, fields, manual, pages
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


class _Base(BaseModel):
    """A base.

    Attributes:
        name: What it is called,
            in *one* word.
    """

    name: str


class _Model(_Base):
    """A model.

    Attributes:
        size: ``1|2`` of it. Without it: the ``usual``.
        parts: Its parts.
        on: Whether it is.
    """

    size: int | None = None
    parts: list[str] = Field(default_factory=list)
    on: bool = False


def test_a_table_has_what_docstrings_say_and_what_counts_without() -> None:
    rows = list(fields._model_rows(_Model, ()))[2:]  # noqa: SLF001 - models of a test have no package
    assert rows == [
        r"| `name` | What it is called, in \*one\* word (required) |",
        r"| `size` | `1\|2` of it (default: the `usual`) |",
        "| `parts` | Its parts |",
        "| `on` | Whether it is (default: `false`) |",
    ]


def test_the_commands_of_both_programs_are_read() -> None:
    top = {one.words[1]: one for one in provision().commands}
    assert list(top) == list(COMMANDS)
    assert top["resolve"].arguments == "DRIVER"
    below = [one.words[2] for one in top["drivers"].commands]
    assert below == ["kernels", "versions", "import", "vendor-file"]
    ours = {" ".join(one.words[1:]): one for one in everything(decorator())}
    assert {"check", "precreate", "cdi generate", "cdi list", "prestart", "configure"} <= set(ours)
    named = {name for option in ours["check"].options for name in option.names}
    assert named >= {"--config-dir", "--root", "--env", "--annotation", "--privileged", "--json"}
    assert all(option.text for option in ours["check"].options)


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
