"""The recipe of a driver, ``driver.toml``: its sources, builds and files.

Data types only; ``provision.catalogue`` finds and loads the files.
"""

import itertools
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    model_validator,
)

from provision.catalogue.fields import (
    CHANNELS,
    DraDriver,
    Hardware,
    Installed,
    KnownKernels,
    Licence,
    Patch,
    Upstream,
)
from provision.catalogue.source_models import Build, OneOrSeveral, RecipeSource, UserFile
from provision.documents import Frozen, default
from provision.errors import NotFoundError, choices
from provision.manifest import Check, Container, HostNeeds
from provision.pin import Name, PackageName


class Flavour(Frozen):
    """One way to build a driver (open or proprietary modules, …).

    Attributes:
        default: Whether it is built when none is named. Without it: the first.
        licences: SPDX expressions for modules and user space.
        package: Source package, for kind ``deb`` without one in ``build``; its version is the
            driver's.
        build: How to build it from sources without a build of their own.
    """

    default: bool = False
    licences: tuple[Licence, ...] = Field(min_length=1)
    package: PackageName | None = None
    build: Build | None = None


# ``works`` and ``fails`` are known; nobody who wrote the recipe has tried what is ``untried``.
Known = Literal["works", "untried", "fails"]


class Standing(NamedTuple):
    """What a recipe knows of a version of its driver on a kernel."""

    known: Known
    # The row that says so; None: no row does.
    row: KnownKernels | None = None


SourceT_co = TypeVar("SourceT_co", covariant=True)


# Where NVIDIA's .run has the source of each kind of modules.
_RUNFILE_FOLDERS = ("kernel", "kernel-open")


class Variant(NamedTuple, Generic[SourceT_co]):
    """A flavour built from one of a recipe's sources."""

    source: SourceT_co
    # The source's name in messages and patches.
    label: str
    licences: tuple[str, ...]
    # Kind ``deb``: the package that has the source.
    package: str | None
    build: Build
    # Its user space, besides the files that the source itself lists.
    files: tuple[UserFile, ...]
    # With the source's own features.
    container: Container


