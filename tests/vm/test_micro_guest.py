"""What the engine built, in the kernel that it is for: the loader, and containers on cgroup v2.

The guest has no disk, no network and no systemd, so one boot takes seconds. At night it is a
machine of arm64 too, whose modules and programs an emulator and a cross compiler have made here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.arm64 import MACHINE as ARM64
from kit.arm64 import run_foreign_programs
from kit.cache import REPOSITORY
from kit.debian import debian_tree
from kit.engine import Engine
from kit.files import remove_tree
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.micro_guest import Step, add_programs, kernel_of, run_steps
from kit.probe import need, need_programs
from kit.process import run
from kit.product import BUILD_NETWORK, DECORATOR, RUNTIME, Provision, base_archive
from kit.toolchains import load_toolchains
from provision.kmod.guest import Initramfs
from provision.kmod.trial import add_artifact
from provision.manifest import load_manifest

pytestmark = pytest.mark.tier(1)

_NODE = "/dev/video0"
_ELSEWHERE = "6.1.0-1-elsewhere"
_RUNTIMES = ("runc", "crun")
_OPEN = ["dd", f"if={_NODE}", "of=/dev/null", "count=0"]
_MOUNT = {"destination": _NODE, "type": "bind", "source": _NODE, "options": ["bind"]}
_SCRIPT = f"""
load={{load}}
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in bin lib lib64; do ln -s usr/$folder /container/$folder; done
mount --bind /usr /container/usr
ls /dev | sort > /tmp/before
step other sh {{other}} load
step status-before sh $load status
step load sh $load load
step again sh $load load
step status sh $load status
step node stat -c %F {_NODE}
for runtime in {" ".join(_RUNTIMES)}; do
    for bundle in flag plain; do
        echo "runtimes = [\\"$runtime\\"]" > /etc/oci-decorator/config.toml
        name=$runtime-$bundle
        step $name timeout 100 oci-decorator-runtime run --bundle /$bundle $name
    done
