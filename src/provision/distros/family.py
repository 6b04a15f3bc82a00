"""What a family of distros does with a distro's data: its protocol, and the rules that all share.

The rules say which packages hold a kernel's headers and its compiler. Nothing here starts a process
or reads the network: a family writes scripts, which ``provision.build.solve`` runs in a container
of the base image.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from provision.distros.distro import Distro, HeaderRule, Release
from provision.errors import NotFoundError, ProvisionError
from provision.explain import Kind, explain, fill, last_line
from provision.pin import BasePin, ClosurePackage, names_of

# Where a solving container's files lie; each script may write below it, and nowhere else.
WORK = "/provision/solve"
# Below it: certificates of the authorities that this machine trusts, for https mirrors and proxies.
AUTHORITIES = "authorities.crt"

# A line of a script's that begins so is for the user.
NOTE = "provision: "


class Spec(NamedTuple):
    """A package to install, as the distro's solver takes it."""

    # ``kernel-devel-uname-r = 5.14.0-427.el9.x86_64``, ``gcc``, ``linux-headers-K``; a package's
    # path in the container, where no repository has it.
    text: str
    # Major version that the package must have; None: any.
    major: int | None = None


class HeaderQuery(NamedTuple):
    """Where the headers of a kernel are, and the kernel."""

    flavour: str
    build: str
    source: str
    config: str
    specs: tuple[Spec, ...] = ()
    # The packages of the kernel itself; empty: not known.
    image: tuple[str, ...] = ()
    repository: str | None = None


class Repository(NamedTuple):
    """A repository that is used instead of those that the base image names."""

    # One word; the suite, for the family of apt.
    id: str
    # Its addresses: mirrors of one content.
    urls: tuple[str, ...]
    # The keys that its packages are signed with, in ASCII armour, by file name.
    keys: Mapping[str, bytes] = {}
    # Of a suite, for the family of apt; empty: those that are always read.
    components: tuple[str, ...] = ()
    # Whether its index counts although its time of validity is over.
    is_snapshot: bool = False
    # Whether its index has to be signed too, for the families of dnf and zypper.
    is_signed: bool = False
    # Of a suite that may be another archive's: what its index has to say that it is; it is left out
    # where the index says otherwise or can't be read.
    origin: str | None = None


class Script(NamedTuple):
    """What to run in a container of the base image.

    It leaves its listing in ``closure`` below ``WORK``, packages in ``packages``, and a copy of the
    kernel's configuration in ``config``.
    """

    # For ``sh``, with ``set -eu``; it prints what goes on.
    text: str
    files: Mapping[str, bytes] = {}


class Package(NamedTuple):
    """A package of a closure, as a solver found it."""

    pinned: ClosurePackage
    file: str
    urls: tuple[str, ...] = ()


def headers_of(distro: Distro, kernel: str, architecture: str) -> HeaderQuery:
    """Return where a kernel's headers are, by the first of the distro's rules that matches."""
    for rule in distro.headers:
        match = re.fullmatch(rule.kernels, kernel)
        if match:
            values = {
                **{name: text or "" for name, text in match.groupdict().items()},
                "kernel": kernel,
                "arch": architecture,
                "cpu": names_of(architecture).kernel,
            }
            return _query(distro, rule, kernel, values)
    known = ", ".join(rule.flavour for rule in distro.headers if rule.refusal is None)
    raise NotFoundError(
        f"'{kernel}' is no kernel of {distro.name}.",
        resolution=f"Name one of its own kernels with --kernel (flavours: {known}), the distro"
        " that this kernel comes from with --distro, or the folder of its headers under"
        " [[trees]] in /etc/provision/provision.toml.",
    )


def _query(distro: Distro, rule: HeaderRule, kernel: str, values: dict[str, str]) -> HeaderQuery:
    if rule.refusal is not None or rule.build is None:
        raise NotFoundError(
            f"Modules can't be built for the kernel {kernel} of {distro.name}: it is of the flavour"
            f" '{rule.flavour}'.",
            resolution=rule.refusal,
        )
    build = fill(rule.build, values)
    return HeaderQuery(
        flavour=rule.flavour,
        specs=tuple(Spec(fill(spec, values)) for spec in rule.specs),
        image=tuple(fill(name, values) for name in rule.image),
        build=build,
        source=fill(rule.source, values) if rule.source else build,
        config=f"{build}/.config",
        repository=rule.repository and fill(rule.repository, values),
    )


