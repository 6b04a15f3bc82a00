"""A guest whose drivers `provision` manages: what it should have, and what became of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kit.guest import IMAGE, Guest, Recipe
from kit.process import Completed, wait_for
from kit.released import compiled_modules
from kit.two_part_driver import DUO
from screencast import Recording

APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
APT_WITHIN_S = 1500
# What a build takes on a busy machine, with the emulated guest's part of it.
WITHIN_S = 1800

# A container of the guest's podman, by way of our runtime.
RUN = "podman --runtime oci-decorator run --rm --network none"
# Opens what v4l2loopback makes, and says so. A shell makes a file that is not there: so look first.
OPEN = "sh -c 'test -c /dev/video0 && : <>/dev/video0 && echo opened'"
FLAG = "-e OCI_V4L2LOOPBACK=all"
OPEN_DEVICE = f"{RUN} {FLAG} {IMAGE} {OPEN}"
ENGINES = {"docker": "docker run --rm --network none --runtime oci-decorator", "podman": RUN}
METRICS = "/var/lib/prometheus/node-exporter"
# An in-tree module that udev loads at every boot.
CONFLICT = "i2c_piix4"
# Files whose names have to do with us, but for what systemd, dpkg and the tests themselves write.
_OURS = "provision|oci-decorator|v4l2loopback|duo|lab"
_ELSEWHERE = (
    *("/root", "/srv", "/usr/lib/modules", "/var/log", "/var/lib/apt", "/var/lib/docker"),
    *("/var/lib/dpkg", "/var/lib/systemd/timers"),
)
LIST_OURS = f"""\
find / -xdev {" ".join(f"-path {folder} -prune -o" for folder in _ELSEWHERE)} \\
    -regextype posix-extended -regex '.*/[^/]*({_OURS})[^/]*' -print \\
    | grep -v /systemd-private- | sort"""

_CATALOGUE = "/srv/drivers"
_CONFIG = f"""\
catalogue = ["{_CATALOGUE}"]
[engine]
host = "{{engine}}"
# Build containers have no bridge.
network = "host"
{{drivers}}
"""
_DRIVER = '[drivers.{name}]\nversion = "{version}"\n'
_ENTRY = re.compile("[0-9a-f]{12}")
_PROGRAM = f"/var/lib/provision/{DUO}/current/driver/usr/bin/duo-version"


def put_packages(guest: Guest, packages: Sequence[Path], recipe: Recipe) -> None:
    """Put packages of a release into the guest's /root.

    Of the last one, `provision`, the modules are compiled here if this Python is the guest's: dpkg
    would do so in emulation.
    """
    for package in packages:
        guest.put(package, f"/root/{package.name}")
    if recipe.python == ".".join(map(str, sys.version_info[:2])):
        guest.put(compiled_modules(packages[-1], packages[-1].parent), "/root/compiled.tar")
        guest("tar -C / -xf /root/compiled.tar && rm /root/compiled.tar")


@dataclass(frozen=True, slots=True)
class Applied:
    """What `provision apply` has said."""

    # What it says about each driver, as `provision status` does.
    drivers: dict[str, dict[str, Any]]
    output: str


def _drivers_of(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {driver["name"]: driver for driver in status["drivers"]}


def slots_of(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a driver's status says, by kernel."""
    return {slot["release"]: slot for slot in status["kernels"]}


