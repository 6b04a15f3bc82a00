"""The two rounds of a solve: headers and tools, then the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.build.package_store import Closure, PackageStore
from provision.build.solve import solve
from provision.build.trees import Toolchain
from provision.distros.family import HeadersGoneError
from provision.errors import NotFoundError, ProvisionError
from provision.pin import PackagePin
from unit.build.solving_engine import (
    BOTH,
    GOOD,
    KERNEL,
    FakeContainer,
    SolvingEngine,
    line,
    never,
    request,
)

_GCC = PackagePin(name="gcc", version="11.4.1-1.el9")
_OLDER = (0, "", BOTH.replace("11.4.1", "8.5.0"))


def _solved(
    folder: Path, *containers: FakeContainer, distro: str = "rocky:9", **changes: object
) -> tuple[Closure, SolvingEngine]:
    engine = SolvingEngine(*containers)
    wish = request(folder, distro, **changes)
    return solve(lambda: engine, wish, PackageStore(folder)), engine


def test_one_round_where_headers_and_tools_bring_the_compiler(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", BOTH)])
    found, engine = _solved(tmp_path, container)
    assert found.compiler == _GCC
    assert [tool.name for tool in found.tools] == ["make"]
    assert all(PackageStore(tmp_path).whole(package.sha256) for package in found.packages)
    (only,) = container.scripts
    assert f"'kernel-devel-uname-r = {KERNEL}' gcc make" in only
    assert len(engine.requests) == 1


def test_a_compiler_that_no_repository_has_costs_no_further_container(tmp_path: Path) -> None:
    packages = BOTH.replace("package\tkernel-devel\t", "package\tkernel-default-devel\t")
    absent = (104, "No provider of 'gcc11' found.", "")
    container = FakeContainer([(0, "", line("make", "4.3")), absent, (0, "", packages)])
    kernel = "6.4.0-150600.23.17-default"
    found, engine = _solved(
        tmp_path, container, distro="opensuse-leap:15.6", kernel=kernel, tools=()
    )
    assert found.compiler == _GCC
    assert len(engine.requests) == 1
    assert " gcc11\n" in container.scripts[1]


def test_what_was_solved_once_is_not_solved_again(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    engine = SolvingEngine(FakeContainer(list(GOOD)), FakeContainer(list(GOOD)))
    found = solve(lambda: engine, request(tmp_path), store)
    assert solve(never, request(tmp_path), store) == found
    assert solve(lambda: engine, request(tmp_path), store, update=True) == found
    assert len(engine.requests) == 2


def test_a_kernel_tree_takes_compiler_and_tools_in_one_round(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", "\n".join([line("gcc", "11.4.1"), line("make", "4.3")]))])
    toolchain = Toolchain("gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", ("make",))
    found, _ = _solved(tmp_path, container, kernel="6.6.74-flatcar", toolchain=toolchain)
    assert (found.compiler, found.headers) == (_GCC, ())
    assert [package.name for package in found.packages] == ["gcc", "make"]
    assert "gcc make" in container.scripts[0]
    assert "kernel-devel" not in container.scripts[0]


def test_a_compiler_that_is_a_file_is_not_solved_for(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", line("make", "4.3"))])
    found, _ = _solved(tmp_path, container, toolchain=Toolchain(None, ()), tools=("make",))
    assert found.compiler is None
    assert [package.name for package in found.packages] == ["make"]
    assert " gcc" not in container.scripts[0]


def test_a_compiler_of_another_major_version_is_not_taken(tmp_path: Path) -> None:
    """The next package that may hold it is; in a container of its own."""
    toolset = BOTH.replace("package\tgcc", "package\tgcc-toolset-11-gcc")
    first, second = FakeContainer([GOOD[0], _OLDER]), FakeContainer([(0, "", toolset)])
    found, _ = _solved(tmp_path, first, second)
    assert found.compiler is not None
    assert found.compiler.name == "gcc-toolset-11-gcc"


_NO_TOOLSET = (1, "No match for argument: gcc-toolset-11-gcc", "")


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        # No compiler of that major version: which kernel asks for it is said.
        ([[GOOD[0], _OLDER], [_NO_TOOLSET]], {}),
        ([[(0, "", BOTH)], [(0, "", BOTH)]], {"toolchain": Toolchain("gcc (GCC) 9.4.0", ())}),
        # A missing tool is no missing compiler.
        ([[GOOD[0], (1, "No match for argument: make", "")]], {}),
    ],
)
def test_what_no_repository_has_is_not_found_and_not_kept(
    tmp_path: Path, answers: list[list[tuple[int, str, str]]], changes: dict[str, Any]
) -> None:
    with pytest.raises(NotFoundError):
        _solved(tmp_path, *map(FakeContainer, answers), **changes)
    assert PackageStore(tmp_path).kept(request(tmp_path, **changes).key) is None


def test_a_configuration_that_names_no_compiler_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="CONFIG_CC_VERSION_TEXT"):
        _solved(tmp_path, FakeContainer([GOOD[0]], config=b"# empty\n"))


def test_headers_that_apt_took_a_name_for_a_pattern_of_are_refused(tmp_path: Path) -> None:
    said = (
        "package\thttp://m.example/pool/main/l/linux/linux-headers-6.1.0-47-amd64_6.1-1_amd64.deb"
        f"\tlinux-headers-6.1.0-47-amd64_6.1-1_amd64.deb\t1\tSHA256:{'a' * 64}\n"
        "installed\tgcc-12\tamd64\t12.2.0\n"
    )
    config = b'CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) 12.2.0"\n'
    container = FakeContainer([(0, "", said)], config)
    with pytest.raises(HeadersGoneError):
        _solved(tmp_path, container, distro="debian:12", kernel="6.1.0-4-amd64", tools=())
