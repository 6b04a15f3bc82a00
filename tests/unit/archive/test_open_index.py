"""Reading an archive over HTTP, and what is kept of it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from kit.fileserver import served
from provision.archive import ArchiveIndex, cache, default_cache, find_distro, open_index
from provision.config import Config
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
        return open_index(
            find_distro(distro),
            architecture=architecture,
            components=components,
            config=config,
            root=self.root,
            cache_dir=self.cache,
            progress=progress,
        )

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
    monkeypatch.setattr(cache, "MAX_AGE", 0)


def test_an_index_is_read_from_the_hosts_mirror(host: Host) -> None:
    index = host.open()
    assert index.places == (f"{host.url} bookworm main",)
    assert (index.mirror, index.security_mirror) == (host.url, None)
    assert index.architecture == "amd64"
    assert [package.version for package in index.versions("tool")] == ["1.1-1", "1.0-1"]
    assert index.package("other") is None
    assert [p.version for p in index.packages_matching("to")] == ["1.1-1"]
    index.close()


def test_suites_are_read_together(host: Host) -> None:
    host.publish("1.2-1", suite="bookworm-security")
    host.sources(f"deb {host.url} bookworm main\ndeb {host.url} bookworm-security main\n")
    index = host.open(components=["contrib"])
    package = index.package("tool")
    assert package is not None
    assert (package.version, package.suite) == ("1.2-1", "bookworm-security")
    assert index.security_mirror == host.url
    assert index.places == (
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
    asked = []

    def unreachable(url: str, **_options: object) -> None:
        asked.append(url)
        raise UnreachableError("no network")

    monkeypatch.setattr(cache, "get_signed", unreachable)
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


def test_packages_that_the_signed_index_doesnt_name_are_refused(host: Host) -> None:
    path = host.mirror.folder / "dists/bookworm/main/binary-amd64/Packages.xz"
    path.write_bytes(path.read_bytes() + b"\0\0\0\0")
    with pytest.raises(ProvisionError, match="its sha256 is wrong"):
        host.open()
    assert not list(host.cache.glob("archive/*/*Packages*"))


def test_an_index_out_of_date_is_refused(host: Host) -> None:
    host.mirror.expire()
    host.publish("1.0-1")
    with pytest.raises(ProvisionError, match="is out of date: it was valid until"):
        host.open()


def test_an_older_index_does_not_replace_a_newer_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.newest()
    host.mirror.date -= timedelta(days=1)
    host.publish("0.9-1")
    outdate(monkeypatch)
    assert host.newest() == "1.1-1"
    assert "answered with an older index" in caplog.text


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


def test_somebody_elses_archive_is_left_out(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    (host.root / "other.gpg").write_bytes(b"\x99other")
    other = Mirror(host.mirror.folder / "other", fields={"Origin": "Somebody"})
    other.publish("bookworm", {"main": stanza("tool", "9.9-1")})
    host.sources(
        f"deb {host.url} bookworm main\n"
        f"deb [signed-by=/other.gpg] {host.url}/other bookworm main\n"
        f"deb [signed-by=/other.gpg] {host.url}/missing bookworm main\n"
    )
    assert host.newest() == "1.1-1"
    assert f"leaving out {host.url}/missing bookworm" in caplog.text


def test_only_other_archives_is_an_error(host: Host) -> None:
    host.mirror.fields["Origin"] = "Somebody"
    host.publish("1.0-1")
    with pytest.raises(NotFoundError, match="None of the configured archives is that of debian 12"):
        host.open()


def test_an_own_mirror_may_call_itself_what_it_likes(host: Host) -> None:
    host.mirror.fields["Origin"] = "Somebody"
    for suite in ("trixie", "trixie-updates"):
        host.publish("1.0-1", suite=suite)
    config = Config.model_validate_json(
        f'{{"distros": {{"debian": {{"archive": {{"mirror": "{host.url}"}}}}}}}}'
    )
    index = host.open("debian:13", config=config)
    assert index.places == (f"{host.url} trixie main", f"{host.url} trixie-updates main")
    index.close()


def test_a_missing_section_is_named(host: Host) -> None:
    with pytest.raises(NotFoundError, match="has no section non-free; it has contrib, main"):
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
def test_a_damaged_cache_is_read_anew(host: Host, damage: str) -> None:
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