@dataclass(frozen=True, slots=True)
class ManagedGuest:
    """`provision` in a guest that builds in this machine's engine."""

    # The guest, with the product installed.
    guest: Guest
    # The engine's address, as the guest has to name it.
    engine: str
    # Gets what is shown.
    recording: Recording = field(default_factory=Recording)

    def show(
        self,
        script: str,
        *,
        check: bool = True,
        timeout_s: float = 600,
        lines: int = 12,
        why: str = "",
    ) -> Completed:
        """Run a script that the recording has, with so many lines of what it says."""
        done = self.guest(script, check=check, timeout_s=timeout_s)
        self.recording.add(script, done.output, lines=lines, why=why)
        return done

    def only_show(self, script: str, *, lines: int = 12, why: str = "") -> None:
        """Run a script for the recording, if there is one."""
        if self.recording.file is not None:
            self.show(script, check=False, lines=lines, why=why)

    def reboot(self, command: str = "systemctl reboot") -> None:
        """Reboot by `command`; the recording has that too."""
        self.guest.reboot(command)
        self.recording.add(command, "", lines=0)

    def put_catalogue(self, folder: Path) -> None:
        """Put a catalogue of made-up drivers into the guest, in place of the one before."""
        self.guest(f"rm -rf {_CATALOGUE}")
        self.guest.put(folder, _CATALOGUE)

    def want(self, policy: str = "", /, **versions: str) -> None:
        """Write provision.toml: a line of [policy], and drivers by name, each in a version."""
        drivers = f"[policy]\n{policy}\n" + "".join(
            _DRIVER.format(name=n, version=v) for n, v in versions.items()
        )
        config = _CONFIG.format(engine=self.engine, drivers=drivers)
        self.guest.write("/etc/provision/provision.toml", config)

    def apply(self, *words: str, status: int = 0) -> Applied:
        """Run `provision apply`, which has to end with the exit status `status`."""
        command = f"provision apply --json {' '.join(words)}"
        done = self.guest(command, check=False, timeout_s=WITHIN_S)
        assert done.returncode == status, done.output
        return Applied(_drivers_of(json.loads(done.stdout)["status"]), done.output)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so; the journal says why it is not."""
        journal = partial(self.journal, "provision-*")
        wait_for("the guest", until, within_s=WITHIN_S, pause_s=1, said=journal)

    def wait_for_services(self) -> None:
        """Wait until what a package manager or a boot has started is at its end."""
        asked = "systemctl is-active provision-boot provision-kernel provision-apply"
        states = {"activating", "deactivating", "reloading"}
        self.wait(lambda: not states & set(self.guest(asked, check=False).stdout.split()))

    @contextmanager
    def kernel_service_runs(self) -> Iterator[None]:
        """Wait until the service for new kernels was started by what happens here, and its end."""
        asked = "systemctl show --value -p ExecMainStartTimestampMonotonic provision-kernel"
        before = self.guest(asked).stdout
        yield
        self.wait(lambda: self.guest(asked).stdout != before)
        self.wait_for_services()

    def journal(self, unit: str) -> str:
        """What units have written in this boot."""
        return self.guest(f"journalctl -b --no-pager -u '{unit}'").stdout

    def boot_log(self) -> str:
        """Wait until the boot's part of the agent has ended, some seconds after a shell answers."""
        waiting = "systemctl list-jobs --no-legend | grep -qw provision-boot.service"
        self.guest(f"while {waiting}; do sleep 0.2; done")
        return self.journal("provision-boot")

    def is_loaded(self, module: str) -> bool:
        """Whether the guest's kernel has a module."""
        return f"\n{module} " in f"\n{self.guest('cat /proc/modules').stdout}"

    def statuses(self, *, check: int | None = None) -> dict[str, dict[str, Any]]:
        """What `provision status` says about each driver; in emulation, to ask takes ten seconds.

        With `check`, that is its exit status with `--check`.
        """
        words = "" if check is None else "--check"
        done = self.guest(f"provision status --json {words}", check=False)
        assert check in {None, done.returncode}, done.output
        return _drivers_of(json.loads(done.stdout))

    def status(self, driver: str) -> dict[str, Any]:
        """What it says about one."""
        return self.statuses()[driver]

    def slots(self, driver: str) -> dict[str, dict[str, Any]]:
        """The same, by kernel."""
        return slots_of(self.status(driver))

    def entries(self, driver: str) -> set[str]:
        """The names of a driver's store entries."""
        names = self.guest(f"ls -A /var/lib/provision/{driver}").stdout.split()
        return {name for name in names if _ENTRY.fullmatch(name)}

    def artifact(self, driver: str, link: str = "current") -> str:
        """The name of the entry behind one of a driver's links."""
        folder = f"/var/lib/provision/{driver}"
        return self.guest(f"basename $(readlink -f {folder}/{link})").stdout.strip()

    def configure_engines(self) -> None:
        """Have both engines know our runtime."""
        for engine in ENGINES:
            self.guest(f"oci-decorator configure {engine}")
        self.guest("systemctl reload docker")

    def assert_serves(self, version: str) -> None:
        """The host and its containers have the drivers, and both halves of duo in one version."""
        said = f"module {version} library {version}\n"
        assert f"{self.duo()}\n" == said, self.journal("provision-*")
        both = "sh -c 'duo-version && : <>/dev/video0 && echo opened'"
        started = self.guest(f"{RUN} {FLAG} -e OCI_DUO=all {IMAGE} {both}")
        assert started.stdout == f"{said}opened\n", started.output

    def duo(self) -> str:
        """What duo's program says on the guest itself: the module's version and the library's.

        The library is found through the guest's own cache; the program fails where they differ.
        """
        return self.guest(_PROGRAM).stdout.strip()
