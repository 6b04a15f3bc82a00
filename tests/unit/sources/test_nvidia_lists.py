"""The lists of files in NVIDIA's .run: every line is understood, or named in an error."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.runfile import manifest, write_runfile
from provision.errors import ProvisionError
from provision.sources.runfile import Listed, parse_manifest, place
from unit.sources.runfiles import (
    CUDA,
    ROWS,
    VERSION,
    contents,
    refused,
    rows_of,
    taken_apart,
)


def test_files_that_the_list_names_and_that_are_missing_are_named_together(tmp_path: Path) -> None:
    files = contents()
    del files[CUDA], files["nvidia-smi"]
    error = refused(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path)
    assert str(error.details).splitlines() == [CUDA, "nvidia-smi"]


def test_unknown_types_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    run = write_runfile(
        tmp_path / "a.run",
        VERSION,
        {
            **contents(
                "new.thing 0644 NEW_THING MODULE:gpgpu", "other 0644 OTHER_THING MODULE:powerd"
            ),
            "new.thing": b"x",
        },
    )
    error = refused(run, tmp_path)
    # What no feature wants may be of any type.
    assert error.details == "NEW_THING, such as new.thing"
    assert rows_of(taken_apart(run, tmp_path, leave_out=("NEW_THING",)))


def test_lines_without_sense_are_named_together(tmp_path: Path) -> None:
    rows = ("libx.so 9999 CUDA_LIB", "one 0755", "l 0000 CUDA_SYMLINK", "../x 0755 CUDA_LIB")
    run = write_runfile(tmp_path / "a.run", VERSION, contents(*rows))
    lines = str(refused(run, tmp_path).details).splitlines()
    numbers = [int(line.partition(":")[0].removeprefix("line ")) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(rows)))


@pytest.mark.parametrize("text", ["one line", manifest("1.0", ROWS)])
def test_a_list_of_another_version_is_refused(text: str, tmp_path: Path) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, contents(text=text))
    refused(run, tmp_path)


@given(st.integers(0, len(ROWS)), st.text())
def test_any_list_is_read_or_refused(at: int, text: str) -> None:
    assert _placed(ROWS)
    with suppress(ProvisionError):
        _placed((*ROWS[:at], *text.splitlines(), *ROWS[at:]))


def _placed(rows: Sequence[str]) -> object:
    listed = parse_manifest(manifest(VERSION, rows), version=VERSION)
    return place(listed, version=VERSION, said={})


_WORDS = st.sampled_from(["a", "b/c", "../d", "/", "x/", "INHERIT_PATH_DEPTH:1", "COMPAT32"])


_TYPES = st.sampled_from(["CUDA_LIB", "CUDA_SYMLINK", "FIRMWARE", "UTILITY_BINARY", "CUDA_ICD"])


@given(st.lists(st.tuples(_WORDS, st.sampled_from(["0000", "0755"]), _TYPES, st.lists(_WORDS))))
def test_every_file_goes_below_a_known_folder(
    rows: list[tuple[str, str, str, list[str]]],
) -> None:
    lines = [" ".join([name, mode, kind, *rest, "MODULE:gpgpu"]) for name, mode, kind, rest in rows]
    for line in lines:
        try:
            listed: list[Listed] = parse_manifest(manifest(VERSION, [line]), version=VERSION)
        except ProvisionError:
            continue
        for one in place(listed, version=VERSION, said={}):
            assert one.path.startswith(("/usr/", "/etc/OpenCL/", "/lib/firmware/nvidia/"))
            assert ".." not in one.path
