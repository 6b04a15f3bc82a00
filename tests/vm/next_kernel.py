"""Two drivers on a host whose next kernel one of them does not build for, until it has a patch.

`duo` in its version DUO_BROKEN is the one that does not, and `hello` builds for every kernel. What
hosts of each kind have to say and do then is the same; how a kernel comes and goes is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.fileserver import served
from kit.made_up import MADE_UP, MADE_UP_VERSION, made_up_source, write_made_up
from kit.two_part_driver import DUO, DUO_BROKEN, duo_catalogue, repair_duo
from vm.managed import ManagedGuest

WANTED = {MADE_UP: MADE_UP_VERSION, DUO: DUO_BROKEN}
# What duo's program says of that version.
LOADED = f"module {DUO_BROKEN} library {DUO_BROKEN}"
# Why it does not build.
COMPILER_SAYS = "too few arguments to function"

_OTHER = "2.0"
_FAILED = 1


@contextmanager
def next_kernel_catalogue(folder: Path, *, since: str, host: str) -> Iterator[Path]:
    """A catalogue of both below `folder`, served meanwhile.

    Args:
        folder: For its files.
        since: The number of the kernel that `duo` does not build for, such as `6.12.117`.
        host: This machine, as guests have to name it.
    """
    tarball = made_up_source(folder / "files", MADE_UP_VERSION)
    with (
        duo_catalogue(folder / "duo", host=host, since=since) as drivers,
        served(tarball.parent) as url,
    ):
        write_made_up(drivers, {MADE_UP_VERSION: tarball}, url.replace("127.0.0.1", host))
        yield drivers


def check_failure_is_said(host: ManagedGuest, *, running: str, coming: str) -> None:
    """The host says before the reboot what it would lose, and has everything meanwhile."""
    assert host.slots(MADE_UP)[coming]["state"] == "ready"
    assert host.slots(MADE_UP)[coming]["role"] == "next"
    status = host.status(DUO)
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    slots = host.slots(DUO)
    assert slots[running]["state"] == "ready"
    assert COMPILER_SAYS in str(slots[coming]["failure"])
    assert host.guest("provision status --check", check=False).returncode == _FAILED
    assert host.duo() == LOADED


def heal(host: ManagedGuest, catalogue: Path, *, since: str) -> None:
    """Patch the driver in the catalogue; all kernels have it then."""
    repair_duo(catalogue, since=since)
    host.put_catalogue(catalogue)
    host.apply()
    assert {slot["state"] for slot in host.slots(DUO).values()} == {"ready"}


def check_way_back(host: ManagedGuest, kernel: str) -> None:
    """The kernel that ran before finds its modules, should it be booted again."""
    for driver in (MADE_UP, DUO):
        host.guest(f"provision verify /var/lib/provision/{driver}/kernels/{kernel}")


def check_rollback(host: ManagedGuest, want: Callable[..., None]) -> None:
    """A driver moves on, module and library; goes back, both of them; and stays there.

    `want` writes provision.toml, as `ManagedGuest.want` does.
    """
    want(**{**WANTED, DUO: _OTHER})
    host.apply()
    assert host.duo() == f"module {_OTHER} library {_OTHER}"
    host.guest(f"provision rollback {DUO}")
    assert host.duo() == LOADED
    host.apply()
    assert host.duo() == LOADED


def check_only_needed_stays(host: ManagedGuest, kernel: str) -> None:
    """Garbage collection leaves what the only kernel that can be booted needs."""
    kept = host.artifact(MADE_UP, f"kernels/{kernel}")
    host.guest("provision gc")
    assert host.entries(MADE_UP) == {kept}
    assert host.guest(f"ls /var/lib/provision/{DUO}/kernels").stdout.split() == [kernel]
    host.apply()
    assert host.duo() == LOADED
    assert set(host.slots(MADE_UP)) == {kernel}
