"""What a user of the host without rights makes root do: nothing.

Each attack is played by a real user, in a race where it needs one.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.oci_decorator.drivers.plugins.modules._provision_venv import isolate

from kit.files import BOOKWORM, write, write_all
from kit.probe import is_root, need, need_programs
from kit.process import run
from provision.agent.desired import load_desired, read_inputs
from provision.build.image import BuildLog
from provision.build.trees import ensure_tree
from provision.build.unpack_source import unpack
from provision.build.workspace import Settings, load_settings
from provision.cli import run as run_command
from provision.cli.options import OUTPUT_FILE
from provision.distros.repositories import repositories_of
from provision.errors import ConfigError, ExitCode, Mistake, ProvisionError
from provision.files import lock, remove_drafts, scratch, write_atomic, write_output
from provision.pin import DistroPin
from provision.registry.signatures import open_key, settled_keys
from provision.run import find_program
from provision.run import run as run_program
from provision.trust import distrusted

# Debian's nobody: it owns nothing.
_UID = 65534
_PYTHON = str(Path(sys.executable).resolve())
# What an attack can't do this time, it tries again.
_LOOP = """
print("ready")
while True:
    try:
        exec(code, {"os": os, "sys": sys})
    except OSError:
        pass
"""
_USER = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of root's whose path every user may walk, unlike that of pytest's."""
    need(is_root(), "root", "only root has other users")
    need_programs("setpriv")
    folder = Path(tempfile.mkdtemp(prefix="provision-users-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _as_user(code: str, *words: object) -> str:
    """Run a Python program as the user; returns what it prints."""
    return run([*_USER, _PYTHON, "-I", "-c", code, *map(str, words)]).stdout


@contextmanager
def _attacking(code: str, *words: object) -> Iterator[list[str]]:
    """Run a Python program as the user, again and again until the block ends; what it printed."""
    loop = f"import os, sys\ncode = compile(sys.argv.pop(1), 'attack', 'exec')\n{_LOOP}"
    argv: list[str] = [*_USER, _PYTHON, "-I", "-u", "-c", loop, code, *map(str, words)]
    printed: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield printed
        finally:
            process.kill()
            printed += process.stdout.read().splitlines()


def _write_owned(archive: Path) -> None:
    """Write an archive whose files belong to the user."""
    with tarfile.open(archive, "w") as tar:
        for number in range(2000):
            entry = tarfile.TarInfo(f"tool/{number % 20}/{number}.c")
            entry.uid = entry.gid = _UID
            entry.mode, entry.size = 0o666, 3
            tar.addfile(entry, io.BytesIO(b"abc"))


def test_what_a_build_unpacks_belongs_to_root(place: Path) -> None:
    _write_owned(place / "tool.tar")
    (place / "source").mkdir()
    unpack(place / "tool.tar", place / "source", 1)
    assert {path.lstat().st_uid for path in place.rglob("*")} == {0}


def test_a_scratch_folder_is_closed_to_others(place: Path) -> None:
    with scratch(place / "state", "export") as folder:
        (folder / "file").touch()
        said = _as_user("import os, sys; print(os.access(sys.argv[1], os.X_OK))", folder)
    assert said == "False\n"


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def too_late(*_args: object) -> None:
        pytest.fail(f"root still waits after {seconds} s")

    former = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def _publish(path: Path) -> None:
    remove_drafts(path)
    # Its owner may keep it from being written, but nothing else.
    with suppress(OSError):
        write_atomic(path, "metrics")


def _lock(path: Path) -> None:
    with suppress(OSError), lock(path, limit=0):
        pass


_FILE, _SECRET = "theirs/file", "roots/.file.secret"
_ATTACKS = {
    "a pipe": "put(os.mkfifo)",
    "a link to a file of root's": "put(lambda name: os.symlink(secret, name))",
    "the folder is a link": "os.rename(theirs, theirs + '.old'); os.symlink(roots, theirs)",
    "one, then the other": "put(os.mkfifo); put(lambda name: os.symlink(secret, name))",
}


@pytest.mark.parametrize("write", [_publish, _lock])
@pytest.mark.parametrize("attack", _ATTACKS.values(), ids=_ATTACKS)
def test_what_root_writes_into_a_users_folder_changes_no_other_file(
    place: Path, attack: str, write: Callable[[Path], None]
) -> None:
    """As a service's user does, who owns the folder of a metrics exporter and the one above it."""
    home = place / "home"
    home.mkdir()
    (home / "roots").mkdir()
    secret = home / _SECRET
    secret.write_text("of root")
    secret.chmod(0o600)
    (home / "theirs").mkdir()
    os.chown(home / "theirs", _UID, _UID)
    os.chown(home, _UID, _UID)
    code = f"""
def put(make):
    with contextlib.suppress(FileExistsError):
        make(path + ".new")
    os.rename(path + ".new", path)

import contextlib
theirs, roots = sys.argv[1] + "/theirs", sys.argv[1] + "/roots"
path, secret = theirs + "/file", roots + "/.file.secret"
{attack}
"""
    with _attacking(code, home), _within(30):
        for _ in range(400):
            write(home / _FILE)
    assert secret.read_text() == "of root"
    assert [path.name for path in (home / "roots").iterdir()] == [secret.name]


def test_a_lock_of_roots_is_no_users_to_hold(place: Path) -> None:
    """Who can read a file can lock it, and who held this one would keep root from all work."""
    path = write(place / ".lock", "", 0o644)
    with lock(path):
        pass
    hold = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
except PermissionError:
    print("refused")
else:
    print("held")
"""
    assert _as_user(hold, path) == "refused\n"


def test_no_folder_that_root_makes_is_one_for_users_to_write_to(place: Path) -> None:
    """Whatever the umask of root's shell: who may write to the store decides what is loaded."""
    write(place / "etc/os-release", BOOKWORM)
    (place / "usr/lib/modules/6.1.0-56-amd64").mkdir(parents=True)
    proxy = "http://me:hush@proxy.example:3128"
    write(place / "etc/provision/provision.toml", f'[network]\nproxy = "{proxy}"\n', 0o600)
    apply = [sys.executable, "-m", "provision", "apply", "--root", str(place)]
    subprocess.run(apply, check=True, umask=0)
    made = {path for path in place.rglob("*") if not path.is_symlink()}
    assert place / "var/lib/provision" in made
    assert not [path for path in made if path.stat().st_mode & 0o022]
    # Nor does a copy show what only root may read.
    copies = [path for path in made if path.is_file() and "hush" in path.read_text()]
    assert len(copies) > 1
    assert not [path for path in copies if path.stat().st_mode & 0o077]


def test_an_output_is_not_written_where_another_users_link_leads(place: Path) -> None:
    (place / "secret").write_text("of root")
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    link = place / "tmp/pin.json"
    _as_user("import os, sys; os.symlink(*sys.argv[1:])", place / "secret", link)
    write_output(OUTPUT_FILE.convert(str(link), None, None), "a Pin")
    assert (place / "secret").read_text() == "of root"
    assert link.read_text() == "a Pin"


def test_a_builds_output_is_no_users_to_read_and_has_no_password(place: Path) -> None:
    path = place / "logs/lab.log"
    path.parent.mkdir()
    path.touch(0o644)
    with BuildLog(path) as log:
        log.line("curl: http://me:hush@proxy.example:3128 refused")
    said = _as_user("import os, sys; print(os.access(sys.argv[1], os.R_OK))", path)
    assert said == "False\n"
    assert path.read_text() == "curl: http://me:***@proxy.example:3128 refused\n"


_TOML = """
catalogue = ["/etc/provision/drivers"]
[signing]
key = "/etc/provision/modules/key.pem"
certificate = "/etc/provision/modules/key.crt"
[distros.debian.archive]
mirror = "http://mirror.example/debian"
keyring = "/etc/provision/keys/archive.gpg"
[[distros.fedora.repositories]]
id = "ours"
urls = ["http://mirror.example/fedora"]
keys = ["/etc/provision/keys/ours.asc"]
[[trees]]
kernels = "6.6.1"
path = "/srv/kernel/tree.tar"
config = "/srv/config/config"
"""


def _checked(words: list[str]) -> None:
    if run_command(words) == ExitCode.USAGE:
        raise ConfigError("provision", [Mistake("", "refused")])


def _tree(settings: Settings) -> object:
    return ensure_tree(settings, settings.config.trees[0], "6.6.1")


def _repositories(settings: Settings, *pin: str) -> object:
    distro = DistroPin(**dict(zip(("id", "version", "codename"), pin, strict=True)))
    return repositories_of(distro, settings.config.distro(distro.id), settings.root)


# Files by which a host's settings steer what root does, and what uses each.
_STEERED: dict[str, Callable[[Settings], object]] = {
    "etc/provision/provision.toml": lambda settings: settings,
    "etc/provision/trust.d/fleet.pub": lambda settings: settled_keys(
        settings.root, "/etc/provision/trust.d"
    ),
    "etc/provision/drivers/lab/driver.toml": lambda settings: settings.catalogue.entry("lab"),
    "etc/provision/drivers/lab/patches/a.patch": lambda settings: settings.catalogue.entry("lab"),
    "etc/provision/modules/key.pem": lambda settings: open_key(
        settings.root, settings.config.signing
    ),
    "etc/provision/keys/archive.gpg": lambda settings: _repositories(
        settings, "debian", "12", "bookworm"
    ),
    "etc/provision/keys/ours.asc": lambda settings: _repositories(
        settings, "fedora", "42", "fedora42"
    ),
    "srv/kernel/tree.tar": _tree,
    "srv/config/config": _tree,
    "opt/provision/bin/provision": lambda settings: _checked(
        ["units", "install", "--root", str(settings.root), "--dry-run"]
    ),
}


# acl(5), as the kernel keeps it: tag, permissions and id of each entry, and of whom an entry is.
_ANY_USER, _ANY_GROUP = 0x02, 0x08


def _listed(path: Path, tag: int) -> tuple[Path, int, int, int]:
    """Let a user or group write to a file by a list; its owner and mode are as root's own."""
    rights = [(0x01, 6, -1), (tag, 6, _UID), (0x04, 4, -1), (0x10, 6, -1), (0x20, 4, -1)]
    entries = b"".join(struct.pack("<HHi", *entry) for entry in sorted(rights))
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + entries)
    return path, 0, 0, 0o664


# How a user may change a file: owner and mode of what, with the file's path.
_LOOSE: dict[str, Callable[[Path], tuple[Path, int, int, int]]] = {
    "the file is a user's": lambda path: (path, _UID, 0, 0o644),
    "everyone may write to the file": lambda path: (path, 0, 0, 0o666),
    "a group may write to the file": lambda path: (path, 0, _UID, 0o664),
    "a list of access names a user": lambda path: _listed(path, _ANY_USER),
    "a list of access names a group": lambda path: _listed(path, _ANY_GROUP),
    "the folder is a user's": lambda path: (path.parent, _UID, 0, 0o755),
    "everyone may write to a folder above": lambda path: (path.parents[1], 0, 0, 0o777),
}


@pytest.mark.parametrize(
    ("steered", "loosen"),
    [
        # Each file in one way, and one file in each.
        *((name, "everyone may write to the file") for name in _STEERED),
        *(
            ("etc/provision/drivers/lab/driver.toml", way)
            for way in _LOOSE
            if way != "everyone may write to the file"
        ),
    ],
)
def test_what_a_user_may_change_steers_nothing(place: Path, steered: str, loosen: str) -> None:
    write_all(place, dict.fromkeys(_STEERED, ""))
    write_all(place, {"etc/provision/provision.toml": _TOML, "etc/os-release": BOOKWORM})

    def use() -> None:
        _STEERED[steered](replace(load_settings(place), state=place / "state"))

    # Before, nothing is wrong but that the files are empty.
    with suppress(ProvisionError):
        use()
    assert distrusted(place / steered) is None
    changed, user, group, mode = _LOOSE[loosen](place / steered)
    os.chown(changed, user, group)
    changed.chmod(mode)
    found = distrusted(place / steered)
    assert found is not None
    assert found.path == changed
    with pytest.raises(ConfigError) as caught:
        use()
    assert caught.value.resolution is None or found.cure == caught.value.resolution
    # What it says to do cures it.
    run(["sh", "-c", found.cure.partition(": ")[2]])
    assert distrusted(place / steered) is None


def test_a_pipe_in_a_users_folder_of_drivers_keeps_nobody_waiting(place: Path) -> None:
    """It is refused, but what decides about artifacts is compared before, at each boot too."""
    write(place / "etc/os-release", BOOKWORM)
    write(place / "lib/modules/6.1.0-56-amd64/modules.dep", "")
    write(
        place / "etc/provision/provision.toml",
        'catalogue = ["/srv/drivers"]\n[drivers.lab]\nversion = "1"\n',
    )
    (place / "srv/drivers/lab").mkdir(parents=True)
    os.mkfifo(place / "srv/drivers/lab/driver.toml")
    desired = load_desired(place)
    with _within(30):
        assert read_inputs(place, desired).of("lab", "6.1.0-56-amd64")


def test_a_link_in_a_users_folder_is_not_trusted_wherever_it_leads(place: Path) -> None:
    file = write(place / "roots/file", "")
    (place / "theirs").mkdir()
    os.chown(place / "theirs", _UID, _UID)
    (place / "theirs/link").symlink_to(file)
    found = distrusted(place / "theirs/link")
    assert found is not None
    assert found.path == place / "theirs"


@pytest.mark.parametrize("path", [":/usr/bin", "/usr/bin:", ".:/usr/bin", "bin:/usr/bin", ""])
def test_no_program_of_the_current_folder_is_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """PATH of a root shell has an empty or relative entry, and root stands in a user's folder."""
    for name in ("skopeo", "bin/skopeo"):
        write(place / name, "#!/bin/sh\necho stolen\n", 0o755)
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", path)
    found = find_program("skopeo")
    assert found is None or found.startswith("/usr/")
    # Nor by what is run.
    said = run_program(["/usr/bin/env"], why="look").stdout.splitlines()
    (given,) = [line.removeprefix("PATH=") for line in said if line.startswith("PATH=")]
    assert all(folder.startswith("/usr/") or folder == "/sbin" for folder in given.split(":"))


def test_an_installed_program_runs_no_code_that_a_variable_names(place: Path) -> None:
    """Of pip's scripts, as Ansible's role installs them."""
    write(place / "evil/sitecustomize.py", "print('stolen')\n")
    script = write(place / "provision", f"#!{sys.executable}\nprint('done')\n", 0o755)
    isolate(script)
    assert run([script], env={"PYTHONPATH": str(place / "evil")}).stdout == "done\n"
