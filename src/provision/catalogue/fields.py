"""Kinds of text in a recipe, and its tables that are independent of its sources."""

import calendar
import re
from collections.abc import Mapping
from datetime import date
from operator import eq, ge, gt, le, lt, ne
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from provision.documents import Frozen, like
from provision.errors import redact
from provision.manifest import FeatureName, PciMatch, RelativePath
from provision.pin import FileUrl, Name, RepositoryUrl, Url, is_address

# Placeholders in a recipe's texts, which resolve and render fill in.
PLACEHOLDERS = frozenset(
    {
        "arch",
        "jobs",
        "kernel",
        "kernel_build",
        "kernel_source",
        "machine",
        "multiarch",
        "source",
        "version",
    }
)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# In a Dockerfile, an instruction ends at the line's end, whatever quotes are open, and no escape
# stands for one.
CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
PciIds = Annotated[str, like(r"^[0-9a-f]{4}(-[0-9a-f]{4})?$", "1b00 or 1b00-1d56")]
# An id of os-release, "id:version", or a family of distros; may be a glob.
DistroPattern = Annotated[
    str, like(r"^[a-z0-9*?\[][a-z0-9._:*?\[\]-]*$", "debian:12 or debian", max_length=64)
]


# One of a list of conditions: ``>=6.1``, ``==535.*``.
_SPECIFIER = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?\s*")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}


def _specifiers(text: str) -> str:
    for one in text.split(",") if text.strip() else ():
        match = _SPECIFIER.fullmatch(one)
        if match is None or (match[3] and match[1] not in {"==", "!="}):
            raise ValueError(f"'{text}' is no version specifier such as '>=5.4,<6.13' or '==535.*'")
    return text


def _numbers(text: str, length: int) -> list[int]:
    """Return dotted numbers, with zeros up to a length."""
    numbers = [int(number) for number in text.split(".")]
    return numbers + [0] * (length - len(numbers))


