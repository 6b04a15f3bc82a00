"""The index of an archive, read over HTTP: its signature, its suites and its checksums."""

import re
import shutil
from collections.abc import Callable
from contextlib import closing

import pytest

from kit.apt_archive import AptArchive
from kit.openpgp import key_of
from provision.config import Config
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import SignatureError
from unit.distros.apt_host import Host
from unit.distros.apt_host import host as host  # noqa: PLC0414 - a fixture
from unit.fake_archive import stanza


def test_an_index_is_read_from_the_hosts_mirror(host: Host) -> None:
    index = host.open()
    assert index.addresses == (f"{host.url} bookworm main",)
    assert (index.mirror, index.security_mirror) == (host.url, None)
    assert index.architecture == "amd64"
    assert [package.version for package in index.versions("tool")] == ["1.1-1", "1.0-1"]
    assert index.package("other") is None
    assert [p.version for p in index.packages_matching("to")] == ["1.1-1"]
    index.close()


def test_the_keys_of_a_mirror_of_ones_own_go_with_its_index(host: Host) -> None:
    distro, site = host.mirror.key.keyring.read_bytes(), key_of("another").keyring.read_bytes()
    (host.root / "site.gpg").write_bytes(site)
    host.publish("1.2-1", suite="bookworm-security")
    host.mirror.key = key_of("another")
    host.publish("1.1-1")
    host.sources(
        f"deb [signed-by=/site.gpg] {host.url} bookworm main\n"
        f"deb {host.url} bookworm-security main\n"
    )
    # Both are needed to read both.
    with closing(host.open()) as index:
        assert index.keyring == site + distro
    text = '{"distros": {"debian": {"archive": {"keyring": "/site.gpg"}}}}'
    host.sources(f"deb {host.url} bookworm main\n")
    with closing(host.open(config=Config.model_validate_json(text))) as index:
        assert index.keyring == site


def test_suites_are_read_together(host: Host) -> None:
    host.publish("1.2-1", suite="bookworm-security")
    host.sources(f"deb {host.url} bookworm main\ndeb {host.url} bookworm-security main\n")
    index = host.open(components=["contrib"])
    package = index.package("tool")
    assert package is not None
    assert (package.version, package.suite) == ("1.2-1", "bookworm-security")
    assert index.security_mirror == host.url
    assert index.addresses == (
        f"{host.url} bookworm main contrib",
        f"{host.url} bookworm-security main contrib",
    )
    index.close()


def test_an_index_that_another_key_has_signed_is_refused(host: Host) -> None:
    host.mirror.key = key_of("another")
    host.publish("9.9-1")
    with pytest.raises(SignatureError):
        host.open()
    assert list(host.cache.glob("archive/*/*")) == []


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: content[:-1] + b"?", "its sha256 is wrong"),
        (lambda content: content + b"\0\0\0\0", "it is larger than"),
    ],
)
def test_packages_that_the_signed_index_doesnt_name_are_refused(
    host: Host, change: Callable[[bytes], bytes], match: str
) -> None:
    path = host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ProvisionError, match=match):
        host.open()
    assert not list(host.cache.glob("archive/*/*Packages*"))


def test_an_index_that_unpacks_to_more_than_it_says_is_refused(host: Host) -> None:
    release = host.mirror.folder / "dists/bookworm/Release"
    said = r"[0-9]+ (main/binary-amd64/Packages)$"
    release.write_text(re.sub(said, r"10 \1", release.read_text(), flags=re.MULTILINE))
    host.mirror.sign("bookworm")
    with pytest.raises(ProvisionError, match="is larger than 10 bytes when it is unpacked"):
        host.open()
    assert not list(host.cache.glob("archive/*/*.sqlite"))


@pytest.mark.parametrize("names", [{"Suite": "stable", "Codename": "trixie"}, {"Suite": ""}])
def test_a_signed_index_of_another_suite_is_refused(host: Host, names: dict[str, str]) -> None:
    host.mirror.fields |= names
    host.publish("9.9-1")
    with pytest.raises(ProvisionError, match=r"bookworm/InRelease' is the index of .*, not of"):
        host.open()
    assert not list(host.cache.glob("archive/*/*"))


def test_a_suite_goes_by_its_codename_whatever_its_place_in_time(host: Host) -> None:
    host.mirror.fields |= {"Suite": "oldstable", "Codename": "bookworm"}
    host.publish("1.2-1")
    assert host.newest() == "1.2-1"


def test_an_index_out_of_date_is_refused(host: Host) -> None:
    host.mirror.expire()
    host.publish("1.0-1")
    with pytest.raises(ProvisionError, match="is out of date: it was valid until"):
        host.open()


def test_indexes_are_asked_for_by_their_checksum_where_that_is_offered(host: Host) -> None:
    host.mirror.fields["Acquire-By-Hash"] = "yes"
    host.publish("1.2-1")
    (host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz").unlink()
    assert host.newest() == "1.2-1"


def test_a_copy_without_those_names_will_do(host: Host) -> None:
    host.mirror.fields["Acquire-By-Hash"] = "yes"
    host.publish("1.2-1")
    shutil.rmtree(host.mirror.folder / "dists/bookworm/main/binary-amd64/by-hash")
    assert host.newest() == "1.2-1"


def test_an_index_that_is_listed_and_missing_is_an_error(host: Host) -> None:
    (host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz").unlink()
    with pytest.raises(NotFoundError, match=r"Packages\.xz' does not exist"):
        host.open()


def test_a_foreign_archive_is_left_out(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    other = AptArchive(
        host.mirror.folder / "other", key_of("another"), fields={"Origin": "Someone"}
    )
    (host.root / "other.gpg").write_bytes(other.key.keyring.read_bytes())
    other.publish("bookworm", {"main": stanza("tool", "9.9-1")})
    host.sources(
        f"deb {host.url} bookworm main\n"
        f"deb [signed-by=/other.gpg] {host.url}/other bookworm main\n"
        f"deb [signed-by=/other.gpg] {host.url}/missing bookworm main\n"
    )
    assert host.newest() == "1.1-1"
    assert f"leaving out {host.url}/missing bookworm" in caplog.text


def test_only_other_archives_is_an_error(host: Host) -> None:
    host.mirror.fields["Origin"] = "Someone"
    host.publish("1.0-1")
    with pytest.raises(NotFoundError, match="None of the configured archives is that of debian 12"):
        host.open()


def test_an_own_mirror_may_call_itself_what_it_likes(host: Host) -> None:
    host.mirror.fields["Origin"] = "Someone"
    for suite in ("trixie", "trixie-updates"):
        host.publish("1.0-1", suite=suite)
    config = Config.model_validate_json(
        f'{{"distros": {{"debian": {{"archive": {{"mirror": "{host.url}"}}}}}}}}'
    )
    index = host.open("debian:13", config=config)
    assert index.addresses == (f"{host.url} trixie main", f"{host.url} trixie-updates main")
    index.close()


def test_a_missing_section_is_named(host: Host) -> None:
    with pytest.raises(NotFoundError, match="has no component non-free; it has contrib, main"):
        host.open(components=["non-free"])


def test_a_missing_architecture_is_named(host: Host) -> None:
    with pytest.raises(NotFoundError, match="no architecture arm64; it has amd64"):
        host.open(architecture="aarch64")


def test_packages_for_all_architectures_may_lie_apart(host: Host) -> None:
    host.mirror.publish(
        "bookworm", {"main": stanza("tool", "3.0-1")}, architectures=("amd64", "all")
    )
    assert host.newest() == "3.0-1"
    assert len(list(host.cache.glob("archive/*/main-all-*.sqlite"))) == 1
