"""What becomes of Debian's versions and dependencies in an RPM."""

from __future__ import annotations

import pytest

from kit.repackaged import Rpm, dependencies, edition


@pytest.mark.parametrize(
    ("package", "version", "parts"),
    [
        ("kmod", "30+20221128-1", ("0", "30+20221128", "1")),
        ("zlib1g", "1:1.2.13.dfsg-1", ("1", "1.2.13.dfsg", "1")),
        ("base-files", "12.4+deb12u14", ("0", "12.4+deb12u14", "1")),
        ("libfoo", "1.0-2-3", ("0", "1.0_2", "3")),
        ("gcc", "4:12.2.0-3", ("0", "12.2.0", "3")),
    ],
)
def test_a_version_has_three_parts(package: str, version: str, parts: tuple[str, ...]) -> None:
    assert edition(package, version) == parts


@pytest.mark.parametrize(
    ("debian", "rpm"),
    [
        ("libc6 (>= 2.34), dash", ("libc6 >= 2.34", "dash")),
        ("libc6 (>> 2.36), libc6 (<< 2.37)", ("libc6 > 2.36-0", "libc6 < 2.37-0")),
        ("zlib1g (= 1:1.2.13.dfsg-1)", ("zlib1g = 1:1.2.13.dfsg-1",)),
        ("cpp (= 4:12.2.0-3)", ("cpp = 12.2.0-3",)),
        ("debconf (>= 0.5) | debconf-2.0", ("(debconf >= 0.5 or debconf-2.0)",)),
        ("python3:any", ("python3",)),
        ("", ()),
    ],
)
def test_a_dependency_means_the_same(debian: str, rpm: tuple[str, ...]) -> None:
    assert dependencies(debian) == rpm


def test_a_spec_lists_what_the_package_says_of_itself() -> None:
    rpm = Rpm("tool", "1.2", "3", epoch="1", noarch=True, requires=("a", "b"), conflicts=("c",))
    lines = rpm.spec(['"/usr/bin/tool"']).splitlines()
    assert {"Name: tool", "Epoch: 1", "BuildArch: noarch", "Requires: b"} <= set(lines)
    assert lines[-1] == '"/usr/bin/tool"'
    assert rpm.file == "tool-1.2-3.noarch.rpm"
