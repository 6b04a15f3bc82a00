"""Has the distro's own solver decide what a build installs, in a container of the base image.

One round for the headers of the kernel, whose configuration names the compiler, and the tools.
Distros' headers and tools mostly bring that compiler along; where they don't, a second round solves
for all three together. A kernel tree has no packages of headers, and takes only that. All files
come out of the container into the package store, checked by the distro's keys in there and by their
sha256 here.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from provision.build.arrivals import Arrivals
from provision.build.base_image import ensure_base
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.build.solve_request import SolveRequest, find_archived
from provision.distros import WORK, Package, Script, Spec, family_of
from provision.distros.family import cc_version_text
from provision.distros.rpm_based.dnf import keys_script
from provision.distros.rpm_based.rpm_keys import parse_keys
from provision.distros.rpm_based.solver_messages import HeadersGoneError
from provision.documents import refusing
from provision.engine.containers import Container, ContainerRequest
from provision.engine.docker_api import Engine, engine_architecture
from provision.errors import NotFoundError, ProvisionError
from provision.pin import PackagePin, is_address
from provision.progress import Note, Output, Progress, silent

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# Some minutes on a slow network; a mirror that hangs is given up earlier by the package manager.
_LIMIT_S = 3600.0
_VERSION = '. /etc/os-release && echo "$VERSION_ID"'
_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


def solve(
    engine: Callable[[], Engine],
    request: SolveRequest,
    store: PackageStore,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Closure:
    """Return the closure of a request: the kept one, or one that is solved for now.

    Args:
        engine: Connects to the engine that has the base image; not called where the closure is
            kept.
        request: What to solve for.
        store: Takes the files and the closure.
        update: Solve again although there is a closure.
        progress: Receives what goes on.

    Raises:
        NotFoundError: The kernel's headers, a compiler or a tool is not packaged, the host is not
            entitled, or the base image is missing.
        ProvisionError: The solver found no solution, a signature is wrong, a mirror failed.
    """
    key = request.key
    if not update and (kept := store.closure(key)):
        return kept
    with store.solving(key, progress):
        if not update and (kept := store.closure(key)):
            return kept
        closure = _Solver(engine(), request, store, progress).closure()
        store.keep(key, closure)
        return closure


def list_kernels(
    engine: Callable[[], Engine],
    request: SolveRequest,
    store: PackageStore,
    *,
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Return the kernels whose headers the repositories have, the newest first.

    Args:
        engine: Connects to the engine that has the base image.
        request: Whose kernels.
        store: Has the lock of what is done in a container; nothing is put into it.
        progress: Receives what goes on.

    Raises:
        ProvisionError: A repository can't be reached.
    """
    with store.solving(request.key, progress):
        return _Solver(engine(), request, store, progress).kernels()


