"""Runs the distro's own solver, which decides what a build installs, in a container.

The first round solves for the kernel's headers and the tools. The kernel's configuration, which the
headers contain, names the compiler. The headers and tools mostly depend on that compiler already.
Where they don't, a second round solves for headers, tools and compiler together. A kernel tree has
no header packages, so it takes only the second round. In the container, the distro's keys verify
all packages; on the way into the package store, their sha256 does.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from provision.build.package_store import Closure, PackageStore
from provision.build.solve_request import SolveRequest, find_archived
from provision.build.solving_container import SolvingContainers
from provision.distros import WORK, Package, Script, Spec, family_of
from provision.distros.family import cc_version_text
from provision.distros.rpm_based.dnf import keys_script
from provision.distros.rpm_based.rpm_keys import parse_keys
from provision.distros.rpm_based.solver_messages import HeadersGoneError
from provision.documents import refusing
from provision.engine.containers import Container
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError
from provision.pin import PackagePin, is_address
from provision.progress import Note, Progress, silent

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
