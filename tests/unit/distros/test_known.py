"""The data files of distros: whole, found by any name, with their headers and compilers."""

from __future__ import annotations

import re

import pytest

from provision.distros.distro import (
    Distro,
    distro_named,
    distro_on,
    find_distro,
    known_distros,
    release_address,
    release_of,
)
from provision.distros.family import HeaderQuery, cc_version_text, family_of, headers_of
from provision.errors import NotFoundError

IDS = sorted({name.partition(":")[0] for name in known_distros()})
RPM_IDS = [
    name for name in IDS if (known := distro_named(name)) and known.family in {"dnf", "zypper"}
]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("rocky:9", "9"),
        ("rocky:9.4", "9"),
        ("rocky:el9", "9"),
        ("rhel:10.1", "10"),
        ("debian:bookworm", "12"),
        ("ubuntu:26.04", "26.04"),
        ("ubuntu:noble", "24.04"),
        ("opensuse-leap:15.6", "15.6"),
        ("amzn:2023", "2023"),
    ],
)
def test_a_release_is_found_by_version_point_release_and_codename(text: str, version: str) -> None:
    found = find_distro(text)
    assert (found.id, found.version) == (text.partition(":")[0], version)
    assert find_distro(f"{found.id}:{found.codename}") == found
    distro, release = release_of(found)
    assert (distro.id, release.version) == (found.id, version)