done
sleep 1000 < {_NODE} &
step in-use sh $load unload
step still sh $load status
kill $!
wait
step unload sh $load unload
step status-after sh $load status
ls /dev | sort > /tmp/after
step left cat /sys/module/{SMALL_DRIVER}/initstate
step nodes cmp /tmp/before /tmp/after
step foreign insmod /rebuilt.ko
step rebuilt sh $load status
step replaced sh $load load
step ours sh $load status
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a guest of an architecture gets."""

    name: str
    # The artifact's.
    image: str
    # The Debian that has its other programs.
    debian: Path
    decorator: Path


@pytest.fixture(scope="module")
def native(first_small_build: dict[str, Any]) -> _Machine:
    """A machine like this one."""
    need_programs("qemu-system-x86_64", *_RUNTIMES)
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    return _Machine("x86_64", first_small_build["image"], Path("/"), DECORATOR.resolve())


@pytest.fixture(scope="module")
def arm64(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Machine]:
    """A machine of arm64, which this one is not."""
    need_programs("qemu-system-aarch64")
    run_foreign_programs()
    engine.docker("load", "--quiet", "--input", base_archive(engine, DISTRO, machine=ARM64))
    load_toolchains(engine, ARM64)
    # Debian builds each kernel for all architectures.
    kernel = OLD_KERNEL.replace("amd64", "arm64")
    target = (SMALL_DRIVER, "--kernel", kernel, "--distro", DISTRO, "--arch", "arm64")
    built = Provision(engine.host).build(*target)
    run([REPOSITORY / "hooks/build.sh", "build"], env={"ARCH": ARM64}, timeout_s=1200)
    tree = tmp_path_factory.mktemp("arm64") / "tree"
    debian_tree("bookworm", tree, include=["kmod", *_RUNTIMES], machine=ARM64)
    decorator = DECORATOR.parent / ARM64 / DECORATOR.name
    yield _Machine(ARM64, built["image"], tree, decorator)
    remove_tree(tree)


@pytest.fixture(
    scope="module",
    params=["native", pytest.param("arm64", marks=[pytest.mark.nightly, pytest.mark.minutes(8)])],
)
def machine(request: pytest.FixtureRequest) -> _Machine:
    made: _Machine = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="module")
def steps(
    engine: Engine, machine: _Machine, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Step]:
    """One boot, in which everything is done that the tests look at."""
    folder = tmp_path_factory.mktemp("micro")
    root = folder / "root"
    root.mkdir()
    Provision(engine.host)("install", machine.image, "--root", root)
    entry = (root / f"var/lib/provision/{SMALL_DRIVER}/current").resolve()
    manifest = load_manifest(entry)
    pin = manifest.pin
    foreign = pin.model_copy(
        update={"kernel": pin.kernel.model_copy(update={"release": _ELSEWHERE})}
    )
    other = manifest.model_copy(update={"pin": foreign})
    flag = json.loads(
        (root / f"etc/oci-decorator/oci-decorator.d/{SMALL_DRIVER}.json").read_text()
    )["activation_flag"]
    script = _SCRIPT.format(
        load=f"/var/lib/provision/{SMALL_DRIVER}/{pin.short_digest}/load",
        other=f"/var/lib/provision/{SMALL_DRIVER}/{foreign.short_digest}/load",
    )

    content = bytearray((entry / manifest.modules[0].path).read_bytes())
    # Another build id, as a rebuild for changed headers has it: elf.h, NT_GNU_BUILD_ID.
    note = struct.pack("<3I4s", 4, 20, 3, b"GNU")
    content[content.index(note) + len(note)] ^= 255

    def fill(initramfs: Initramfs) -> None:
        for written in ("var/lib/provision", "etc/oci-decorator"):
            initramfs.add_tree(written, root / written)
        for one in (manifest, other):
            add_artifact(initramfs, entry, one)
        add_programs(initramfs, *_RUNTIMES, "dd", "cmp", "insmod", root=machine.debian)
        initramfs.add("rebuilt.ko", bytes(content))
        for program in (DECORATOR, RUNTIME):
            initramfs.add(f"usr/bin/{program.name}", machine.decorator, mode=0o755)
        initramfs.add("flag/config.json", _spec(folder, f"{flag}=all"))
        initramfs.add("plain/config.json", _spec(folder, mounts=[_MOUNT]))
        for name in ("dev", "proc", "sys", "usr", "tmp"):
            initramfs.add(f"container/{name}/.keep", b"")

    with kernel_of(engine, pin, manifest.modules[0].depends) as files:
        steps, ran = run_steps(files, fill, script, machine=machine.name)
    assert ran.end == "ended", "\n".join([*ran.lines, *ran.console])
    return steps


def _spec(folder: Path, *variables: str, mounts: list[dict[str, Any]] | None = None) -> bytes:
    """A bundle's config.json: a container that may use no device but those that it asks for."""
    (folder / "config.json").unlink(missing_ok=True)
    run(["runc", "spec"], cwd=folder)
    spec = json.loads((folder / "config.json").read_text())
    spec["root"] = {"path": "/container", "readonly": False}
    spec["process"] |= {"terminal": False, "args": _OPEN}
    spec["process"]["env"] += ["LC_ALL=C", *variables]
    spec["mounts"] += mounts or []
    spec["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    return json.dumps(spec).encode()


def test_the_loader_loads_and_makes_the_node(steps: dict[str, Step]) -> None:
    assert steps["status-before"].status == 3
    assert steps["load"].status == 0, steps["load"].text
    assert steps["node"].text == "character special file"
    assert steps["status"].status == 0
    assert steps["again"] == Step(0, "")


@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_a_container_opens_the_node_with_the_flag_only(
    steps: dict[str, Step], runtime: str
) -> None:
    assert steps[f"{runtime}-flag"].status == 0, steps[f"{runtime}-flag"].text
    refused = steps[f"{runtime}-plain"]
    # The node is there, and cgroup v2's rules refuse it.
    assert refused.status != 0
    assert f"'{_NODE}': Operation not permitted" in refused.text


def test_an_entry_of_another_kernel_is_not_loaded(steps: dict[str, Step]) -> None:
    assert steps["other"].status == 3
    assert _ELSEWHERE in steps["other"].text


def test_what_is_in_use_stays(steps: dict[str, Step]) -> None:
    assert steps["in-use"].status == 4, steps["in-use"].text
    assert steps["still"].status == 0


def test_unloading_leaves_nothing(steps: dict[str, Step]) -> None:
    assert steps["unload"].status == 0, steps["unload"].text
    assert steps["status-after"].status == 3
    assert steps["left"].status != 0
    assert steps["nodes"] == Step(0, "")


def test_another_build_that_is_loaded_is_not_taken_for_ours(steps: dict[str, Step]) -> None:
    assert (steps["foreign"].status, steps["rebuilt"].status) == (0, 3), steps["foreign"].text
    assert (steps["replaced"].status, steps["ours"].status) == (0, 0), steps["replaced"].text


def test_verify_boots_what_the_engine_built(engine: Engine, machine: _Machine) -> None:
    provision = Provision(engine.host)
    verified = provision.json("verify", "--boot", machine.image, *BUILD_NETWORK)
    (outcome,) = verified["boot"]["outcomes"]
    assert (outcome["module"], outcome["state"]) == (SMALL_DRIVER, "loaded")
    assert verified["boot"]["stayed"] == []
