"""Which compiler, packages and release a kernel's name and configuration ask for."""

from __future__ import annotations

import pytest

from provision.distros.kernel_tree import (
    build_packages,
    compiler_beside,
    fedora_of_kernel,
    release_address,
)
from provision.errors import NotFoundError


@pytest.mark.parametrize(
    ("kernel", "release"),
    [
        ("6.11.4-301.fc41.x86_64", "fedora:41"),
        ("6.17.1-300.fc43.aarch64", "fedora:43"),
        ("6.12.0-65.fc42", "fedora:42"),
        ("5.14.0-427.el9.x86_64", None),
        ("6.6.74-flatcar", None),
        ("6.1.0-fc41custom", None),
    ],
)
def test_the_release_of_fedora_is_that_of_the_kernel(kernel: str, release: str | None) -> None:
    assert fedora_of_kernel(kernel) == release


def test_where_releases_and_builds_are() -> None:
    place = release_address("flatcar", "4081.2.0", "x86_64", mirror=None)
    assert place == "https://stable.release.flatcar-linux.net/amd64-usr/4081.2.0"
    place = release_address("flatcar", "4081.2.0", "aarch64", mirror=None)
    assert place.endswith("/arm64-usr/4081.2.0")
    assert release_address("cos", "18613.164.68", "x86_64", mirror=None).endswith("/18613.164.68")
    assert release_address("cos", "b1", "x86_64", mirror="http://m/") == "http://m/b1"
    with pytest.raises(NotFoundError):
        release_address("debian", "12", "x86_64", mirror=None)


def test_type_information_takes_a_tool_of_its_own() -> None:
    assert "dwarves" in build_packages("source", {"CONFIG_DEBUG_INFO_BTF": "y"})
    assert "dwarves" not in build_packages("source", {})
    assert "flex" not in build_packages("prepared", {})


def test_clang_is_known_by_the_configuration() -> None:
    clang = {"CONFIG_CC_IS_CLANG": "y", "CONFIG_CC_VERSION_TEXT": '"clang version 17.0.0"'}
    assert compiler_beside(clang).llvm == "1"
    assert compiler_beside(None).llvm is None
