"""What a container that fetches commits is given of this machine's logins and authorities."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.build.network_access import (
    FOLDER,
    SCRIPT,
    GitAccess,
    can_hold,
    netrc_home,
    proxies,
)
from provision.build.workspace import load_settings
from provision.errors import ConfigError, ProvisionError, UsageError

_URL = "https://git.example:8443/x.git"
_ENGINE = "unix:///run/docker.sock"
_LOGINS = """\
machine other.example login other password theirs
machine git.example login builder password s3cret
"""


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitAccess:
    """A host whose user has two logins, and no certificates."""
    (tmp_path / "netrc").write_text(_LOGINS)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    return GitAccess(tmp_path / "root", tmp_path / "logins")


def test_a_login_is_a_file_with_one_entry_for_as_long_as_the_container_runs(
    access: GitAccess,
) -> None:
    with access.granted(_URL, _ENGINE) as given:
        ((inside, outside),) = given.binds.items()
        assert given.environment == {"HOME": inside}
        netrc = Path(outside, ".netrc")
        assert netrc.read_text() == "machine git.example login builder password s3cret\n"
        assert netrc.stat().st_mode & 0o777 == 0o600
        assert netrc.parent.stat().st_mode & 0o777 == 0o700
        assert given.files == {}
    assert list(access.folder.iterdir()) == []


def test_it_is_gone_where_a_fetch_fails(access: GitAccess) -> None:
    with pytest.raises(ProvisionError), access.granted(_URL, _ENGINE):
        raise ProvisionError("Fetching failed.")
    assert list(access.folder.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["http://git.example/x.git", "git://git.example/x.git", "https://third.example/x.git"]
)
def test_nothing_is_given_to_another_server_or_without_tls(
    access: GitAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    if not url.startswith("https:"):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing"))
    with access.granted(url, _ENGINE) as given:
        assert (given.binds, given.environment, given.files) == ({}, {}, {})
    assert not access.folder.exists()


def test_the_hosts_authorities_count_and_those_that_are_named_go_first(
    access: GitAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = access.root / "etc/pki/tls/certs/ca-bundle.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("of the host")
    url = "https://third.example/x.git"
    with access.granted(url, "tcp://builder:2376") as given:
        (name,) = given.files
        assert given.files[name] == b"of the host\n"
    assert f"{FOLDER}/{name}" in SCRIPT
    (tmp_path / "site.pem").write_text("of the site\n")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "site.pem"))
    with access.granted(url, _ENGINE) as given:
        assert list(given.files.values()) == [b"of the site\n"]
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with pytest.raises(UsageError, match=r"missing\.pem"), access.granted(url, _ENGINE):
        pass


def test_an_engine_elsewhere_gets_no_login(access: GitAccess) -> None:
    with (
        pytest.raises(ProvisionError, match=r"git\.example") as caught,
        access.granted(_URL, "tcp://builder:2376"),
    ):
        pass
    shown = f"{caught.value.message} {caught.value.resolution} {caught.value.details}"
    assert "s3cret" not in shown
    assert not access.folder.exists()


def test_a_password_that_the_file_cannot_hold_is_refused_and_not_shown(
    access: GitAccess, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text('machine git.example login builder password "two words"\n')
    with pytest.raises(UsageError, match=r"git\.example") as caught, access.granted(_URL, _ENGINE):
        pass
    assert "two words" not in f"{caught.value.message} {caught.value.resolution}"


@pytest.mark.parametrize(
    ("login", "holds"),
    [
        (("me", "p@ss#1:/"), True),
        (("me", ""), True),
        (("", "p"), False),
        (("me", 'a"b'), False),
        (("me", "a\\b"), False),
        (("me", "a\nmachine x"), False),
        (("a b", "p"), False),
    ],
)
def test_which_logins_the_file_holds(login: tuple[str, str], holds: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a column of the table
    assert can_hold(*login) is holds
    if holds:
        with netrc_home("h.example", login, tmp_path) as home:
            words = (home / ".netrc").read_text()
        assert words == f"machine h.example login {login[0]} password {login[1]}\n"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies, which is as before afterwards."""
    for name in (*(f"{kind}_proxy" for kind in ("http", "https", "no", "all")), "HTTPS_PROXY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_proxy_of_provision_toml_replaces_those_of_a_shell(
    tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("HTTPS_PROXY", "http://shell.example:1")
    variables.setenv("all_proxy", "http://shell.example:1")
    path = tmp_path / "etc/provision/provision.toml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    with load_settings(tmp_path).connected():
        assert proxies() == {"HTTPS_PROXY": "http://shell.example:1"}
    path.write_text('[network]\nproxy = "http://p.example:3128"\nno_proxy = [".example", "::1"]\n')
    with load_settings(tmp_path).connected():
        assert proxies() == {
            "http_proxy": "http://p.example:3128",
            "https_proxy": "http://p.example:3128",
            "no_proxy": ".example,::1",
        }
        assert "all_proxy" not in os.environ
    assert proxies() == {"HTTPS_PROXY": "http://shell.example:1"}
    assert "all_proxy" in os.environ


@pytest.mark.parametrize(
    "text",
    ['proxy = "p.example:3128"', 'proxy = "ftp://p.example"', 'no_proxy = ["x"]', "proxy = 1"],
)
def test_a_proxy_that_nothing_could_use_is_a_mistake(tmp_path: Path, text: str) -> None:
    path = tmp_path / "etc/provision/provision.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[network]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    assert "network" in str(caught.value.details)
