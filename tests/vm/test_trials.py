"""`provision verify --boot`: what a real kernel does with modules that are no good."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.hosts import DISTRO, OLD_KERNEL
from kit.probe import need_programs
from kit.process import run, wait_for
from kit.product import BUILD_NETWORK, Provision
from kit.repackaged import download
from kit.upstream import published
from provision.build.workspace import load_settings
from provision.kmod.guest import Initramfs, run_guest
from provision.kmod.guest_packages import boot_files
from provision.kmod.loader import remove_host_files
from provision.manifest import Manifest
from vm.stored import Store

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(12)]

# A driver whose modules are no good; artifacts have one of them each.
_BROKEN = "broken"
_INITS = {
    "good": 'printk("good\\n"); return 0;',
    "einval": "return -EINVAL;",
    "nodev": "return -ENODEV;",
    "null": "*(volatile int *)NULL = 1; return 0;",
    "loop": "for (;;) cpu_relax(); return 0;",
    "stays": "return 0;",
    "gives": "return 0;",
    "takes": "broken_given(); return 0;",
}
# What the one offers to the other.
_MORE = {
    "gives": "void broken_given(void);\nvoid broken_given(void) { }\n"
    "EXPORT_SYMBOL_GPL(broken_given);\n",
    "takes": "void broken_given(void);\n",
}
_SOURCE = """\
#include <linux/module.h>

{more}static int __init {name}_init(void) {{ {init} }}
module_init({name}_init);
{exit}
MODULE_LICENSE("GPL");
"""
_EXIT = """\
static void __exit {name}_exit(void) {{ }}
module_exit({name}_exit);
"""
_BUILD = """\
command = ["make", "-j{jobs}", "KDIR={kernel_build}"]
modules = @modules@