@pytest.mark.parametrize(
    "text", ["rocky", "rocky:", "debian:21", "rocky:7", "rocky:99.1", "sles:15", "", ":9"]
)
def test_what_is_not_known_names_what_is(text: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_distro(text)
    assert "rocky:9" in str(caught.value.resolution)


@pytest.mark.parametrize("version", ["4081.2.0", "3227.2.4", "9999.0.0"])
def test_a_distro_with_trees_has_any_version_and_keeps_it(version: str) -> None:
    """Each has a kernel and an image of its own."""
    found = find_distro(f"flatcar:{version}")
    assert (found.id, found.version) == ("flatcar", version)
    distro, release = release_of(found)
    assert distro.family == "tree"
    assert release.version
    for text in ("flatcar:", "flatcar:../x", "flatcar:1 2"):
        with pytest.raises(NotFoundError):
            find_distro(text)


@pytest.mark.parametrize("text", ["arch:", "bazzite:42", "linuxmint:22"])
def test_a_host_of_another_distro_has_two_ways_out(text: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_distro(text)
    said = str(caught.value.resolution)
    assert "Did you mean" not in said
    assert 'kernel_distro = "ID:VERSION"' in said
    assert "[[trees]]" in said


def test_a_misspelling_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_distro("rokcy:9")
    assert "Did you mean 'rocky:9'?" in str(caught.value.resolution)


@pytest.mark.parametrize("distro_id", RPM_IDS)
def test_every_rpm_distro_has_headers_keys_and_a_compiler(distro_id: str) -> None:
    distro = distro_named(distro_id)
    assert distro is not None
    assert distro.keys
    assert distro.archives
    assert any(rule.command == "gcc" for rule in distro.compilers)
    assert {"kmod", "make", "patch", "tar", "xz"} <= set(distro.tools)
    for release in distro.releases:
        # The collector needs Python 3.9.
        tools = distro.build_tools(release, ["libc6-dev", "made-up"])
        assert any(re.match(r"python3", name) for name in tools)
        assert "glibc-devel" in tools
        assert "made-up" in tools


@pytest.mark.parametrize(
    ("host", "version", "kernel", "distro"),
    [
        ("debian", "12", "6.8.12-4-pve", "proxmox:8"),
        ("debian", "13", "6.14.8-2-pve", "proxmox:9"),
        ("debian", "12", "6.1.0-47-amd64", None),
        ("ubuntu", "24.04", "6.8.12-4-pve", None),
        ("plan9", "4", "6.8.12-4-pve", None),
    ],
)
def test_a_distro_whose_hosts_say_they_are_another_is_known_by_its_kernel(
    host: str, version: str, kernel: str, distro: str | None
) -> None:
    assert distro_on(host, version, kernel) == distro


@pytest.mark.parametrize(
    ("distro", "named", "is_kernel"),
    [
        ("debian", "6.12.117+deb13-amd64", True),
        ("debian", "6.1.0-0.deb11.5-amd64", True),
        # A package without content, which depends on the newest kernel's.
        ("debian", "6.12-amd64", False),
        ("debian", "6.1.0-47-common", False),
        ("ubuntu", "6.8.0-45-generic", True),
        ("ubuntu", "6.8.0-45", False),
        ("proxmox", "6.8.12-4-pve", True),
        ("proxmox", "6.8", False),
    ],
)
def test_packages_of_headers_are_told_from_those_that_only_name_them(
    distro: str, named: str, *, is_kernel: bool
) -> None:
    data = distro_named(distro)
    assert data
    (name, *_) = data.headers[0].specs[0].split("|")
    line = f"{name.format(kernel=named)} | 1-1 | http://m bookworm/main amd64 Packages\n"
    found = family_of(data).parse_kernels(data, line.encode())
    assert found == ((named,) if is_kernel else ())


def test_where_releases_and_builds_are() -> None:
    place = release_address("flatcar", "4081.2.0", "x86_64", mirror=None)
    assert place == "https://stable.release.flatcar-linux.net/amd64-usr/4081.2.0"
    place = release_address("flatcar", "4081.2.0", "aarch64", mirror=None)
    assert place.endswith("/arm64-usr/4081.2.0")
    assert release_address("cos", "18613.164.68", "x86_64", mirror=None).endswith("/18613.164.68")
    assert release_address("cos", "b1", "x86_64", mirror="http://m/") == "http://m/b1"
    with pytest.raises(NotFoundError):
        release_address("debian", "12", "x86_64", mirror=None)


def distro(name: str) -> Distro:
    found = distro_named(name)
    assert found is not None
    return found


def headers(name: str, kernel: str, architecture: str = "x86_64") -> HeaderQuery:
    return headers_of(distro(name), kernel, architecture)


@pytest.mark.parametrize(
    ("name", "kernel", "spec", "build"),
    [
        # The kernel is `{}`, and the folder is below /usr/src.
        ("rocky", "5.14.0-427.13.1.el9_4.x86_64", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("rhel", "5.14.0-427.13.1.el9_4.x86_64+rt", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("rhel", "5.14.0-503.11.1.el9_5.aarch64+64k", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("ol", "5.15.0-205.149.5.4.el9uek.x86_64", "kernel-uek-devel-uname-r = {}", "kernels/{}"),
        ("amzn", "6.1.109-118.189.amzn2023.x86_64", "kernel-devel-{}", "kernels/{}"),
        ("amzn", "6.12.20-23.97.amzn2023.x86_64", "kernel6.12-devel-{}", "kernels/{}"),
        (
            "opensuse-leap",
            "6.4.0-150600.23.17-default",
            "kernel-default-devel = 6.4.0-150600.23.17",
            "linux-6.4.0-150600.23.17-obj/x86_64/default",
        ),
        (
            "sles",
            "6.4.0-150600.8.5-azure",
            "kernel-azure-devel = 6.4.0-150600.8.5",
            "linux-6.4.0-150600.8.5-azure-obj/x86_64/azure",
        ),
    ],
)
def test_headers(name: str, kernel: str, spec: str, build: str) -> None:
    query = headers(name, kernel)
    assert [one.text for one in query.specs] == [spec.format(kernel)]
    assert query.build == f"/usr/src/{build.format(kernel)}"
    assert query.config == f"{query.build}/.config"


@pytest.mark.parametrize("variant", ["rt", "rt-debug", "rt-64k"])
def test_kernels_in_a_repository_of_their_own_name_it(variant: str) -> None:
    found = headers("rhel", f"5.14.0-503.11.1.el9_5.aarch64+{variant}", "aarch64")
    assert "real-time" in str(found.repository)
    assert headers("rhel", "5.14.0-503.11.1.el9_5.aarch64+64k", "aarch64").repository is None


def test_suse_has_the_kernels_own_name_of_the_architecture() -> None:
    query = headers("sles", "6.4.0-150600.23.17-default", "aarch64")
    assert query.build == "/usr/src/linux-6.4.0-150600.23.17-obj/arm64/default"
    assert query.source == "/usr/src/linux-6.4.0-150600.23.17"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("rhel", "2.6.18-400.el5xen"),
        ("sles", "3.12.49-11-xen"),
        ("opensuse-leap", "4.4.21-69-xen"),
        # Another distro's.
        ("opensuse-leap", "5.14.0-427.13.1.el9_4.x86_64"),
    ],
)
def test_kernels_without_headers_are_refused(name: str, kernel: str) -> None:
    with pytest.raises(NotFoundError):
        headers(name, kernel)


_TOOLSET = ("gcc", "gcc-toolset-{}-gcc")


@pytest.mark.parametrize(
    ("name", "text", "packages", "major"),
    [
        ("rocky", "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", _TOOLSET, 11),
        ("rocky", "gcc (GCC) 8.5.0 20210514 (Red Hat 8.5.0-20)", _TOOLSET, 8),
        ("rocky", "gcc (SUSE Linux) 7.5.0", _TOOLSET, 7),
        ("rocky", "Red Hat clang version 17.0.6 (Red Hat 17.0.6-5)", ("clang",), 17),
        ("ubuntu", "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1) 12.3.0", ("gcc-{}",), 12),
        ("ubuntu", "x86_64-linux-gnu-gcc (Ubuntu 15.2.0-4ubuntu4) 15.2.0", ("gcc-{}",), 15),
        ("debian", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", ("gcc-{}",), 12),
    ],
)
def test_a_compiler_has_a_package_and_a_major_version(
    name: str, text: str, packages: tuple[str, ...], major: int
) -> None:
    found = family_of(distro(name)).compiler(distro(name), text)
    assert [spec.text for spec in found] == [package.format(major) for package in packages]
    assert {spec.major for spec in found} == {major}


def test_the_compilers_text_is_read_from_a_configuration() -> None:
    text = 'CONFIG_CC_VERSION_TEXT="gcc (GCC) 11.4.1"\nCONFIG_CC_IS_GCC=y\n'
    assert cc_version_text(f"# Linux\n{text}") == "gcc (GCC) 11.4.1"
    assert cc_version_text("# CONFIG_CC_VERSION_TEXT is not set\n") is None
