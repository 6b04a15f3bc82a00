"""Programs of ours in the build container: a failure is a line with its cause, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import make_pin
from provision.build.dockerfile import TREE, load_templates
from provision.build.output import BuildStream, build_error
from provision.build.step import run_tool

KERNEL = "6.1.0-56-amd64"
PLAN: dict[str, Any] = {
    "container": {"features": {}},
    "directory": "tree",
    "files": [],
    "host": {},
    "kernel": KERNEL,
    "licences": [],
    "modules": ["toy.ko"],
    "pin": {},
    "pin_digest": "",
}
COLLECT = "collect build.json source out userspace shell pod"
# Files of the world that a program finds, by path.
BAD_MODULE: dict[str, bytes | str] = {
    "build.json": json.dumps(PLAN),
    "source/tree/toy.ko": b"no module",
}
MISSING = "a program that is missing"
FAILURES: dict[str, tuple[str, dict[str, bytes | str], str]] = {
    "no archive": ("unpack a 0", {"a": b"<html>" * 100}, "unpack: a: neither a tar file"),
    "an archive that is missing": ("unpack a 0", {}, "unpack: failed: 'a': No such file"),
    "an archive that is a folder": ("unpack a 0", {"a/b": b""}, "unpack: failed: 'a': Is a dir"),
    "no number": ("unpack a x", {"a": b""}, "unpack: mistake: ValueError in unpack.py"),
    "no plan": (COLLECT, {}, "collect: failed: 'build.json': No such file"),
    "a plan that is none": (COLLECT, {"build.json": "{"}, "collect: mistake: JSONDecodeError"),
    "a module that was not made": (
        COLLECT,
        {"build.json": json.dumps(PLAN)},
        "collect: the build did not make the module toy.ko; it made: no module",
    ),
    "a module of another name or place": (
        COLLECT,
        {"build.json": json.dumps(PLAN), "source/tree/b/c.ko": b"", "source/tree/a.ko": b""},
        "collect: the build did not make the module toy.ko; it made: a.ko, b/c.ko",
    ),
    "a module that is none": (COLLECT, BAD_MODULE, "collect: failed: 'strip --strip-debug"),
    MISSING: (COLLECT, BAD_MODULE, "collect: failed: 'strip' can't be started: No such file"),
    "no tree": ("prepare_tree tree", {}, "kernel tree: failed: 'tree/tree.json': No such file"),
    "a tree's plan that is none": (
        "prepare_tree tree",
        {"tree/tree.json": "[]"},
        "kernel tree: mistake: ",
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder to start programs in, which lie in ``provision`` as in a build container."""
    programs = tmp_path / "provision"
    programs.mkdir()
    for name, content in load_templates(TREE).helpers.items():
        (programs / name).write_bytes(content)
    return tmp_path


def start(world: Path, words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    # As in a build container: nothing but Python's own library.
    command = [sys.executable, "-S", "-E", "provision/step.py", *words.split()]
    environment = None if path is None else {"PATH": path}
    return subprocess.run(
        command, cwd=world, env=environment, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_line_by_which_the_build_says_what_to_do(world: Path, name: str) -> None:
    words, files, line = FAILURES[name]
    for path, content in files.items():
        (world / path).parent.mkdir(parents=True, exist_ok=True)
        (world / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = start(world, words, path="/nowhere" if name == MISSING else None)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = [one for one in done.stderr.splitlines() if one.startswith(line)]
    assert said, done.stderr
    stream = BuildStream()
    stream.feed({"stream": f"Step 1/2 : RUN x\n{said[0]}\n"})
    stream.feed({"error": "returned a non-zero code: 1", "errorDetail": {"code": 1}})
    stream.finish()
    # The cause is in the message, which does not only point to the log.
    cause = said[0].partition("failed: ")[2] or said[0].rpartition(": ")[2]
    assert cause in build_error(make_pin(), stream, Path("/log")).message


def test_what_a_program_did_is_said(world: Path) -> None:
    (world / "file").write_bytes(b"")
    with tarfile.open(world / "a.tar", "w") as archive:
        archive.add(world / "file", "a")
    done = start(world, "unpack a.tar 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "unpack: 1 files\n", "")
    assert (world / "a").exists()


def test_a_vendors_encoding_does_not_stop_a_build() -> None:
    # As modinfo shows the author of an old driver.
    assert run_tool(["printf", r"J\366rg"]) == "J\N{REPLACEMENT CHARACTER}rg"