class Toolchain(NamedTuple):
    """What compiles in a kernel tree."""

    # What the kernel's configuration says of the compiler that built it; None: the compiler is no
    # package.
    cc_version_text: str | None
    # Further packages, by Debian's names.
    packages: tuple[str, ...]
    llvm: str | None = None


class SolveRequest(NamedTuple):
    """The packages that a distro's solver is to find, in a container of a base image."""

    distro: Distro
    release: Release
    base: BasePin
    # The kernel's release; empty: kernels are only listed.
    kernel: str = ""
    architecture: str = ""
    tools: tuple[str, ...] = ()
    # In place of those that the base image names.
    repositories: tuple[Repository, ...] = ()
    # Root of the host, which may hold entitlements.
    root: Path = Path("/")
    network: str | None = None
    toolchain: Toolchain | None = None
    archive_mirror: str | None = None

    @property
    def query(self) -> HeaderQuery:
        """Where the kernel's headers are; nowhere for a kernel tree."""
        if not self.kernel or self.toolchain:
            return HeaderQuery(flavour="", build="", source="", config="")
        return headers_of(self.distro, self.kernel, self.architecture)

    @property
    def needs_entitlements(self) -> bool:
        """Whether the host's subscriptions count.

        Configured repositories replace those that need one; an archive's suites don't.
        """
        return not self.repositories or self.distro.apt is not None


# Of what a package manager printed, how many lines an error shows.
_LINES = 25


class SolverFailure(NamedTuple):
    """A script that failed."""

    request: SolveRequest
    status: int
    said: str
    # ``VERSION_ID`` in its os-release, where that is known.
    full_version: str | None = None

    def error(
        self, what: str, resolution: str, kind: type[ProvisionError] = ProvisionError
    ) -> ProvisionError:
        """Return an error, with the end of what the package manager printed."""
        details = "\n".join(self.said.strip().splitlines()[-_LINES:])
        return kind(what, resolution=resolution, details=details or None)

    @property
    def where(self) -> str:
        """The release, for people."""
        return f"{self.request.distro.name} {self.request.release.version}"

    def is_of_headers(self, name: str) -> bool:
        """Whether what a package manager names is a package of the kernel's headers."""
        said, *specs = (
            re.sub(r"[\s'\"]+", "", text)
            for text in (name, *(s.text for s in self.request.query.specs))
        )
        return any(said in spec or spec in said for spec in specs)


class HeadersGoneError(NotFoundError):
    """The repositories have no headers of the kernel; an archive may have them."""


def missing_entitlement(failure: SolverFailure) -> ProvisionError:
    """Return the error for repositories that require a subscription."""
    required = [one.host for one in failure.request.distro.entitlement if one.required]
    return failure.error(
        f"The repositories of {failure.where} need a subscription, and this machine's is missing or"
        " not valid.",
        f"Register this machine, so that it has {' and '.join(required)} (they are bound read-only"
        " into the container that solves, and never part of an image; in a cloud, what its"
        " repository files name is bound instead, which AWS and Google do not accept without their"
        f" plugins of dnf), or name a mirror under [distros.{failure.request.distro.id}] of"
        " /etc/provision/provision.toml.",
        NotFoundError,
    )


# Such as "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", "x86_64-linux-gnu-gcc-12 (Ubuntu) 12.3",
# and "clang version 17.0.6" and "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0".
_GCC = re.compile(r"^\S*gcc\S* \([^()]*(?:\([^()]*\)[^()]*)*\) (?P<major>[0-9]{1,4})\.[0-9]")
_CLANG = re.compile(r"^(?:[\w.-]+ ){0,3}clang version (?P<major>[0-9]{1,4})\.[0-9]")


