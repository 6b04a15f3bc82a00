"""The family of apt: what its scripts write, and what it makes of apt's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.process import run
from provision.distros import Distro, Spec, Supply, distro_named, family_of
from provision.errors import NotFoundError, ProvisionError
from unit.fake_archive import answer, samples

KERNEL = "6.8.0-45-generic"
SUM = "a" * 64


def distro(name: str = "ubuntu") -> Distro:
    found = distro_named(name)
    assert found
    return found


UBUNTU = distro()
APT = family_of(UBUNTU)
NOBLE = UBUNTU.releases[1]
LISTING = "\n".join(
    [
        "installed\tlibc6\tamd64\t2.39-0ubuntu8",
        "installed\tgcc-14-base\tamd64\t14-20240412-0ubuntu1",
        (
            f"package\thttp://m.example/ubuntu/pool/main/l/linux/linux-headers-{KERNEL}_6.8.0-45.45"
            f"_amd64.deb\tlinux-headers-{KERNEL}_6.8.0-45.45_amd64.deb\t3700000\tSHA256:{SUM}"
        ),
        (
            "package\thttp://m.example/ubuntu/pool/main/g/glibc/libc6_2.39-0ubuntu8.3_amd64.deb"
            f"\tlibc6_2.39-0ubuntu8.3_amd64.deb\t3200000\tSHA256:{SUM}"
        ),
        (
            "package\thttp://m.example/debian-security/pool/updates/main/g/git/git_2.39.5-0%2bdeb12u3"
            f"_amd64.deb\tgit_1%3a2.39.5-0+deb12u3_amd64.deb\t7000000\tSHA256:{SUM}"
        ),
        "",
    ]
).encode()


@pytest.mark.parametrize(
    ("name", "kernel", "flavour"),
    [
        ("ubuntu", KERNEL, "generic"),
        ("ubuntu", "6.8.0-1016-aws", "variants"),
        ("ubuntu", "6.8.0-45-generic-64k", "variants"),
        ("ubuntu", "6.8.0-1018-nvidia", "variants"),
        ("ubuntu", "6.8.0-1018-nvidia-64k", "variants"),
        ("ubuntu", "5.15.0-1027-nvidia-tegra-igx", "variants"),
        ("ubuntu", "5.15.0-119-lowlatency", "variants"),
        ("debian", "6.1.0-47-amd64", "plain"),
        ("debian", "6.12.117+deb13-amd64", "plain"),
        ("debian", "6.12.9+bpo-arm64", "plain"),
        ("debian", "6.1.0-0.deb11.5-amd64", "plain"),
        ("debian", "6.1.0-47-cloud-amd64", "variants"),
        ("debian", "6.12.57+deb13-arm64-16k", "variants"),
        ("debian", "6.1.0-47-rt-amd64", "rt"),
        ("debian", "6.8.12-4-pve", "foreign"),
        ("debian", "6.6.51+rpt-rpi-v8", "foreign"),
        ("debian", "6.12.8-x64v3-xanmod1", "foreign"),
        ("debian", "6.12.8-1-liquorix-amd64", "foreign"),
    ],
)
def test_a_kernels_headers_are_a_package_of_its_name(name: str, kernel: str, flavour: str) -> None:
    query = APT.headers(distro(name), kernel, "x86_64")
    assert query.flavour == flavour
    assert query.specs == (Spec(f"linux-headers-{kernel}"),)
    assert query.config == f"/usr/src/linux-headers-{kernel}/.config"


def test_the_source_of_debians_kernels_is_the_shared_folder() -> None:
    rt = APT.headers(distro("debian"), "6.1.0-47-rt-amd64", "x86_64")
    assert rt.source == "/usr/src/linux-headers-6.1.0-47-common-rt"
    cloud = APT.headers(distro("debian"), "6.1.0-47-cloud-amd64", "x86_64")
    assert cloud.source == "/usr/src/linux-headers-6.1.0-47-common"


@pytest.mark.parametrize("kernel", ["6.10.0-061000-generic", "6.11.0-061100rc3-lowlatency"])
def test_a_mainline_build_is_refused(kernel: str) -> None:
    with pytest.raises(NotFoundError):
        APT.headers(UBUNTU, kernel, "x86_64")


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", "gcc-12"),
        ("x86_64-linux-gnu-gcc (Ubuntu 15.2.0-4ubuntu4) 15.2.0", "gcc-15"),
        ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "gcc-11"),
        ("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc-12"),
    ],
)
def test_the_compilers_package_has_its_major_version(text: str, package: str) -> None:
    assert [spec.text for spec in APT.compiler(UBUNTU, text)] == [package]


def test_a_listing_is_read() -> None:
    git, libc, headers = APT.parse(LISTING)
    assert (headers.pinned.name, headers.pinned.version) == (
        f"linux-headers-{KERNEL}",
        "6.8.0-45.45",
    )
    assert (headers.pinned.repository, headers.pinned.action) == ("main", "install")
    assert headers.pinned.location.startswith("pool/main/l/linux/linux-headers-")
    assert headers.urls[0].startswith("http://m.example/ubuntu/pool/")
    assert (libc.pinned.action, libc.pinned.version) == ("upgrade", "2.39-0ubuntu8.3")
    assert git.pinned.version == "1:2.39.5-0+deb12u3"
    assert git.pinned.location == "pool/updates/main/g/git/git_2.39.5-0+deb12u3_amd64.deb"
    assert git.file == "git_1%3a2.39.5-0+deb12u3_amd64.deb"
    assert APT.installed(LISTING)["libc6"] == "2.39-0ubuntu8"


def test_one_closure_has_one_digest_whatever_the_mirror() -> None:
    other = LISTING.replace(b"http://m.example/ubuntu/", b"https://eu.example/mirrors/ubuntu/")
    assert [p.pinned for p in APT.parse(LISTING)] == [p.pinned for p in APT.parse(other)]


@pytest.mark.parametrize(
    "line",
    [
        "package\turl\tfile",
        f"package\turl\tno-version.deb\t1\tSHA256:{SUM}",
        f"package\turl\ta_1_amd64.deb\tmany\tSHA256:{SUM}",
        "package\turl\ta_1_amd64.deb\t1\tMD5Sum:d41d8cd98f00b204e9800998ecf8427e",
        f"package\turl\ta_1 1_amd64.deb\t1\tSHA256:{SUM}",
        "other\tline",
    ],
)
def test_what_is_no_listing_is_refused(line: str) -> None:
    with pytest.raises(ProvisionError):
        APT.parse(line.encode())


@given(
    st.from_regex(r"[a-z][a-z0-9+.-]{1,20}", fullmatch=True),
    st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~-]{0,20}", fullmatch=True),
)
def test_names_and_versions_survive_apts_way_of_naming_files(name: str, version: str) -> None:
    file = f"{name}_{version.replace(':', '%3a')}_amd64.deb"
    line = f"package\thttp://m.example/u/pool/main/a/{file}\t{file}\t1\tSHA256:{SUM}"
    (package,) = APT.parse(line.encode())
    assert (package.pinned.name, package.pinned.version) == (name, version)


# An archive that has the packages b and c; apt-cache ends with 0 for a name that others mention.
_ARCHIVE = 'apt_cache() { case $2 in b | c) echo "Package: $2";; esac; }'


@pytest.mark.parametrize(
    ("spec", "asked"), [("make; reboot", "make; reboot"), ("b|c", "b"), ("a|c", "c"), ("d|a", "d")]
)
def test_apt_gets_one_word_for_a_spec(spec: str, asked: str) -> None:
    lines = APT.solve(Supply(UBUNTU, NOBLE), (Spec("x"), Spec(spec))).text.splitlines()
    begin, end = (
        lines.index("first_of() {"),
        next(number for number, line in enumerate(lines) if line.startswith("set -- ")),
    )
    script = "\n".join([_ARCHIVE, *lines[begin : end + 1], "printf '%s\\n' \"$@\""])
    assert run(["sh", "-c", script]).stdout.splitlines() == ["x", asked]


def test_packaged_kernels_are_listed_newest_first() -> None:
    said = answer(samples(), ("linux-headers-*",))
    assert APT.parse_kernels(distro("debian"), said) == (
        "6.12.117+deb12-amd64",
        "6.1.0-56-amd64",
        "6.1.0-50-amd64",
        "6.1.0-47-amd64",
    )


def test_headers_of_the_base_image_say_what_built_their_kernel() -> None:
    script = APT.solve(Supply(UBUNTU, NOBLE), (Spec("make"),), config="/usr/src/K/.config").text
    of_package, _, rest = script.rpartition("if [ ! -s config ] && [ -s /usr/src/K/.config ];")
    assert "dpkg-deb --fsys-tarfile" in of_package
    assert rest.startswith(" then cp /usr/src/K/.config config; fi\n")
    assert "exit 1" in rest


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("debian", r"Package: dkms\nPin: version *\nPin-Priority: -1"),
        ("fedora", "--exclude=dkms --exclude=akmods"),
        ("opensuse-leap", "addlock dkms akmods"),
    ],
)
def test_what_builds_in_hooks_is_never_installed_where_a_driver_is_built(
    name: str, said: str
) -> None:
    """It would build other drivers, and fail the build: apt_preferences(5), dnf(8), zypper(8)."""
    found = distro(name)
    solving = family_of(found).solve(Supply(found, found.releases[0]), (Spec("gcc"),))
    assert said in solving.text
