"""Rows about the agent: a run with nothing to do, ten drivers, a boot."""

from __future__ import annotations

import json
from pathlib import Path

from bench.rows import Group, Row
from bench.scene import Scene
from bench.timing import Timed, base_environment
from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.hosts import IMAGE, NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.probe import installed_program
from kit.product import BUILD_NETWORK

_ROUNDS = 15
_DRIVERS = 10
# The peer, with the same module, in a tree of its own.
_DKMS = f"""\
FROM {IMAGE}
RUN apt-get update && apt-get install --yes --no-install-recommends \
    dkms linux-headers-{OLD_KERNEL} {SMALL_DRIVER}-dkms \
    && dkms autoinstall -k {OLD_KERNEL} && dkms status | grep -q installed
"""


def _applies(scene: Scene) -> list[Row]:
    """`apply` against DKMS, ten drivers against one, `apply --boot`."""
    copies = _copies(scene)
    one = _host(scene, "one", [SMALL_DRIVER])
    ten = _host(scene, "ten", [SMALL_DRIVER, *copies])
    env = {**base_environment(), **scene.provision.variables()}
    program = scene.provision.program

    def apply(name: str, host: AgentHost, *words: str) -> Timed:
        where = ("--root", host.root, "--catalogue", _catalogue(scene))
        return Timed(name, [program, "apply", *where, *words], env=env)

    programs = [
        _dkms(scene),
        apply("one", one),
        apply("ten", ten),
        apply("boot", one, "--boot"),
    ]
    before = scene.engine.layers()
    ms = scene.timer.medians_ms(programs, _ROUNDS)
    built = "a build was started!" if scene.engine.layers() != before else "no build started"
    how = f"median of {_ROUNDS} each, in turns; {built}"
    seconds = {name: taken / 1e3 for name, taken in ms.items()}
    return [
        Row(
            "apply",
            "provision apply / dkms autoinstall, nothing to do",
            ms["one"] / ms["dkms"],
            0.5,
            "x",
            f"{seconds['one']:.2f} s; dkms {seconds['dkms']:.2f} s; one module; {how}",
        ),
        Row(
            "apply-ten",
            "provision apply, ten drivers / one, nothing to do",
            ms["ten"] / ms["one"],
            2,
            "x",
            f"{seconds['ten']:.2f} s; one {seconds['one']:.2f} s; {how}",
        ),
        Row(
            "apply-boot",
            "provision apply --boot, all but the kernel's part",
            seconds["boot"],
            0.5,
            "s",
            "what a boot adds to modprobe",
        ),
    ]


def _host(scene: Scene, name: str, drivers: list[str]) -> AgentHost:
    """A host that has what it should have."""
    host = AgentHost.make(scene.folder / f"host-{name}", running=OLD_KERNEL, others=[NEW_KERNEL])
    host.configure("".join(f"[drivers.{driver}]\n" for driver in drivers))
    document = scene.provision.json("apply", "--root", host.root, "--catalogue", _catalogue(scene))
    if document["status"]["state"] != "ready":
        raise RuntimeError(f"the host is not ready: {json.dumps(document['status'], indent=2)}")
    return host


def _catalogue(scene: Scene) -> Path:
    return scene.folder / "catalogue"


def _copies(scene: Scene) -> list[str]:
    """The small driver under other names, as if they were other drivers."""
    recipe = (REPOSITORY / f"driver_images/{SMALL_DRIVER}/driver.toml").read_text()
    names = [f"{SMALL_DRIVER}-{number}" for number in range(1, _DRIVERS)]
    for name in names:
        folder = _catalogue(scene) / name
        folder.mkdir(parents=True)
        text = recipe.replace(f'name = "{SMALL_DRIVER}"', f'name = "{name}"')
        text = text.replace('"OCI_', f'"{name.upper().replace("-", "_")}_')
        (folder / "driver.toml").write_text(text)
    return names


def _dkms(scene: Scene) -> Timed:
    """`dkms autoinstall` in a tree that has the module for that kernel."""
    context = scene.folder / "dkms"
    context.mkdir()
    (context / "Dockerfile").write_text(_DKMS)
    image = "provision-bench:dkms"
    scene.engine.docker("build", "--tag", image, *BUILD_NETWORK, context)
    tree = scene.exported(image, "dkms-tree")
    chroot = installed_program("chroot")
    scene.mount_proc(tree)
    argv: list[str | Path] = [chroot, tree, "dkms", "autoinstall", "-k", OLD_KERNEL]
    return Timed("dkms", argv, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


GROUPS = (Group(("apply", "apply-ten", "apply-boot"), _applies),)
