"""Finds the contents of a bundle: artifacts in a registry, and files on this machine for builds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.build.package_store import Closure, PackageStore
from provision.build.pin_file import pin_document
from provision.documents import load_json
from provision.engine.docker_api import Engine, Image, split_reference
from provision.errors import NotFoundError, ProvisionError
from provision.fleet.selection import (
    Chosen,
    ImageSelection,
    RegistryAccess,
    choose,
    require_all,
    total_size,
)
from provision.pin import BasePin, Pin

# Places in a bundle.
PACKAGES = "packages/sha256"
CLOSURES = "packages/closures"
PINS = "pins"
BASES = "bases"
# Folders of further files.
WHEELS, PYTHON, COLLECTION, PROGRAMS = "wheels", "python", "collection", "bin"


@dataclass(frozen=True, slots=True)
class Extras:
    """Files that go into a bundle unchanged."""

    # A folder of wheels, for ``provision_driver_wheelhouse``.
    wheels: Path | None = None
    # Archives of ``provision export host-python``.
    host_python: tuple[Path, ...] = ()
    collections: tuple[Path, ...] = ()
    # ``oci-decorator``, one for each machine.
    programs: tuple[Path, ...] = ()

    def files(self) -> dict[str, Path]:
        """Return the files by their places in a bundle."""
        wheels = sorted(self.wheels.glob("*.whl")) if self.wheels else []
        if self.wheels and not wheels:
            raise NotFoundError(
                f"There are no wheels in '{self.wheels}'.",
                resolution="Fill it: pip download --require-hashes --no-deps -r constraints.txt"
                f" --dest {self.wheels}",
            )
        parts = {
            WHEELS: wheels,
            PYTHON: self.host_python,
            COLLECTION: self.collections,
            PROGRAMS: self.programs,
        }
        return {f"{folder}/{p.name}": p for folder, paths in parts.items() for p in paths}


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a bundle."""

    chosen: tuple[Chosen, ...]
    copies: Mapping[str, Path]
    texts: Mapping[str, str]
    # Images of the engine, by their Pins.
    bases: tuple[tuple[BasePin, Image], ...]
    engine: Callable[[], Engine]

    @property
    def drivers(self) -> frozenset[str]:
        """The drivers that it has images of."""
        return frozenset(one.driver for one in self.chosen)

    @property
    def size(self) -> int:
        """Bytes without small files; base images count with their size in the engine."""
        files = sum(path.stat().st_size for path in self.copies.values())
        return total_size(self.chosen) + files + sum(image.size for _pin, image in self.bases)


@dataclass(frozen=True, slots=True)
class Order:
    """The options of a new bundle."""

    # Where the artifacts are: ``host[:port][/prefix]``.
    registry: str
    selection: ImageSelection
    extras: Extras = field(default_factory=Extras)
    # Whether it has what builds need: packages, sources, base images.
    builds: bool = True


def gather(access: RegistryAccess, order: Order, engine: Callable[[], Engine]) -> Contents:
    """Find everything that a bundle is to hold; nothing is written.

    Args:
        access: How the registry is reached; the machine's package store counts too.
        engine: Connects to the engine that has the base images; called if there are any.
    """
    chosen, refused = choose(access, order.registry, order.selection)
    require_all(refused)
    pins = {one.image.pin.digest: one.image.pin for each in chosen for one in each.images}
    copies, texts = dict(order.extras.files()), {}
    bases: tuple[tuple[BasePin, Image], ...] = ()
    missing: list[str] = []
    if order.builds:
        store = PackageStore(access.settings.state)
        for pin in pins.values():
            name = f"{PINS}/{pin.driver.name}-{pin.short_digest}.json"
            texts[name] = json.dumps(pin_document(pin), indent=1) + "\n"
            texts.update(_closures(store, pin))
            copies.update(_inputs(store, pin, missing))
        bases = tuple(_base_images(pins.values(), engine, missing))
    if missing:
        raise NotFoundError(
            "This machine lacks files that builds need, so the bundle would be incomplete.",
            resolution="Make the bundle on the machine that built these, get the files first"
            " ('provision build --pin', 'docker pull'), or leave them out: --artifacts-only.",
            details="\n".join(dict.fromkeys(missing)),
        )
    return Contents(chosen, copies, texts, bases, engine)


def _inputs(store: PackageStore, pin: Pin, missing: list[str]) -> dict[str, Path]:
    """Return the files that a build of a Pin installs; add missing ones to ``missing``."""
    names = {package.sha256: package.name for package in pin.closure}
    for source in pin.sources:
        if source.file is not None and source.sha256 is not None:
            names[source.sha256] = source.address or source.sha256
    found = {}
    for sha256, name in names.items():
        path = store.whole(sha256)
        if path is None:
            missing.append(f"{name} (sha256 {sha256[:12]}…), for {pin.image}")
        else:
            found[f"{PACKAGES}/{sha256}"] = path
    return found


def _closures(store: PackageStore, pin: Pin) -> Iterator[tuple[str, str]]:
    """Yield the solved closures of a Pin, without addresses: a mirror's may hold a password."""
    packages = {package.sha256 for package in pin.closure}
    for path in sorted((store.folder / "closures").glob("*.json")):
        try:
            closure = load_json(path, Closure)
        except ProvisionError:
            continue
        same = {package.sha256 for package in closure.packages} == packages
        if packages and same and closure.kernel == pin.kernel.release:
            bare = closure.model_copy(update={"urls": {}})
            yield f"{CLOSURES}/{path.name}", f"{bare.model_dump_json(by_alias=True, indent=1)}\n"


def _base_images(
    pins: Iterable[Pin], engine: Callable[[], Engine], missing: list[str]
) -> Iterator[tuple[BasePin, Image]]:
    """Yield the base images of Pins, each once; add missing ones to ``missing``."""
    for base in {pin.base.digest: pin.base for pin in pins}.values():
        name, _tag = split_reference(base.image)
        image = engine().image(base.digest) or engine().image(f"{name}@{base.digest}")
        if image is None:
            missing.append(f"the base image {base.image}@{base.digest}")
        else:
            yield base, image
