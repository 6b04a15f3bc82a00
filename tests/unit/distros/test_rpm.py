"""The listing that the scripts of dnf and zypper write, and the scripts themselves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from koji import PathInfo as KojiPaths

from provision.distros import rpm
from provision.distros.distro import Vault, distro_named, find_distro, release_of
from provision.distros.dnf import (
    Dnf,
    archive_of_headers,
    archived_files,
    header_addresses,
)
from provision.distros.family import Repository, SolveRequest, Spec
from provision.distros.zypper import Zypper
from provision.errors import ProvisionError
from unit.build.made_up_driver import BASE

_SHA = "a" * 64
LISTING = f"""\
installed\tbash\tx86_64\t(none)\t5.1.8\t9.el9
installed\topenssl-libs\tx86_64\t1\t3.0.7\t24.el9
package\tkernel-devel\t(none)\t5.14.0\t427.el9\tx86_64\t21\t{_SHA}\tkernel-devel-5.14.0-427.el9.x86_64.rpm
package\topenssl-libs\t1\t3.0.7\t27.el9\tx86_64\t7\t{"b" * 64}\topenssl-libs-3.0.7-27.el9.x86_64.rpm
located\tappstream\tPackages/k/kernel-devel-5.14.0-427.el9.x86_64.rpm
base\tappstream\thttp://one.example/os/
base\tappstream\thttp://two.example/os
url\thttp://three.example/x/openssl-libs-3.0.7-27.el9.x86_64.rpm
"""


def test_a_listing_is_a_closure() -> None:
    kernel, openssl = Dnf().parse(LISTING.encode())
    assert kernel.pinned.version == "5.14.0-427.el9"
    assert kernel.pinned.repository == "appstream"
    assert kernel.pinned.location == "Packages/k/kernel-devel-5.14.0-427.el9.x86_64.rpm"
    assert kernel.urls == tuple(
        f"http://{host}.example/os/{kernel.pinned.location}" for host in ("one", "two")
    )
    assert (openssl.pinned.version, openssl.pinned.action) == ("1:3.0.7-27.el9", "upgrade")
    assert openssl.urls == ("http://three.example/x/openssl-libs-3.0.7-27.el9.x86_64.rpm",)
    assert Dnf().installed(LISTING.encode())["openssl-libs"] == "1:3.0.7-24.el9"


def test_a_kernels_headers_stay_beside_those_of_another() -> None:
    listing = "installed\tkernel-devel\tx86_64\t(none)\t5.14.0\t1.el9\n" + LISTING
    assert Dnf().parse(listing.encode())[0].pinned.action == "install"


def test_a_package_of_no_known_origin_is_in_the_closure_too() -> None:
    without = "\n".join(line for line in LISTING.splitlines() if not line.startswith("located"))
    kernel, _ = Dnf().parse(without.encode())
    assert kernel.pinned.repository == "unknown"
    assert kernel.pinned.location == "kernel-devel-5.14.0-427.el9.x86_64.rpm"


def test_a_solver_that_knows_no_location_says_the_name_and_the_address() -> None:
    """As dnf 4.23; what the address has below that of the repository is the location."""
    name = "kernel-devel-5.14.0-427.el9.x86_64.rpm"
    listing = LISTING.replace(f"Packages/k/{name}", name)
    below = f"url\thttp://two.example/os/Packages/k/{name}\n"
    assert Dnf().parse(f"{listing}{below}".encode()) == Dnf().parse(LISTING.encode())
    # Where the repositories are the image's own, the address is all there is.
    lines = f"{listing}{below}".splitlines(keepends=True)
    own = "".join(line for line in lines if not line.startswith("base"))
    kernel, _ = Dnf().parse(own.encode())
    assert (kernel.pinned.repository, kernel.pinned.location) == ("appstream", name)
    assert kernel.urls == (f"http://two.example/os/Packages/k/{name}",)


@pytest.mark.parametrize(
    "line",
    [
        "package\tgcc",
        "what\tis\tthis",
        *(
            LISTING.splitlines()[2].replace("\t21\t", f"\t{size}\t")
            for size in ("much", "9" * 5000)
        ),
    ],
    ids=["short", "another", "no number", "too long"],
)
def test_a_line_that_is_none_is_a_defect_that_names_it(line: str) -> None:
    with pytest.raises(ProvisionError) as caught:
        Dnf().parse(f"{LISTING}{line}\n".encode())
    assert caught.value.details == line


_PACKAGE = st.tuples(
    st.from_regex(r"[A-Za-z][A-Za-z0-9+._-]{1,9}", fullmatch=True),
    st.sampled_from(["(none)", "0", "1", "32"]),
    st.from_regex(r"[0-9][A-Za-z0-9._+~^]{0,8}", fullmatch=True),
    st.from_regex(r"[0-9][A-Za-z0-9._+~]{0,8}", fullmatch=True),
    st.sampled_from(["x86_64", "noarch", "aarch64"]),
    st.integers(0, 1 << 40),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)


@given(st.lists(_PACKAGE, max_size=8), st.randoms())
def test_every_package_comes_out_whatever_the_order(
    packages: list[tuple[object, ...]], random: object
) -> None:
    lines = [
        "package\t" + "\t".join(map(str, package)) + f"\tp{number}.rpm"
        for number, package in enumerate(packages)
    ]
    found = Dnf().parse("\n".join(lines).encode())
    random.shuffle(lines)  # type: ignore[attr-defined]
    again = Dnf().parse("\n".join(lines).encode())
    assert sorted(found, key=str) == sorted(again, key=str)
    assert {(p.pinned.name, p.pinned.sha256, p.pinned.size) for p in found} == {
        (package[0], package[6], package[5]) for package in packages
    }


def test_one_key_that_cannot_be_read_takes_no_other_with_it() -> None:
    text = rpm.key_import(["/keys/*", "/more.asc"])
    assert 'rpmkeys --dbpath /provision/solve/keydb --import "$key"; then' in text
    assert '--import "$@"' not in text
    assert "exit 1" in text


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        (b"105ef944\n31645531\n", ("105ef944", "31645531")),
        # RPM 6: whole fingerprints, and in words.
        (
            b"c6e7f081cf80e13146676e88829b606631645531\nC6E7F081CF80E13146676E88829B606631645531 a",
            ("31645531",),
        ),
        (b"gpg-pubkey-105ef944-65ca83d1 Fedora (42) public key\n", ("105ef944",)),
        (b"rpmkeys: --list: unknown option\n\n", ()),
    ],
)
def test_keys_are_recognised_by_their_last_digits(said: bytes, keys: tuple[str, ...]) -> None:
    assert rpm.parse_keys(said) == keys


_said = st.lists(st.sampled_from([b"gpg-pubkey-", b"105EF944", b"-65ca83d1", b" ", b"x", b"\n"]))


@given(st.binary(max_size=200) | _said.map(b"".join))
def test_whatever_lists_keys_is_digits_or_nothing(said: bytes) -> None:
    assert all(re.fullmatch(r"[0-9a-f]{8}", key) for key in rpm.parse_keys(said))


def test_kernels_are_listed_the_newest_first() -> None:
    said = b"""\
