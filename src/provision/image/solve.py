"""Has the distro's own solver decide what a build installs, in a container of the base image.

Two rounds: the headers of the kernel, whose configuration names the compiler; then these, the
compiler and the tools together. A kernel tree has no packages of headers and takes only the second
round. All files come out of the container into the package store, checked
by the distro's keys in there and by their sha256 here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from provision.distros.headers import cc_version_text
from provision.distros.messages import missing_entitlement
from provision.distros.tree import Toolchain
from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError
from provision.image.base import ARCHITECTURES, ensure_base
from provision.image.containers import Container, ContainerRequest
from provision.image.engine import Engine
from provision.image.packages import Closure, PackageStore, closure_key
from provision.pin import BasePin, PackagePin, is_address
from provision.progress import Note, Output, Progress, silent
from provision.rootfs import in_root

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# Some minutes on a slow network; a mirror that hangs is given up earlier by the package manager.
_LIMIT_S = 3600.0
_VERSION = '. /etc/os-release && echo "$VERSION_ID"'
_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """What to solve for.

    Attributes:
        distro: The distro.
        release: Its release.
        base: The base image.
        kernel: The kernel's release; empty: kernels are only listed.
        architecture: As ``uname -m`` prints it.
        tools: Packages besides headers and compiler, as the distro calls them.
        repositories: Used instead of the base image's own.
        root: Root of the host, which may hold entitlements.
        network: Network of the container; None: the engine's default.
        toolchain: What compiles in a kernel tree; None: the kernel's headers are packages.
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

    @property
    def query(self) -> HeaderQuery:
        """Where the kernel's headers are; nowhere for a kernel tree.

        Raises:
            NotFoundError: The distro has no kernels of that name, or the flavour can't be built.
        """
        if not self.kernel or self.toolchain:
            return HeaderQuery(flavour="", build="", source="", config="")
        return family_of(self.distro).headers(self.distro, self.kernel, self.architecture)

    @property
    def key(self) -> str:
        """Names the closure: two requests with one key have the same closure."""
        return closure_key(
            {
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
        )


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
        progress: Told what goes on.

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
        progress: Told what goes on.

    Raises:
        ProvisionError: A repository can't be reached.
    """
    with store.solving(request.key, progress):
        return _Solver(engine(), request, store, progress).kernels()


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

    def closure(self) -> Closure:
        """Solve in two rounds, and take over the files."""
        with self._container() as container:
            text = self._built_with(container)
            if text is None:
                found = self._with_compiler(container, None, "")
                compilers: tuple[Spec, ...] = ()
            else:
                compilers = self.family.compiler(self.request.distro, text)
                found = self._with_compiler(container, compilers[0], text)
            if found is not None:
                return found
        for compiler in compilers[1:]:
            # A container of its own: what another compiler needs is not in its cache.
            with self._container() as container:
                found = self._with_compiler(container, compiler, text or "")
            if found is not None:
                return found
        raise self._other_compiler(text or "", compilers)

    def _built_with(self, container: Container) -> str | None:
        """Return what compiled the kernel, as its configuration has it; None: no package did."""
        if self.request.toolchain is not None:
            return self.request.toolchain.cc_version_text
        self.progress(Note(f"Solving for the headers of {self.request.kernel}"))
        text = cc_version_text(self._headers(container))
        if text is None:
            raise ProvisionError(
                f"The configuration of the kernel {self.request.kernel} does not say which"
                " compiler built it (CONFIG_CC_VERSION_TEXT).",
                resolution="Take a kernel of version 4.18 or newer (--kernel).",
            )
        return text

    def kernels(self) -> tuple[str, ...]:
        """List the packaged kernels."""
        request = self.request
        self.progress(Note(f"Reading the repositories of {request.distro.name}"))
        script = self.family.kernels(request.distro, request.release, request.repositories)
        with self._container() as container:
            return self.family.parse_kernels(self._run(container, script))

    def _headers(self, container: Container) -> str:
        script = self._script(self.query.specs, config=self.query.config)
        self._run(container, script)
        return container.read(f"{WORK}/{script.config}").decode(errors="replace")

    def _with_compiler(
        self, container: Container, compiler: Spec | None, text: str
    ) -> Closure | None:
        """Return the closure with a compiler; None where that is of another major version."""
        names = {*self.request.tools}
        specs = self.query.specs
        if compiler is not None:
            names -= {compiler.text}
            specs = (*specs, compiler)
        what = f"{compiler.text} and the tools" if compiler else "the tools"
        self.progress(Note(f"Solving for {what} of the build"))
        script = self._script((*specs, *(Spec(name) for name in sorted(names))))
        try:
            output = self._run(container, script)
        except NotFoundError as error:
            if compiler and f"'{compiler.text}'" in error.message:
                return None
            raise
        packages = self.family.parse(output)
        versions = {**self.family.installed(output)}
        versions |= {package.pinned.name: package.pinned.version for package in packages}
        found = None
        if compiler is not None:
            version = versions.get(compiler.text)
            if version is None or not _is_major(version, compiler.major):
                return None
            found = PackagePin(name=compiler.text, version=version)
        self._take(container, script, packages)
        return self._closed(packages, versions, found, text)

    def _closed(
        self,
        packages: tuple[Package, ...],
        versions: Mapping[str, str],
        compiler: PackagePin | None,
        text: str,
    ) -> Closure:
        request = self.request
        headers: list[str] = []
        if request.toolchain is None:
            headers = [name for name in versions if self.family.holds_headers(name)]
        names = {*request.tools} - {compiler.name if compiler else ""}
        with refusing("The packages of the build can't be pinned."):
            return Closure(
                distro=request.distro.pin(request.release),
                kernel=request.kernel,
                architecture=request.architecture,
                cc_version_text=text,
                compiler=compiler,
                headers=_pins(headers, versions),
                tools=_pins(names, versions),
                packages=tuple(package.pinned for package in packages),
                urls={
                    package.pinned.sha256: urls
                    for package in packages
                    if (urls := tuple(filter(is_address, package.urls)))
                },
            )

    def _take(self, container: Container, script: Script, packages: Iterable[Package]) -> None:
        """Put the files that the store lacks into it."""
        if script.folder is None:
            return
        missing = {p.file: p.pinned for p in packages if not self.store.whole(p.pinned.sha256)}
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
        return self.family.solve(
            request.distro, request.release, specs, request.repositories, config=config
        )

    def _run(self, container: Container, script: Script) -> bytes:
        """Run a script and return what it wrote.

        Raises:
            ProvisionError: It failed; says why.
        """
        # Its text too, so that the folder is there.
        container.put({**script.files, "script.sh": script.text.encode()}, WORK)
        ran = container.run(
            f"sh {WORK}/script.sh", on_line=lambda line: self.progress(Output(line))
        )
        if ran.status != 0:
            version = container.run(_VERSION, on_line=lambda _line: None).said.strip()
            raise self.family.explain(self._failure(ran.status, ran.said, version))
        return container.read(f"{WORK}/{script.output}")

    def _failure(self, status: int, said: str, version: str | None = None) -> Failure:
        request = self.request
        return Failure(
            status=status,
            said=said,
            distro=request.distro,
            release=request.release,
            kernel=request.kernel,
            architecture=request.architecture,
            query=self.query,
            image=request.base.image,
            full_version=version or None,
        )

    @contextmanager
    def _container(self) -> Iterator[Container]:
        request = self.request
        binds = self._entitlements()
        image = ensure_base(self.engine, request.base, progress=self.progress)
        wanted = ARCHITECTURES[request.architecture]
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
        """Return what the container sees of the host's subscriptions, by path in there."""
        request = self.request
        # Repositories of one's own take the place of those that need a subscription; the suites of
        # an archive are beside them.
        if request.repositories and request.distro.apt is None:
            return {}
        binds = {}
        for one in request.distro.entitlement:
            path = in_root(request.root, one.host)
            if path.exists():
                binds[one.container] = str(path)
            elif one.required:
                raise missing_entitlement(self._failure(0, ""))
        return binds

    def _other_compiler(self, text: str, compilers: tuple[Spec, ...]) -> ProvisionError:
        request = self.request
        tried = ", ".join(spec.text for spec in compilers)
        where = (
            "Enable the repository that has it in the base image, or take a base image of the"
            " release that the kernel is from (--base)."
        )
        if request.toolchain is not None:
            where = (
                "Name a distro that has it as 'toolchain' of [[trees]] in"
                ' /etc/provision/provision.toml, such as toolchain = "debian:13".'
            )
        return NotFoundError(
            f"The kernel {request.kernel} was built with a compiler of major version"
            f" {compilers[0].major}, which {request.distro.name} {request.release.version} does not"
            " package.",
            resolution=f"{where} Modules of another compiler may not load, or crash the kernel.",
            details=f"CONFIG_CC_VERSION_TEXT: {text}\nlooked for: {tried}",
        )


def _is_major(version: str, major: int | None) -> bool:
    match = _MAJOR.match(version)
    return major is None or (match is not None and int(match[1]) == major)


def _pins(names: Iterable[str], versions: Mapping[str, str]) -> tuple[PackagePin, ...]:
    """Return packages with their versions; what another package provides has none of its own."""
    return tuple(
        PackagePin(name=name, version=versions[name]) for name in sorted(names) if name in versions
    )
