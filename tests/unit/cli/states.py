"""The states of a host that the table of the command line begins with, by their names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from kit.host_tree import DRIVER, KERNEL, NEXT, HostTree, have_kept_host
from provision.fleet import Cell, Column, Row
from provision.fleet.results import matrix_folder, result_of, write_result
from provision.manifest import PciMatch

# Runs a command line on the host.
Run = Callable[..., object]
State = Callable[[HostTree, Run], object]


def _want(host: HostTree, _run: Run) -> None:
    host.want()


def _wanted(host: HostTree, run: Run) -> None:
    del run
    host.want()
    host.offer()


def _ready(host: HostTree, run: Run) -> None:
    _wanted(host, run)
    run("apply")


def _rebooted(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.boot(KERNEL)


def _kernel_built_again(host: HostTree, run: Run) -> None:
    """Under the same release, with other versions of its symbols."""
    _ready(host, run)
    host.write(f"lib/modules/{KERNEL}/build/Module.symvers", "0x22222222\tmodule_layout\tvmlinux\n")


def _newer_offered(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.offer("2.0")
    host.want(version="2.0")


def _newer_in_use(host: HostTree, run: Run) -> None:
    _newer_offered(host, run)
    host.use()


def _two_versions(host: HostTree, run: Run) -> None:
    _newer_offered(host, run)
    run("apply")


def _previous_library_altered(host: HostTree, run: Run) -> None:
    _two_versions(host, run)
    folder = host.store("previous").resolve() / "driver"
    library = next(path for path in folder.rglob("*") if path.is_file() and ".so" in path.name)
    library.write_bytes(bytes(byte ^ 1 for byte in library.read_bytes()))


def _newest_altered_at_boot(host: HostTree, run: Run) -> None:
    _two_versions(host, run)
    module = next(host.store("current").resolve().rglob("demo.ko"))
    module.write_bytes(module.read_bytes()[:-1] + b"x")
    host.boot(KERNEL)


def _nothing_whole_at_boot(host: HostTree, run: Run) -> None:
    _previous_library_altered(host, run)
    host.boot(KERNEL)
    module = next(host.store("current").resolve().rglob("demo.ko"))
    module.write_bytes(module.read_bytes()[:-1] + b"x")


def _third_version_while_in_use(host: HostTree, run: Run) -> None:
    _two_versions(host, run)
    host.offer("3.0")
    host.want(version="3.0")
    host.use()


def _rolled_back(host: HostTree, run: Run) -> None:
    _two_versions(host, run)
    run("rollback", DRIVER)


def _updated_and_back(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.offer("2.0")
    run("apply", "--update")
    run("rollback", DRIVER)


def _next_kernel(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.add_kernel(NEXT)


def _next_kernel_offered(host: HostTree, run: Run) -> None:
    _next_kernel(host, run)
    host.offer(kernel=NEXT)


def _next_kernel_ready(host: HostTree, run: Run) -> None:
    _next_kernel_offered(host, run)
    run("apply")


def _next_kernel_refuses(host: HostTree, run: Run) -> None:
    _next_kernel_offered(host, run)
    host.refuse_next()


def _next_kernel_refused(host: HostTree, run: Run) -> None:
    _next_kernel_refuses(host, run)
    run("apply")


def _next_kernel_refuses_newer(host: HostTree, run: Run) -> None:
    _next_kernel_ready(host, run)
    host.offer("2.0", kernel=NEXT)
    host.refuse_next()


def _next_kernel_untried(host: HostTree, run: Run) -> None:
    """Have it be made without a trial, as where QEMU is installed later."""
    _next_kernel_ready(host, run)
    state = host.store("state.json")
    state.write_text(re.sub(r'(?m)^ *"tried": "[0-9a-f]+",\n', "", state.read_text()))


def _next_kernel_can_not_be_tried(host: HostTree, run: Run) -> None:
    program = host.folder / "programs/qemu-system-x86_64"
    text = program.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    _next_kernel_ready(host, run)
    program.write_text(text)


def _add_other_driver(host: HostTree) -> None:
    shutil.copytree(host.store(), host.store().with_name("other"), symlinks=True)


def _lock_down(host: HostTree) -> None:
    """As Secure Boot makes a distro's kernel do, without a word on its command line."""
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")


