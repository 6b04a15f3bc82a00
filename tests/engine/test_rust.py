"""The crate with the oldest compiler that it promises, and the binary that is shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit import rust
from kit.cache import REPOSITORY
from kit.probe import find_program, is_root, need, need_programs
from kit.process import run
from kit.product import DECORATOR

if TYPE_CHECKING:
    from pathlib import Path


def test_the_crate_passes_its_tests_with_its_minimum_rustc() -> None:
    need(is_root(), "root", "run as root")
    need_programs("debootstrap", "podman", "runc")
    container = rust.container()
    rustc = (container.tree / "usr/bin/rustc").resolve()
    assert rustc.exists()
    assert rust.test(container) == 0


def test_without_a_cargo_of_its_own_the_machine_gets_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARGO_HOME", str(tmp_path))
    monkeypatch.setattr(rust, "find_program", lambda _name: None)
    need(is_root(), "root", "run as root")
    assert isinstance(rust.pick_toolchain(), rust.Container)


@pytest.mark.parametrize("has_rustup", [False, True])
def test_where_there_is_no_musl_the_compilers_own_target_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_rustup: bool
) -> None:
    cargo = find_program("cargo")
    need(cargo is not None, "cargo", "any will do")
    assert cargo is not None
    for name in ("cargo", "rustc"):
        # Links, as rustup's programs go by the name that they are called by.
        (tmp_path / name).symlink_to(cargo.parent / name)
    if has_rustup:
        rustup = tmp_path / "rustup"
        rustup.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
        rustup.chmod(0o755)
    machine = rust.Machine(tmp_path / "cargo")
    monkeypatch.setattr(rust.Machine, "_has_target", lambda _self, _triple: False)
    assert rust.target_words(machine) == ()


def test_the_binary_is_static_and_needs_no_loader() -> None:
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    headers = run(["readelf", "--program-headers", DECORATOR]).stdout
    assert "INTERP" not in headers


def test_the_other_name_is_the_same_binary() -> None:
    runtime = REPOSITORY / "build/oci-decorator-runtime"
    need(runtime.exists(), str(runtime), "make build")
    assert runtime.samefile(DECORATOR)