class Family(ABC):
    """The functions that distros of one package manager share. All of them are pure."""

    @abstractmethod
    def solve(
        self, request: SolveRequest, specs: tuple[Spec, ...], config: str | None = None
    ) -> Script:
        """Return what solves for packages, downloads the whole closure and checks signatures.

        Args:
            config: The kernel's configuration to copy out of the first spec's packages, as an
                absolute path where they are installed; None: none.
        """

    @abstractmethod
    def parse(self, output: bytes) -> tuple[Package, ...]:
        """Return the closure that a script wrote, in the order of names."""

    @abstractmethod
    def installed(self, output: bytes) -> Mapping[str, str]:
        """Return the versions of the base image's own packages by name, as a script wrote them."""

    def compiler(self, distro: Distro, cc_version_text: str) -> tuple[Spec, ...]:
        """Return the packages that may hold a compiler, the preferred one first."""
        gcc = _GCC.match(cc_version_text)
        clang = _CLANG.match(cc_version_text)
        match = gcc or clang
        if match is None:
            raise ProvisionError(
                f"The kernel was built with '{cc_version_text}', which is no compiler that is"
                " known.",
                resolution="Give a kernel that was built with gcc or clang (--kernel).",
            )
        command = "gcc" if gcc else "clang"
        major = match["major"]
        values = {"major": major}
        found = tuple(
            Spec(fill(rule.package, values), int(major))
            for rule in distro.compilers
            if rule.command == command
        )
        if not found:
            raise NotFoundError(
                f"The kernel was built with {command} {major}, and {distro.name} is not known to"
                " package that compiler.",
                resolution="Give another kernel (--kernel).",
            )
        return found

    def explain(self, failure: SolverFailure) -> ProvisionError:
        """Return the error for a script that failed."""
        distro, kernel = failure.request.distro, failure.request.kernel
        values = {"release": failure.where, "distro": distro.id}
        found = explain("solver", failure.said, values)
        if found is None:
            return failure.error(
                f"The packages for the kernel {kernel} could not be solved for on"
                f" {failure.where} (exit status {failure.status}): {last_line(failure.said)}.",
                "If the mirror is in the middle of an update, try again later, or name another:"
                f" [distros.{distro.id}] of /etc/provision/provision.toml. If the base"
                " image is newer than the kernel's packages, name an older one with --base.",
            )
        if found.kind is Kind.MISSING and failure.is_of_headers(found.name):
            return self.no_headers(failure)
        if found.kind is Kind.DENIED and any(one.required for one in distro.entitlement):
            return missing_entitlement(failure)
        return failure.error(f"{found.cause}.", found.what_to_do, found.kind.error)

    def no_headers(self, failure: SolverFailure) -> ProvisionError:
        """Return the error for a kernel whose headers no repository has."""
        return failure.error(
            f"No headers are packaged for the kernel {failure.request.kernel} on"
            f" {failure.where}: it is superseded, of another release or of another archive.",
            self.superseded(failure),
            HeadersGoneError,
        )

    @abstractmethod
    def superseded(self, failure: SolverFailure) -> str:
        """Return how to get at the headers of a kernel that the repositories have dropped."""

    @abstractmethod
    def kernels(self, request: SolveRequest) -> Script:
        """Return what lists the kernels whose headers the repositories have."""

    @abstractmethod
    def parse_kernels(self, distro: Distro, output: bytes) -> tuple[str, ...]:
        """Return the kernels' releases, the newest first."""


def cc_version_text(config: str) -> str | None:
    """Return the value of ``CONFIG_CC_VERSION_TEXT`` in a kernel's configuration, if it is there.

    Kernels before 4.18 have none.
    """
    match = re.search(r'^CONFIG_CC_VERSION_TEXT="(.*)"$', config, re.MULTILINE)
    return match[1] if match else None


def records(
    output: bytes, fields: Mapping[str, int], unreadable: Callable[[str], ProvisionError]
) -> dict[str, list[list[str]]]:
    """Return the records of a script's listing by their first word, which they lack here.

    Args:
        fields: How many words a record has, that one included.
        unreadable: Returns the error for a line that is no record.
    """
    found: dict[str, list[list[str]]] = {kind: [] for kind in fields}
    for line in output.decode(errors="replace").split("\n"):
        words = line.split("\t")
        if not line.strip():
            continue
        if fields.get(words[0]) != len(words):
            raise unreadable(line)
        found[words[0]].append(words[1:])
    return found


def family_of(distro: Distro) -> Family:
    """Return the module that serves a distro.

    Raises:
        KeyError: The distro has no package manager: ``tree``.
    """
    return _family(distro.family)


@cache
def _family(name: str) -> Family:
    match name:
        case "apt":
            from provision.distros.apt import Apt  # noqa: PLC0415 - most runs build nothing

            return Apt()
        case "dnf":
            from provision.distros.dnf import Dnf  # noqa: PLC0415 - as above

            return Dnf()
        case "zypper":
            from provision.distros.zypper import Zypper  # noqa: PLC0415 - as above

            return Zypper()
    raise KeyError(name)
