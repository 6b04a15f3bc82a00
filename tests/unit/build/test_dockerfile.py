"""What a Pin and a recipe become, whatever their values; the parts of a .run beside it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, MethodType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.pins import REPOSITORY, patches, pin, recipe, templates
from kit.runfile import manifest, write_runfile
from provision.build import versions
from provision.build.context_files import ensure_parts
from provision.build.dockerfile import (
    RenderedContext,
    label_value,
    one_line,
    render,
    shell_command,
    shell_word,
    template_family,
)
from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.catalogue import Catalogue, Recipe
from provision.config import Config
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import FORMAT, RunfileSource
from provision.sources.vendor_sums import SumRecord
from unit.build.dockerfiles import Instruction, instructions
from unit.recipes import variant

NVIDIA = ("nvidia", "535.261.03", "open")
HOSTILE = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029{}/"),
    min_size=1,
).filter(lambda text: text not in {".", ".."})


def rendered(
    driver: str, version: str, flavour: str, changes: Mapping[str, object] = MappingProxyType({})
) -> RenderedContext:
    sources = templates()
    pinned = pin(driver, version, flavour)
    recipe_ = changed(recipe(driver), dict(changes))
    return render(pinned, recipe_, templates=sources, patches=patches(driver))


def changed(recipe_: Recipe, build: dict[str, object]) -> Recipe:
    """The recipe with other values in the build of its default flavour."""
    name = recipe_.default_flavour
    flavour = recipe_.flavours[name]
    flavour = flavour.model_copy(
        update={
            "licences": build.pop("licences", flavour.licences),
            "build": variant(recipe_).build.model_copy(update=build),
        }
    )
    sources = [source.model_copy(update={"build": {}}) for source in recipe_.sources]
    return recipe_.model_copy(update={"flavours": {name: flavour}, "source": tuple(sources)})


def make_step(context: RenderedContext) -> Instruction:
    steps = instructions(context.dockerfile)
    return steps[[step.text for step in steps].index("JOBS=1") + 1]


def test_kernels_share_compiler_and_tools() -> None:
    """Nothing of a kernel is in the stage that the engine is to know from the last kernel."""
    context = rendered(*NVIDIA)
    tools, _, rest = context.dockerfile.partition("\nFROM tools AS toolchain\n")
    release = pin(*NVIDIA).kernel.release
    _, _, tools = tools.partition("AS tools\n")
    assert "packages.sha256" in tools
    assert release not in tools
    assert f"headers.sha256 gcc 12 {release} " in rest
    folders = {name.partition("/")[0] for name in context.downloads if release in name}
    assert folders == {"headers"}
    assert release not in context.files["packages.sha256"].decode()


@given(command=st.lists(HOSTILE, min_size=1), directory=HOSTILE, archive=HOSTILE, licence=HOSTILE)
def test_values_of_a_recipe_stay_in_their_place(
    command: list[str], directory: str, archive: str, licence: str
) -> None:
    kept = (REPOSITORY / "tests/golden/Dockerfile.apt").read_text()
    usual = [step.keyword for step in instructions(kept)]
    context = rendered(
        *NVIDIA,
        {
            "command": tuple(command),
            "directory": directory,
            "archive": archive,
            "licences": (licence,),
        },
    )
    assert [step.keyword for step in instructions(context.dockerfile)] == usual
    words = shlex.split(make_step(context).text)
    assert words == ["cd", f"/source/{directory}", "&&", *command]


@pytest.mark.parametrize("key", ["command", "directory", "archive"])
def test_a_line_end_is_refused(key: str) -> None:
    hostile = "x\nRUN rm -rf /"
    with pytest.raises(UsageError):
        rendered(*NVIDIA, {key: (hostile,) if key == "command" else hostile})


def test_a_pin_of_another_format_is_refused() -> None:
    pinned = pin(*NVIDIA).model_copy(update={"format": FORMAT + 1})
    with pytest.raises(ProvisionError):
        render(pinned, recipe("nvidia"), templates=templates(), patches=patches("nvidia"))


def test_a_distro_without_a_template_is_refused() -> None:
    with pytest.raises(NotFoundError):
        template_family("plan9")


@pytest.mark.parametrize("contents", [{}, {"pci-resize-resource.patch": b"other"}])
def test_missing_or_changed_patch_is_refused(contents: dict[str, bytes]) -> None:
    sources = templates()
    pinned = pin(*NVIDIA)
    with pytest.raises(ProvisionError):
        render(pinned, recipe("nvidia"), templates=sources, patches=contents)


VERSION = "580.95.05"
_ROWS = ("kernel-open/Makefile 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:rm",)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files: dict[str, bytes | Path] = {
        ".manifest": manifest(VERSION, _ROWS).encode(),
        "kernel-open/Makefile": b"all:\n",
    }
    return write_runfile(tmp_path / "driver.run", VERSION, files)


@pytest.fixture
def source(run: Path) -> RunfileSource:
    return RunfileSource(
        url="http://127.0.0.1:9/driver.run",
        sha256=hashlib.sha256(run.read_bytes()).hexdigest(),
        version=VERSION,
        architecture="x86_64",
    )


@pytest.fixture
def store(tmp_path: Path, run: Path) -> PackageStore:
    """A store that has the file."""
    made = PackageStore(tmp_path / "state")
    made.add_bytes(run.read_bytes())
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, Config(), Catalogue([]), tmp_path / "state")


def test_parts_are_made_once_and_lie_under_their_checksums(
    store: PackageStore, source: RunfileSource
) -> None:
    first = ensure_parts(store, source)
    assert sorted(first) == ["files", "kernel-open", "layer"]
    assert {path.parent for path in first.values()} == {store.files}
    (index,) = store.runfiles.iterdir()
    os.utime(index, (0, 0))
    store.path(source.sha256).unlink()
    assert ensure_parts(store, source) == first
    # Garbage collection goes by the time of use.
    assert index.stat().st_mtime > 0


@pytest.mark.parametrize("damaged", [True, False])
def test_a_part_that_is_lost_or_damaged_is_made_again(
    store: PackageStore, source: RunfileSource, *, damaged: bool
) -> None:
    first = ensure_parts(store, source)
    if damaged:
        first["layer"].write_bytes(b"something else")
    else:
        first["layer"].unlink()
    again = ensure_parts(store, source)
    assert again == first
    assert store.whole(again["layer"].name)


def test_other_rules_are_other_parts(store: PackageStore, source: RunfileSource) -> None:
    ensure_parts(store, source)
    ensure_parts(store, source.model_copy(update={"leave_out": ("CUDA_LIB",)}))
    assert len(list(store.runfiles.iterdir())) == 2


def test_a_file_that_is_refused_leaves_nothing(store: PackageStore, source: RunfileSource) -> None:
    before = set(store.files.iterdir())
    with pytest.raises(ProvisionError):
        ensure_parts(store, source.model_copy(update={"version": "1.0"}))
    assert set(store.files.iterdir()) == before
    assert not store.runfiles.exists()


def test_the_record_of_sums_lies_beside_the_store(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = settings.root / "var/lib/provision"
    for writable, place in ((True, beside), (False, settings.state)):
        monkeypatch.setattr(os, "access", lambda *_, answer=writable: answer)
        asks = versions.vendor_sums(settings, again=True)
        assert isinstance(asks, MethodType)
        assert asks.__self__ == SumRecord(place, again=True)


# Everything but line ends and control characters, which no value may hold.
PRINTABLE = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029")
)
CONTROL = [chr(code) for code in range(0x20)] + ["\x7f", "\x85", "\u2028", "\u2029"]


def read_label(text: str) -> str:
    """Undo a double-quoted value as Dockerfile's reader does."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1]
    # No quote ends the value early, no dollar is left to be a variable.
    assert re.fullmatch(r'(?:[^"$\\]|\\["$\\])*', inner, re.DOTALL)
    return re.sub(r'\\(["$\\])', r"\1", inner)