[container]
activation_flag = "OCI_BROKEN"
driver_feature = ["broken"]
[container.features.broken]
devices = ["broken[0-9]*"]
""".replace("@modules@", json.dumps([f"{_BROKEN}_{name}.ko" for name in _INITS]))
# include/linux/module.h, struct modversion_info: a symbol's checksum, and its name in 56 bytes.
_SYMBOL = b"_printk"
_NAMES = 56


def _sources() -> dict[str, str]:
    files = {}
    for name, init in _INITS.items():
        module = f"{_BROKEN}_{name}"
        # A module without an exit can't be unloaded.
        end = "" if name == "stays" else _EXIT.format(name=module)
        files[f"{module}.c"] = _SOURCE.format(
            name=module, init=init, exit=end, more=_MORE.get(name, "")
        )
    objects = " ".join(f"{_BROKEN}_{name}.o" for name in _INITS)
    make = f"obj-m := {objects}\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n"
    return {**files, "Makefile": make}


def _alone(
    host: Host,
    name: str,
    folder: Path,
    *,
    change: Callable[[bytes], bytes] | None = None,
    depends: tuple[str, ...] = (),
) -> Path:
    """An artifact in `folder` as if the driver had one module only, which verifies.

    `change` makes another content of the module's; `depends` are modules that it says it needs.
    """
    shutil.copytree(host.entry, folder, symlinks=True)
    remove_host_files(folder)
    path = folder / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    kept = next(one for one in manifest["modules"] if one["name"] == f"{_BROKEN}_{name}")
    for module in manifest["modules"]:
        if module is not kept:
            (folder / module["path"]).unlink()
    file = folder / kept["path"]
    if change is not None:
        content = change(file.read_bytes())
        # The copy may be a link to the store's own.
        file.unlink()
        file.write_bytes(content)
        file.chmod(0o644)
        kept["sha256"] = hashlib.sha256(content).hexdigest()
    kept["depends"] = list(depends)
    manifest["modules"] = [kept]
    path.write_text(json.dumps(manifest))
    run(["depmod", "-b", folder, manifest["pin"]["kernel"]["release"]])
    return folder


def _other_symbol(content: bytes) -> bytes:
    """A module that needs a symbol that no kernel has."""
    assert content.count(_SYMBOL) > 1
    return content.replace(_SYMBOL, b"_nobody")


def _other_configuration(content: bytes) -> bytes:
    """A module of a kernel that was configured otherwise, as its vermagic says."""
    assert content.count(b" mod_unload ") == 1
    return content.replace(b" mod_unload ", b" mod_unl_ad ")


def _other_version(content: bytes) -> bytes:
    """A module that was built with another version of a symbol."""
    at = content.index(_SYMBOL.ljust(_NAMES, b"\0")) - 8
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


class Case(NamedTuple):
    """A module, and what becomes of it."""

    module: str
    status: int
    state: str
    error: str | None
    # What the reason has in it.
    said: str
    change: Callable[[bytes], bytes] | None = None
    depends: tuple[str, ...] = ()
    options: str = ""


_CASES = {
    "it loads": Case("good", 0, "loaded", None, ""),
    "no device": Case("nodev", 0, "no-device", "ENODEV", ""),
    "its init refuses": Case("einval", 1, "refused", "EINVAL", ""),
    "an undefined symbol": Case("good", 1, "refused", "ENOENT", "_nobody", _other_symbol),
    "another version of a symbol": Case("good", 1, "refused", "EINVAL", "_printk", _other_version),
    "unsigned, and signatures are enforced": Case(
        "good", 1, "refused", "EKEYREJECTED", "unsigned module", options="module.sig_enforce=1"
    ),
    "a name that only its build knew": Case(
        "good", 0, "loaded", None, "", depends=("no_such_module",)
    ),
    "a module that it needs is missing": Case(
        "takes", 1, "refused", "ENOENT", f"{_BROKEN}_gives", depends=(f"{_BROKEN}_gives",)
    ),
    "NULL is dereferenced": Case("null", 1, "crashed", None, "NULL pointer dereference"),
    "it loops": Case("loop", 1, "crashed", None, "soft lockup"),
}


class Host(NamedTuple):
    """A host with a kernel, and the whole driver in its store."""

    root: Path
    entry: Path


@pytest.fixture(scope="module")
def host(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The kernel is Debian's package of it, unpacked: nothing runs it but the guests."""
    need_programs("qemu-system-x86_64")
    folder = tmp_path_factory.mktemp("trials")
    store = Store(Provision(engine.host), folder / "root")
    with published(folder, _BROKEN, {"1.0": _sources()}, _BUILD) as catalogue:
        entry = store.install(_BROKEN, "--catalogue", catalogue)
    name = f"linux-image-{OLD_KERNEL}"
    for package in download("bookworm", [name], folder / "packages", architecture="amd64"):
        if package.name.startswith(name):
            run(["dpkg-deb", "--extract", package, folder / "kernel"])
    tree = store.root / "lib/modules" / OLD_KERNEL
    run(["rm", "-rf", tree])
    tree.parent.mkdir(parents=True, exist_ok=True)
    (folder / "kernel/lib/modules" / OLD_KERNEL).rename(tree)
    boot = store.root / "boot"
    boot.mkdir(exist_ok=True)
    (folder / f"kernel/boot/vmlinuz-{OLD_KERNEL}").rename(boot / f"vmlinuz-{OLD_KERNEL}")
    run(["depmod", "-b", store.root, OLD_KERNEL])
    return Host(store.root, entry)


_NO_ENGINE = Provision("unix:///none")


