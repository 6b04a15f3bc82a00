"""A host that never builds asks for no engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.probe import need_programs

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """\
import json, sys
from provision.cli.entry import run
status = run(sys.argv[2:])
with open(sys.argv[1], "w") as said:
    json.dump({"status": status}, said)
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


def _run(tmp_path: Path, build: str, *words: str) -> tuple[int, str]:
    """Run a command on a host's tree: exit status, output."""
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
    return json.loads(said.read_text())["status"], done.stdout + done.stderr


@pytest.mark.parametrize("words", [("apply",)])
def test_a_host_that_never_builds_asks_its_registry_only(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Neither does the registry answer, nor is there an engine, which nobody misses."""
    need_programs("skopeo")
    status, said = _run(tmp_path, "never", *words)
    assert status == 1
    assert "can't be reached" in said
    assert "engine" not in said
