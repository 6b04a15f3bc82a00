"""Makes small artifacts: a module that is a real ELF file, user space, a manifest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

from kit.files import write
from provision.manifest import Container, ContainerFeature, DriverFile, Manifest, Module
from provision.pin import FORMAT, BasePin, DistroPin, DriverPin, KernelPin, PackagePin, Pin
from provision.store.entries import adopt, drafted
from provision.store.layout import Layout, changing

__all__ = [
    "KERNEL", "LIBRARY", "MODULE", "VERMAGIC", "add", "make_artifact", "make_module", "make_pin",
    "with_program", "write", "write_manifest",
]  # fmt: skip

KERNEL = "6.1.0-47-amd64"
VERMAGIC = f"{KERNEL} SMP preempt mod_unload modversions"
MODULE = f"lib/modules/{KERNEL}/demo.ko"
LIBRARY = "/usr/lib64/demo/libdemo.so.1.2"


def make_pin(
    *,
    driver: str = "demo",
    version: str = "1.2",
    kernel: str = KERNEL,
    flavour: str = "open",
    recipe: str = "2" * 64,
) -> Pin:
    """A Pin of a driver that doesn't exist."""
    return Pin(
        driver=DriverPin(name=driver, version=version, flavour=flavour),
        kernel=KernelPin(release=kernel, architecture="x86_64"),
        distro=DistroPin(id="debian", version="12", codename="bookworm"),
        base=BasePin(image="debian:bookworm", digest="sha256:" + "1" * 64),
        compiler=PackagePin(name="gcc-12", version="12.2.0-14"),
        headers=(PackagePin(name=f"linux-headers-{kernel}", version="6.1.170-3"),),
        packages=(),
        sources=(),
        recipe=recipe,
        format=FORMAT,
    )


def make_module(vermagic: str = VERMAGIC, *, order: str = "<", version: str | None = None) -> bytes:
    """A relocatable ELF file with a .modinfo section; the kernel's blank ends its vermagic."""
    names = b"\0.modinfo\0.shstrtab\0"
    modinfo = f"license=GPL\0depends=\0name=demo\0vermagic={vermagic} \0".encode()
    modinfo += f"version={version}\0".encode() if version else b""
    header_size = 64
    table = header_size + len(modinfo) + len(names)
    header = b"\x7fELF" + bytes([2, 1 if order == "<" else 2, 1]) + bytes(9)
    header += struct.pack(f"{order}HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = [(0, 0, 0), (1, header_size, len(modinfo)), (10, header_size + len(modinfo), 20)]
    packed = [
        struct.pack(f"{order}IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
        for name, offset, size in sections
    ]
    return header + modinfo + names + b"".join(packed)


def make_artifact(
    folder: Path,
    *,
    pin: Pin | None = None,
    module: bytes | None = None,
    library: bytes | None = b"library",
) -> Manifest:
    """Write a whole artifact, as a build leaves it; without a library it has no user space."""
    pin = pin or make_pin()
    module = make_module() if module is None else module
    modules = f"lib/modules/{pin.kernel.release}"
    write(folder / modules / "demo.ko", module)
    write(folder / modules / "modules.dep", b"demo.ko:\n")
    write(folder / modules / "modules.alias.bin", b"")
    files = () if library is None else _library(folder, library)
    manifest = Manifest(
        pin=pin,
        pin_digest=pin.digest,
        licences=("GPL-2.0-only",),
        modules=(
            Module(
                name="demo",
                path=f"{modules}/demo.ko",
                sha256=hashlib.sha256(module).hexdigest(),
                size=len(module),
                vermagic=VERMAGIC.replace(KERNEL, pin.kernel.release),
            ),
        ),
        files=files,
        container=Container(
            activation_flag="OCI_DEMO",
            driver_feature=("compute",),
            features={
                "compute": ContainerFeature(
                    devices=("demo[0-9]*",), directories=("/usr/lib64/demo",)
                ),
                "utility": ContainerFeature(devices=("democtl",)),
            },
        ),
    )
    write_manifest(folder, manifest)
    return manifest


def with_program(folder: Path, manifest: Manifest, content: bytes) -> Manifest:
    """Give an artifact's program another content; return the manifest then."""
    write(folder / "driver/usr/bin/democtl", content, 0o755)
    new = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    files = (f.model_copy(update=new) if f.kind == "binary" else f for f in manifest.files)
    return manifest.model_copy(update={"files": tuple(files)})


def write_manifest(folder: Path, manifest: Manifest, **changes: object) -> None:
    """Write an artifact's manifest, with other values in places."""
    changed = manifest.model_copy(update=changes)
    write(folder / "driver/manifest.json", changed.model_dump_json(by_alias=True).encode())


def add(
    layout: Layout, short_digest: str, fill: Callable[[Path], object], *, replace: bool = False
) -> bool:
    """Put an entry into a store, as an installation does; return whether anything changed."""
    if layout.entry(short_digest).is_dir() and not replace:
        return False
    with drafted(layout, short_digest, fill) as draft, changing(layout):
        return adopt(layout, short_digest, draft, replace=replace)


def _library(folder: Path, content: bytes) -> tuple[DriverFile, ...]:
    write(folder / "driver" / LIBRARY.lstrip("/"), content)
    write(folder / "driver/usr/bin/democtl", b"binary", 0o755)
    link = folder / "driver/usr/lib64/demo/libdemo.so.1"
    link.symlink_to("libdemo.so.1.2")
    return (
        DriverFile(
            path="/usr/bin/democtl",
            kind="binary",
            features=("utility",),
            sha256=hashlib.sha256(b"binary").hexdigest(),
            size=6,
            mode="0755",
        ),
        DriverFile(
            path=LIBRARY,
            kind="library",
            features=("compute", "utility"),
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            mode="0644",
            soname="libdemo.so.1",
            elf_class=64,
        ),
        DriverFile(
            path="/usr/lib64/demo/libdemo.so.1",
            kind="library",
            features=("compute",),
            link="libdemo.so.1.2",
        ),
    )
