"""The scripts of exports: that of the agent in a pod on a host's tree, and what shellcheck says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_artifact
from kit.cache import REPOSITORY
from kit.files import write_all
from kit.probe import is_root, need, need_programs
from kit.process import Completed, run, start, wait_for
from provision.build.dockerfile import fill_shipped
from provision.export.coreos import Artifact, Hosts, lay_out

_AGENT = REPOSITORY / "templates/agent/agent.sh"
_TREE = REPOSITORY / "templates/agent/agent-tree.sh"
_HOST_PROGRAMS = ("sh", "mkdir", "cat", "chmod", "ln", "mv", "rm")
_PROVISION = '#!/bin/sh\necho "provision $*" >>"$ASKED"\n[ "$1" != apply ] || exit 4\n'
# It takes a while to clean up, as 'provision apply' may.
_SLOW = """#!/bin/sh
trap 'sleep 1; echo cleaned >>"$ASKED"; exit 130' TERM
echo started >>"$ASKED"
sleep 60 &
wait
"""
_WAIT_S = 50.0
_DECORATOR = '#!/bin/sh\necho "oci-decorator $*" >/asked\n'


def test_shellcheck_finds_nothing_wrong(tmp_path: Path) -> None:
    need_programs("shellcheck")
    lay_out(tmp_path / "tree", [Artifact(tmp_path / "a", make_artifact(tmp_path / "a"))], Hosts())
    script = tmp_path / "tree/usr/lib/provision/demo/kernels" / KERNEL / "load"
    first_boot = tmp_path / "first-boot.sh"
    first_boot.write_text(
        fill_shipped(
            "ignition/first-boot.sh.j2",
            staged="/opt/staged",
            image="agent@sha256:0",
            engines=["docker", "podman"],
            hooks="/etc/hooks",
        )
    )
    run(["shellcheck", _AGENT, _TREE, first_boot, script])


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


def _pod(folder: Path) -> tuple[Path, Path, Path]:
    """Make settings and programs of a pod; their folders, and the file with what was asked."""
    need(is_root(), "root", "run as root: the agent uses the host's own paths")
    config, programs = folder / "config", folder / "programs"
    for made in (config, programs):
        made.mkdir()
    (config / "provision.toml").write_text('[policy]\nbuild = "never"\n')
    (config / "site.pub").write_text("key")
    shutil.copy(_AGENT, programs)
    write_all(programs, {"provision": _PROVISION, "oci-decorator": _DECORATOR}, 0o755)
    return config, programs, folder / "asked"


def _variables(folder: Path, host: Path) -> dict[str, str]:
    return {
        "PATH": f"{folder}/programs:/usr/sbin:/usr/bin:/sbin:/bin",
        "ROOT": str(host),
        "CONFIG": str(folder / "config"),
        "ASKED": str(folder / "asked"),
    }


def _look(folder: Path, host: Path, *words: str) -> Completed:
    script = folder / "programs/agent.sh"
    given = {**_variables(folder, host), "ONCE": "1"}
    return run(["/bin/sh", script, *words], env=given, check=False)


def test_the_agent_gives_a_host_its_settings_and_looks(tmp_path: Path, host: Path) -> None:
    _, _, asked = _pod(tmp_path)
    done = _look(tmp_path, host)
    # As 'provision apply' ended: a reboot is required.
    assert done.returncode == 4, done.output
    assert (host / "etc/provision/provision.toml").read_text() == '[policy]\nbuild = "never"\n'
    assert (host / "etc/provision/trust.d/site.pub").read_text() == "key"
    # Through the host's own links, and not this machine's.
    assert (host / "var/opt/provision/bin/oci-decorator").stat().st_mode & 0o777 == 0o755
    runtime = host / "var/opt/provision/bin/oci-decorator-runtime"
    assert runtime.readlink() == Path("oci-decorator")
    assert (host / "asked").read_text() == "oci-decorator cdi generate --output-dir /run/cdi\n"
    assert asked.read_text().splitlines() == [
        f"provision apply --timer --root {host}",
    ]
    assert not list((host / "etc/provision").rglob("*.new"))


def test_a_key_that_was_taken_out_counts_no_more(tmp_path: Path, host: Path) -> None:
    config, _, _ = _pod(tmp_path)
    (config / "new.pub").write_text("new")
    keys = host / "etc/provision/trust.d"
    _look(tmp_path, host)
    (keys / "admin.pub").write_text("of someone else")
    (config / "site.pub").unlink()
    _look(tmp_path, host)
    assert {path.name for path in keys.glob("*.pub")} == {"admin.pub", "new.pub"}
    (config / "new.pub").unlink()
    _look(tmp_path, host)
    assert {path.name for path in keys.glob("*.pub")} == {"admin.pub"}


def test_with_arguments_it_is_the_program(tmp_path: Path, host: Path) -> None:
    _, _, asked = _pod(tmp_path)
    assert _look(tmp_path, host, "facts", "--json").returncode == 0
    assert asked.read_text() == "provision facts --json\n"
    assert not (host / "etc").exists()


def test_a_run_that_is_under_way_ends_before_the_pod(tmp_path: Path, host: Path) -> None:
    _, programs, asked = _pod(tmp_path)
    (programs / "provision").write_text(_SLOW)
    words: list[str | Path] = ["/bin/sh", programs / "agent.sh"]
    with start(words, log=tmp_path / "log", env=_variables(tmp_path, host)) as agent:
        wait_for("the run", asked.exists, within_s=_WAIT_S)
        agent.terminate()
        assert agent.wait(_WAIT_S) == 0
    assert asked.read_text() == "started\ncleaned\n"