def _lock_down_and_sign(host: HostTree) -> None:
    _lock_down(host)
    settings = _settings(host)
    signing = '[signing]\nkey = "/etc/provision/mok.key"\ncertificate = "/etc/provision/mok.der"\n'
    settings.write_text(f"{settings.read_text()}\n{signing}")


def _secure_boot(host: HostTree) -> None:
    name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    path = host.root / "sys/firmware/efi/efivars" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x06\0\0\0\x01")


def _check_failed(version: str | None) -> State:
    """2.0 was loaded, and its check failed: it passes once the host has the file /srv/works."""

    def prepare(host: HostTree, run: Run) -> None:
        _ready(host, run)
        host.offer("2.0", check=f"test -e {host.root}/srv/works")
        host.want(version=version)
        run("apply", *([] if version else ["--update"]))

    return prepare


def _boot_where_it_loads(host: HostTree) -> None:
    host.accept()
    host.boot(NEXT)


def _older_refused(host: HostTree, run: Run) -> None:
    _two_versions(host, run)
    host.refuse(f"{DRIVER}-1.2")


def _older_refused_at_boot(host: HostTree, run: Run) -> None:
    _older_refused(host, run)
    host.use()
    run("rollback", DRIVER)
    host.boot(KERNEL)


def _not_rolled_back(host: HostTree, run: Run) -> None:
    _older_refused(host, run)
    run("rollback", DRIVER)


def _booted(state: State) -> State:
    def booted(host: HostTree, run: Run) -> None:
        state(host, run)
        host.boot(KERNEL)
        run("apply", "--boot")

    return booted


def _newest_refused(version: str | None = None) -> State:
    """The kernel did not take 2.0, and says nothing that is known."""

    def state(host: HostTree, run: Run) -> None:
        _ready(host, run)
        host.offer("2.0")
        host.refuse(f"{DRIVER}-2.0")
        host.want(version=version)
        run("apply", "--update")

    return state


def _host_file(name: str, text: str | None) -> State:
    """A file that a driver in use has outside of the store is gone, or has another text."""

    def state(host: HostTree, run: Run) -> None:
        host.want()
        host.offer(check="true", conflicts=("nouveau",))
        run("apply")
        path = host.root / name
        assert path.is_symlink() or path.is_file()
        path.unlink() if text is None else path.write_text(text)

    return state


def _with_next_kernel(state: State, *versions: str) -> State:
    def change(host: HostTree) -> None:
        host.add_kernel(NEXT)
        for version in versions:
            host.offer(version, kernel=NEXT)

    return _then(state, change)


def _damaged(host: HostTree, run: Run) -> None:
    _ready(host, run)
    module = next(host.store("current").resolve().rglob("demo.ko"))
    module.write_bytes(module.read_bytes()[:-1])


def _list_emptied(state: State) -> State:
    def change(host: HostTree) -> None:
        for path in host.store("kernels").glob("*/lib/modules/*/modules.dep"):
            path.write_text("")

    return _then(state, change)


def _unloaded_and_altered(host: HostTree, run: Run) -> None:
    _rebooted(host, run)
    module = next(host.store("current").resolve().rglob("demo.ko"))
    module.write_bytes(module.read_bytes()[:-1] + b"x")


def _entry_gone(host: HostTree, run: Run) -> None:
    _rebooted(host, run)
    entry = host.store("current").resolve()
    entry.rename(host.folder / "gone")


def _state_of_a_newer(host: HostTree, run: Run) -> None:
    _ready(host, run)
    path = host.store("state.json")
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))


def _then(state: State, change: Callable[[HostTree], object]) -> State:
    """A state to whose host something happens."""

    def changed(host: HostTree, run: Run) -> None:
        state(host, run)
        change(host)

    return changed


def _applied(state: State, *words: str) -> State:
    """A state in which the agent has run."""

    def applied(host: HostTree, run: Run) -> None:
        state(host, run)
        run("apply", *words)

    return applied


def _with(state: State, old: str, new: str) -> State:
    """A state whose settings have another text."""
    return _then(
        state,
        lambda host: _settings(host).write_text(_settings(host).read_text().replace(old, new)),
    )


