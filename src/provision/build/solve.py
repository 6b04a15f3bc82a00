"""Runs the distro's own solver, which decides what a build installs, in a container.

The first round solves for the kernel's headers and the tools. The kernel's configuration, which the
headers contain, names the compiler. The headers and tools mostly depend on that compiler already.
Where they don't, a second round solves for headers, tools and compiler together. A kernel tree has
no header packages, so it takes only the second round. In the container, the distro's keys verify
all packages; on the way into the package store, their sha256 does.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from provision.build.base_image import ensure_base
from provision.build.network_access import proxies
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.distros import (
    WORK,
    Distro,
    Failure,
    HeaderQuery,
    Package,
    Release,
    Repository,
    Script,
    Spec,
    family_of,
)
from provision.distros.entitlements import entitlements_of, lacking_entitlements
from provision.distros.family import AUTHORITIES, NOTE, cc_version_text
from provision.distros.kernel_tree import Toolchain
from provision.distros.rpm_based.dnf import (
    archive_of_headers,
    archived_files,
    header_addresses,
    keys_script,
)
from provision.distros.rpm_based.rpm import parse_keys
from provision.distros.rpm_based.solver_messages import HeadersGoneError, missing_entitlement
from provision.documents import refusing
from provision.engine.containers import Container, ContainerRequest
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, download_any
from provision.fetch.authorities import authorities_of
from provision.pin import BasePin, PackagePin, is_address
from provision.pin.architectures import names_of
from provision.progress import Note, Output, Progress, silent

# Fedora's kernel-devel has some 25 MB.
_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """The packages that a solver is to find.

    Attributes:
        kernel: The kernel's release; empty: kernels are only listed.
        root: Root of the host, which may hold entitlements.
        toolchain: The compiler for a kernel tree; None: the kernel's headers are packages.
        archive_mirror: Address instead of that of the distro's archive of superseded kernels.
    """

    distro: Distro
    release: Release
    base: BasePin
    kernel: str
    architecture: str
    tools: tuple[str, ...]
    repositories: tuple[Repository, ...] = ()
    root: Path = Path("/")
    network: str | None = None
    toolchain: Toolchain | None = None
    archive_mirror: str | None = None

    @property
    def query(self) -> HeaderQuery:
        """Where the kernel's headers are; nowhere for a kernel tree."""
        if not self.kernel or self.toolchain:
            return HeaderQuery(flavour="", build="", source="", config="")
        return family_of(self.distro).headers(self.distro, self.kernel, self.architecture)

    @property
    def key(self) -> str:
        """The name of the closure: requests with the same key have the same closure."""
        asked: dict[str, object] = {
            "base": self.base.digest,
            "distro": [self.distro.id, self.release.version],
            "kernel": [self.kernel, self.architecture],
            "headers": [spec.text for spec in self.query.specs],
            "built_with": self.toolchain.cc_version_text if self.toolchain else None,
            "compilers": [rule.model_dump() for rule in self.distro.compilers],
            "tools": sorted(self.tools),
            "repositories": [
                [one.id, list(one.urls), {name: key.hex() for name, key in one.keys.items()}]
                for one in self.repositories
            ],
        }
        more = {
            "snapshots": [one.id for one in self.repositories if one.is_snapshot],
            "signed": [one.id for one in self.repositories if one.is_signed],
            # The repositories that the host may use, and not its credentials, which are renewed.
            "entitled": sorted(self._entitled()),
        }
        # Empty values are left out, so that older closures keep their names.
        return closure_key({**asked, **{name: said for name, said in more.items() if said}})

    def entitlements(self) -> dict[str, str]:
        """Return the files of the host's subscriptions: their path by path in the container."""
        if self._needs_entitlements() and lacking_entitlements(self.distro, self.root):
            raise missing_entitlement(self.failure(0, ""))
        return self._entitled()

    def authorities(self) -> dict[str, bytes]:
        """Return the certificates that this host trusts, by path below ``WORK``.

        Images have none of a site's own mirrors, nor of a proxy that reads along; Debian's and
        Ubuntu's have none at all. They are not needed without an https mirror or a proxy.
        """
        urls = [url for one in self.repositories for url in one.urls]
        is_needed = bool(self._entitled() or proxies())
        if not is_needed and not any(url.startswith("https:") for url in urls):
            return {}
        found = authorities_of(self.root)
        return {AUTHORITIES: found.read_bytes()} if found else {}

    def failure(self, status: int, said: str, version: str | None = None) -> Failure:
        """Return the data from which the distro's family explains a failed script."""
        return Failure(
            status=status,
            said=said,
            distro=self.distro,
            release=self.release,
            kernel=self.kernel,
            architecture=self.architecture,
            query=self.query,
            image=self.base.image,
            full_version=version or None,
        )

    def no_compiler(self, text: str, compilers: tuple[Spec, ...]) -> NotFoundError:
        """Return the error for a kernel whose compiler no package has."""
        tried = ", ".join(spec.text for spec in compilers)
        where = (
            "Enable the repository that has it in the base image, or take a base image of the"
            " release that the kernel is from (--base)."
        )
        if self.toolchain is not None:
            where = (
                "Name a distro that has it as 'toolchain' of [[trees]] in"
                ' /etc/provision/provision.toml, such as toolchain = "debian:13".'
            )
        return NotFoundError(
            f"The kernel {self.kernel} was built with a compiler of major version"
            f" {compilers[0].major}, which {self.distro.name} {self.release.version} does not"
            " package.",
            resolution=f"{where} Modules of another compiler may not load, or crash the kernel.",
            details=f"CONFIG_CC_VERSION_TEXT: {text}\nlooked for: {tried}",
        )

    def _needs_entitlements(self) -> bool:
        # Configured repositories replace those that need a subscription; an archive's suites don't.
        return not self.repositories or self.distro.apt is not None

    def _entitled(self) -> dict[str, str]:
        return entitlements_of(self.distro, self.root) if self._needs_entitlements() else {}