def _trial(
    host: Host, artifact: Path, *words: str, provision: Provision = _NO_ENGINE
) -> tuple[int, dict[str, Any]]:
    done = provision(
        "verify", "--boot", artifact, "--root", host.root, "--json", *words, check=False
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document.get("error", document)


def _artifact(host: Host, case: Case, folder: Path) -> Path:
    """An artifact of the case, for a host whose kernel was started as the case says."""
    (host.root / "proc").mkdir(exist_ok=True)
    (host.root / "proc/cmdline").write_text(f"quiet {case.options}\n")
    return _alone(host, case.module, folder, change=case.change, depends=case.depends)


def _check(case: Case, status: int, document: dict[str, Any]) -> None:
    assert status == case.status, document
    (outcome,) = document["boot"]["outcomes"]
    assert (outcome["state"], outcome["error"]) == (case.state, case.error)
    assert case.said in f"{outcome['reason']} {outcome['lines']}"
    assert document["boot"]["stayed"] == []


@pytest.mark.parametrize("name", _CASES)
def test_each_fault_is_told_from_the_others(name: str, host: Host, tmp_path: Path) -> None:
    case = _CASES[name]
    _check(case, *_trial(host, _artifact(host, case, tmp_path / "artifact")))


@pytest.fixture(scope="module")
def without_qemu(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Provision:
    """The command on a machine that has every program of this one but QEMU."""
    programs = tmp_path_factory.mktemp("programs")
    for folder in os.get_exec_path():
        for program in Path(folder).glob("*"):
            link = programs / program.name
            if not (link.is_symlink() or program.name.startswith("qemu-")):
                link.symlink_to(program)
    return Provision(engine.host, {"PATH": str(programs)})


@pytest.mark.parametrize("name", ["it loads", "an undefined symbol", "NULL is dereferenced"])
def test_without_qemu_here_a_container_has_it(
    name: str, host: Host, without_qemu: Provision, tmp_path: Path
) -> None:
    case = _CASES[name]
    artifact = _artifact(host, case, tmp_path / "artifact")
    _check(case, *_trial(host, artifact, provision=without_qemu))


def test_that_container_may_do_nothing_and_goes(
    engine: Engine, host: Host, without_qemu: Provision, tmp_path: Path
) -> None:
    artifact = _artifact(host, _CASES["it loops"], tmp_path / "artifact")

    def trials() -> list[str]:
        return engine.docker("ps", "-q", "--filter", "label=provision.solve").stdout.split()

    process = _started(host, artifact, without_qemu)
    wait_for("its QEMU", lambda: _runs_qemu(engine, trials()), within_s=300)
    (container,) = trials()
    (made,) = json.loads(engine.docker("inspect", container).stdout)
    powers = made["HostConfig"]
    assert (powers["CapDrop"], powers["NetworkMode"]) == (["ALL"], "none")
    assert not any(powers[name] for name in ("Privileged", "CapAdd", "Devices", "Binds"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for("its end", lambda: not trials(), within_s=60)


def _runs_qemu(engine: Engine, containers: list[str]) -> bool:
    # One that solved for packages may be gone by now.
    return any("-accel tcg" in engine.docker("top", one, check=False).stdout for one in containers)


def _started(
    host: Host, artifact: Path, provision: Provision, **more: str
) -> subprocess.Popen[bytes]:
    argv: list[str | Path] = [provision.program, "verify", "--boot", artifact]
    environment = {**os.environ, **provision.variables(), **more}
    return subprocess.Popen(
        [*argv, "--root", host.root], env=environment, stdout=subprocess.DEVNULL
    )


def test_with_neither_qemu_nor_an_engine_nothing_is_tried(
    host: Host, without_qemu: Provision, tmp_path: Path
) -> None:
    artifact = _artifact(host, _CASES["it loads"], tmp_path / "artifact")
    alone_here = Provision("unix:///none", without_qemu.environment)
    status, error = _trial(host, artifact, provision=alone_here)
    assert status == 3, error
    assert "apt-get install" in error["resolution"]


def test_what_it_needs_of_another_driver_comes_along(host: Host, tmp_path: Path) -> None:
    other = _alone(host, "gives", tmp_path / "other")
    path = other / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["pin"]["driver"]["name"] = "other"
    path.write_text(json.dumps(manifest))
    store = host.root / "var/lib/provision/other"
    digest = Manifest.model_validate_json(path.read_text()).pin.short_digest
    (store / "kernels").mkdir(parents=True)
    other.rename(store / digest)
    (store / "kernels" / OLD_KERNEL).symlink_to(f"../{digest}")
    needs = (f"{_BROKEN}_gives",)
    status, document = _trial(host, _alone(host, "takes", tmp_path / "artifact", depends=needs))
    shutil.rmtree(store)
    assert status == 0, document
    (outcome,) = document["boot"]["outcomes"]
    assert (outcome["module"], outcome["state"]) == (f"{_BROKEN}_takes", "loaded")


def test_what_can_not_be_unloaded_is_named(host: Host, tmp_path: Path) -> None:
    status, document = _trial(host, _alone(host, "stays", tmp_path / "artifact"))
    assert status == 0
    assert document["boot"]["outcomes"][0]["state"] == "loaded"
    assert document["boot"]["stayed"] == [f"{_BROKEN}_stays"]


def test_a_kernel_that_can_not_be_had_is_not_tried(host: Host, tmp_path: Path) -> None:
    artifact = _alone(host, "good", tmp_path / "artifact")
    status, error = _trial(host, artifact, "--kernel", "6.1.0-1-amd64")
    assert status == 3
    assert "6.1.0-1-amd64" in error["message"]


def test_a_module_of_another_configuration_needs_no_boot(host: Host, tmp_path: Path) -> None:
    artifact = _alone(host, "good", tmp_path / "artifact", change=_other_configuration)
    status, document = _trial(host, artifact)
    assert (status, "boot" in document) == (1, False)
    assert any("mod_unl_ad" in finding["message"] for finding in document["findings"]), document


@pytest.mark.parametrize("mib", [20, 200])
def test_firmware_of_a_card_comes_along(mib: int, host: Host, tmp_path: Path) -> None:
    artifact = _alone(host, "good", tmp_path / "artifact")
    name = "/usr/lib/firmware/broken/large.bin"
    file = artifact / f"driver{name}"
    file.parent.mkdir(parents=True)
    content = os.urandom(1 << 20) * mib
    file.write_bytes(content)
    path = artifact / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    sha256 = hashlib.sha256(content).hexdigest()
    entry = {"path": name, "kind": "firmware", "sha256": sha256, "size": len(content)}
    manifest["files"].append({**entry, "mode": "0644"})
    path.write_text(json.dumps(manifest))
    status, document = _trial(host, artifact)
    assert status == 0, document
    assert document["boot"]["outcomes"][0]["state"] == "loaded"


def test_a_kernel_whose_console_is_silent_is_heard_all_the_same(host: Host) -> None:
    pin = Manifest.model_validate_json((host.entry / "driver/manifest.json").read_text()).pin
    with (
        boot_files(load_settings(host.root), pin, OLD_KERNEL, []) as files,
        tempfile.TemporaryFile() as kernel,
        tempfile.TemporaryFile() as stream,
    ):
        files.write_kernel(kernel)
        initramfs = Initramfs(stream)
        files.add_to(initramfs)
        initramfs.close("echo here; false")
        options = ("console=ttynull", "loglevel=0")
        ran = run_guest("x86_64", kernel, stream, limit=60, options=options)
    assert (ran.end, ran.status, ran.lines) == ("ended", 1, ("here",))
    assert ran.console == ()


def test_two_at_once_do_not_meet(host: Host, tmp_path: Path) -> None:
    artifacts = [_alone(host, "good", tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda artifact: _trial(host, artifact), artifacts))
    assert [status for status, _document in results] == [0, 0]


def test_a_killed_trial_leaves_nothing(host: Host, tmp_path: Path) -> None:
    artifact = _alone(host, "loop", tmp_path / "artifact")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = _started(host, artifact, _NO_ENGINE, TMPDIR=str(temporary))
    wait_for("QEMU", lambda: _qemu_of(process.pid), within_s=120)
    (qemu,) = _qemu_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for("QEMU's end", lambda: not Path(f"/proc/{qemu}/exe").exists(), within_s=30)
    assert list(temporary.iterdir()) == []


def _qemu_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    numbers = children.read_text().split() if children.exists() else []
    programs = {int(number): Path(f"/proc/{number}/comm").read_text() for number in numbers}
    return [number for number, name in programs.items() if name.startswith("qemu-system")]


def test_the_agent_says_before_the_reboot_what_does_not_load(engine: Engine, host: Host) -> None:
    agent = AgentHost(host.root)
    agent.configure(f"[policy]\ntrial = true\n\n[drivers.{_BROKEN}]\n")
    # The kernel that runs is another one, which is not asked about.
    agent.boot("6.1.0-1-amd64")
    words = ("--root", host.root, "--catalogue", host.root.parent / "drivers")
    links = host.root / f"var/lib/provision/{_BROKEN}/kernels"
    (links / OLD_KERNEL).unlink()
    done = Provision(engine.host)("apply", "--kernel", OLD_KERNEL, *words, "--json", check=False)
    slot = AgentHost.slot(json.loads(done.stdout)["status"], _BROKEN, OLD_KERNEL)
    assert (done.returncode, slot["state"]) == (1, "failed")
    assert slot["failure"]["reason"] == "does-not-load"
    assert not (links / OLD_KERNEL).exists()
    agent.boot(OLD_KERNEL)


def test_what_its_kernel_refuses_is_not_pushed(engine: Engine, host: Host, tmp_path: Path) -> None:
    catalogue = host.root.parent / "drivers"
    words = (_BROKEN, "--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)
    push = ("--push", f"oci:{tmp_path / 'images'}", *BUILD_NETWORK)
    status, error = Provision(engine.host).failure("build", *words, "--trial", *push)
    assert (status, error["reason"]) == (1, "does-not-load")
    assert not list(tmp_path.rglob("index.json"))


def test_the_scripts_of_guests_are_good_shell() -> None:
    need_programs("shellcheck")
    scripts = [
        *(REPOSITORY / "templates/guest").glob("*.sh"),
        REPOSITORY / "templates/guest/kernel.sh",
    ]
    run(["shellcheck", *scripts])
