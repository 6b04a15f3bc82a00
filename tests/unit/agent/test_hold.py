"""`[policy] hold_kernels`: a kernel without its drivers is not what boots by default.

GRUB's environment is edited by the real grub-editenv; what update-grub makes of our drop-in,
`engine/test_grub.py` shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kit.artifact import KERNEL
from kit.files import write
from kit.host_tree import DRIVER, NEXT
from kit.probe import need_programs
from kit.process import run
from provision.agent.removal import uninstall
from provision.agent.run import plan_host
from provision.agent.status import MOTD, HoldStatus, metrics_text
from provision.errors import ExitCode, ProvisionError
from unit.agent.host import Host

THIRD = "6.1.0-60-amd64"
_ID = "0b3c7e0e-0000-4000-8000-000000000000"


def _entry(release: str) -> str:
    return f"gnulinux-advanced-{_ID}>gnulinux-{release}-advanced-{_ID}"


def _menu(*releases: str) -> str:
    """As Debian's grub-mkconfig writes it."""
    kinds = "".join(
        f"\tmenuentry 'Debian, with Linux {release}{words}' --class debian $menuentry_id_option"
        f" 'gnulinux-{release}-{kind}-{_ID}' {{\n\t\tlinux\t/boot/vmlinuz-{release} ro\n\t}}\n"
        for release in releases
        for kind, words in (("advanced", ""), ("recovery", " (recovery mode)"))
    )
    return (
        f"menuentry 'Debian' --class debian $menuentry_id_option 'gnulinux-simple-{_ID}' {{\n"
        f"\tlinux\t/boot/vmlinuz-{releases[0]} ro\n}}\n"
        f"submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-{_ID}' {{\n"
        f"{kinds}}}\n"
    )


# What the programs of the host are, by their paths here.
_CHROOT = """\
#!/bin/sh
# Stand-in for chroot(8). grub-editenv is the real one; update-grub reads the files that Debian's
# grub-mkconfig reads, and bootctl sets the variable that bootctl(1) names.
set -eu
cd "$1"
program=$2
shift 2
echo "$program $*" >>../told
[ ! -e ../broken ] || { echo "$program: out of order" >&2; exit 1; }
case $program in
    grub*-editenv) file=$1; shift; grub-editenv ".$file" "$@" ;;
    update-grub)
        . ./etc/default/grub
        for x in ./etc/default/grub.d/*.cfg; do
            [ ! -e "$x" ] || eval "$(sed 's: /\\(boot\\|var\\)/: ./\\1/:g' "$x")"
        done
        printf %s "$GRUB_DEFAULT" >boot/grub/default
        ;;
    bootctl)
        variable=sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
        case $1 in
            list) cat boot/entries.json ;;
            set-default)
                rm -f "$variable"
                [ -n "$2" ] || exit 0
                { printf '\\7\\0\\0\\0'; printf '%s\\0' "$2" | iconv -t UTF-16LE; } >"$variable"
                ;;
        esac
        ;;
esac
"""


@dataclass
class Loader:
    """A boot loader of a host."""

    host: Host
    # The files that decide about the default.
    files: tuple[str, ...]
    # Makes a kernel the default, as an admin does it.
    choose: Callable[[str], object]
    # What boots by default, if a kernel is named.
    default: Callable[[], str | None]

    def contents(self) -> dict[str, bytes | None]:
        """What the files have."""
        paths = {name: self.host.root / name for name in self.files}
        return {n: path.read_bytes() if path.exists() else None for n, path in paths.items()}

    def apply(self) -> HoldStatus | None:
        """Run the agent; what it says is held."""
        return self.host.apply().status.hold

    def told(self) -> list[str]:
        """What programs were told since the last time."""
        path = self.host.folder / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def _kernel_in(text: str) -> str | None:
    return next((one for one in (KERNEL, NEXT, THIRD) if f"-{one}" in text), None)


