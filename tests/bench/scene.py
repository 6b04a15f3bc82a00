"""What is measured: an engine, NVIDIA's driver built and installed, a root and bundles to edit."""

from __future__ import annotations

import json
import os
import shutil
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
from kit import bundles
from kit.cache import REPOSITORY, cache_dir
from kit.engine import Engine
from kit.hosts import DISTRO, IMAGE, OLD_KERNEL, Host, load_base
from kit.process import run
from kit.product import DECORATOR, RUNTIME, Provision, write_runtime_config
from kit.standins import make_nodes, stand_in

TARGET = ("nvidia", "--version", "latest", "--kernel", OLD_KERNEL, "--distro", DISTRO)
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
    "root": "/var/lib/provision/onload/current/driver",
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
_NODES = (
    *("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"),
    *("onload", "onload_epoll", "sfc_char"),
)


@dataclass(frozen=True, slots=True)
class Bundle(bundles.Bundle):
    """An OCI bundle of the base image, and copies that put its files back as they were."""

    # The copies, as `bench.timing.Timed` takes them.
    restore: Sequence[tuple[Path, Path]]


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
    def host(self) -> Host:
        """A host with both vendors' drivers and nodes."""
        host = Host(self.folder / "host", self.folder / "docker.toml")
        host.root.mkdir()
        self.provision("install", self.built["image"], "--root", host.root)
        store = host.store("onload")
        (store / "0123456789ab").mkdir(parents=True)
        (store / "current").symlink_to("0123456789ab")
        stand_in(Host(store / "current/driver", host.config), _SECOND)
        host.write_vendor("onload", _SECOND)
        make_nodes(host.root / "dev", _NODES)
        write_runtime_config(host.config, host.config_dir, root=host.root)
        return host

    @cached_property
    def base_tree(self) -> Path:
        """The files of the base image."""
        return self.exported(IMAGE, "base")

    @cached_property
    def shim_config(self) -> Path:
        """Settings of the shim with a low-level runtime that does nothing."""
        return write_runtime_config(
            self.folder / "shim.toml",
            self.host.config_dir,
            root=self.host.root,
            runtime="/bin/true",
        )

    def wanted(self) -> str:
        """How much the two vendors list, for a row's note."""
        configs = [json.loads(path.read_text()) for path in self.host.config_dir.glob("*.json")]
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
        """A bundle whose process has `environment`."""
        folder = self._bundles / name
        folder.mkdir()
        run(["cp", "-a", self.base_tree, folder / "rootfs"])
        originals = [folder / "config.json", folder / "rootfs/etc/ld.so.cache"]
        bundle = Bundle(folder, [(folder / f"{one.name}.saved", one) for one in originals])
        bundle.write("/bin/true", env=environment)
        for saved, original in bundle.restore:
            shutil.copy2(original, saved)
        return bundle

    def starting(self, bundle: Bundle) -> Path:
        """A file with what a hook reads while the bundle's container is being created."""
        state = {"ociVersion": "1.0.2", "id": "idle", "status": "creating", "pid": os.getpid()}
        path = bundle.folder / "state.json"
        path.write_text(json.dumps({**state, "bundle": str(bundle.folder)}))
        return path

    def _scratch(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self._opened.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder
