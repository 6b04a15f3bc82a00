"""A host that never builds loads nothing that decides about builds, and asks for no engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# What decides every input of a build and writes its Dockerfile.
_RESOLVER = (
    "provision.build.decision",
    "provision.build.dockerfile",
    "provision.build.solve",
    "provision.build.package_pins",
    "provision.build.resolving",
    "provision.build.image_builds",
    "provision.store.obtaining",
    "jinja2",
)
# The models of files that people write.
_MODELS = ("provision.catalogue", "provision.config")
_PROGRAM = """\
import json, sys
from provision.cli.entry import run
status = run(sys.argv[2:])
with open(sys.argv[1], "w") as said:
    json.dump({"status": status, "modules": sorted(sys.modules)}, said)
"""
_CONFIG = """\
[drivers.v4l2loopback]
[engine]
host = "unix:///nonexistent/engine.sock"
[registry]
address = "127.0.0.1:9/drivers"
[trust]
keys = "/etc/provision/trust.d"
[policy]
build = "{build}"
"""
_KEY = """\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE5a9hSBMu8n1gQdiFQ40IYNbylRpm
wThw2zF8HFhp5a8T3pH1uDnhvk4akcEmUQ0N8bc0guoFGQv47/mIKs32Ig==
-----END PUBLIC KEY-----
"""


def _run(tmp_path: Path, build: str, *words: str) -> tuple[int, set[str], str]:
    """Run a command on a host's tree: exit status, loaded modules, standard output."""
    host = tmp_path / "host"
    for name, text in {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n',
        "etc/provision/provision.toml": _CONFIG.format(build=build),
        "etc/provision/trust.d/fleet.pub": _KEY,
        "proc/sys/kernel/osrelease": "6.1.0-1-amd64\n",
        "lib/modules/6.1.0-1-amd64/modules.dep": "",
        "boot/vmlinuz-6.1.0-1-amd64": "",
    }.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        # A second run finds them as the first one left them.
        if not (host / name).exists():
            (host / name).write_text(text)
    said = tmp_path / "said.json"
    argv = [sys.executable, "-c", _PROGRAM, str(said), *words, "--root", str(host), "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        argv, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    document = json.loads(said.read_text())
    return document["status"], set(document["modules"]), done.stdout


def _loaded(modules: set[str]) -> set[str]:
    return {m for m in modules if any(m == r or m.startswith(f"{r}.") for r in _RESOLVER)}


@pytest.mark.parametrize("words", [("apply",), ("install", "v4l2loopback")])
def test_nothing_of_the_resolver_is_loaded(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The registry does not answer; it was asked, and nothing else was tried."""
    status, modules, said = _run(tmp_path, "never", *words)
    assert status == 1
    assert "can't be reached" in said
    assert "provision.registry.skopeo" in modules
    assert _loaded(modules) == set()


def test_a_host_that_builds_does_load_it(tmp_path: Path) -> None:
    """Else the names above would be of modules that are gone.

    jinja2 is not among them: it is loaded where a Dockerfile is rendered, which needs an engine.
    """
    _status, modules, _said = _run(tmp_path, "always", "install", "v4l2loopback")
    assert {r for r in _RESOLVER if r in modules} >= {
        "provision.build.decision",
        "provision.build.dockerfile",
    }


def test_a_boot_loads_no_models_once_the_settings_are_known(tmp_path: Path) -> None:
    """Every container start waits for it; docs/decisions/01-layers-and-models.md has the cost."""
    _status, first, _said = _run(tmp_path, "never", "apply")
    assert set(_MODELS) <= first
    _status, second, said = _run(tmp_path, "never", "apply", "--boot")
    assert json.loads(said)["status"]["drivers"]
    assert "provision.agent.boot" in second
    assert second & {*_MODELS, "pydantic", "provision.engine.docker_api"} == set()