kernel-devel = 5.14.0-427.el9
kernel-devel-uname-r = 5.14.0-70.el9.x86_64
kernel-devel-uname-r = 5.14.0-427.13.1.el9_4.x86_64
kernel-uek-devel-uname-r = 5.15.0-205.149.5.4.el9uek.x86_64
"""
    rocky, _ = release_of(find_distro("rocky:9"))
    assert Dnf().parse_kernels(rocky, said) == (
        "5.15.0-205.149.5.4.el9uek.x86_64",
        "5.14.0-427.13.1.el9_4.x86_64",
        "5.14.0-70.el9.x86_64",
    )
    said = b"""<search-result>
<solvable status="not-installed" name="kernel-default-devel" kind="package"
 edition="6.4.0-150600.23.17.1" arch="x86_64" repository="update"/>
<solvable name="kernel-azure-devel" edition="6.4.0-150600.8.5.4"/>
<solvable name="kernel-devel" edition="6.4.0-150600.23.17.1"/>
</search-result>"""
    assert Zypper().parse_kernels(rocky, said) == (
        "6.4.0-150600.23.17-default",
        "6.4.0-150600.8.5-azure",
    )


def test_a_mirrors_index_makes_no_package_and_hides_none_from_the_check() -> None:
    """Locations are a mirror's words: with a line's end in one, a record could follow."""
    (pattern,) = re.findall(r'grep -E "(.+)\$\(printf', rpm.listing())
    said = ["located\tbase\tPackages/a.rpm", "url\thttp://a", "base\tb\thttp://b", "package\tx"]
    assert [bool(re.match(f"{pattern}\t", line)) for line in said] == [True, True, True, False]
    check = rpm.key_check(["/keys/*"])
    assert check.index("packages/.[!.]*") < check.index("--checksig")
    assert "exit 1" in check[: check.index("--checksig")]


def test_headers_of_the_base_image_say_what_built_their_kernel() -> None:
    of_package, _, rest = rpm.config_copy("/usr/src/a b/.config").rpartition(
        "if [ ! -s config ] &&"
    )
    assert "rpm2cpio" in of_package
    assert " then cp '/usr/src/a b/.config' config; fi\n" in rest
    assert "exit 1" in rest


_FEDORA = "6.17.1-300.fc43.x86_64"


def _koji_of(name: str) -> Vault | None:
    distro = distro_named(name)
    assert distro is not None
    return archive_of_headers(distro)


@pytest.mark.parametrize("mirror", [None, "http://mirror.example/koji/packages/kernel/"])
@pytest.mark.parametrize(
    ("version", "release", "arch"),
    [("6.17.1", "300.fc43", "x86_64"), ("6.18.0", "0.rc1.20251004git7f7072.11.fc44", "aarch64")],
)
def test_the_signed_copy_of_a_kernels_headers_is_where_koji_puts_it(
    version: str, release: str, arch: str, mirror: str | None
) -> None:
    archive = _koji_of("fedora")
    assert archive is not None
    place = KojiPaths(
        "http://mirror.example/koji" if mirror else "https://kojipkgs.fedoraproject.org"
    )
    edition = {"version": version, "release": release, "arch": arch}
    folder = place.build({"name": "kernel", **edition})
    keys = ["105ef944", "31645531"]
    found = header_addresses(archive, f"{version}-{release}.{arch}", keys, mirror=mirror)
    assert found == tuple(
        f"{folder}/{place.signed({'name': 'kernel-devel', **edition}, key)}" for key in keys
    )


def test_other_kernels_and_distros_have_nothing_in_koji() -> None:
    fedora = _koji_of("fedora")
    assert fedora is not None
    # Their headers are in packages of other names.
    assert header_addresses(fedora, f"{_FEDORA}+debug", ["31645531"]) == ()
    for name in ("rocky", "debian", "opensuse-leap"):
        assert _koji_of(name) is None


def test_a_package_of_the_archive_is_asked_for_by_its_path_and_has_its_address() -> None:
    url = (
        "https://koji.example/packages/kernel/6/7/data/signed/a/x86_64/kernel-devel-6-7.x86_64.rpm"
    )
    spec, files = archived_files(url, b"RPM")
    assert spec.text == "/provision/solve/archived/kernel-devel-6-7.x86_64.rpm"
    assert files["archived/kernel-devel-6-7.x86_64.rpm"] == b"RPM"
    digest = "c" * 64
    name = "kernel-devel-6-7.x86_64.rpm"
    listing = f"package\tkernel-devel\t(none)\t6\t7\tx86_64\t3\t{digest}\t{name}\n"
    (package,) = Dnf().parse(listing.encode() + files["archived/origins"])
    assert package.urls == (url,)
    assert package.pinned.repository == "archive"
    distro, release = release_of(find_distro("fedora:43"))
    text = Dnf().solve(SolveRequest(distro, release, BASE), (spec, Spec("gcc"))).text
    assert "cp archived/*.rpm packages/" in text
    # Signed by the distro, whatever keys the admin's own repositories have.
    own = (Repository("own", ("http://m",), {"k.asc": b"KEY"}),)
    wanted = SolveRequest(distro, release, BASE, repositories=own)
    assert distro.keys[0] in Dnf().solve(wanted, (spec,)).text
    assert distro.keys[0] not in Dnf().solve(wanted, (Spec("gcc"),)).text


def test_addresses_in_zyppers_xml_are_taken_out_of_it() -> None:
    distro, release = release_of(find_distro("opensuse-leap:15.6"))
    text = Zypper().solve(SolveRequest(distro, release, BASE), (Spec("gcc"),)).text
    # The ampersand last: an address may have the characters of another entity behind it.
    entities = re.findall(r"s\|(&[a-z]+;)\|", text)
    assert entities == ["&lt;", "&gt;", "&quot;", "&apos;", "&amp;"]
    assert r"-e 's|&amp;|\&|g'" in text


def test_both_rounds_of_zypper_see_one_state_of_the_repositories() -> None:
    distro, release = release_of(find_distro("opensuse-leap:15.6"))
    for config in ("/usr/src/K/.config", None):
        text = (
            Zypper().solve(SolveRequest(distro, release, BASE), (Spec("gcc"),), config=config).text
        )
        assert text.index("if [ ! -e refreshed ]") < text.index("run refresh")
        assert text.index("run refresh") < text.index(": > refreshed\nfi")
