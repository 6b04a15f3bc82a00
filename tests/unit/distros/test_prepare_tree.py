"""What prepares a kernel's tree in the build container, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.files import write_all
from provision.distros.prepare_tree import (
    TOOL_VERSIONS,
    Compiler,
    TreeError,
    check_compiler,
    check_drift,
    check_symvers,
    check_version,
    compiler_of,
    drift,
    find_tree,
    major_of,
    parse_config,
    prepare,
    source_version,
)

_CONFIG = """\
#
# Automatically generated file; DO NOT EDIT.
# Linux/x86 6.1.192 Kernel Configuration
#
CONFIG_CC_VERSION_TEXT="gcc (Debian 12.2.0-14+deb12u1) 12.2.0"
CONFIG_GCC_VERSION=120200
CONFIG_64BIT=y
CONFIG_BRIDGE=m
# CONFIG_STP is not set
CONFIG_LOCALVERSION="-flatcar"
"""
_NAMES = st.from_regex(r"CONFIG_[A-Z0-9_]{1,12}", fullmatch=True)
_VALUES = st.sampled_from(["y", "m", "n", "42", '"text"', "0x1000"])
_CONFIGS = st.dictionaries(_NAMES, _VALUES, max_size=8)


def _text(options: dict[str, str]) -> str:
    return "".join(
        f"# {name} is not set\n" if value == "n" else f"{name}={value}\n"
        for name, value in options.items()
    )


@given(_CONFIGS)
def test_every_configuration_comes_back(options: dict[str, str]) -> None:
    assert parse_config(_text(options)) == options


@given(_CONFIGS, _CONFIGS)
def test_drift_names_each_option_that_differs_and_no_other(
    wanted: dict[str, str], found: dict[str, str]
) -> None:
    lines = drift(wanted, found)
    different = {
        name
        for name in wanted.keys() | found.keys()
        if wanted.get(name, "n") != found.get(name, "n")
    } - TOOL_VERSIONS
    assert {line.split(":")[0] for line in lines} == different
    assert drift(wanted, wanted) == []


def test_versions_of_tools_are_no_drift_and_everything_else_is() -> None:
    wanted = parse_config(_CONFIG + "CONFIG_DEBUG_INFO_BTF_MODULES=y\nCONFIG_PAHOLE_VERSION=124\n")
    found = parse_config(_CONFIG.replace("120200", "120300") + "CONFIG_PAHOLE_VERSION=0\n")
    with pytest.raises(TreeError) as caught:
        check_drift(wanted, found)
    assert "CONFIG_DEBUG_INFO_BTF_MODULES: the kernel has y, this tree gives n" in str(caught.value)
    check_drift(wanted, {**found, "CONFIG_DEBUG_INFO_BTF_MODULES": "y"})


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", 12),
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", 12),
        ("x86_64-cros-linux-gnu-gcc (Gentoo Hardened 13.3.1_p20240614 p17) 13.3.1 20240614", 13),
        ("gcc (GCC) 11.4.1 20230605 (Red Hat 11.4.1-2)", 11),
        ("Chromium OS 17.0_pre496208_p20230501-r17 clang version 17.0.0 (/path abc)", 17),
        ("Debian clang version 14.0.6", 14),
        ("gcc", None),
    ],
)
def test_the_major_version_of_a_compiler(text: str, major: int | None) -> None:
    assert major_of(text) == major


def test_the_compiler_of_a_kernel() -> None:
    assert compiler_of(parse_config(_CONFIG)) == Compiler("gcc", 12)
    clang = {"CONFIG_CC_IS_CLANG": "y", "CONFIG_CC_VERSION_TEXT": '"Debian clang version 14.0.6"'}
    assert compiler_of(clang) == Compiler("clang", 14)
    assert compiler_of({}) is None


def test_a_compiler_of_another_major_version_is_refused() -> None:
    check_compiler(Compiler("gcc", 12), "gcc (Debian 12.4.0-1) 12.4.0\n")
    with pytest.raises(TreeError):
        check_compiler(Compiler("gcc", 12), "gcc (Debian 14.2.0-19) 14.2.0")


def test_modversions_need_symvers() -> None:
    check_symvers({"CONFIG_MODVERSIONS": "n"}, has_symvers=False, kernel="6.1.1")
    check_symvers({"CONFIG_MODVERSIONS": "y"}, has_symvers=True, kernel="6.1.1")
    with pytest.raises(TreeError):
        check_symvers({"CONFIG_MODVERSIONS": "y"}, has_symvers=False, kernel="6.1.1")


def test_a_source_has_to_be_of_the_kernel() -> None:
    makefile = "VERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 192\nEXTRAVERSION =\nNAME = Curry Ramen\n"
    assert source_version(makefile) == "6.1.192"
    check_version("6.1.192-flatcar", "6.1.192")
    for other in ("6.1.19", "6.1.192.1", "6.1", "6.2.0"):
        with pytest.raises(TreeError):
            check_version("6.1.192-flatcar", other)
    with pytest.raises(TreeError):
        source_version("all:\n")


def test_the_tree_is_found_however_deep_it_lies(tmp_path: Path) -> None:
    with pytest.raises(TreeError):
        find_tree(tmp_path)
    tree = tmp_path / "usr/src/linux-headers-6.1.192"
    (tree / "scripts").mkdir(parents=True)
    (tree / "drivers").mkdir()
    (tree / "drivers/Makefile").write_text("obj-y += net/\n")
    (tree / "Makefile").write_text("VERSION = 6\n")
    assert find_tree(tmp_path) == tree


def test_a_vendors_tree_may_have_names_in_another_encoding(tmp_path: Path) -> None:
    folder, root = tmp_path / "given", tmp_path / "root"
    tree = root / "usr/lib/modules/6.1.55/build"
    plan = '{"kernel": "6.1.55", "kind": "image", "cc": "gcc"}'
    write_all(folder, {"tree.json": plan})
    write_all(tree, {"include/generated/utsrelease.h": '#define UTS_RELEASE "6.1.55"\n'})
    makefile = b"# Ger\xe4t\nVERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 55\nEXTRAVERSION =\n"
    (tree / "Makefile").write_bytes(makefile)
    (tree / ".config").write_bytes(b'CONFIG_DEFAULT_HOSTNAME="M\xfcller"\n')
    assert prepare(folder, root, lambda _: "gcc 12.2.0\n") == tree