@given(PRINTABLE)
def test_label_value_is_read_back(text: str) -> None:
    assert read_label(label_value(text)) == text


@pytest.mark.parametrize("character", CONTROL)
def test_control_characters_are_refused(character: str) -> None:
    assert unicodedata.category(character) in {"Cc", "Zl", "Zp"}
    for quote in (shell_word, label_value):
        with pytest.raises(UsageError):
            quote(f"a{character}b")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("-j{jobs}", '-j"${JOBS}"'),
        ("{jobs}", '"${JOBS}"'),
        ("a b{jobs}$c", "'a b'\"${JOBS}\"'$c'"),
        ("{jobs}{jobs}", '"${JOBS}""${JOBS}"'),
        ("{other}", "'{other}'"),
    ],
)
def test_variable_is_the_only_thing_the_shell_expands(word: str, expected: str) -> None:
    assert shell_command([word], {"{jobs}": "JOBS"}) == expected


def test_one_line_joins_lines() -> None:
    assert one_line("  a\n b\tc ") == "a b c"


def test_a_label_that_is_too_long_for_a_line_is_continued_as_it_is() -> None:
    packages = [{"name": f"package-{number}"} for number in range(1000)]
    text = json.dumps(packages, separators=(",", ":"))
    value = label_value(text)
    assert max(map(len, value.split("\n"))) < 1000
    assert value.replace("\\\n", "") == f'"{text.replace(chr(34), chr(92) + chr(34))}"'
    assert not any(line.lstrip().startswith("#") for line in value.split("\n"))
