"""Pins as a resolver makes them, with versions and checksums that never change."""

from __future__ import annotations

import hashlib
from pathlib import Path

from provision.build.dockerfile import TREE, Templates, load_templates
from provision.catalogue import Recipe, RecipeSource, Variant
from provision.catalogue.source_models import (
    ArchiveReleases,
    DebSource,
    DkmsSource,
    GitReleases,
    RunfileReleases,
)
from provision.distros.distro import release_of, source_names
from provision.documents import load_toml
from provision.pin import (
    FORMAT,
    BasePin,
    ClosurePackage,
    DistroPin,
    DriverPin,
    FilePin,
    KernelPin,
    PackagePin,
    PackageSource,
    Pin,
    RunfileSource,
    Source,
    TreePin,
)
from provision.sources.candidates import tools_of

REPOSITORY = Path(__file__).resolve().parents[2]
KERNEL = "6.1.0-56-amd64"
TREE_KERNEL = "6.6.74-flatcar"
_VERSIONS = {
    "ca-certificates": "20250419~deb12u2",
    "g++": "4:12.2.0-3",
    "gcc": "4:12.2.0-3",
    "git": "1:2.39.5-0+deb12u3",
    "nvidia-modprobe": "535.161.07-1~deb12u1",
    "nvidia-persistenced": "535.171.04-1~deb12u1",
}


def recipe(driver: str) -> Recipe:
    """The recipe of a driver that the repository ships."""
    return load_toml(REPOSITORY / "driver_images" / driver / "driver.toml", Recipe)


def patches(driver: str) -> dict[str, bytes]:
    """The patches of a driver, by file name."""
    folder = REPOSITORY / "driver_images" / driver / "patches"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.patch"))}


def templates() -> Templates:
    """The templates that the repository ships, for Debian."""
    return load_templates("apt")


def pin(driver: str, version: str, flavour: str) -> Pin:
    """The Pin of a driver for one kernel of Debian 12."""
    recipe_ = recipe(driver)
    contents = patches(driver)
    distro = DistroPin(id="debian", version="12", codename="bookworm")
    data, release = release_of(distro)
    variant = recipe_.variant(source_names(distro), flavour, version)
    assert variant is not None
    compiler = PackagePin(name="gcc-12", version="12.2.0-14+deb12u1")
    headers = (
        PackagePin(name=f"linux-headers-{KERNEL}", version="6.1.192-2"),
        PackagePin(name="linux-headers-6.1.0-56-common", version="6.1.192-2"),
        PackagePin(name="linux-kbuild-6.1", version="6.1.192-2"),
    )
    tools = tuple(
        PackagePin(name=name, version=_VERSIONS.get(name, "1.0-1"))
        for name in data.build_tools(release, tools_of(variant))
    )
    return Pin(
        driver=DriverPin(name=driver, version=version, flavour=flavour),
        kernel=KernelPin(release=KERNEL, architecture="x86_64"),
        distro=distro,
        base=BasePin(image="debian:bookworm", digest=f"sha256:{_sha256('base')}"),
        compiler=compiler,
        headers=headers,
        packages=tools,
        closure=tuple(map(_whole, (compiler, *headers, *tools))),
        sources=_sources(variant, version),
        patches=tuple(
            FilePin(name=patch.file, sha256=hashlib.sha256(contents[patch.file]).hexdigest())
            for patch in recipe_.patches
            if patch.applies_to(version=version, flavour=flavour, source=variant.label)
        ),
        recipe=_sha256("recipe"),
        format=FORMAT,
    )


def _whole(package: PackagePin) -> ClosurePackage:
    version = package.version.rpartition(":")[2]
    return ClosurePackage(
        name=package.name,
        version=package.version,
        arch="amd64",
        sha256=_sha256(package.name),
        size=1000,
        repository="main",
        location=f"pool/main/{package.name[0]}/{package.name}_{version}_amd64.deb",
    )


def tree_templates() -> Templates:
    """The templates that the repository ships, for kernels whose headers are no packages."""
    return load_templates(TREE)


def tree_pin(driver: str, version: str, flavour: str, *, kind: str) -> Pin:
    """The Pin of a driver for a kernel of Flatcar.

    ``source``: compiled with Clang of Debian 12; ``prepared``: with its GCC; ``image``: with what
    is in the developer container.
    """
    debian = DistroPin(id="debian", version="12", codename="bookworm")
    has_packages = kind != "image"
    packaged = pin(driver, version, flavour)
    base = BasePin(image="flatcar-developer:4081.2.0", digest=f"sha256:{_sha256('developer')}")
    compiler = packaged.compiler
    if kind == "source":
        compiler = PackagePin(name="clang-14", version="1:14.0.6-12")
    more = {"bc", "bison", "flex", "libc6-dev", "libelf-dev", "libssl-dev", "lld-14", "llvm-14"}
    names = more if kind == "source" else {"libc6-dev", "libelf-dev", "libssl-dev"}
    known = {package.name for package in packaged.packages}
    tools = tuple(PackagePin(name=name, version="1.0-1") for name in sorted(names - known))
    packages = (*packaged.packages, *tools) if has_packages else ()
    return packaged.model_copy(
        update={
            "kernel": KernelPin(release=TREE_KERNEL, architecture="x86_64"),
            "distro": DistroPin(id="flatcar", version="4081.2.0", codename="flatcar"),
            "base": packaged.base if has_packages else base,
            "compiler": compiler if has_packages else None,
            "headers": (),
            "packages": packages,
            "closure": tuple(map(_whole, (compiler, *packages))) if compiler and packages else (),
            "tree": TreePin.model_validate(
                {
                    "kind": kind,
                    "tree": _sha256("tree") if has_packages else None,
                    "config": _sha256("config") if kind == "source" else None,
                    "symvers": _sha256("symvers") if kind == "source" else None,
                    "toolchain": debian if has_packages else None,
                    "llvm": "-14" if kind == "source" else None,
                }
            ),
        }
    )


def _sources(variant: Variant[RecipeSource], version: str) -> tuple[Source, ...]:
    source = variant.source
    if isinstance(source, ArchiveReleases | GitReleases):
        return tuple(release.source() for release in source.releases if release.version == version)
    if isinstance(source, DkmsSource) and not source.is_packaged:
        return tuple(release.source() for release in source.releases if release.version == version)
    if isinstance(source, RunfileReleases):
        url = f"https://vendor.example/NVIDIA-Linux-x86_64-{version}.run"
        run = {"url": url, "sha256": _sha256("run"), "version": version, "architecture": "x86_64"}
        return (RunfileSource.model_validate(run),)
    assert isinstance(source, DebSource | DkmsSource)
    names = (str(variant.package), *source.userspace, *source.companions)
    return tuple(
        PackageSource(name=name, version=_VERSIONS.get(name, f"{version}-1"), sha256=_sha256(name))
        for name in names
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
