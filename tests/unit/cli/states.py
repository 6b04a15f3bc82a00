"""The states of a host that the table of the command line begins with, by their names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from operator import methodcaller

from kit.files import write
from kit.host_tree import DRIVER, KERNEL, NEXT, HostTree, have_kept_host
from provision.fleet import Cell, Column, Row
from provision.fleet.results import matrix_folder, result_of, write_result
from provision.manifest import PciMatch

# Runs a command line on the host.
Run = Callable[..., object]
State = Callable[[HostTree, Run], object]
# What happens to a host: a command line that runs on it, or a change of it.
Step = str | Callable[[HostTree], object]

_SETTINGS = "etc/provision/provision.toml"
_RECIPE = f"srv/drivers/{DRIVER}/driver.toml"
_CARRIED = f"oci:{{folder}}/carried/{DRIVER}:1"


def _state(steps: tuple[Step, ...]) -> State:
    def state(host: HostTree, run: Run) -> None:
        for step in steps:
            if isinstance(step, str):
                run(*(word.format(folder=host.folder) for word in step.split()))
            else:
                step(host)

    return state


_want = partial(methodcaller, "want")
_offer = partial(methodcaller, "offer")


def _configure(text: str) -> Step:
    return lambda host: host.configure(text)


def _refuse(module: str) -> Step:
    return lambda host: host.refuse(module)


def _write(name: str, text: str = "") -> Step:
    return lambda host: host.write(name, text)


def _remove(name: str) -> Step:
    def remove(host: HostTree) -> None:
        path = host.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _edit(name: str, old: str, new: str) -> Step:
    """Have another text in a file; in place of nothing, at its end."""

    def edit(host: HostTree) -> None:
        path = host.root / name
        text = path.read_text()
        path.write_text(text.replace(old, new) if old else f"{text}\n{new}")

    return edit


def _next(*versions: str) -> tuple[Step, ...]:
    """Have the next kernel, for which these versions are offered."""
    return (
        lambda host: host.add_kernel(NEXT),
        *(_offer(version, kernel=NEXT) for version in versions),
    )


def _spoil(name: str, text: str | None) -> tuple[Step, ...]:
    """A file that a driver in use has outside of the store is gone, or has another text."""

    def spoil(host: HostTree) -> None:
        path = host.root / name
        assert path.is_symlink() or path.is_file()
        path.unlink() if text is None else path.write_text(text)

    return _want(), _offer(check="true", conflicts=("nouveau",)), "apply", spoil


def _alter(host: HostTree, end: bytes = b"x") -> None:
    """Have other bytes in the module in use, and as many of them."""
    module = next(host.store("current").resolve().rglob("demo.ko"))
    module.write_bytes(module.read_bytes()[:-1] + end)


def _alter_previous_library(host: HostTree) -> None:
    folder = host.store("previous").resolve() / "driver"
    library = next(path for path in folder.rglob("*") if path.is_file() and ".so" in path.name)
    library.write_bytes(bytes(byte ^ 1 for byte in library.read_bytes()))


def _empty_lists(host: HostTree) -> None:
    for path in host.store("kernels").glob("*/lib/modules/*/modules.dep"):
        path.write_text("")


def _forget_trials(host: HostTree) -> None:
    """As where QEMU is installed later."""
    state = host.store("state.json")
    state.write_text(re.sub(r'(?m)^ *"tried": "[0-9a-f]+",\n', "", state.read_text()))


def _break_qemu(host: HostTree) -> None:
    program = host.folder / "programs/qemu-system-x86_64"
    program.rename(host.folder / "qemu")
    write(program, "#!/bin/sh\nexit 1\n", 0o755)


def _mend_qemu(host: HostTree) -> None:
    (host.folder / "qemu").rename(host.folder / "programs/qemu-system-x86_64")


def _add_other_driver(host: HostTree) -> None:
    shutil.copytree(host.store(), host.store().with_name("other"), symlinks=True)


def _secure_boot(host: HostTree) -> None:
    name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    write(host.root / "sys/firmware/efi/efivars" / name, b"\x06\0\0\0\x01")


def _have_result(host: HostTree) -> None:
    """Have a result of the matrix for the next kernel."""
    cell = Cell(Row(DRIVER, "1.2", "open"), Column("debian:12", NEXT))
    result = result_of(cell, "failed", message="no", reason="compile")
    write_result(matrix_folder(host.root), result)


def _have_fleet(host: HostTree) -> None:
    """Have a fleet whose images are signed, and no key."""
    text = f'registry = "r.example/drivers"\n[[builds]]\ndrivers = ["{DRIVER}"]\n'
    (host.folder / "fleet.toml").write_text(f'{text}distros = ["debian:12"]\n')


def _make_unreadable(host: HostTree) -> None:
    """As for a user who may not look into the folder."""
    shutil.rmtree(host.store("kernels"))
    host.store("kernels").write_text("")


def _check_failed(version: str | None) -> tuple[Step, ...]:
    """2.0 was loaded, and its check failed: it passes once the host has the file /srv/works."""
    return (
        *_READY,
        lambda host: host.offer("2.0", check=f"test -e '{host.root}/srv/works'"),
        _want(version=version),
        "apply" if version else "apply --update",
    )


def _newest_refused(version: str | None = None) -> tuple[Step, ...]:
    """The kernel did not take 2.0, and says nothing that is known."""
    refuses = (_offer("2.0"), _refuse(f"{DRIVER}-2.0"), _want(version=version))
    return (*_READY, *refuses, "apply --update")


def _newest_offered(update: str) -> tuple[Step, ...]:
    return _want(f'update = "{update}"'), _offer(), "apply", _offer("2.0")


def _signed_by(who: str) -> tuple[Step, ...]:
    return _want(), _offer(signed=who)


def _generation(name: str, device: str, versions: str) -> str:
    return f'[[hardware.cards]]\nname = "{name}"\ndevices = ["{device}"]\nversions = "{versions}"\n'


_WANTED: tuple[Step, ...] = (_want(), _offer())
_READY = (*_WANTED, "apply")
_REBOOTED = (*_READY, HostTree.boot)
_NEWER = (*_READY, _offer("2.0"), _want(version="2.0"))
_TWO = (*_NEWER, "apply")
_OLDER_REFUSED = (*_TWO, _refuse(f"{DRIVER}-1.2"))
_UPDATED_AND_BACK = (*_READY, _offer("2.0"), "apply --update", f"rollback {DRIVER}")
_NEXT_OFFERED = (*_READY, *_next("1.2"))
_NEXT_READY = (*_NEXT_OFFERED, "apply")
_NEXT_REFUSES = (*_NEXT_OFFERED, HostTree.refuse_next)
_NEXT_UNTRIED = (*_NEXT_READY, _forget_trials)
_NEXT_REFUSES_NEWER = (*_NEXT_READY, _offer("2.0", kernel=NEXT), HostTree.refuse_next)
# As Secure Boot makes a distro's kernel do, without a word on its command line.
_LOCKED = (
    *_NEXT_READY,
    _write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
)
_NOUVEAU = _write("proc/modules", "nouveau 16384 1 - Live 0x0000000000000000\n")
_WITH_CONFLICT: tuple[Step, ...] = (_want(), _offer(conflicts=("nouveau",)))
_CONFLICT_IN_USE = (*_WITH_CONFLICT, _NOUVEAU)
_LET_GO = (
    _write("proc/modules", "nouveau 16384 0 - Live 0x0000000000000000\n"),
    _write("sys/module/nouveau/version", "1\n"),
)
# The version that serves is offered no more, and is made of something else by now.
_OLDER_OFFERED: tuple[Step, ...] = (
    *(_want(), _offer("2.0"), "apply", lambda host: host.offer_only("1.2")),
    _edit(_RECIPE, "", "# changed\n"),
)
_BY_A_NEWER = _edit(f"var/lib/provision/{DRIVER}/state.json", '"schema": 1', '"schema": 99')
_STATE_OF_A_NEWER = (*_READY, _BY_A_NEWER)
_FAILS = '[[kernels]]\nversions = "{}"\nfails = ">=6.1"\nreason = "no such function"\n'
_UNTRIED = _edit(_RECIPE, 'works = ">=6.1"', 'works = "<6"')
_FOLLOWED_IN_USE = (*_newest_offered("timer"), HostTree.use)
_CARRIED_HERE = (*_WANTED, HostTree.carry)
_DEVICE: tuple[Step, ...] = (_want(vendor="1234"), lambda host: host.plug_in("0001"))
_TWO_DEVICES: Step = methodcaller("plug_in", "0001", "0002")
_NEWEST_NAMED = (*_DEVICE, _offer("2.0"), _want(vendor="1234", version="2.0"))
_OLD_CARDS = _edit(_RECIPE, "", _generation("Old", "0001", "<2"))
# The driver lists other cards than the host has.
_FOR_OTHERS = (
    *_DEVICE,
    _offer(cards=(PciMatch(vendor="1234", devices=("0002",)),)),
    HostTree.carry,
)
_NO_ENGINE = (_want(), _edit(_SETTINGS, '"never"', '"always"'))
_BROKEN_RECIPE = 'schema = 2\nname = "other"\n'
_OF_AN_ENDED_BRANCH = """\
[upstream]
reviewed = "2020-01"
[upstream.branches]
1 = { maturity = "production", end_of_life = "2020-01" }
"""

# Hosts that lack what most commands look at, each of one thing.
_EMPTIED: dict[str, tuple[Step, ...]] = {
    # The root of an image that is being made: nothing runs there.
    "no kernel": (*_WANTED, _remove("proc"), _remove("lib/modules")),
    "kernel without modules.dep": (
        *_WANTED,
        _remove("proc"),
        _remove(f"lib/modules/{KERNEL}/modules.dep"),
    ),
    "no engine": _NO_ENGINE,
    "no network": (
        _want(),
        _edit(_SETTINGS, 'folders = ["/srv/images"]', 'address = "127.0.0.1:9"'),
    ),
    "no driver": (_configure("# none\n"),),
    "misspelt driver": (
        *_WANTED,
        _edit(_SETTINGS, f"[drivers.{DRIVER}]", f"[drivers.{DRIVER}o]"),
    ),
    "its recipe broken": (*_WANTED, _write(_RECIPE, _BROKEN_RECIPE)),
    "nothing stored": (_want(),),
    "unreadable": (*_READY, _make_unreadable),
}
_STATES: dict[str, tuple[Step, ...]] = {
    "empty": (),
    "mistakes": (_configure('[policy]\nunload = "force"\nkeep = -1\n'),),
    "no os-release": (_remove("etc/os-release"),),
    "wanted": _WANTED,
    "wanted, offered by nobody": (_want(),),
    "wanted, signed by a stranger": _signed_by("stranger"),
    "wanted, not signed": _signed_by("nobody"),
    "wanted, not signed, allowed": (
        *_signed_by("nobody"),
        _edit(_SETTINGS, 'keys = "/etc/provision/trust.d"', "insecure = true"),
    ),
    "wanted, signed at last": (
        *_signed_by("stranger"),
        "apply",
        lambda host: host.offer_only("1.2"),
    ),
    "wanted, offered at last": (_want(), "apply", _offer()),
    "wanted, no keys": (*_WANTED, _edit(_SETTINGS, "keys =", "# keys =")),
    "wanted, misspelt flavour": (
        *_WANTED,
        _edit(_SETTINGS, f"[drivers.{DRIVER}]", f'[drivers.{DRIVER}]\nflavour = "opne"'),
    ),
    "its recipe broken": _EMPTIED["its recipe broken"],
    "wanted, misspelt version": (*_WANTED, _want(version="productoin")),
    "wanted, no such version": (*_WANTED, _want(version="3.0")),
    "wanted, to be built": _NO_ENGINE,
    "no engine, a mirror": (
        *_NO_ENGINE,
        _edit(
            _SETTINGS,
            f"[drivers.{DRIVER}]",
            '[distros.debian.archive]\nmirror = "http://127.0.0.1:9/d"\n'
            f'security_mirror = "http://127.0.0.1:9/s"\n[drivers.{DRIVER}]',
        ),
    ),
    "wanted, of an ended branch": (*_WANTED, _edit(_RECIPE, "", _OF_AN_ENDED_BRANCH)),
    "wanted, fails here": (*_WANTED, _edit(_RECIPE, "", _FAILS.format("==1.2"))),
    "wanted, newest fails here": (
        *_WANTED,
        _offer("2.0"),
        _edit(_RECIPE, "", _FAILS.format(">=2")),
    ),
    "wanted, untried": (*_WANTED, _UNTRIED),
    "wanted, untried and refused": (*_WANTED, _want('untried = "refuse"'), _UNTRIED),
    "carried, fails here": (*_CARRIED_HERE, _edit(_RECIPE, "", _FAILS.format("==1.2"))),
    "wanted, immutable": (
        *_WANTED,
        _write("proc/mounts", "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /usr ext4 ro 0 0\n"),
    ),
    "wanted, DKMS has it too": (
        *_WANTED,
        _write(f"lib/modules/{KERNEL}/updates/dkms/{DRIVER}.ko"),
    ),
    "wanted, vendor file of an admin": (
        *_WANTED,
        _write(f"etc/oci-decorator/oci-decorator.d/{DRIVER}.json", "{}\n"),
    ),
    "wanted, the kernel refuses it": (*_WANTED, HostTree.refuse),
    "wanted, conflict": (*_CONFLICT_IN_USE, *_LET_GO),
    "wanted, conflict in use": _CONFLICT_IN_USE,
    "ready": _READY,
    "ready, offered by nobody any more": (*_READY, _remove("srv/images")),
    "ready, other policy": (*_READY, _want('trial = false\nuntried = "refuse"\n')),
    "ready, beside a misspelt": (*_READY, _want(f"\n[drivers.{DRIVER}o]\n")),
    "rebooted": _REBOOTED,
    "rebooted, mistakes": (*_REBOOTED, _configure("[drivers\n")),
    # Under the same release, with other versions of its symbols.
    "kernel built again": (
        *_READY,
        _write(
            f"lib/modules/{KERNEL}/build/Module.symvers", "0x22222222\tmodule_layout\tvmlinux\n"
        ),
    ),
    "in use": (*_READY, HostTree.use),
    "newer": _NEWER,
    "ready, older offered": _OLDER_OFFERED,
    "ready, older offered, next kernel": (*_OLDER_OFFERED, *_next("1.2")),
    "newest, signed by a stranger": (*_READY, _offer("2.0", signed="stranger")),
    "two versions, previous library altered": (*_TWO, _alter_previous_library),
    "two versions, none whole, booted": (*_TWO, _alter_previous_library, HostTree.boot, _alter),
    "two versions, a third while in use": (
        *_TWO,
        _offer("3.0"),
        _want(version="3.0"),
        HostTree.use,
    ),
    "newer, in use": (*_NEWER, HostTree.use),
    "newer, in use, made": (*_NEWER, HostTree.use, "apply"),
    "wanted, conflict in use, made": (*_CONFLICT_IN_USE, "apply"),
    "wanted, conflict in use, let go": (*_CONFLICT_IN_USE, "apply", *_LET_GO),
    "wanted, conflict in use, rebooted": (*_CONFLICT_IN_USE, "apply", HostTree.boot),
    "next kernel, unfinished": (
        *_READY,
        *_next(),
        _remove(f"lib/modules/{NEXT}/modules.dep"),
        _write(f"boot/vmlinuz-{KERNEL}"),
        _write(f"boot/vmlinuz-{NEXT}"),
    ),
    "two versions": _TWO,
    "two versions, keep none": (*_TWO, _edit(_SETTINGS, "[policy]", "[policy]\nkeep = 0")),
    "two versions, not wanted any more": (*_TWO, _configure("# none\n")),
    "two versions, newest altered, booted": (*_TWO, _alter, HostTree.boot),
    "rolled back": (*_TWO, f"rollback {DRIVER}"),
    "updated, rolled back, recipe changed": (
        *_UPDATED_AND_BACK,
        _edit(_RECIPE, "", "# changed\n"),
    ),
    "updated, rolled back, next kernel": (*_UPDATED_AND_BACK, *_next("1.2", "2.0")),
    "newest refused": _newest_refused(),
    "newest refused, rebooted": (*_newest_refused(), HostTree.boot),
    "newest refused, at boot": (*_newest_refused(), HostTree.boot, "apply --boot"),
    "newest refused, next kernel": (*_newest_refused(), *_next("1.2", "2.0")),
    "newest refused, named, next kernel": (*_newest_refused("2.0"), *_next("2.0")),
    "newest refused, named, next kernel runs": (
        *_newest_refused("2.0"),
        *_next("2.0"),
        "apply",
        HostTree.accept,
        lambda host: host.boot(NEXT),
    ),
    "two versions, older refused": _OLDER_REFUSED,
    "two versions, older refused, waits for the boot": (
        *_OLDER_REFUSED,
        HostTree.use,
        f"rollback {DRIVER}",
        HostTree.boot,
    ),
    "two versions, not rolled back": (*_OLDER_REFUSED, f"rollback {DRIVER}"),
    "next kernel": (*_READY, *_next()),
    "next kernel, offered": _NEXT_OFFERED,
    "next kernel, not made before": (*_NEXT_OFFERED, _want("prebuild = false\n")),
    "next kernel, ready": _NEXT_READY,
    "next kernel, ready, beside another driver": (*_NEXT_READY, _add_other_driver),
    "next kernel, refuses": _NEXT_REFUSES,
    "check failed": _check_failed("2.0"),
    "check failed, not named": _check_failed(None),
    "check failed, works now": (*_check_failed("2.0"), _write("srv/works")),
    "check failed, not named, works now": (*_check_failed(None), _write("srv/works")),
    "next kernel, refused": (*_NEXT_REFUSES, "apply"),
    "next kernel, made without a trial": _NEXT_UNTRIED,
    "next kernel, made without a trial, refuses": (*_NEXT_UNTRIED, HostTree.refuse_next),
    "next kernel, can't be tried": (_break_qemu, *_NEXT_READY, _mend_qemu),
    "next kernel, ready, locked down": _LOCKED,
    "next kernel, ready, not locked down": (
        *_NEXT_READY,
        _write("proc/cmdline", "quiet lockdown=none\n"),
    ),
    "next kernel, ready, locked down, signed here": (
        *_LOCKED,
        _edit(
            _SETTINGS,
            "",
            '[signing]\nkey = "/etc/provision/mok.key"\ncertificate = "/etc/provision/mok.der"\n',
        ),
    ),
    "next kernel, ready, Secure Boot": (*_NEXT_READY, _secure_boot),
    "next kernel, refuses a newer version": _NEXT_REFUSES_NEWER,
    "next kernel, refused a newer version": (*_NEXT_REFUSES_NEWER, "apply --update"),
    "next kernel, refused, trials off": (*_NEXT_REFUSES, "apply", _want("trial = false\n")),
    "next kernel runs": (*_NEXT_READY, lambda host: host.boot(NEXT)),
    "unprepared kernel runs": (*_READY, *_next(), lambda host: host.boot(NEXT)),
    "not wanted any more": (*_READY, _configure("# none\n")),
    "damaged": (*_READY, lambda host: _alter(host, b"")),
    "blacklist emptied": _spoil(f"etc/modprobe.d/provision-{DRIVER}.conf", ""),
    "blacklist changed": _spoil(f"etc/modprobe.d/provision-{DRIVER}.conf", "# mine\n"),
    "vendor file emptied": _spoil(f"etc/oci-decorator/oci-decorator.d/{DRIVER}.json", ""),
    "library folder gone": _spoil(f"etc/ld.so.conf.d/provision-{DRIVER}.conf", None),
    "program gone": _spoil(f"usr/local/bin/{DRIVER}ctl", None),
    "list of modules emptied": (*_READY, _empty_lists),
    "next kernel, ready, list of modules emptied": (*_NEXT_READY, _empty_lists),
    "rebooted, altered": (*_REBOOTED, _alter),
    "rebooted, entry gone": (
        *_REBOOTED,
        lambda host: host.store("current").resolve().rename(host.folder / "gone"),
    ),
    "rebooted, the kernel refuses it": (*_REBOOTED, HostTree.refuse),
    "rebooted, conflict in use": (*_WITH_CONFLICT, "apply", HostTree.boot, _NOUVEAU),
    # It is loaded at a boot, at which a module that it can't be beside is in use.
    "rebooted, conflict of the newer in use": (
        *_READY,
        _offer("2.0", conflicts=("nouveau",)),
        _want(version="2.0"),
        "apply",
        HostTree.boot,
        _NOUVEAU,
    ),
    "newest, not followed": _newest_offered("never"),
    "newest, not followed, next kernel": (*_newest_offered("never"), *_next("1.2", "2.0")),
    "newest, offered no more": (
        *_newest_offered("never"),
        "apply --update",
        lambda host: host.offer_only("1.2"),
    ),
    "newest, followed": _newest_offered("timer"),
    "newest, followed, in use": _FOLLOWED_IN_USE,
    "newest, followed, waits for the boot": (*_FOLLOWED_IN_USE, "apply --timer", HostTree.boot),
    "wanted, offered for the next kernel": (_want(), _offer(kernel=NEXT)),
    "kernel to come": (
        *_READY,
        _offer(kernel=NEXT),
        lambda host: (host.folder / "usr/lib/modules" / NEXT).mkdir(parents=True),
    ),
    "result of a matrix": (_have_result,),
    "fleet": (_want(), _have_fleet),
    "carried": _CARRIED_HERE,
    "carried, pulled": (*_CARRIED_HERE, f"registry pull {_CARRIED}"),
    "carried of a stranger": (*_signed_by("stranger"), HostTree.carry),
    "carried, not signed": (*_signed_by("nobody"), HostTree.carry),
    "carried, no trust": (*_CARRIED_HERE, _remove(_SETTINGS)),
    "carried, not named": (*_CARRIED_HERE, _edit(_SETTINGS, f"[drivers.{DRIVER}]", "")),
    "carried, another version named": (*_CARRIED_HERE, _want(version="2.0")),
    "carried, for the next kernel": (_want(), *_next("1.2"), HostTree.carry),
    "carried, installed": (*_CARRIED_HERE, f"install {_CARRIED}"),
    "carried, installed, damaged": (
        *_CARRIED_HERE,
        f"install {_CARRIED}",
        lambda host: (host.store("current").resolve() / "driver/usr/bin/democtl").unlink(),
    ),
    "device": _DEVICE,
    "device, too new a version named": (*_NEWEST_NAMED, _OLD_CARDS),
    "devices, too new a version for one named": (*_NEWEST_NAMED, _TWO_DEVICES, _OLD_CARDS),
    "device, of a generation": (*_DEVICE, _OLD_CARDS),
    "devices that nothing serves together": (
        *_DEVICE,
        _TWO_DEVICES,
        _OLD_CARDS,
        _edit(_RECIPE, "", _generation("New", "0002", ">=2")),
    ),
    "device, driver for others": _FOR_OTHERS,
    "device, driver for others pulled": (*_FOR_OTHERS, f"registry pull {_CARRIED}"),
    "devices, driver for one": (*_FOR_OTHERS, _TWO_DEVICES),
    "device, driver for others in use": (*_FOR_OTHERS, f"install {_CARRIED} --force", "apply"),
    "broken recipe": (_want(), _write("srv/drivers/broken/driver.toml", _BROKEN_RECIPE)),
    "units": ("units install",),
    "units of a package": (
        "units install",
        _write("usr/lib/systemd/system/provision-boot.service", "[Service]\n"),
    ),
    "left by 0.1.0": (lambda host: have_kept_host(host, "0.1.0"),),
    "broken state": (*_READY, _write(f"var/lib/provision/{DRIVER}/state.json", "{")),
    "state of a newer provision": _STATE_OF_A_NEWER,
    "state of a newer provision, booted": (*_STATE_OF_A_NEWER, HostTree.boot),
    "state of a newer provision, next kernel runs": (
        *_NEXT_READY,
        _BY_A_NEWER,
        lambda host: host.boot(NEXT),
    ),
    "state of a newer provision, not wanted": (*_STATE_OF_A_NEWER, _configure("[policy]\n")),
    "store gone": (*_READY, _remove(f"var/lib/provision/{DRIVER}")),
    "settings gone": (*_READY, _remove(_SETTINGS)),
    "settings emptied": (*_READY, _configure("\n \n")),
    "older named": (*_TWO, _want(version="1.2")),
    "named, newer offered": (_want(version="1.2"), _offer(), "apply", _offer("2.0")),
}
EMPTIED, STATES = (
    {name: _state(steps) for name, steps in each.items()} for each in (_EMPTIED, _STATES)
)