def find_archived(
    request: SolveRequest,
    keys: Callable[[], tuple[str, ...]],
    gone: HeadersGoneError,
    progress: Progress,
) -> tuple[Spec, Mapping[str, bytes]]:
    """Download the headers of a kernel that the repositories have dropped.

    The download is not verified here: the script that gets it checks the package's signature, as
    that of every other package.

    Args:
        keys: Lists the last eight digits of the ids of the distro's keys.
        gone: The error of the solver; raised again if the archive lacks the headers too.

    Returns:
        The package to solve for, and files for the solver's scripts, by path below ``WORK``.
    """
    archive = archive_of_headers(request.distro)
    # Configured repositories exclude all others, unless the archive is configured as well.
    if archive is None or (request.repositories and request.archive_mirror is None):
        raise gone
    addresses = header_addresses(archive, request.kernel, keys(), mirror=request.archive_mirror)
    progress(Note(f"The repositories have no headers of {request.kernel}; asking {archive.name}"))
    tried: list[str] = []
    for url in addresses:
        try:
            return archived_files(url, _downloaded(url, progress))
        except UnreachableError as error:
            raise UnreachableError(
                f"{gone.message} {archive.name} may have them, and can't be reached.",
                resolution=error.resolution,
                details=f"{url}: {error.details or error.message}\n{gone.details or ''}".strip(),
            ) from error
        except NotFoundError:
            tried.append(url)
        except ProvisionError as error:
            tried.append(f"{url}: {error.message}")
    raise _no_signed_copy(gone, tried)


def _no_signed_copy(gone: HeadersGoneError, tried: Sequence[str]) -> HeadersGoneError:
    looked = "\n".join(["no signed copy in the archive:", *tried]) if tried else ""
    return HeadersGoneError(
        gone.message,
        resolution=gone.resolution,
        details="\n".join(filter(None, [gone.details, looked])),
    )


def _downloaded(url: str, progress: Progress) -> bytes:
    with tempfile.TemporaryDirectory(prefix="provision-headers-") as folder:
        path = Path(folder, "headers.rpm")
        download_any(url, destination=path, limit=_LIMIT, progress=progress)
        return path.read_bytes()


# Some minutes on a slow network; a mirror that hangs is given up earlier by the package manager.
_LIMIT_S = 3600.0
_VERSION = '. /etc/os-release && echo "$VERSION_ID"'


