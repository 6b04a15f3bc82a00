"""What is measured: an engine, NVIDIA's driver built and installed, a root and bundles to edit."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from bench.timing import Timer
from kit.cache import REPOSITORY, cache_dir
from kit.engine import Engine
from kit.hosts import DISTRO, IMAGE, OLD_KERNEL, load_base
from kit.process import run
from kit.product import DECORATOR, RUNTIME, Provision, write_runtime_config

TARGET = ("nvidia", "--version", "latest", "--kernel", OLD_KERNEL, "--distro", DISTRO)
_STORE = "var/lib/provision/onload"
_PROFILE = "/usr/libexec/onload/profiles/{}.opf"
_SONAMES = {
    "/usr/lib64/libonload_ext.so.1.1.0": "libonload_ext.so.1",
    "/usr/lib64/libonload_zf.so.1.1.1": "libonload_zf.so.1",
}
# What the second vendor puts into a container: the Onload of the first public description,
# in a store as `provision install` would have it.
_SECOND: dict[str, Any] = {
    "version": "201805",
    "log_level": "LOG_INFO",
    "activation_flag": "OCI_SOLARFLARE",
    "driver_feature": ["onload"],
    "root": f"/{_STORE}/current/driver",
    "inventory": {
        "onload": {
            "devices": ["onload", "onload_epoll", "sfc_char"],
            "binaries": ["/usr/bin/onload", "/usr/bin/sfnt-pingpong", "/usr/sbin/onload_tool"],
            "libraries": list(_SONAMES),
            "directories": ["/usr/libexec/onload", "/usr/libexec/onload/profiles"],
            "miscellaneous": [_PROFILE.format("latency")],
        },
        # What it has besides; with NVIDIA's files 60.
        "profiles": {"miscellaneous": [_PROFILE.format(i) for i in range(19)]},
    },
    "sonames": _SONAMES,
}
# uvm's major is dynamic on a real host; any number will do, as nothing opens the nodes.
_NODES = {
    "nvidia0": (195, 0),
    "nvidiactl": (195, 255),
    "nvidia-uvm": (511, 0),
    "nvidia-uvm-tools": (511, 1),
    "onload": (510, 0),
    "onload_epoll": (509, 0),
    "sfc_char": (508, 0),
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An OCI bundle, and copies that put its files back as they were."""

    # The bundle.
    folder: Path
    # The copies, as `bench.timing.Timed` takes them.
    restore: Sequence[tuple[Path, Path]]

    @property
    def config(self) -> Path:
        """The specification."""
        return self.folder / "config.json"


