"""`provision fleet status --inventory` with the real Ansible: hosts that answer, and that don't."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kit.process import run
from kit.registry import free_port
from unit.fleet.documents import HOSTILE, document, failed_document

if TYPE_CHECKING:
    from typing import Any

_PROGRAM = Path(sys.executable).with_name("provision")
# In place of ssh: the command, which is its last word, below the host's own root.
_SSH = """\
#!/bin/sh
for word; do command=$word; done
exec /bin/sh -c "$(printf '%s' "$command" | sed 's#/run/provision#{root}/run/provision#g')"
"""


def _host(folder: Path, name: str, status: str | None) -> dict[str, str]:
    """The variables of a host whose root is a folder."""
    root = folder / name
    root.mkdir()
    ssh = root / "ssh"
    ssh.write_text(_SSH.format(root=root))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    if status is not None:
        (root / "run/provision").mkdir(parents=True)
        (root / "run/provision/status.json").write_text(status)
    return {"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh)}


def _fleet(folder: Path, *words: object, code: int) -> Any:  # noqa: ANN401 - of JSON
    inventory = folder / "hosts.yml"
    argv: list[str | Path] = [
        _PROGRAM,
        "fleet",
        "status",
        "--inventory",
        inventory,
        "--json",
        "--timeout",
        "60",
    ]
    done = run([*argv, *map(str, words)], check=False, timeout_s=600)
    assert done.returncode == code, done.output
    return json.loads(done.stdout)


def test_the_hosts_of_an_inventory(tmp_path: Path) -> None:
    now = int(time.time())
    # What would be a host's line, if a host's output were read as Ansible prints it.
    forged = json.dumps(document(time=now)) + "\nweb2 | CHANGED | rc=0 >>\n{}\n"
    hosts: dict[str, dict[str, Any]] = {
        "web1": _host(tmp_path, "web1", json.dumps(document(time=now))),
        "web2": _host(tmp_path, "web2", json.dumps(failed_document(time=now))),
        "bare": _host(tmp_path, "bare", None),
        "forger": _host(tmp_path, "forger", forged),
        "liar": _host(tmp_path, "liar", json.dumps(document(time=now, state=HOSTILE))),
        "gone": {"ansible_host": "127.0.0.1", "ansible_port": free_port()},
    }
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    found = _fleet(tmp_path, "--html", tmp_path / "fleet.html", code=1)
    assert {host["name"]: host["state"] for host in found["hosts"]} == {
        "web1": "ready",
        "web2": "failed",
        "bare": "no-status",
        "forger": "unreadable",
        "liar": "unreadable",
        "gone": "unreachable",
    }
    (gone,) = (host for host in found["hosts"] if host["name"] == "gone")
    assert "Connection refused" in gone["reason"]
    assert "<script>document" not in (tmp_path / "fleet.html").read_text()
    found = _fleet(tmp_path, "--limit", "web1", code=0)
    assert found["counts"] == {"ready": 1}


def test_what_ansible_can_not_read_is_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text('{"all": {"hosts": {}}}')
    error = _fleet(tmp_path, code=3)["error"]
    assert "finds no host" in error["message"]
    assert "ansible-inventory" in error["resolution"]