def _settings(host: HostTree) -> Path:
    return host.root / "etc/provision/provision.toml"


def _named_and_newer_offered(host: HostTree, run: Run) -> None:
    host.want(version="1.2")
    host.offer()
    run("apply")
    host.offer("2.0")


def _conflict_in_use(host: HostTree, run: Run) -> None:
    del run
    host.want()
    host.offer(conflicts=("nouveau",))
    host.write("proc/modules", "nouveau 16384 1 - Live 0x0000000000000000\n")


def _let_go(host: HostTree) -> None:
    host.write("proc/modules", "nouveau 16384 0 - Live 0x0000000000000000\n")
    host.write("sys/module/nouveau/version", "1\n")


def _recipe_with(state: State, more: str, old: str = "") -> State:
    """A state in which the recipe also says this, or in place of what it said."""

    def change(host: HostTree) -> None:
        path = host.root / f"srv/drivers/{DRIVER}/driver.toml"
        text = path.read_text()
        path.write_text(text.replace(old, more) if old else f"{text}\n{more}")

    return _then(state, change)


def _generation(name: str, device: str, versions: str) -> str:
    return f'[[hardware.cards]]\nname = "{name}"\ndevices = ["{device}"]\nversions = "{versions}"\n'


_FAILS = '[[kernels]]\nversions = "{}"\nfails = ">=6.1"\nreason = "no such function"\n'


def _of_an_ended_branch(host: HostTree, run: Run) -> None:
    """Have tables of long ago that say so."""
    _wanted(host, run)
    path = host.root / f"srv/drivers/{DRIVER}/driver.toml"
    ended = '[upstream.branches]\n1 = { maturity = "production", end_of_life = "2020-01" }\n'
    path.write_text(f'{path.read_text()}[upstream]\nreviewed = "2020-01"\n{ended}')


def _signed_by(who: str) -> State:
    def state(host: HostTree, run: Run) -> None:
        del run
        host.want()
        host.offer(signed=who)

    return state


def _signed_at_last(host: HostTree, run: Run) -> None:
    _signed_by("stranger")(host, run)
    run("apply")
    host.offer_only("1.2")


def _older_offered(host: HostTree, run: Run) -> None:
    """Have the version that serves be offered no more, and be made of something else by now."""
    host.want()
    host.offer("2.0")
    run("apply")
    host.offer_only("1.2")
    _change_recipe(host)


def _change_recipe(host: HostTree) -> None:
    recipe = host.root / f"srv/drivers/{DRIVER}/driver.toml"
    recipe.write_text(f"{recipe.read_text()}# changed\n")


def _carried_pulled(host: HostTree, run: Run) -> None:
    _carried("fleet")(host, run)
    run("registry", "pull", f"oci:{host.folder}/carried/{DRIVER}:1")


def _no_os_release(host: HostTree, run: Run) -> None:
    del run
    (host.root / "etc/os-release").unlink()


def _rebooted_with_conflict(host: HostTree, run: Run) -> None:
    host.want()
    host.offer(conflicts=("nouveau",))
    run("apply")
    host.boot(KERNEL)
    host.write("proc/modules", "nouveau 16384 1 - Live 0x0000000000000000\n")


def _newer_with_conflict(host: HostTree, run: Run) -> None:
    """Have it be loaded at a boot, at which a module that it can't be beside is in use."""
    _ready(host, run)
    host.offer("2.0", conflicts=("nouveau",))
    host.want(version="2.0")
    run("apply")
    host.boot(KERNEL)
    host.write("proc/modules", "nouveau 16384 1 - Live 0x0000000000000000\n")


def _newest_offered(update: str) -> State:
    def state(host: HostTree, run: Run) -> None:
        host.want(f'update = "{update}"')
        host.offer()
        run("apply")
        host.offer("2.0")

    return state


def _newest_in_use(host: HostTree, run: Run) -> None:
    _newest_offered("timer")(host, run)
    host.use()


def _newest_waits(host: HostTree, run: Run) -> None:
    _newest_in_use(host, run)
    run("apply", "--timer")
    host.boot(KERNEL)


def _only_the_next_offered(host: HostTree, run: Run) -> None:
    del run
    host.want()
    host.offer(kernel=NEXT)


