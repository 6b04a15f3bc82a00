"""Reading an archive over HTTP, and what is kept of it."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from kit.fileserver import served
from provision.config import Config
from provision.distros import find_distro
from provision.distros.debian import (
    ArchiveAccess,
    ArchiveIndex,
    archive_cache,
    default_cache,
    open_index,
)
from provision.distros.debian.distro_archive import layout_of
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import SignatureError, UnreachableError
from provision.files import sha256_file
from provision.progress import Event, Progress, silent
from unit.fake_archive import Mirror, fake_gpgv, stanza

KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"


class Host:
    """A host whose apt is set up with a mirror on the loopback interface."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        self.url = url
        self.mirror = Mirror(folder / "mirror")
        (self.root / KEYRING).parent.mkdir(parents=True)
        (self.root / KEYRING).write_bytes(b"\x99keys")
        self.sources(f"deb {url} bookworm main\n")

    def sources(self, text: str) -> None:
        path = self.root / "etc/apt/sources.list"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def publish(self, *versions: str, suite: str = "bookworm") -> None:
        text = "\n".join(stanza("tool", version) for version in versions)
        self.mirror.publish(suite, {"main": text, "contrib": ""})

    def open(
        self,
        distro: str = "debian:12",
        *,
        architecture: str = "x86_64",
        components: Sequence[str] = (),
        config: Config | None = None,
        progress: Progress = silent,
    ) -> ArchiveIndex:
        index = open_index(
            find_distro(distro),
            layout_of(find_distro(distro)),
            ArchiveAccess(config or Config(), self.root, self.cache, progress),
            architecture=architecture,
            components=components,
        )
        index.read()
        return index

    def newest(self) -> str:
        with closing(self.open()) as index:
            package = index.package("tool")
        assert package is not None
        return package.version

    def go_offline(self) -> None:
        self.mirror.folder.rename(self.mirror.folder.with_name("gone"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    fake_gpgv(monkeypatch)
    monkeypatch.setattr("provision.fetch.http._PAUSE", 0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mirror").mkdir()
    with served(tmp_path / "mirror") as url:
        made = Host(tmp_path, url)
        made.publish("1.0-1", "1.1-1")
        yield made


def outdate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every cached index be too old, so that the archive is asked."""
    monkeypatch.setattr(archive_cache, "MAX_AGE", 0)


def go_unreachable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no archive answer; returns the addresses that are asked for."""
    asked: list[str] = []

    def unreachable(url: str, **_options: object) -> None:
        asked.append(url)
        raise UnreachableError("no network")

    monkeypatch.setattr(archive_cache, "get_signed", unreachable)
    return asked


def host_state(host: Host) -> dict[str, float]:
    """Return what is noted of the one suite."""
    (state,) = host.cache.glob("archive/*/state.json")
    noted: dict[str, float] = json.loads(state.read_text())
    return noted


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
    with closing(host.open()) as index:
        assert index.keyring is None
    (host.root / "site.gpg").write_bytes(b"\x99site")
    host.publish("1.2-1", suite="bookworm-security")
    host.sources(
        f"deb [signed-by=/site.gpg] {host.url} bookworm main\n"
        f"deb {host.url} bookworm-security main\n"
    )
    # Both are needed to read both.
    with closing(host.open()) as index:
        assert index.keyring == b"\x99site\x99keys"
    text = '{"distros": {"debian": {"archive": {"keyring": "/site.gpg"}}}}'
    host.sources(f"deb {host.url} bookworm main\n")
    with closing(host.open(config=Config.model_validate_json(text))) as index:
        assert index.keyring == b"\x99site"


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


def test_a_second_run_needs_no_network(host: Host) -> None:
    assert host.newest() == "1.1-1"
    host.go_offline()
    events: list[Event] = []
    host.open(progress=events.append).close()
    assert events == []


def test_a_new_index_replaces_the_old_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.newest()
    host.publish("1.1-1", "2.0-1")
    assert host.newest() == "1.1-1"
    outdate(monkeypatch)
    assert host.newest() == "2.0-1"
    assert len(list(host.cache.glob("archive/*/*.sqlite"))) == 1


def test_what_a_killed_process_left_is_cleared_away(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.newest()
    (table,) = host.cache.glob("archive/*/*.sqlite")
    left = [
        table.with_name(f".{table.name}.draft"),
        table.with_name(f"..{table.name}.Packages.xz.x"),
    ]
    for path in left:
        path.write_text("half")
    host.publish("2.0-1")
    outdate(monkeypatch)
    assert host.newest() == "2.0-1"
    assert [path for path in left if path.exists()] == []


def test_an_unchanged_index_is_not_read_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.newest()
    outdate(monkeypatch)
    events: list[Event] = []
    host.open(progress=events.append).close()
    assert events == []


def test_offline_the_cached_index_is_used_and_that_is_said(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.newest()
    outdate(monkeypatch)
    asked = go_unreachable(monkeypatch)
    assert host.newest() == "1.1-1"
    assert "can't be reached; using its index as of" in caplog.text
    assert host.newest() == "1.1-1"
    assert len(asked) == 1, "an archive that didn't answer is not asked again at once"


def test_offline_without_a_cache_is_an_error(host: Host) -> None:
    host.sources("deb http://127.0.0.1:9/debian bookworm main\n")
    with pytest.raises(UnreachableError):
        host.open()


def test_an_index_that_is_not_signed_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpgv(monkeypatch, good=False)
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
    inrelease = host.mirror.folder / "dists/bookworm/InRelease"
    text = inrelease.read_text()
    line = next(
        line for line in text.splitlines() if line.endswith("main/binary-amd64/Packages.xz")
    )
    inrelease.write_text(text.replace(line, f"{line}\n {'0' * 64} 10 main/binary-amd64/Packages"))
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


def test_an_index_of_another_suite_does_not_replace_the_right_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.newest()
    host.mirror.fields |= {"Suite": "stable", "Codename": "trixie"}
    host.publish("9.9-1")
    outdate(monkeypatch)
    with pytest.raises(ProvisionError, match="not of 'bookworm'"):
        host.open()
    assert host_state(host)["checked"] > 0
    assert b"trixie" not in next(host.cache.glob("archive/*/Release")).read_bytes()


def test_a_suite_goes_by_its_codename_whatever_its_place_in_time(host: Host) -> None:
    host.mirror.fields |= {"Suite": "oldstable", "Codename": "bookworm"}
    host.publish("1.2-1")
    assert host.newest() == "1.2-1"


def test_an_index_out_of_date_is_refused(host: Host) -> None:
    host.mirror.expire()
    host.publish("1.0-1")
    with pytest.raises(ProvisionError, match="is out of date: it was valid until"):
        host.open()


def test_a_cached_index_is_refused_once_it_is_out_of_date(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.mirror.fields["Valid-Until"] = format_datetime(
        host.mirror.date + timedelta(minutes=5), usegmt=True
    )
    host.publish("1.0-1")
    assert host.newest() == "1.0-1"
    later = time.time() + 10 * 60
    monkeypatch.setattr("provision.distros.debian.archive_index.time.time", lambda: later)
    asked = go_unreachable(monkeypatch)
    # Within the time for which an index counts as current; then within the pause after trouble.
    for _ in range(2):
        with pytest.raises(ProvisionError, match="is out of date: it was valid until") as caught:
            host.newest()
        assert "can't be reached" in (caught.value.details or "")
        assert "snapshot = true" in (caught.value.resolution or "")
    assert len(asked) == 1


def test_a_cached_index_out_of_date_gives_way_to_a_new_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.mirror.fields["Valid-Until"] = format_datetime(
        host.mirror.date + timedelta(minutes=5), usegmt=True
    )
    host.publish("1.0-1")
    host.newest()
    del host.mirror.fields["Valid-Until"]
    host.publish("1.0-1", "1.1-1")
    later = time.time() + 10 * 60
    monkeypatch.setattr("provision.distros.debian.archive_index.time.time", lambda: later)
    assert host.newest() == "1.1-1"


@pytest.mark.parametrize("where", ["provision.toml", "provision.toml without mirror", "apt"])
def test_a_snapshot_counts_although_it_is_old(
    host: Host, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    host.newest()
    host.mirror.expire()
    host.mirror.date -= timedelta(days=100)
    host.publish("0.9-1")
    archive = {"snapshot": "true"}
    if where == "provision.toml":
        archive["mirror"] = f'"{host.url}"'
        for suite in ("bookworm-updates", "bookworm-security"):
            host.publish("0.1-1", suite=suite)
    if where == "apt":
        archive = {}
        host.sources(f"deb [check-valid-until=no] {host.url} bookworm main\n")
    text = ", ".join(f'"{key}": {value}' for key, value in archive.items())
    config = Config.model_validate_json(f'{{"distros": {{"debian": {{"archive": {{{text}}}}}}}}}')
    outdate(monkeypatch)
    with closing(host.open(config=config)) as index:
        package = index.package("tool")
    assert package is not None
    assert package.version == "0.9-1"


def test_an_older_index_does_not_replace_a_newer_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.newest()
    checked = host_state(host)["checked"]
    host.mirror.date -= timedelta(days=1)
    host.publish("0.9-1")
    outdate(monkeypatch)
    assert host.newest() == "1.1-1"
    assert "answered with an older index" in caplog.text
    # A replay does not hide that the index gets old.
    assert host_state(host)["checked"] == checked


def test_a_replay_does_not_keep_an_index_that_is_out_of_date(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = format_datetime(host.mirror.date + timedelta(minutes=5), usegmt=True)
    host.mirror.fields["Valid-Until"] = valid
    host.publish("1.0-1")
    host.newest()
    host.mirror.date -= timedelta(days=1)
    host.publish("0.9-1")
    later = time.time() + 10 * 60
    monkeypatch.setattr("provision.distros.debian.archive_index.time.time", lambda: later)
    with pytest.raises(ProvisionError, match="is out of date") as caught:
        host.newest()
    assert "answered with an older index" in (caught.value.details or "")


def test_indexes_are_asked_for_by_their_checksum_where_that_is_offered(host: Host) -> None:
    host.mirror.fields["Acquire-By-Hash"] = "yes"
    host.publish("1.2-1")
    plain = host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz"
    hashed = plain.parent / "by-hash/SHA256" / sha256_file(plain)
    hashed.parent.mkdir(parents=True)
    plain.rename(hashed)
    assert host.newest() == "1.2-1"


def test_a_copy_without_those_names_will_do(host: Host) -> None:
    host.mirror.fields["Acquire-By-Hash"] = "yes"
    host.publish("1.2-1")
    assert host.newest() == "1.2-1"


def test_an_index_that_is_listed_and_missing_is_an_error(host: Host) -> None:
    (host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz").unlink()
    with pytest.raises(NotFoundError, match=r"Packages\.xz' does not exist"):
        host.open()


def test_a_foreign_archive_is_left_out(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    (host.root / "other.gpg").write_bytes(b"\x99other")
    other = Mirror(host.mirror.folder / "other", fields={"Origin": "Someone"})
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


def test_two_at_once_read_the_index_once(host: Host) -> None:
    events: list[Event] = []
    with ThreadPoolExecutor(2) as pool:
        for index in pool.map(lambda _: host.open(progress=events.append), range(2)):
            assert index.package("tool") is not None
            index.close()
    read = [event for event in events if "reading the index" in str(event)]
    assert len(read) == 1


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"etag": null}', "not json"])
def test_a_damaged_cache_is_read_again(host: Host, damage: str) -> None:
    host.newest()
    for state in host.cache.glob("archive/*/state.json"):
        state.write_text(damage)
    assert host.newest() == "1.1-1"


def test_a_damaged_table_says_which_file_to_delete(host: Host) -> None:
    host.newest()
    (table,) = host.cache.glob("archive/*/*.sqlite")
    table.write_bytes(b"no table" * 1000)
    with pytest.raises(ProvisionError, match=f"{table.name}' is damaged"):
        host.newest()
    table.unlink()
    assert host.newest() == "1.1-1"


def test_the_cache_is_where_the_system_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/xdg/provision")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_cache() == Path("/var/cache/provision")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/user")
    assert default_cache() == Path("/home/user/.cache/provision")