class Recipe(Frozen):
    """A driver.toml; ``[source]`` stands for one ``[[source]]``.

    ``proven`` says what was run of it, for people; None: its author does not say.
    """

    described_in: ClassVar[str | None] = "docs/reference/driver-toml.md"

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    summary: str
    vendor: str
    homepage: str
    proven: str | None = None
    hardware: Hardware = default(Hardware)
    source: OneOrSeveral
    kernels: tuple[KnownKernels, ...] = ()
    flavours: dict[Name, Flavour] = Field(min_length=1)
    patches: tuple[Patch, ...] = ()
    container: Container = default(Container)
    files: tuple[UserFile, ...] = ()
    host: HostNeeds = default(HostNeeds)
    check: Check | None = None
    installed: Installed | None = None
    dra: DraDriver | None = None
    upstream: Upstream = default(Upstream)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @property
    def default_flavour(self) -> str:
        """The flavour that is built when none is named."""
        marked = [name for name, flavour in self.flavours.items() if flavour.default]
        return marked[0] if marked else next(iter(self.flavours))

    def refuse_unknown(self, flavour: str | None, version: str | None) -> None:
        """Refuse a flavour that it does not have, and a word that stands for no version."""
        if flavour not in {None, "auto", *self.flavours}:
            raise NotFoundError(
                f"'{self.name}' has no flavour '{flavour}'.",
                resolution=choices(flavour or "", self.flavours),
            )
        words = ("latest", *CHANNELS)
        # All versions and branches have digits.
        if version is not None and version not in words and not re.search("[0-9]", version):
            raise NotFoundError(
                f"'{self.name}' has no version '{version}'.",
                resolution=f"{choices(version, words)} See the versions: provision drivers versions"
                f" {self.name}",
            )

    def standing(self, *, version: str, flavour: str, kernel_release: str) -> Standing:
        """Return what is known of a version's flavour on a kernel."""
        rows = [
            row
            for row in self.kernels
            if row.is_about(version=version, flavour=flavour, kernel=kernel_release)
        ]
        failing = next((row for row in rows if row.fails is not None), None)
        if failing is not None:
            return Standing("fails", failing)
        return Standing("works", rows[0]) if rows else Standing("untried")

    @property
    def sources(self) -> tuple[RecipeSource, ...]:
        """The sources; the first that serves a distro and a version is used."""
        return self.source if isinstance(self.source, tuple) else (self.source,)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each source: its name or its kind."""
        return tuple(source.name or source.kind for source in self.sources)

    def variants(
        self, distro: Collection[str] | None, flavour: str
    ) -> Iterator[Variant[RecipeSource]]:
        """Yield a flavour from every source that serves a distro, in their order.

        Args:
            distro: The distro's names: id, ``id:version`` and family; None: any distro.
        """
        shared = self.flavours[flavour]
        for source, label in zip(self.sources, self.labels, strict=True):
            build = source.build_of(flavour) or shared.build
            if build is None or not (distro is None or source.fits(distro)):
                continue
            package = build.package or shared.package if source.kind == "deb" else None
            if source.kind == "dkms":
                package = source.package
            files = self.files if source.files is None else source.files
            licences, container = shared.licences, self._container_with(source)
            yield Variant(source, label, licences, package, build, files, container)

    def _container_with(self, source: RecipeSource) -> Container:
        if not source.features:
            return self.container
        return self.container.model_copy(
            update={"features": {**self.container.features, **source.features}}
        )

    def variant(
        self, distro: Collection[str], flavour: str, version: str
    ) -> Variant[RecipeSource] | None:
        """Return the first variant that serves a version on a distro.

        None if no source does, or if the recipe has no such flavour.
        """
        if flavour not in self.flavours:
            return None
        fitting = (v for v in self.variants(distro, flavour) if v.source.fits(distro, version))
        return next(fitting, None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [
            *self._source_problems(),
            *self._flavour_problems(),
            *self._name_problems(),
            *self._feature_problems(),
            *self._device_problems(),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _source_problems(self) -> Iterator[str]:
        named = list(zip(self.labels, self.sources, strict=True))
        for label, source in named:
            for flavour in source.build:
                if flavour not in self.flavours:
                    yield f"the source '{label}' builds the unknown flavour '{flavour}'"
                elif source.kind != "deb" and source.build[flavour].package is not None:
                    yield f"the source '{label}' is no packages, but build.{flavour} has a package"
        for (first, one), (second, other) in itertools.combinations(named, 2):
            if first == second:
                yield f"two sources are called '{first}': give them names of their own"
            claimed = _claimed_by_both(one, other)
            if claimed is not None:
                yield (
                    f"the sources '{first}' and '{second}' both serve {claimed}: give them other"
                    " distros or versions"
                )

    def _flavour_problems(self) -> Iterator[str]:
        if "auto" in self.flavours:
            yield "a flavour can't be called 'auto', which stands for the one that the cards need"
        if sum(flavour.default for flavour in self.flavours.values()) > 1:
            yield "more than one flavour is marked as default"
        kinds = {source.kind for source in self.sources}
        for name, flavour in self.flavours.items():
            variants = list(self.variants(None, name))
            if not variants:
                yield f"flavours.{name}.build is missing, and no source builds that flavour itself"
            tops = {v.label: v.build.directory for v in variants if v.source.kind == "runfile"}
            for label, directory in tops.items():
                if directory.partition("/")[0] not in _RUNFILE_FOLDERS:
                    yield (
                        f"the source '{label}' builds '{name}' in '{directory}': a .run has its"
                        f" source in {' and '.join(_RUNFILE_FOLDERS)}"
                    )
            has_use = "deb" in kinds
            lacks = any(v.source.kind == "deb" and v.package is None for v in variants)
            if lacks or (flavour.package is not None and not has_use):
                yield (f"flavours.{name}.package must be given exactly when source.kind is 'deb'")

    def _name_problems(self) -> Iterator[str]:
        named = [
            *(("kernels", row.flavours) for row in self.kernels),
            *((f"patch {patch.file}", patch.flavours) for patch in self.patches),
            *((f"hardware.cards {card.name}", card.flavours) for card in self.hardware.cards),
        ]
        for where, flavours in named:
            for name in flavours:
                if name not in self.flavours:
                    yield f"{where} names the unknown flavour '{name}'"
        for patch in self.patches:
            for name in patch.sources:
                if name not in self.labels:
                    yield f"patch {patch.file} names the unknown source '{name}'"

    def _feature_problems(self) -> list[str]:
        known = self.container.features
        named = [("container.driver_feature", f) for f in self.container.driver_feature]
        lacking = [
            f"installed.features lacks '{feature}', which container.driver_feature names"
            for feature in self.container.driver_feature
            if self.installed is not None and feature not in self.installed.features
        ]
        named += [(f"files {file.source}", f) for file in self.files for f in file.features]
        own = [
            f"files {file.source} of the source '{label}' names the feature '{feature}', which"
            " neither container.features nor the source has"
            for label, source in zip(self.labels, self.sources, strict=True)
            for file in source.files or ()
            for feature in file.features
            if feature not in {**known, **source.features}
        ]
        unknown = [
            f"{where} names the feature '{feature}', which container.features lacks"
            for where, feature in named
            if feature not in known
        ]
        unasked = [
            f"features of the source '{label}' need container.activation_flag"
            for label, source in zip(self.labels, self.sources, strict=True)
            if source.features and self.container.activation_flag is None
        ]
        return [*unknown, *own, *lacking, *unasked]

    def _device_problems(self) -> Iterator[str]:
        tables = {"container.features": self.container.features}
        for label, source in zip(self.labels, self.sources, strict=True):
            tables[f"features of the source '{label}'"] = source.features
        for where, features in tables.items():
            for feature, one in features.items():
                for device in one.devices:
                    # Not an empty part: a path that begins at the root has one.
                    parts = set(device.split("/"))
                    if parts & {"", ".", ".."} or not device.isprintable():
                        yield (
                            f"{where}: '{feature}' names the device '{device}', which is no name or"
                            " glob below /dev"
                        )


def _claimed_by_both(one: RecipeSource, other: RecipeSource) -> str | None:
    """Return the distros that a later source never serves because an earlier one does; or None.

    Sources with different ``versions`` don't conflict. A later source for every distro serves those
    that the earlier one does not.
    """
    if one.versions and one.versions != other.versions:
        return None
    if not one.distros:
        return ", ".join(other.distros) or "every distro"
    covered = [
        pattern
        for pattern in other.distros
        if any(fnmatchcase(pattern, earlier) for earlier in one.distros)
    ]
    return ", ".join(covered) or None
