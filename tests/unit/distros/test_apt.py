"""The family of apt: its sources, its scripts, what its answers say, and Debian's versions."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debian import debian_support
from kit.process import run
from provision.distros import compare_versions, upstream_version, version_key
from provision.distros.archive import Archive, parse_depends, parse_packages
from provision.distros.distro import Distro, distro_named
from provision.distros.family import Repository, SolveRequest, Spec, family_of, headers_of
from provision.distros.repositories import AptSource, binary_key, read_sources
from provision.errors import NotFoundError, ProvisionError
from unit.build.made_up_driver import BASE
from unit.fake_archive import MIRROR, answer, archive_of, samples, stanza

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
    query = headers_of(distro(name), kernel, "x86_64")
    assert query.flavour == flavour
    assert query.specs == (Spec(f"linux-headers-{kernel}"),)
    assert query.config == f"/usr/src/linux-headers-{kernel}/.config"


def test_the_source_of_debians_kernels_is_the_shared_folder() -> None:
    rt = headers_of(distro("debian"), "6.1.0-47-rt-amd64", "x86_64")
    assert rt.source == "/usr/src/linux-headers-6.1.0-47-common-rt"
    cloud = headers_of(distro("debian"), "6.1.0-47-cloud-amd64", "x86_64")
    assert cloud.source == "/usr/src/linux-headers-6.1.0-47-common"


@pytest.mark.parametrize("kernel", ["6.10.0-061000-generic", "6.11.0-061100rc3-lowlatency"])
def test_a_mainline_build_is_refused(kernel: str) -> None:
    with pytest.raises(NotFoundError):
        headers_of(UBUNTU, kernel, "x86_64")


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
    lines = APT.solve(SolveRequest(UBUNTU, NOBLE, BASE), (Spec("x"), Spec(spec))).text.splitlines()
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
    script = APT.solve(
        SolveRequest(UBUNTU, NOBLE, BASE), (Spec("make"),), config="/usr/src/K/.config"
    ).text
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
    solving = family_of(found).solve(SolveRequest(found, found.releases[0], BASE), (Spec("gcc"),))
    assert said in solving.text


KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
# Each file of a host, and what apt takes from it.
FILES = {
    "sources.list": (
        (
            "# deb http://comment.example/debian bookworm main\n"
            "deb-src http://sources.example/debian bookworm main\n"
            "deb http://m.example\n"
            "deb [arch=amd64,arm64 signed-by=/k/A.gpg,/k/b.gpg] http://mirror.example/debian"
            " bookworm main # why\n"
            "deb [check-valid-until=no] http://old.example/debian/ bookworm main contrib\n"
            "deb [signed-by=ABCDEF0123456789] http://narrow.example bookworm main\n"
            "deb http://flat.example/ ./\n"
        ),
        [
            AptSource("http://mirror.example/debian", "bookworm", ("main",), "/k/A.gpg,/k/b.gpg"),
            AptSource(
                "http://old.example/debian", "bookworm", ("main", "contrib"), is_snapshot=True
            ),
            AptSource("http://narrow.example", "bookworm", ("main",), "ABCDEF0123456789"),
            AptSource("http://flat.example", "./"),
        ],
    ),
    "sources.list.d/b.list": (
        "deb http://b.example/d b main\ndeb mirror+file:/etc/apt/none.list d main\n",
        [
            AptSource("http://b.example/d", "b", ("main",)),
            AptSource("mirror+file:/etc/apt/none.list", "d", ("main",)),
        ],
    ),
    "sources.list.d/c.sources": (
        (
            "# The distribution itself.\n"
            "Types: deb deb-src\n"
            "# An older snapshot stood here.\n"
            "URIs: http://mirror.example/debian/\n"
            "Suites: bookworm\n bookworm-updates\n"
            "Components: main contrib\n"
            "Check-Valid-Until: no\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            "\n"
            "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\nEnabled: no\n"
            "\n"
            "Types: deb-src\nURIs: http://sources.example/debian\nSuites: bookworm\n"
            " \n"
            "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/c.list\nSuites: c\nComponents: main\n"
            f"Signed-By:\n {KEY}\n .\n AAAA\n"
        ),
        [
            *(
                AptSource(
                    "http://mirror.example/debian",
                    suite,
                    ("main", "contrib"),
                    "/usr/share/keyrings/debian-archive-keyring.gpg",
                    is_snapshot=True,
                )
                for suite in ("bookworm", "bookworm-updates")
            ),
            AptSource("http://c.example/d", "c", ("main",), f"{KEY}\n .\n AAAA"),
        ],
    ),
    "sources.list.d/e.sources.save": ("not apt's business", []),
    "mirrors/c.list": (
        "# near\nfile:/media/c\nhttp://c.example/d/\tpriority:1\nhttp://far.example\n",
        [],
    ),
}


def test_every_file_of_apt_is_read_as_apt_reads_it(tmp_path: Path) -> None:
    for name, (text, _) in FILES.items():
        path = tmp_path / "etc/apt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(read_sources(tmp_path)) == [one for _, found in FILES.values() for one in found]


def test_a_host_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert not list(read_sources(tmp_path))


BEGIN, END = KEY, "-----END PGP PUBLIC KEY BLOCK-----"


def armor(key: bytes, *, headers: tuple[str, ...] = ()) -> str:
    data = base64.b64encode(key).decode()
    body = [data[at : at + 64] for at in range(0, len(data), 64)]
    return "".join(f"{line}\n" for line in (BEGIN, *headers, "", *body, "=njUN", END))


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=3))
def test_armor_comes_off(keys: list[bytes]) -> None:
    text = "\n".join(armor(key, headers=("Version: 1", "Comment: x")) for key in keys)
    assert binary_key(text.encode(), name="f") == b"".join(keys)


def test_a_binary_keyring_stays_as_it_is() -> None:
    assert binary_key(b"\x99\x01binary", name="f") == b"\x99\x01binary"


@pytest.mark.parametrize("body", ["", "AA!A", "AAA", "ÄÄÄÄ"])
def test_a_damaged_key_is_an_error(body: str) -> None:
    with pytest.raises(ProvisionError):
        binary_key(f"{BEGIN}\n\n{body}\n{END}\n".encode(), name="f")


TEXTS = {
    ("bookworm", "main"): "\n".join([stanza("tool", "1.9-1"), stanza("tool-more", "1-1")]),
    ("bookworm", "contrib"): stanza("tool", "1.10-1"),
    ("bookworm-security", "main"): stanza("tool", "1.10-1+deb12u1"),
    ("bookworm-backports", "main"): "\n".join([stanza("tool", "3-1"), stanza("late", "3-1")]),
}


def test_versions_come_newest_first_and_those_of_backports_last() -> None:
    archive = archive_of(TEXTS)
    found = [
        (package.version, package.suite, package.component, package.url.rpartition("/pool")[0])
        for package in archive.versions("tool")
    ]
    assert found == [
        ("1.10-1+deb12u1", "bookworm-security", "main", f"{MIRROR}-security"),
        ("1.10-1", "bookworm", "contrib", MIRROR),
        ("1.9-1", "bookworm", "main", MIRROR),
        ("3-1", "bookworm-backports", "main", MIRROR),
    ]
    late = archive.package("late")
    assert late is not None
    assert late.version == "3-1"
    assert archive.package("missing") is None


def test_all_that_a_driver_needs_is_one_question() -> None:
    asked: list[tuple[str, ...]] = []

    def ask(words: tuple[str, ...]) -> bytes:
        asked.append(words)
        return answer(TEXTS, words)

    suite = Repository("bookworm", ("http://me:secret@mirror.example/debian",))
    archive = Archive("debian:12", [suite], ["tool", "other"], ask)
    package = archive.package("tool")
    assert archive.versions("other") == []
    assert asked == [("other", "tool")]
    archive.ask("tool-more", "late")
    assert archive.package("late")
    assert len(asked) == 2
    # apt names no passwords, and a download needs them.
    assert package is not None
    assert archive.versions("tool")[-1].url.startswith(
        "http://me:secret@mirror.example/debian/pool/"
    )


def test_what_is_installed_and_in_no_archive_is_left_out() -> None:
    said = answer(TEXTS, ("tool",))
    assert parse_packages(said + b"\nPackage: tool\nVersion: 0.1\n", {}) == parse_packages(said, {})


@pytest.mark.parametrize(("old", "new"), [(b"Size: 1", b"Size: much"), (b"1.9-1", b"1.9_1")])
def test_a_broken_entry_is_refused(old: bytes, new: bytes) -> None:
    said = answer({("bookworm", "main"): stanza("tool", "1.9-1")}, ("tool",))
    with pytest.raises(ProvisionError):
        parse_packages(said.replace(old, new), {})


NAME = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True)
VERSION = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~]{0,8}(-[0-9a-z.]{1,4})?", fullmatch=True)
CONDITION = st.builds("({} {})".format, st.sampled_from(["<<", "<=", "=", ">=", ">>"]), VERSION)
GROUP = st.lists(st.tuples(NAME, st.none() | CONDITION), min_size=1, max_size=3).map(tuple)


@given(st.lists(GROUP, max_size=5).map(tuple))
def test_the_names_of_what_is_written_are_read(
    groups: tuple[tuple[tuple[str, str | None], ...], ...],
) -> None:
    text = ", ".join(" | ".join(" ".join(filter(None, part)) for part in group) for group in groups)
    assert parse_depends(text) == tuple(tuple(name for name, _ in group) for group in groups)


def test_what_is_no_relation_is_an_error() -> None:
    with pytest.raises(ProvisionError):
        parse_depends("gcc-12, what is this (")


_VERSION = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~]{0,6}(-[0-9a-z.~]{1,4})?", fullmatch=True)


@given(_VERSION, _VERSION)
def test_the_order_is_that_of_dpkg(one: str, other: str) -> None:
    assert compare_versions(one, other) == debian_support.version_compare(one, other)


@given(st.text(max_size=8), st.text(max_size=8))
def test_any_text_of_a_vendor_has_a_place(one: str, other: str) -> None:
    assert compare_versions(one, other) == -compare_versions(other, one)


def test_a_vendors_version_is_between_its_neighbours() -> None:
    versions = ["7.1.0", "7.0.22_OSE", "7.0.20_OSE", "7.0.20"]
    assert sorted(versions, key=version_key) == versions[::-1]


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1", "535.261.03"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("2:1.0-rc-3", "1.0-rc"),
        ("6.1", "6.1"),
        ("7.0.20_OSE", "7.0.20_OSE"),
    ],
)
def test_the_upstream_part_has_no_epoch_and_no_revision(version: str, upstream: str) -> None:
    assert upstream_version(version) == upstream