def _kernel_to_come(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.offer(kernel=NEXT)
    (host.folder / "usr/lib/modules" / NEXT).mkdir(parents=True)


def _matrix_knows(host: HostTree, run: Run) -> None:
    """Have a result of the matrix for the next kernel."""
    del run
    cell = Cell(Row(DRIVER, "1.2", "open"), Column("debian:12", NEXT))
    result = result_of(cell, "failed", message="no", reason="compile")
    write_result(matrix_folder(host.root), result)


def _fleet(host: HostTree, run: Run) -> None:
    """Have a fleet whose images are signed, and no key."""
    del run
    host.want()
    text = f'registry = "r.example/drivers"\n[[builds]]\ndrivers = ["{DRIVER}"]\n'
    (host.folder / "fleet.toml").write_text(f'{text}distros = ["debian:12"]\n')


def _carried(signed: str) -> State:
    def state(host: HostTree, run: Run) -> None:
        del run
        host.want()
        host.offer(signed=signed)
        host.carry()

    return state


def _carried_for_the_next(host: HostTree, run: Run) -> None:
    del run
    host.want()
    host.add_kernel(NEXT)
    host.offer(kernel=NEXT)
    host.carry()


def _carried_installed(host: HostTree, run: Run) -> None:
    _carried("fleet")(host, run)
    run("install", f"oci:{host.folder}/carried/{DRIVER}:1")


def _device(host: HostTree, run: Run) -> None:
    del run
    host.want(vendor="1234")
    host.plug_in("0001")


def _name_the_newest(host: HostTree) -> None:
    host.offer("2.0")
    host.want(vendor="1234", version="2.0")


def _for_other_cards(host: HostTree, run: Run) -> None:
    """The driver lists other cards than the host has."""
    _device(host, run)
    host.offer(cards=(PciMatch(vendor="1234", devices=("0002",)),))
    host.carry()


def _pulled_for_other_cards(host: HostTree, run: Run) -> None:
    _for_other_cards(host, run)
    run("registry", "pull", f"oci:{host.folder}/carried/{DRIVER}:1")


def _with_other_cards(host: HostTree, run: Run) -> None:
    _for_other_cards(host, run)
    run("install", f"oci:{host.folder}/carried/{DRIVER}:1", "--force")
    run("apply")


def _broken_recipe(host: HostTree, run: Run) -> None:
    del run
    host.want()
    host.write("srv/drivers/broken/driver.toml", 'schema = 2\nname = "other"\n')


def _packaged_units(host: HostTree, run: Run) -> None:
    run("units", "install")
    host.write("usr/lib/systemd/system/provision-boot.service", "[Service]\n")


def _no_kernel(host: HostTree, run: Run) -> None:
    """Have the root of an image that is being made: nothing runs there."""
    _wanted(host, run)
    shutil.rmtree(host.root / "proc")
    shutil.rmtree(host.root / "lib/modules")


def _unfinished_kernel(host: HostTree, run: Run) -> None:
    _wanted(host, run)
    shutil.rmtree(host.root / "proc")
    (host.root / f"lib/modules/{KERNEL}/modules.dep").unlink()


def _unfinished_next(host: HostTree, run: Run) -> None:
    _ready(host, run)
    host.add_kernel(NEXT)
    (host.root / f"lib/modules/{NEXT}/modules.dep").unlink()
    host.write(f"boot/vmlinuz-{KERNEL}", "")
    host.write(f"boot/vmlinuz-{NEXT}", "")


def _unreadable(host: HostTree, run: Run) -> None:
    _ready(host, run)
    # As for a user who may not look into the folder.
    shutil.rmtree(host.store("kernels"))
    host.store("kernels").write_text("")


_NO_ENGINE = _with(_want, '"never"', '"always"')
# Hosts that lack what most commands look at, each of one thing.
EMPTIED: dict[str, State] = {
    "no kernel": _no_kernel,
    "kernel without modules.dep": _unfinished_kernel,
    "no engine": _NO_ENGINE,
    "no network": _with(_want, 'folders = ["/srv/images"]', 'address = "127.0.0.1:9"'),
    "no driver": lambda host, _run: host.configure("# none\n"),
    "misspelt driver": _with(_wanted, f"[drivers.{DRIVER}]", f"[drivers.{DRIVER}o]"),
    "its recipe broken": _then(
        _wanted,
        lambda host: host.write(
            f"srv/drivers/{DRIVER}/driver.toml", 'schema = 2\nname = "other"\n'
        ),
    ),
    "nothing stored": _want,
    "unreadable": _unreadable,
}
STATES: dict[str, State] = {
    "empty": lambda _host, _run: None,
    "mistakes": lambda host, _run: host.configure('[policy]\nunload = "force"\nkeep = -1\n'),
    "no os-release": _no_os_release,
    "wanted": _wanted,
    "wanted, offered by nobody": _want,
    "wanted, signed by a stranger": _signed_by("stranger"),
    "wanted, not signed": _signed_by("nobody"),
    "wanted, not signed, allowed": _then(
        _signed_by("nobody"),
        lambda host: _settings(host).write_text(
            re.sub(r"(?m)^keys =.*$", "insecure = true", _settings(host).read_text())
        ),
    ),
    "wanted, signed at last": _signed_at_last,
    "wanted, offered at last": _then(_applied(_want), lambda host: host.offer()),
    "wanted, no keys": _with(_wanted, "keys =", "# keys ="),
    "wanted, misspelt flavour": _with(
        _wanted, f"[drivers.{DRIVER}]", f'[drivers.{DRIVER}]\nflavour = "opne"'
    ),
    "its recipe broken": EMPTIED["its recipe broken"],
    "wanted, misspelt version": _then(_wanted, lambda host: host.want(version="productoin")),
    "wanted, no such version": _then(_wanted, lambda host: host.want(version="3.0")),
    "wanted, to be built": _NO_ENGINE,
    "no engine, a mirror": _with(
        _NO_ENGINE,
        f"[drivers.{DRIVER}]",
        '[distros.debian.archive]\nmirror = "http://127.0.0.1:9/d"\n'
        f'security_mirror = "http://127.0.0.1:9/s"\n[drivers.{DRIVER}]',
    ),
    "wanted, of an ended branch": _of_an_ended_branch,
    "wanted, fails here": _recipe_with(_wanted, _FAILS.format("==1.2")),
    "wanted, newest fails here": _recipe_with(
        _then(_wanted, lambda host: host.offer("2.0")), _FAILS.format(">=2")
    ),
    "wanted, untried": _recipe_with(_wanted, 'works = "<6"', 'works = ">=6.1"'),
    "wanted, untried and refused": _recipe_with(
        _then(_wanted, lambda host: host.want('untried = "refuse"')),
        'works = "<6"',
        'works = ">=6.1"',
    ),
    "carried, fails here": _recipe_with(_carried("fleet"), _FAILS.format("==1.2")),
    "wanted, immutable": _then(
        _wanted,
        lambda host: host.write(
            "proc/mounts", "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /usr ext4 ro 0 0\n"
        ),
    ),
    "wanted, DKMS has it too": _then(
        _wanted, lambda host: host.write(f"lib/modules/{KERNEL}/updates/dkms/{DRIVER}.ko", "")
    ),
    "wanted, vendor file of an admin": _then(
        _wanted, lambda host: host.write(f"etc/oci-decorator/oci-decorator.d/{DRIVER}.json", "{}\n")
    ),
    "wanted, the kernel refuses it": _then(_wanted, lambda host: host.refuse()),
    "wanted, conflict": _then(_conflict_in_use, _let_go),
    "wanted, conflict in use": _conflict_in_use,
    "ready": _ready,
    "ready, offered by nobody any more": _then(
        _ready, lambda host: shutil.rmtree(host.root / "srv/images")
    ),
    "ready, other policy": _then(
        _ready, lambda host: host.want('trial = false\nuntried = "refuse"\n')
    ),
    "ready, beside a misspelt": _then(_ready, lambda host: host.want(f"\n[drivers.{DRIVER}o]\n")),
    "rebooted": _rebooted,
    "rebooted, mistakes": _then(_rebooted, lambda host: host.configure("[drivers\n")),
    "kernel built again": _kernel_built_again,
    "in use": _then(_ready, lambda host: host.use()),
    "newer": _newer_offered,
    "ready, older offered": _older_offered,
    "ready, older offered, next kernel": _with_next_kernel(_older_offered, "1.2"),
    "newest, signed by a stranger": _then(
        _ready, lambda host: host.offer("2.0", signed="stranger")
    ),
    "two versions, previous library altered": _previous_library_altered,
    "two versions, none whole, booted": _nothing_whole_at_boot,
    "two versions, a third while in use": _third_version_while_in_use,
    "newer, in use": _newer_in_use,
    "newer, in use, made": _applied(_newer_in_use),
    "wanted, conflict in use, made": _applied(_conflict_in_use),
    "wanted, conflict in use, let go": _then(_applied(_conflict_in_use), _let_go),
    "wanted, conflict in use, rebooted": _then(
        _applied(_conflict_in_use), lambda host: host.boot(KERNEL)
    ),
    "next kernel, unfinished": _unfinished_next,
    "two versions": _two_versions,
    "two versions, keep none": _with(_two_versions, "[policy]", "[policy]\nkeep = 0"),
    "two versions, not wanted any more": _then(
        _two_versions, lambda host: host.configure("# none\n")
    ),
    "two versions, newest altered, booted": _newest_altered_at_boot,
    "rolled back": _rolled_back,
    "updated, rolled back, recipe changed": _then(_updated_and_back, _change_recipe),
    "updated, rolled back, next kernel": _with_next_kernel(_updated_and_back, "1.2", "2.0"),
    "newest refused": _newest_refused(),
    "newest refused, rebooted": _then(_newest_refused(), lambda host: host.boot(KERNEL)),
    "newest refused, at boot": _booted(_newest_refused()),
    "newest refused, next kernel": _with_next_kernel(_newest_refused(), "1.2", "2.0"),
    "newest refused, named, next kernel": _with_next_kernel(_newest_refused("2.0"), "2.0"),
    "newest refused, named, next kernel runs": _then(
        _applied(_with_next_kernel(_newest_refused("2.0"), "2.0")), _boot_where_it_loads
    ),
    "two versions, older refused": _older_refused,
    "two versions, older refused, waits for the boot": _older_refused_at_boot,
    "two versions, not rolled back": _not_rolled_back,
    "next kernel": _next_kernel,
    "next kernel, offered": _next_kernel_offered,
    "next kernel, not made before": _then(
        _next_kernel_offered, lambda host: host.want("prebuild = false\n")
    ),
    "next kernel, ready": _next_kernel_ready,
    "next kernel, ready, beside another driver": _then(_next_kernel_ready, _add_other_driver),
    "next kernel, refuses": _next_kernel_refuses,
    "check failed": _check_failed("2.0"),
    "check failed, not named": _check_failed(None),
    "check failed, works now": _then(
        _check_failed("2.0"), lambda host: host.write("srv/works", "")
    ),
    "check failed, not named, works now": _then(
        _check_failed(None), lambda host: host.write("srv/works", "")
    ),
    "next kernel, refused": _next_kernel_refused,
    "next kernel, made without a trial": _next_kernel_untried,
    "next kernel, made without a trial, refuses": _then(
        _next_kernel_untried, lambda host: host.refuse_next()
    ),
    "next kernel, can't be tried": _next_kernel_can_not_be_tried,
    "next kernel, ready, locked down": _then(_next_kernel_ready, _lock_down),
    "next kernel, ready, not locked down": _then(
        _next_kernel_ready, lambda host: host.write("proc/cmdline", "quiet lockdown=none\n")
    ),
    "next kernel, ready, locked down, signed here": _then(_next_kernel_ready, _lock_down_and_sign),
    "next kernel, ready, Secure Boot": _then(_next_kernel_ready, _secure_boot),
    "next kernel, refuses a newer version": _next_kernel_refuses_newer,
    "next kernel, refused a newer version": _applied(_next_kernel_refuses_newer, "--update"),
    "next kernel, refused, trials off": _then(
        _next_kernel_refused, lambda host: host.want("trial = false\n")
    ),
    "next kernel runs": _then(_next_kernel_ready, lambda host: host.boot(NEXT)),
    "unprepared kernel runs": _then(_next_kernel, lambda host: host.boot(NEXT)),
    "not wanted any more": _then(_ready, lambda host: host.configure("# none\n")),
    "damaged": _damaged,
    "blacklist emptied": _host_file(f"etc/modprobe.d/provision-{DRIVER}.conf", ""),
    "blacklist changed": _host_file(f"etc/modprobe.d/provision-{DRIVER}.conf", "# mine\n"),
    "vendor file emptied": _host_file(f"etc/oci-decorator/oci-decorator.d/{DRIVER}.json", ""),
    "library folder gone": _host_file(f"etc/ld.so.conf.d/provision-{DRIVER}.conf", None),
    "program gone": _host_file(f"usr/local/bin/{DRIVER}ctl", None),
    "list of modules emptied": _list_emptied(_ready),
    "next kernel, ready, list of modules emptied": _list_emptied(_next_kernel_ready),
    "rebooted, altered": _unloaded_and_altered,
    "rebooted, entry gone": _entry_gone,
    "rebooted, the kernel refuses it": _then(_rebooted, lambda host: host.refuse()),
    "rebooted, conflict in use": _rebooted_with_conflict,
    "rebooted, conflict of the newer in use": _newer_with_conflict,
    "newest, not followed": _newest_offered("never"),
    "newest, not followed, next kernel": _with_next_kernel(_newest_offered("never"), "1.2", "2.0"),
    "newest, offered no more": _then(
        _applied(_newest_offered("never"), "--update"), lambda host: host.offer_only("1.2")
    ),
    "newest, followed": _newest_offered("timer"),
    "newest, followed, in use": _newest_in_use,
    "newest, followed, waits for the boot": _newest_waits,
    "wanted, offered for the next kernel": _only_the_next_offered,
    "kernel to come": _kernel_to_come,
    "result of a matrix": _matrix_knows,
    "fleet": _fleet,
    "carried": _carried("fleet"),
    "carried, pulled": _carried_pulled,
    "carried of a stranger": _carried("stranger"),
    "carried, not signed": _carried("nobody"),
    "carried, no trust": _then(_carried("fleet"), lambda host: _settings(host).unlink()),
    "carried, not named": _with(_carried("fleet"), f"[drivers.{DRIVER}]", ""),
    "carried, another version named": _then(
        _carried("fleet"), lambda host: host.want(version="2.0")
    ),
    "carried, for the next kernel": _carried_for_the_next,
    "carried, installed": _carried_installed,
    "carried, installed, damaged": _then(
        _carried_installed,
        lambda host: (host.store("current").resolve() / "driver/usr/bin/democtl").unlink(),
    ),
    "device": _device,
    "device, too new a version named": _recipe_with(
        _then(_device, _name_the_newest), _generation("Old", "0001", "<2")
    ),
    "devices, too new a version for one named": _recipe_with(
        _then(_then(_device, _name_the_newest), lambda host: host.plug_in("0001", "0002")),
        _generation("Old", "0001", "<2"),
    ),
    "device, of a generation": _recipe_with(_device, _generation("Old", "0001", "<2")),
    "devices that nothing serves together": _recipe_with(
        _then(_device, lambda host: host.plug_in("0001", "0002")),
        _generation("Old", "0001", "<2") + _generation("New", "0002", ">=2"),
    ),
    "device, driver for others": _for_other_cards,
    "device, driver for others pulled": _pulled_for_other_cards,
    "devices, driver for one": _then(_for_other_cards, lambda host: host.plug_in("0001", "0002")),
    "device, driver for others in use": _with_other_cards,
    "broken recipe": _broken_recipe,
    "units": lambda _host, run: run("units", "install"),
    "units of a package": _packaged_units,
    "left by 0.1.0": lambda host, _run: have_kept_host(host, "0.1.0"),
    "broken state": _then(_ready, lambda host: host.store("state.json").write_text("{")),
    "state of a newer provision": _state_of_a_newer,
    "state of a newer provision, booted": _then(_state_of_a_newer, lambda host: host.boot(KERNEL)),
    "store gone": _then(_ready, lambda host: shutil.rmtree(host.store())),
    "settings gone": _then(_ready, lambda host: _settings(host).unlink()),
    "settings emptied": _then(_ready, lambda host: host.configure("\n \n")),
    "older named": _then(_two_versions, lambda host: host.want(version="1.2")),
    "named, newer offered": _named_and_newer_offered,
}
