"""The scripts of exports: that of the agent in a pod on a host's tree, and what shellcheck says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.probe import is_root, need, need_programs
from kit.process import run
from provision.export.sysext import Artifact, Hosts, lay_out
from unit.kmod.artifact import KERNEL, make_artifact

_AGENT = REPOSITORY / "templates/agent/agent.sh"
_HOST_PROGRAMS = ("sh", "mkdir", "cat", "chmod", "mv")
_PROVISION = '#!/bin/sh\necho "provision $*" >>"$ASKED"\n[ "$1" != apply ] || exit 4\n'
_DECORATOR = '#!/bin/sh\necho "oci-decorator $*" >/asked\n'


def test_shellcheck_finds_nothing_wrong(tmp_path: Path) -> None:
    need_programs("shellcheck")
    lay_out(tmp_path / "tree", [Artifact(tmp_path / "a", make_artifact(tmp_path / "a"))], Hosts())
    script = tmp_path / "tree/usr/lib/provision/demo/kernels" / KERNEL / "load.sh"
    run(["shellcheck", _AGENT, script])


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's tree with a shell, and /opt elsewhere, as Fedora CoreOS has it."""
    root = tmp_path / "host"
    for name in _HOST_PROGRAMS:
        program = Path(shutil.which(name) or "")
        libraries = run(["ldd", program]).stdout.split()
        for file in (program, *(Path(word) for word in libraries if word.startswith("/"))):
            target = root / str(file).lstrip("/").removeprefix("usr/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.resolve(), target)
    (root / "var/opt").mkdir(parents=True)
    (root / "opt").symlink_to("/var/opt")
    return root


def test_the_agent_gives_a_host_its_settings_and_looks(tmp_path: Path, host: Path) -> None:
    need(is_root(), "root", "run as root: the agent uses the host's own paths")
    config, programs = tmp_path / "config", tmp_path / "programs"
    for folder in (config, programs):
        folder.mkdir()
    (config / "provision.toml").write_text('[policy]\nbuild = "never"\n')
    (config / "site.pub").write_text("key")
    shutil.copy(_AGENT, programs)
    for name, text in {"provision": _PROVISION, "oci-decorator": _DECORATOR}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    asked = tmp_path / "asked"
    variables = {
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "ROOT": str(host),
        "CONFIG": str(config),
        "NODE_NAME": "node-1",
        "ONCE": "1",
        "ASKED": str(asked),
    }
    done = run(["/bin/sh", programs / "agent.sh"], env=variables, check=False)
    # As 'provision apply' ended: a reboot is required.
    assert done.returncode == 4, done.output
    assert (host / "etc/provision/provision.toml").read_text() == '[policy]\nbuild = "never"\n'
    assert (host / "etc/provision/trust.d/site.pub").read_text() == "key"
    # Through the host's own links, and not this machine's.
    assert (host / "var/opt/provision/bin/oci-decorator").stat().st_mode & 0o777 == 0o755
    assert (host / "asked").read_text() == "oci-decorator cdi generate --output-dir /run/cdi\n"
    assert asked.read_text().splitlines() == [
        f"provision apply --timer --root {host}",
        f"provision status --root {host} --kubernetes node-1",
    ]
    assert not list((host / "etc/provision").rglob("*.new"))