@dataclass(frozen=True, slots=True)
class _Solved:
    """What a solver found.

    Attributes:
        packages: What is installed besides the base image's packages.
        versions: Of these and of the base image's own, by name.
    """

    packages: tuple[Package, ...]
    versions: Mapping[str, str]

    def compiler(self, spec: Spec) -> PackagePin | None:
        """Return a compiler, if it is there in the right version."""
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
        self.engine = engine
        self.request = request
        self.store = store
        self.progress = progress
        self.family = family_of(request.distro)
        self.query = request.query
        self.headers = self.query.specs
        # Of packages that no repository has.
        self.archived: Mapping[str, bytes] = {}
        self.arrivals = Arrivals(store)

    def closure(self) -> Closure:
        """Solve, mostly in one round, and take over the files."""
        with self.arrivals:
            return self._closure()

    def _closure(self) -> Closure:
        with self._container() as container:
            text, found = self._first(container)
            compilers = self.family.compiler(self.request.distro, text) if text else ()
            left: deque[Spec | None] = deque(compilers or (None,))
            found = found or self._with_one_of(container, left, text)
        while found is None and left:
            # A container of its own: what another compiler needs is not in its cache.
            with self._container() as container:
                found = self._with_one_of(container, left, text)
        if found is None:
            raise self.request.no_compiler(text, compilers)
        return found

    def _first(self, container: Container) -> tuple[str, Closure | None]:
        """Solve for the headers and the tools, among which the right compiler mostly is.

        Returns:
            What compiled the kernel, as its configuration has it, empty where no package did; and
            the closure, if it has that compiler. For a kernel tree, nothing is solved here.
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
        """Return the closure with the first compiler that the distro has, taking out those tried.

        None: there is none left, or one was downloaded that is of another version.
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
        with self._container() as container:
            self._run(container, script)
            return self.family.parse_kernels(container.read(f"{WORK}/{script.output}"))

    def _headers(self, container: Container) -> Script:
        """Solve for headers and tools; where no repository has the headers, ask the archive."""
        tools = tuple(map(Spec, sorted({*self.request.tools})))
        script = self._script((*self.headers, *tools), config=self.query.config)
        try:
            self._run(container, script)
        except HeadersGoneError as gone:
            spec, self.archived = find_archived(
                self.request, self._keys(container), gone, self.progress
            )
            self.headers = (spec,)
            script = self._script((spec, *tools), config=self.query.config)
            self._run(container, script)
        return script

    def _keys(self, container: Container) -> Callable[[], tuple[str, ...]]:
        """Return what lists the ids of the distro's keys in the base image."""
        script = keys_script(self.request.distro, self.request.release)

        def listed() -> tuple[str, ...]:
            self._run(container, script)
            return parse_keys(container.read(f"{WORK}/{script.output}"))

        return listed

    def _with_compiler(
        self, container: Container, compiler: Spec | None, text: str
    ) -> Closure | None:
        """Return the closure with a compiler; None where that is of another major version.

        Raises:
            NotFoundError: A package is in no repository; its message names it.
        """
        names = {*self.request.tools}
        specs = self.headers
        if compiler is not None:
            names -= {compiler.text}
            specs = (*specs, compiler)
        what = f"{compiler.text} and the tools" if compiler else "the tools"
        self.progress(Note(f"Solving for {what} of the build"))
        script = self._script((*specs, *(Spec(name) for name in sorted(names))))
        self._run(container, script)
        solved = self._solved(container, script)
        found = solved.compiler(compiler) if compiler else None
        if compiler is not None and found is None:
            return None
        return self._closed(container, script, solved, found, text)

    def _solved(self, container: Container, script: Script) -> _Solved:
        """Return what a script that ran found."""
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
        self._take(container, script, solved.packages)
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

    def _take(self, container: Container, script: Script, packages: Iterable[Package]) -> None:
        """Put the files that the store lacks into it."""
        if script.folder is None:
            return
        lacking = {p.file: p.pinned for p in packages if not self.store.whole(p.pinned.sha256)}
        missing = {name: p for name, p in lacking.items() if not self.arrivals.take(p.sha256)}
        if not missing:
            return
        self.progress(Note(f"Storing {len(missing)} packages"))
        for name, content in container.files(f"{WORK}/{script.folder}"):
            if name in missing:
                self.store.add(content, sha256=missing.pop(name).sha256, name=name)
        if missing:
            raise ProvisionError(
                f"The solving container lacks {', '.join(sorted(missing))}, which it listed.",
                resolution="Run the command again.",
            )

    def _script(self, specs: tuple[Spec, ...], *, config: str | None = None) -> Script:
        request = self.request
        script = self.family.solve(
            request.distro, request.release, specs, request.repositories, config=config
        )
        more = {**self.archived, **request.authorities()}
        return replace(script, files={**script.files, **more})

    def _run(self, container: Container, script: Script) -> None:
        """Run a script.

        Raises:
            ProvisionError: It failed; says why.
        """
        self.arrivals.wait()
        awaited = [script.downloaded]

        def hear(line: str) -> None:
            # Once: what a mirror has the package manager print may look the same.
            if line in awaited:
                awaited.clear()
                self.arrivals.begin(container, f"{WORK}/{script.folder}")
            else:
                self.progress(Output(line))

        # Its text too, so that the folder is there.
        container.put({**script.files, "script.sh": script.text.encode()}, WORK)
        ran = container.run(f"sh {WORK}/script.sh", on_line=hear)
        if ran.status != 0:
            version = container.run(_VERSION, on_line=lambda _line: None).said.strip()
            raise self.family.explain(self.request.failure(ran.status, ran.said, version))

    @contextmanager
    def _container(self) -> Iterator[Container]:
        request = self.request
        binds = self._entitlements()
        image = ensure_base(self.engine, request.base, progress=self.progress)
        wanted = engine_architecture(request.architecture)
        if image.architecture and image.architecture != wanted:
            raise ProvisionError(
                f"The base image '{request.base.image}' is for {image.architecture}, and the kernel"
                f" {request.kernel} for {wanted}.",
                resolution=f"Pull the right one (docker pull --platform linux/{wanted}"
                f" {request.base.image}), or name another with --base.",
            )
        proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
        wish = ContainerRequest(
            image_id=image.id,
            # The lock is of one state folder, and other ones may use the same engine.
            owner=closure_key({"of": request.key, "at": str(self.store.folder.resolve())})[:32],
            network=request.network,
            binds=binds,
            environment={"LC_ALL": "C.UTF-8", **proxies, **request.distro.environment},
            limit=_LIMIT_S,
        )
        with self.engine.container(wish) as container:
            yield container

    def _entitlements(self) -> dict[str, str]:
        """Return the binds of the host's subscriptions, for an engine on this host.

        Raises:
            NotFoundError: One that the distro's repositories ask for is not on the host.
            ProvisionError: The engine is on another machine, and would bind files of that.
        """
        request = self.request
        binds = request.entitlements()
        if binds and not self.engine.host.startswith("unix:"):
            raise ProvisionError(
                f"This machine's subscription to {request.distro.name} can't be used by the"
                f" container engine at {self.engine.host}: it would be bound from the files of the"
                " engine's machine.",
                resolution="Solve with an engine on the machine that is subscribed (there:"
                f" provision resolve DRIVER --distro {request.distro.id}:{request.release.version}"
                " --output pin.json; here: provision build --pin pin.json), or name a mirror that"
                " asks for none in /etc/provision/provision.toml:"
                f" [distros.{request.distro.id}] repositories.",
                details="\n".join(sorted(binds.values())),
            )
        return binds


def _is_major(version: str, major: int | None) -> bool:
    match = _MAJOR.match(version)
    return major is None or (match is not None and int(match[1]) == major)


def _pins(names: Iterable[str], versions: Mapping[str, str]) -> tuple[PackagePin, ...]:
    """Return packages with their versions; what another package provides has none of its own."""
    return tuple(
        PackagePin(name=name, version=versions[name]) for name in sorted(names) if name in versions
    )
