"""The cached indexes of an archive: used offline, replaced by newer ones, refused when expired."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from provision.config import Config
from provision.distros.debian import (
    default_cache,
)
from provision.errors import ProvisionError
from provision.fetch import UnreachableError
from provision.progress import Event
from unit.distros.apt_host import (
    Host,
    go_unreachable,
    host_state,
    outdate,
)
from unit.distros.apt_host import host as host  # noqa: PLC0414 - a fixture


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


def test_two_at_once_read_the_index_once(host: Host) -> None:
    events: list[Event] = []
    with ThreadPoolExecutor(2) as pool:
        for index in pool.map(lambda _: host.open(progress=events.append), range(2)):
            assert index.package("tool") is not None
            index.close()
    read = [event for event in events if "reading the index" in str(event)]
    assert len(read) == 1


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"etag": null}', "not json"])
def test_a_damaged_cache_is_read_again_and_admits_no_older_index(
    host: Host, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> str | None:
        for state in host.cache.glob("archive/*/state.json"):
            state.write_text(damage)
        return host.newest()

    host.newest()
    assert damaged() == "1.1-1"
    # The signature of an older index is good: what is cached says that it is older.
    host.mirror.date -= timedelta(days=1)
    host.publish("0.9-1")
    assert damaged() == "1.1-1"
    assert "answered with an older index" in caplog.text


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