def _saved(host: Host, *, bls: bool) -> Loader:
    """GRUB as EL has it, with entries as systemd-boot's, or Debian's with `saved`."""
    need_programs("grub-editenv")
    folder = "boot/grub2" if bls else "boot/grub"
    path = host.root / folder / "grubenv"
    path.parent.mkdir(parents=True)
    run(["grub-editenv", path, "create"])
    run(["grub-editenv", path, "set", "boot_success=1"])
    host.write("etc/default/grub", "GRUB_TIMEOUT=5\nGRUB_DEFAULT=saved\n")
    host.write(f"{folder}/grub.cfg", "" if bls else _menu(THIRD, NEXT, KERNEL))
    host.write("usr/sbin/update-grub", "")
    for one in (KERNEL, NEXT, THIRD) if bls else ():
        text = f"title Linux\nversion {one}\nlinux /vmlinuz-{one}\n"
        host.write(f"boot/loader/entries/4f2a-{one}.conf", text)

    def default() -> str | None:
        found = re.search(r"(?m)^saved_entry=(.*)$", run(["grub-editenv", path, "list"]).stdout)
        return _kernel_in(found[1]) if found else None

    def choose(release: str) -> None:
        name = f"4f2a-{release}" if bls else _entry(release)
        run(["grub-editenv", path, "set", f"saved_entry={name}"])

    return Loader(host, (f"{folder}/grubenv",), choose, default)


def _debian(host: Host) -> Loader:
    host.write("etc/default/grub", "GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\n")
    host.write("usr/sbin/update-grub", "")
    host.write("boot/grub/grub.cfg", _menu(THIRD, NEXT, KERNEL))
    made = host.write("boot/grub/default", "0")

    def choose(release: str) -> None:
        host.write("etc/default/grub", f"GRUB_DEFAULT='{_entry(release)}'\n")

    drop_in = "etc/default/grub.d/zz-provision.cfg"
    files = ("etc/default/grub", drop_in, "boot/grub/default")
    return Loader(host, files, choose, lambda: _kernel_in(made.read_text()))


def _systemd_boot(host: Host) -> Loader:
    name = "sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
    path = host.root / name
    path.parent.mkdir(parents=True)
    host.write("usr/bin/bootctl", "")
    rows = (f'{{"id":"4f2a-{one}.conf","version":"{one}"}}' for one in (THIRD, NEXT, KERNEL))
    host.write("boot/entries.json", f"[{','.join(rows)}]")

    def choose(release: str) -> None:
        write(path, b"\7\0\0\0" + f"4f2a-{release}.conf\0".encode("utf-16-le"))

    def default() -> str | None:
        return _kernel_in(path.read_bytes()[4:].decode("utf-16-le")) if path.exists() else None

    return Loader(host, (name,), choose, default)


_LOADERS: dict[str, Callable[[Host], Loader]] = {
    "EL's GRUB": lambda host: _saved(host, bls=True),
    "Debian's GRUB, saved": lambda host: _saved(host, bls=False),
    "Debian's GRUB": _debian,
    "systemd-boot": _systemd_boot,
}
_POLICY = f"[policy]\nhold_kernels = true\n\n[drivers.{DRIVER}]\n"


_BOTH_GRUBS = pytest.mark.parametrize("loader", ["EL's GRUB", "Debian's GRUB"], indirect=True)


@pytest.fixture(params=_LOADERS)
def loader(host: Host, request: pytest.FixtureRequest) -> Loader:
    """A host whose driver works, and where a newer kernel comes for which it does not build."""
    write(host.folder / "programs/chroot", _CHROOT, 0o755)
    made = _LOADERS[request.param](host)
    host.configure(_POLICY)
    host.apply()
    host.add_kernel(NEXT)
    host.broken[NEXT] = ProvisionError("it does not compile")
    return made


def _heal(host: Host, release: str = NEXT) -> None:
    del host.broken[release]
    host.configure(f"{_POLICY}version = '1.2'\n")


def test_it_boots_what_has_its_driver_until_the_next_kernel_has_it(loader: Loader) -> None:
    before, host = loader.contents(), loader.host
    hold = loader.apply()
    assert hold is not None
    assert (hold.kernel, hold.instead_of, hold.problem) == (KERNEL, NEXT, None)
    assert loader.default() == KERNEL
    # Where people and programs see it.
    (line,) = (host.root / MOTD).read_text().splitlines()
    assert KERNEL in line
    status = host.apply().status
    assert f'provision_kernel_held{{kernel="{KERNEL}",instead_of="{NEXT}"}} 1' in metrics_text(
        status
    )
    # What boots next has its driver.
    assert status.check_code == ExitCode.DONE
    # A run that changes nothing touches no boot loader.
    loader.told()
    loader.apply()
    assert {said.split()[1] for said in loader.told()} <= {"list", "--default-kernel"}
    _heal(host)
    assert loader.apply() is None
    assert loader.contents() == before
    assert (host.root / MOTD).read_text() == ""