class Scene:
    """Everything that rows need, each part made when a row first asks for it.

    `with Scene(say) as scene:` cleans up behind it; `say` shows a line to the user who waits.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say = say
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Compile our Python modules, as pip does when it installs them; nothing else is made yet.

        Where PYTHONDONTWRITEBYTECODE is set, each command would compile them again.
        """
        run([sys.executable, "-m", "compileall", "-q", REPOSITORY / "src"])
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the engine, remove the folders."""
        self._opened.close()

    @cached_property
    def folder(self) -> Path:
        """A folder of its own in build/, which a tree with the crate's toolchain sees too."""
        (REPOSITORY / "build").mkdir(exist_ok=True)
        return self._scratch(REPOSITORY / "build")

    @cached_property
    def _bundles(self) -> Path:
        # Engines keep bundles on a tmpfs.
        shared_memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
        return self._scratch(shared_memory if shared_memory.is_dir() else self.folder)

    @cached_property
    def timer(self) -> Timer:
        """What times programs."""
        return Timer(self.folder)

    @cached_property
    def engine(self) -> Engine:
        """The demo's engine: what that built needn't be built again."""
        lock = self._opened.enter_context((cache_dir() / ".demo-engine.lock").open("w"))
        flock(lock, LOCK_EX)
        engine = Engine(
            cache_dir() / "demo-engine",
            runtimes={
                "oci-decorator": RUNTIME,
                "nvidia": self.nvidia_names / "nvidia-container-runtime",
            },
            environment={
                "OCI_DECORATOR_CONFIG": str(self.folder / "docker.toml"),
                # Where dockerd looks for the hook that makes `--gpus` known.
                "PATH": f"{self.nvidia_names}:{os.environ['PATH']}",
            },
        )
        self._opened.enter_context(engine)
        load_base(engine)
        return engine

    @cached_property
    def nvidia_names(self) -> Path:
        """A folder with NVIDIA's names for our program."""
        folder = self.folder / "nvidia-names"
        folder.mkdir()
        run([DECORATOR, "install-links", folder])
        return folder

    @cached_property
    def provision(self) -> Provision:
        """The command, with that engine."""
        return Provision(self.engine.host)

    @cached_property
    def built(self) -> dict[str, Any]:
        """What `provision build` says of NVIDIA's driver."""
        self.say("NVIDIA's driver is built first where the cache lacks it: some minutes")
        return self.provision.build(*TARGET)

    @cached_property
    def root(self) -> Path:
        """The root of a host with both vendors' drivers and nodes."""
        root = self.folder / "host"
        root.mkdir()
        self.provision("install", self.built["image"], "--root", root)
        _add_second_vendor(root)
        _make_nodes(root)
        write_runtime_config(self.folder / "docker.toml", _config_dir(root), root=root)
        return root

    @cached_property
    def base_tree(self) -> Path:
        """The files of the base image."""
        return self.exported(IMAGE, "base")

    @cached_property
    def shim_config(self) -> Path:
        """Settings of the shim with a low-level runtime that does nothing."""
        return write_runtime_config(
            self.folder / "shim.toml", self.config_dir, root=self.root, runtime="/bin/true"
        )

    @property
    def config_dir(self) -> Path:
        """The vendor configs of the host."""
        return _config_dir(self.root)

    @property
    def entry(self) -> Path:
        """NVIDIA's store entry."""
        return _entry(self.root)

    def wanted(self) -> str:
        """How much the two vendors list, for a row's note."""
        configs = [json.loads(path.read_text()) for path in self.config_dir.glob("*.json")]
        features = [feature for config in configs for feature in config["inventory"].values()]
        kinds = ("binaries", "libraries", "miscellaneous")
        files = {path for feature in features for kind in kinds for path in feature.get(kind, [])}
        return f"{len(files)} files and {len(_NODES)} devices"

    def exported(self, image: str, name: str) -> Path:
        """The file tree of an image, in a folder of that name."""
        return self.engine.unpack(image, self.folder / name)

    def mount_proc(self, tree: Path) -> None:
        """Let programs in `tree` see processes, until the scene ends."""
        run(["mount", "--bind", "/proc", tree / "proc"])
        self._opened.callback(run, ["umount", "--lazy", tree / "proc"])

    def bundle(self, name: str, *environment: str) -> Bundle:
        """A bundle of the base image whose process has `environment`."""
        folder = self._bundles / name
        folder.mkdir()
        rootfs = folder / "rootfs"
        run(["cp", "-a", self.base_tree, rootfs])
        run(["runc", "spec"], cwd=folder)
        config = folder / "config.json"
        spec = json.loads(config.read_text())
        spec["process"]["env"] += environment
        spec["process"] |= {"terminal": False, "args": ["/bin/true"]}
        spec["root"]["readonly"] = False
        config.write_text(json.dumps(spec))
        originals = [config, rootfs / "etc/ld.so.cache"]
        restore = []
        for original in originals:
            saved = folder / f"{original.name}.saved"
            shutil.copy2(original, saved)
            restore.append((saved, original))
        return Bundle(folder, restore)

    def _scratch(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self._opened.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _config_dir(root: Path) -> Path:
    return root / "etc/oci-decorator/oci-decorator.d"


def _entry(root: Path) -> Path:
    return (root / "var/lib/provision/nvidia/current").resolve()


def _add_second_vendor(root: Path) -> None:
    (_config_dir(root) / "onload.json").write_text(json.dumps(_SECOND))
    store = root / _STORE
    (store / "0123456789ab").mkdir(parents=True)
    (store / "current").symlink_to("0123456789ab")

    def made(path: str) -> Path:
        file = store / "current/driver" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    onload = _SECOND["inventory"]["onload"]
    library = next(_entry(root).rglob("libnvidia-cfg.so.*"))
    for path in onload["libraries"]:
        shutil.copy(library, made(path))
    more = _SECOND["inventory"]["profiles"]["miscellaneous"]
    for path in (*onload["binaries"], *onload["miscellaneous"], *more):
        made(path).write_text("#!/bin/sh\n")


def _make_nodes(root: Path) -> None:
    """The nodes of a host with one GPU; without them no device would be measured."""
    (root / "dev").mkdir(exist_ok=True)
    for name, numbers in _NODES.items():
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(*numbers))