class Arrivals:
    """The packages of one solve that were copied out, as drafts of the package store.

    Use it as a context around those of the containers: its end removes the drafts that were not
    taken.
    """

    def __init__(self, store: PackageStore) -> None:
        self._store = store
        self._drafts: dict[str, Path] = {}
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wait()
        for draft in self._drafts.values():
            draft.unlink(missing_ok=True)

    def begin(self, container: Container, folder: str) -> None:
        """Start to copy the files of a folder out of a container, in the background.

        Args:
            container: The container; its folder must not change until ``wait`` returns.
        """
        self.wait()
        self._thread = Thread(target=self._receive, args=(container, folder), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until every file is copied."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take(self, sha256: str) -> bool:
        """Move a copied file into the store; return False if it was not copied."""
        self.wait()
        draft = self._drafts.pop(sha256, None)
        if draft is None:
            return False
        draft.replace(self._store.path(sha256))
        return True

    def _receive(self, container: Container, folder: str) -> None:
        try:
            for _name, content in container.files(folder):
                sha256, draft = self._store.receive(content)
                # Two packages may have the same content.
                if sha256 in self._drafts:
                    draft.unlink()
                self._drafts[sha256] = self._drafts.get(sha256, draft)
        except (ProvisionError, OSError):
            # Missing files are copied again after the checks; a failure is reported there.
            return


class SolvingContainers:
    """The containers of one solve, one after the other; the caller holds the request's lock.

    Attributes:
        arrivals: The packages that were copied out of them; the outer context of every container.
    """

    def __init__(
        self, engine: Engine, request: SolveRequest, store: PackageStore, progress: Progress
    ) -> None:
        self.arrivals = Arrivals(store)
        self._engine = engine
        self._request = request
        self._store = store
        self._progress = progress

    @contextmanager
    def start(self) -> Iterator[Container]:
        """Start a container of the base image; it is removed at the end of the block."""
        request = self._request
        binds = self._entitlements()
        image = ensure_base(self._engine, request.base, progress=self._progress)
        architecture = names_of(request.architecture).go
        if image.architecture and image.architecture != architecture:
            raise ProvisionError(
                f"The base image '{request.base.image}' is for {image.architecture}, and the kernel"
                f" {request.kernel} for {architecture}.",
                resolution=f"Pull the right one (docker pull --platform linux/{architecture}"
                f" {request.base.image}), or name another with --base.",
            )
        container_request = ContainerRequest(
            image_id=image.id,
            # The lock belongs to one state folder; others may use the same engine.
            owner=closure_key({"of": request.key, "at": str(self._store.folder.resolve())})[:32],
            network=request.network,
            binds=binds,
            environment={"LC_ALL": "C.UTF-8", **proxies(), **request.distro.environment},
            limit=_LIMIT_S,
        )
        with self._engine.container(container_request) as container:
            yield container

    def _entitlements(self) -> dict[str, str]:
        """Return the files of the host's subscriptions that the container gets."""
        request = self._request
        binds = request.entitlements()
        if binds and not self._engine.host.startswith("unix:"):
            raise ProvisionError(
                f"This machine's subscription to {request.distro.name} can't be used by the"
                f" container engine at {self._engine.host}: it would be bound from the files of the"
                " engine's machine.",
                resolution="Solve with an engine on the machine that is subscribed (there:"
                f" provision resolve DRIVER --distro {request.distro.id}:{request.release.version}"
                " --output pin.json; here: provision build --pin pin.json), or name a mirror that"
                " asks for none in /etc/provision/provision.toml:"
                f" [distros.{request.distro.id}] repositories.",
                details="\n".join(sorted(binds.values())),
            )
        return binds

    def run(self, container: Container, script: Script) -> None:
        """Run a script; copy its packages as soon as it says that they are downloaded."""
        self.arrivals.wait()
        awaited = [script.downloaded]

        def hear(line: str) -> None:
            # Only once: a mirror can make the package manager print a line that looks the same.
            if line in awaited:
                awaited.clear()
                self.arrivals.begin(container, f"{WORK}/{script.folder}")
            elif line.startswith(NOTE):
                self._progress(Note(line.removeprefix(NOTE)))
            else:
                self._progress(Output(line))

        # With the script, so that the folder exists even where it needs no files.
        container.put({**script.files, "script.sh": script.text.encode()}, WORK)
        ran = container.run(f"sh {WORK}/script.sh", on_line=hear)
        if ran.status != 0:
            version = container.run(_VERSION, on_line=lambda _line: None).said.strip()
            raise family_of(self._request.distro).explain(
                self._request.failure(ran.status, ran.said, version)
            )

    def take(self, container: Container, script: Script, packages: Iterable[Package]) -> None:
        """Put the packages that the store lacks into it."""
        if script.folder is None:
            return
        lacking = {p.file: p.pinned for p in packages if not self._store.whole(p.pinned.sha256)}
        missing = {name: p for name, p in lacking.items() if not self.arrivals.take(p.sha256)}
        if not missing:
            return
        self._progress(Note(f"Storing {len(missing)} packages"))
        for name, content in container.files(f"{WORK}/{script.folder}"):
            if name in missing:
                self._store.add(content, sha256=missing.pop(name).sha256, name=name)
        if missing:
            raise ProvisionError(
                f"The solving container lacks {', '.join(sorted(missing))}, which it listed.",
                resolution="Run the command again.",
            )


_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


def solve(
    engine: Callable[[], Engine],
    request: SolveRequest,
    store: PackageStore,
    *,
    update: bool = False,
    container: Container | None = None,
    progress: Progress = silent,
) -> Closure:
    """Return the closure of a request: the kept one, or one that is solved for now.

    Args:
        engine: Connects to the engine that has the base image; not called if the store has the
            closure.
        container: A container of the base image in which apt was asked already; None: one is
            started.
    """
    key = request.key
    if not update and (kept := store.closure(key)):
        return kept
    with store.solving(key, progress):
        if not update and (kept := store.closure(key)):
            return kept
        closure = _Solver(engine(), request, store, progress).closure(container)
        store.keep(key, closure)
        return closure


def list_kernels(
    engine: Callable[[], Engine],
    request: SolveRequest,
    store: PackageStore,
    *,
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Return the kernels whose headers the repositories have, the newest first."""
    with store.solving(request.key, progress):
        return _Solver(engine(), request, store, progress).kernels()


@dataclass(frozen=True, slots=True)
class _Solved:
    """A solution.

    Attributes:
        versions: The version of each package by name, those of the base image included.
    """

    packages: tuple[Package, ...]
    versions: Mapping[str, str]

    def compiler(self, spec: Spec) -> PackagePin | None:
        """Return a compiler if the solution has it in the right version."""
        version = self.versions.get(spec.text)
        if version is None or not _is_major(version, spec.major):
            return None
        return PackagePin(name=spec.text, version=version)


class _Solver:
    """Solves one request; the caller holds its lock."""

    def __init__(
        self,
        engine: Engine,
        request: SolveRequest,
        store: PackageStore,
        progress: Progress,
    ) -> None:
        self.containers = SolvingContainers(engine, request, store, progress)
        self.request = request
        self.progress = progress
        self.family = family_of(request.distro)
        self.query = request.query
        self.headers = self.query.specs
        # Files of packages that no repository has.
        self.archived: Mapping[str, bytes] = {}

    def closure(self, opened: Container | None) -> Closure:
        """Solve, mostly in one round, and take over the files."""
        with self.containers.arrivals:
            return self._closure(opened)

    def _closure(self, opened: Container | None) -> Closure:
        with nullcontext(opened) if opened else self.containers.start() as container:
            text, found = self._first(container)
            compilers = self.family.compiler(self.request.distro, text) if text else ()
            left: deque[Spec | None] = deque(compilers or (None,))
            found = found or self._with_one_of(container, left, text)
        while found is None and left:
            # In a new container, whose cache lacks the packages of the other compiler.
            with self.containers.start() as container:
                found = self._with_one_of(container, left, text)
        if found is None:
            raise self.request.no_compiler(text, compilers)
        return found

    def _first(self, container: Container) -> tuple[str, Closure | None]:
        """Solve for the headers and the tools, which mostly include the right compiler.

        Returns:
            ``CONFIG_CC_VERSION_TEXT`` of the kernel, empty if no package compiled it; and the
            closure, if it has that compiler. For a kernel tree, nothing is solved here.
        """
        if self.request.toolchain is not None:
            return self.request.toolchain.cc_version_text or "", None
        self.progress(Note(f"Solving for the headers of {self.request.kernel} and the tools"))
        script = self._headers(container)
        text = cc_version_text(container.read(f"{WORK}/{script.config}").decode(errors="replace"))
        if text is None:
            raise ProvisionError(
                f"The configuration of the kernel {self.request.kernel} does not say which"
                " compiler built it (CONFIG_CC_VERSION_TEXT).",
                resolution="Take a kernel of version 4.18 or newer (--kernel).",
            )
        solved = self._solved(container, script)
        for compiler in self.family.compiler(self.request.distro, text):
            if found := solved.compiler(compiler):
                return text, self._closed(container, script, solved, found, text)
        return text, None

    def _with_one_of(
        self, container: Container, left: deque[Spec | None], text: str
    ) -> Closure | None:
        """Return the closure with the first compiler that the distro has; remove tried ones.

        Return None if no compiler is left, or if the downloaded one has another version.
        """
        while left:
            compiler = left.popleft()
            try:
                return self._with_compiler(container, compiler, text)
            except NotFoundError as error:
                if not (compiler and f"'{compiler.text}'" in error.message):
                    raise
        return None

    def kernels(self) -> tuple[str, ...]:
        """List the packaged kernels."""
        request = self.request
        self.progress(Note(f"Reading the repositories of {request.distro.name}"))
        script = self.family.kernels(request.distro, request.release, request.repositories)
        with self.containers.start() as container:
            self.containers.run(container, script)
            output = container.read(f"{WORK}/{script.output}")
            return self.family.parse_kernels(request.distro, output)

    def _headers(self, container: Container) -> Script:
        """Solve for headers and tools; take headers that no repository has from the archive."""
        tools = tuple(map(Spec, sorted({*self.request.tools})))
        script = self._script((*self.headers, *tools), config=self.query.config)
        try:
            self.containers.run(container, script)
        except HeadersGoneError as gone:
            spec, self.archived = find_archived(
                self.request, self._keys(container), gone, self.progress
            )
            self.headers = (spec,)
            script = self._script((spec, *tools), config=self.query.config)
            self.containers.run(container, script)
        return script

    def _keys(self, container: Container) -> Callable[[], tuple[str, ...]]:
        script = keys_script(self.request.distro, self.request.release)

        def listed() -> tuple[str, ...]:
            self.containers.run(container, script)
            return parse_keys(container.read(f"{WORK}/{script.output}"))

        return listed

    def _with_compiler(
        self, container: Container, compiler: Spec | None, text: str
    ) -> Closure | None:
        """Return the closure with a compiler; None where that is of another major version."""
        names = {*self.request.tools}
        specs = self.headers
        if compiler is not None:
            names -= {compiler.text}
            specs = (*specs, compiler)
        subject = f"{compiler.text} and the tools" if compiler else "the tools"
        self.progress(Note(f"Solving for {subject} of the build"))
        script = self._script((*specs, *(Spec(name) for name in sorted(names))))
        self.containers.run(container, script)
        solved = self._solved(container, script)
        found = solved.compiler(compiler) if compiler else None
        if compiler is not None and found is None:
            return None
        return self._closed(container, script, solved, found, text)

    def _solved(self, container: Container, script: Script) -> _Solved:
        output = container.read(f"{WORK}/{script.output}")
        packages = self.family.parse(output)
        versions = {**self.family.installed(output)}
        versions |= {package.pinned.name: package.pinned.version for package in packages}
        return _Solved(packages, versions)

    def _closed(
        self,
        container: Container,
        script: Script,
        solved: _Solved,
        compiler: PackagePin | None,
        text: str,
    ) -> Closure:
        """Take over the files, and return the closure."""
        self.containers.take(container, script, solved.packages)
        request = self.request
        headers: list[str] = []
        if request.toolchain is None:
            headers = [name for name in solved.versions if self.family.holds_headers(name)]
        names = {*request.tools} - {compiler.name if compiler else ""}
        with refusing("The packages of the build can't be pinned."):
            return Closure(
                distro=request.distro.pin(request.release),
                kernel=request.kernel,
                architecture=request.architecture,
                cc_version_text=text,
                compiler=compiler,
                headers=_pins(headers, solved.versions),
                tools=_pins(names, solved.versions),
                packages=tuple(package.pinned for package in solved.packages),
                urls={
                    package.pinned.sha256: urls
                    for package in solved.packages
                    if (urls := tuple(filter(is_address, package.urls)))
                },
            )

    def _script(self, specs: tuple[Spec, ...], *, config: str | None = None) -> Script:
        request = self.request
        script = self.family.solve(
            request.distro, request.release, specs, request.repositories, config=config
        )
        more = {**self.archived, **request.authorities()}
        return replace(script, files={**script.files, **more})


def _is_major(version: str, major: int | None) -> bool:
    match = _MAJOR.match(version)
    return major is None or (match is not None and int(match[1]) == major)


def _pins(names: Iterable[str], versions: Mapping[str, str]) -> tuple[PackagePin, ...]:
    """Return packages with their versions; a virtual package has no version of its own."""
    return tuple(
        PackagePin(name=name, version=versions[name]) for name in sorted(names) if name in versions
    )