@pytest.mark.parametrize("end", ["policy", "uninstall"])
def test_without_the_policy_or_provision_the_setting_before_is_back(
    loader: Loader, end: str
) -> None:
    loader.choose(NEXT)
    before, host = loader.contents(), loader.host
    loader.apply()
    assert loader.default() == KERNEL
    if end == "policy":
        host.configure(f"[drivers.{DRIVER}]\n")
        loader.apply()
    else:
        uninstall(host.root)
        assert list((host.root / "var/lib/provision").glob(".hold*")) == []
    assert {**loader.contents(), "boot/grub/default": None} == {**before, "boot/grub/default": None}
    assert loader.default() in {None, NEXT}


def test_what_someone_sets_meanwhile_stays(loader: Loader) -> None:
    host = loader.host
    loader.apply()
    loader.choose(NEXT)
    _, _, status = plan_host(host.root, host.desired())
    assert status.check_code == ExitCode.FAILED
    chosen = (host.root / loader.files[0]).read_bytes()
    for _ in range(2):
        assert loader.apply() is None
        assert (host.root / loader.files[0]).read_bytes() == chosen
        assert loader.default() == NEXT
    # That was about this kernel.
    host.add_kernel(THIRD)
    host.broken[THIRD] = ProvisionError("it does not compile")
    loader.choose(THIRD)
    hold = loader.apply()
    assert hold is not None
    assert (hold.kernel, hold.instead_of) == (KERNEL, THIRD)


@_BOTH_GRUBS
def test_a_kernel_that_is_gone_is_not_held(loader: Loader) -> None:
    host = loader.host
    before = loader.contents()
    loader.apply()
    host.boot(NEXT)
    host.remove_kernel(KERNEL)
    # Before the agent knows of it, too.
    _, _, status = plan_host(host.root, host.desired())
    assert status.hold is not None
    assert status.hold.kernel is None
    assert status.check_code == ExitCode.FAILED
    assert loader.apply() is None
    assert loader.contents() == before


@_BOTH_GRUBS
def test_the_newest_that_is_ready_is_held(loader: Loader) -> None:
    host = loader.host
    _heal(host)
    assert loader.apply() is None
    host.add_kernel(THIRD)
    host.broken[THIRD] = ProvisionError("it does not compile")
    hold = loader.apply()
    assert hold is not None
    assert (hold.kernel, hold.instead_of) == (NEXT, THIRD)
    assert loader.default() == NEXT


@_BOTH_GRUBS
def test_a_boot_loader_that_can_not_be_set_costs_no_driver_and_is_said(loader: Loader) -> None:
    host = loader.host
    before = loader.contents()
    broken = write(host.folder / "broken", "")
    result = host.apply()
    hold = result.status.hold
    assert hold is not None
    assert hold.problem
    assert hold.kernel is None
    assert result.status.drivers[0].is_ready
    assert loader.contents() == before
    broken.unlink()
    hold = loader.apply()
    assert hold is not None
    assert (hold.kernel, hold.problem) == (KERNEL, None)


@_BOTH_GRUBS
def test_uninstall_leaves_no_record_of_what_could_not_be_set(loader: Loader) -> None:
    before = loader.default()
    write(loader.host.folder / "broken", "")
    loader.apply()
    uninstall(loader.host.root)
    assert list((loader.host.root / "var/lib/provision").glob(".hold*")) == []
    assert loader.default() == before


def test_where_no_kernel_is_ready_nothing_is_held(host: Host) -> None:
    loader = _saved(host, bls=True)
    write(host.folder / "programs/chroot", _CHROOT, 0o755)
    host.configure(_POLICY)
    for release in (KERNEL, NEXT):
        host.add_kernel(release)
        host.broken[release] = ProvisionError("it does not compile")
    before = loader.contents()
    assert loader.apply() is None
    assert loader.contents() == before


@pytest.mark.parametrize("setting", [None, "GRUB_DEFAULT='1>2'"])
def test_a_host_whose_default_can_not_be_held_says_so(host: Host, setting: str | None) -> None:
    if setting is not None:
        _debian(host)
        host.write("etc/default/grub", f"{setting}\n")
    host.configure(_POLICY)
    host.apply()
    host.add_kernel(NEXT)
    host.broken[NEXT] = ProvisionError("it does not compile")
    status = host.apply().status
    assert status.hold is not None
    assert status.hold.problem
