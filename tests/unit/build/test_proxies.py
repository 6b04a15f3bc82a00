"""What programs and containers are given of this machine's proxies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.build.workspace import load_settings, proxies
from provision.errors import ConfigError


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