def _one_line(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError("holds a control character, which can't go into a Dockerfile")
    return text


def _text(text: str) -> str:
    # Line ends are allowed: users put the text on one line.
    _one_line(" ".join(text.split()))
    return text


def known_placeholders(text: str, *, known: frozenset[str] = PLACEHOLDERS) -> str:
    """Return a text whose placeholders are all known."""
    unknown = sorted(set(_PLACEHOLDER.findall(text)) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise ValueError(f"unknown placeholder '{{{unknown[0]}}}'; there are {names}")
    return text


def _fixed_placeholders(text: str) -> str:
    # The number of jobs differs between builds, so no shipped file may depend on it. The source's
    # folder is an absolute path of the build, and these paths are relative.
    return known_placeholders(text, known=PLACEHOLDERS - {"jobs", "source"})


Specifiers = Annotated[str, AfterValidator(_specifiers)]


Argument = Annotated[str, AfterValidator(known_placeholders), AfterValidator(_one_line)]


Template = Annotated[str, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]


SourcePath = Annotated[RelativePath, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]


Licence = Annotated[str, AfterValidator(_text)]


def _target(text: str) -> str:
    plain = text if text == "/" else text.removesuffix("/")
    pure = PurePosixPath(plain)
    if not pure.is_absolute() or ".." in pure.parts or str(pure) != plain or plain[1:2] == "/":
        raise ValueError(f"'{text}' must be a plain absolute path without '..'")
    return text


def _file_name(text: str) -> str:
    if "/" in text or text in {"", ".", ".."}:
        raise ValueError(f"'{text}' must be a file's name, without a folder")
    return text


# Where a file goes in a container; with a final '/', the file keeps its name.
TargetPath = Annotated[Template, AfterValidator(_target)]
FileName = Annotated[Template, AfterValidator(_file_name)]


def public(text: str) -> str:
    """Return an address that goes into Pins and the labels of images.

    Raises:
        ValueError: It contains a password or a token.
    """
    shown = redact(text)
    if shown != text:
        raise ValueError(
            f"'{shown}' holds a password or token, which every user could read here and in the"
            " labels of artifacts: leave it out. Put the login into ~/.netrc of the user who"
            " builds"
        )
    return text


def _url_template(text: str) -> str:
    filled = known_placeholders(text, known=frozenset({"arch", "version"}))
    if not is_address(filled.replace("{version}", "1").replace("{arch}", "1")):
        raise ValueError(
            "this is not a valid URL, such as https://vendor.example/{version}/driver-{arch}.run"
        )
    return public(text)


# An address; {version} and {arch} (as uname -m prints it) are filled in.
UrlTemplate = Annotated[str, AfterValidator(_url_template)]
PublicUrl = Annotated[Url, AfterValidator(public)]
PublicFileUrl = Annotated[FileUrl, AfterValidator(public)]
PublicRepositoryUrl = Annotated[RepositoryUrl, AfterValidator(public)]


def version_matches(version: str, specifiers: str) -> bool:
    """Return whether a version, or a kernel's release, satisfies all of some specifiers.

    The dotted numbers at its beginning are compared: ``7.0.20`` of ``7.0.20_OSE``, ``6.1.112`` of
    ``6.1.112+``. A version that begins with no number satisfies none.
    """
    found = _NUMBERS.match(version)
    for match in _SPECIFIER.finditer(specifiers):
        if found is None:
            return False
        operator, wanted, is_prefix = match[1], match[2], match[3]
        length = max(found[0].count("."), wanted.count(".")) + 1
        own, limit = _numbers(found[0], length), _numbers(wanted, length)
        if is_prefix:
            own, limit = own[: wanted.count(".") + 1], limit[: wanted.count(".") + 1]
        if not _COMPARE[operator](own, limit):
            return False
    return True


class CardGeneration(Frozen):
    """Cards that the same versions and flavours of a driver serve.

    Attributes:
        name: What people call it: ``"Pascal"``.
        devices: Device ids, or ranges of them: ``"1b00-1d56"``.
        versions: Version specifiers of those that serve them. Without it: all.
        flavours: The flavours that serve them. Without it: all.
    """

    name: Annotated[str, AfterValidator(_one_line), StringConstraints(min_length=1)]
    devices: tuple[PciIds, ...] = Field(min_length=1)
    versions: Specifiers = ""
    flavours: tuple[Name, ...] = ()

    @property
    def takes(self) -> str:
        """The versions and flavours that serve them."""
        return ", ".join(filter(None, (self.versions or "any version", " or ".join(self.flavours))))

    def has(self, device: str) -> bool:
        """Return whether a device id is one of its."""
        for ids in self.devices:
            first, _, last = ids.partition("-")
            if first <= device <= (last or first):
                return True
        return False


def last_day(text: str) -> date:
    """Return the last day of a month (``2026-06``), or the day itself (``2026-06-30``)."""
    year, month, *day = (int(part) for part in text.split("-"))
    return date(year, month, *(day or [calendar.monthrange(year, month)[1]]))


def _day(text: str) -> str:
    try:
        last_day(text)
    except ValueError:
        raise ValueError(f"'{text}' is no month (2026-06) or day (2026-06-30)") from None
    return text


Day = Annotated[
    str, like(r"^[0-9]{4}-[0-9]{2}(-[0-9]{2})?$", "2027-06-30 or 2027-06"), AfterValidator(_day)
]


class Reviewed(Frozen):
    """A recipe's table that ages."""

    reviewed: Day | None = None

    @property
    def source(self) -> str:
        """What says so where no vendor does: the recipe, with its date."""
        return f"the recipe of {self.reviewed}" if self.reviewed else "the recipe"

    @property
    def reviewed_day(self) -> date | None:
        """The day of the table; None: it has no date."""
        return None if self.reviewed is None else last_day(self.reviewed)


class Hardware(Reviewed):
    """What a driver is for.

    Attributes:
        pci: The devices.
        cards: Which versions and flavours serve which of them.
        reviewed: The month or day on which ``cards`` was compared with the vendor's; a year later,
            ``provision plan`` and ``provision doctor`` say that it is old.
        supported: Files of the source with the cards of that version, in the format of NVIDIA's
            ``supported-gpus.json``, plain or ``.gz``; the first that is there decides. Without it:
            the PCI aliases of the modules.
    """

    pci: tuple[PciMatch, ...] = ()
    cards: tuple[CardGeneration, ...] = ()
    supported: tuple[SourcePath, ...] = ()

    def matches(self, vendor: str, device: str, device_class: str) -> bool:
        """Return whether the driver is for a device."""
        return any(
            one.matches(vendor=vendor, device=device, device_class=device_class) for one in self.pci
        )

    def generation(self, device: str) -> CardGeneration | None:
        """Return the generation of a device that the driver is for; None: it is not known."""
        return next((one for one in self.cards if one.has(device)), None)


class KnownKernels(Frozen):
    """What is known of a driver on some kernels: that it builds, or that it does not.

    Where a kernel is in rows of both kinds, the one with ``fails`` counts.

    Attributes:
        versions: Conditions on the numbers that driver versions begin with: ``"==535.*"``,
            ``">=9.0,<10"``. Without it: all.
        flavours: Flavours that the row is about. Without it: all.
        works: Kernels that it builds on, by the numbers that releases begin with (``6.1.0`` of
            ``6.1.0-47-amd64``): ``">=6.1,<6.13"``.
        fails: Kernels on which it does not build or run, in the same form.
        by: Who tried or says it: ``"built here"``, ``"release notes"``.
        day: Its month or day (``"2026-11"``).
        reason: Why it fails: the changed function, the missing symbol.
    """

    versions: Specifiers = ""
    # Not strict: it comes as a list from the validator below.
    flavours: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    works: Specifiers | None = None
    fails: Specifiers | None = None
    by: Annotated[str, AfterValidator(_one_line)] | None = None
    day: Day | None = None
    reason: Annotated[str, AfterValidator(_one_line), StringConstraints(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.works is None) == (self.fails is None):
            raise ValueError("a row has either 'works' or 'fails'")
        if (self.fails is None) != (self.reason is None):
            raise ValueError("'fails' and 'reason' go together")
        return self

    @property
    def kernels(self) -> str:
        """The kernels that the row is about."""
        return self.works if self.works is not None else str(self.fails)

    @property
    def source(self) -> str:
        """Who says so, and when; empty if neither is known."""
        return ", ".join(filter(None, (self.by, self.day)))

    def is_about(self, *, version: str, flavour: str, kernel: str) -> bool:
        """Return whether the row is about a version's flavour on a kernel."""
        return (
            (not self.flavours or flavour in self.flavours)
            and version_matches(version, self.versions)
            and version_matches(kernel, self.kernels)
        )


class Patch(Frozen):
    """A file under ``patches/``, applied with ``patch -p1`` where all that it names matches.

    Attributes:
        file: ``NAME.patch`` in ``patches/``, for ``patch -p1`` in ``directory``.
        versions: Driver versions that need it. Without it: all.
        flavours: Flavours that need it. Without it: all.
        sources: Names of sources that need it. Without it: all.
        reason: Which kernel change, which file.
    """

    # No longer than a tar file of the build context takes it, below patches/.
    file: Annotated[str, like(r"^[A-Za-z0-9][A-Za-z0-9._-]*\.patch$", "name.patch", max_length=90)]
    versions: Specifiers = ""
    flavours: tuple[Name, ...] = ()
    sources: tuple[Name, ...] = ()
    reason: Annotated[str, StringConstraints(min_length=1)]

    def applies_to(self, *, version: str, flavour: str, source: str) -> bool:
        """Return whether a driver version and flavour from a source need this patch."""
        return (
            (not self.flavours or flavour in self.flavours)
            and (not self.sources or source in self.sources)
            and version_matches(version, self.versions)
        )


class DraDriver(Frozen):
    """The program by which pods of Kubernetes claim a driver's devices, and what it needs.

    Attributes:
        name: The name by which it registers with the kubelet.
        pods: Glob of its pods' names on a node.
        versions: Driver versions with which it starts.
        reason: Why it does not start with others.
    """

    name: Annotated[str, like(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "gpu.vendor.example")]
    pods: Annotated[str, like(r"^[a-z0-9.*-]+$", "some-pods-*")]
    versions: Specifiers
    reason: Annotated[str, StringConstraints(min_length=1)]

    def refuses(self, version: str) -> str | None:
        """Return what to say of a driver version with which it does not start."""
        if version_matches(version, self.versions):
            return None
        return f"{self.name}, the DRA driver, does not start with {version}: {self.reason}"


class InstalledFeature(Frozen):
    """What one feature consists of on a host that has the driver from elsewhere.

    Attributes:
        devices: Names or globs below ``/dev``.
        libraries: File names or globs; links are found.
        binaries: File names or globs.
        miscellaneous: Paths or globs, relative to the host's root.
        bits: ``32`` for the libraries of 32-bit programs.
    """

    devices: tuple[str, ...] = ()
    libraries: tuple[Template, ...] = ()
    binaries: tuple[Template, ...] = ()
    miscellaneous: tuple[SourcePath, ...] = ()
    bits: Literal[32, 64] = 64


class Installed(Frozen):
    """How to recognise a driver that a host has from elsewhere: its distro, or its maker.

    Attributes:
        library: File name of a library that every installation has; its ``{version}`` is the
            driver's.
        libraries: Folders for libraries, relative to the host's root; the first that has a file
            counts. ``{multiarch}``: the machine's triplet, and that of its 32-bit programs.
        binaries: Folders for programs.
        uninstallers: Commands of the vendor's installer that remove the driver without a question;
            the program's path is relative to the host's root.
        features: The features that a container can request.
    """

    library: Annotated[Template, like(r"\{version\}", "libdemo.so.{version}")]
    libraries: tuple[SourcePath, ...] = Field(min_length=1)
    binaries: tuple[SourcePath, ...] = ("usr/bin", "usr/sbin")
    uninstallers: tuple[Annotated[Template, like(r"^[^/\s]", "uninstall-demo")], ...] = ()
    features: dict[FeatureName, InstalledFeature] = Field(min_length=1)


# A vendor's promise for a branch, the longest support first.
Maturity = Literal["lts", "production", "new-feature"]
# Names for the newest branch of a kind, and the kinds that each accepts: a branch with long support
# suits production too. Source:
# https://docs.nvidia.com/datacenter/tesla/drivers/driver-lifecycle.html
CHANNELS: Mapping[str, tuple[Maturity, ...]] = {
    "auto": ("lts", "production"),
    "lts": ("lts",),
    "production": ("lts", "production"),
    "new-feature": ("lts", "production", "new-feature"),
}

# The version of a request that names none.
DEFAULT_VERSION = "auto"
# For a driver without kinds of branches, these are its newest version.
NEWEST_WITHOUT_KINDS = frozenset({DEFAULT_VERSION, "production"})


def is_of(version: str, branch: str) -> bool:
    """Return whether a version belongs to a branch: ``535.261.03`` to ``535`` and ``535.261``."""
    return version == branch or version.startswith(f"{branch}.")


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        # The last two: a number of repetitions or a nesting that is too large.
        raise ValueError(f"no regular expression: {error}") from error
    if groups != 1:
        raise ValueError("needs exactly one group in parentheses, which is the version")
    return text


BranchName = Annotated[str, like(r"^[0-9]+(\.[0-9]+)*$", "580 or 2.1", max_length=32)]
Pattern = Annotated[str, StringConstraints(max_length=200), AfterValidator(_pattern)]


class _Source(Frozen):
    """What all kinds of sources have.

    Attributes:
        url: Its address.
        files: Whether each version that it names has a file where the recipe's sources that take
            any version look for it; such a version is offered without an edit of the recipe.
    """

    url: PublicUrl
    files: bool = False


class NvidiaReleases(_Source):
    """NVIDIA's list of data center drivers, by branch, with what each branch is."""

    kind: Literal["nvidia-releases-json"]


class GitTags(_Source):
    """Tags of a git repository.

    Attributes:
        pattern: Regular expression of the whole name of a tag; its one group is the version.
    """

    kind: Literal["git-tags"]
    pattern: Pattern = r"v?([0-9][0-9.]*)"


UpstreamSource = Annotated[NvidiaReleases | GitTags, Field(discriminator="kind")]


class BranchFacts(Frozen):
    """What is known of a branch whatever its vendor's servers say now.

    Attributes:
        maturity: ``"lts"``, ``"production"`` or ``"new-feature"``; a source that states it takes
            precedence.
        end_of_life: The last month or day (``"2026-06"``, ``"2026-06-30"``) of support, after which
            ``provision doctor`` warns.
    """

    maturity: Maturity | None = None
    end_of_life: Day | None = None

    @property
    def last_day(self) -> date | None:
        """The last day of its life; None if unknown."""
        return None if self.end_of_life is None else last_day(self.end_of_life)


class Upstream(Reviewed):
    """An ``[upstream]``.

    Attributes:
        branch_parts: How many parts of a version name its branch: 1: ``535`` of ``535.261.03``; 2:
            ``0.12`` of ``0.12.7``.
        sources: Where the vendor says which versions there are.
        branches: What is known of branches.
        reviewed: As ``reviewed`` of ``[hardware]``, for ``branches``.
    """

    branch_parts: int = Field(default=1, ge=1, le=4)
    sources: tuple[UpstreamSource, ...] = ()
    branches: dict[BranchName, BranchFacts] = Field(default_factory=dict)

    @property
    def has_kinds(self) -> bool:
        """Whether the recipe or a source says of which kind a branch is."""
        return any(facts.maturity for facts in self.branches.values()) or any(
            source.kind == "nvidia-releases-json" for source in self.sources
        )

    def branch_of(self, version: str) -> str:
        """Return the name of the branch that a version belongs to."""
        parts = version.split(".")
        named = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        own = next((name for name in named if name in self.branches), None)
        return own or ".".join(parts[: self.branch_parts])
