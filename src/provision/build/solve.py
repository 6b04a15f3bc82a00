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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Self

from provision.build.base_image import (
    base_request,
    ensure_base,
    ensure_distro_base,
    require_architecture,
)
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.build.workspace import Settings, proxies
from provision.catalogue import Recipe
from provision.distros.apt import Apt
from provision.distros.archive import Archive
from provision.distros.distro import archive_of, release_of, source_names, uses_archive
from provision.distros.dnf import (
    archive_of_headers,
    archived_files,
    header_addresses,
    keys_script,
)
from provision.distros.family import (
    AUTHORITIES,
    NOTE,
    WORK,
    HeadersGoneError,
    Package,
    Repository,
    Script,
    SolveRequest,
    SolverFailure,
    Spec,
    Toolchain,
    cc_version_text,
    family_of,
    missing_entitlement,
)
from provision.distros.repositories import entitlements_of, lacking_entitlements, repositories_of
from provision.distros.rpm import parse_keys
from provision.documents import refusing
from provision.engine.docker_api import Container, ContainerRequest, Engine, Ran, container_owner
from provision.errors import NotFoundError, ProvisionError, UnreachableError
from provision.fetch import authorities_of, download_any
from provision.pin import BasePin, DistroPin, PackagePin, is_address
from provision.progress import Note, Output, report
from provision.sources.candidates import components_of, packages_of

# Fedora's kernel-devel has some 25 MB.
_LIMIT = 256 << 20


def request_key(request: SolveRequest) -> str:
    """Return the name of a closure: requests with the same key have the same closure."""
    distro, repositories, toolchain = request.distro, request.repositories, request.toolchain
    asked: dict[str, object] = {
        "base": request.base.digest,
        "distro": [distro.id, request.release.version],
        "kernel": [request.kernel, request.architecture],
        "headers": [spec.text for spec in request.query.specs],
        "built_with": toolchain.cc_version_text if toolchain else None,
        "compilers": [rule.model_dump() for rule in distro.compilers],
        "tools": sorted(request.tools),
        "repositories": [
            [one.id, list(one.urls), {name: key.hex() for name, key in one.keys.items()}]
            for one in repositories
        ],
    }
    more = {
        "snapshots": [one.id for one in repositories if one.is_snapshot],
        "signed": [one.id for one in repositories if one.is_signed],
        # The repositories that the host may use, and not its credentials, which are renewed.
        "entitled": sorted(_entitlements(request)),
    }
    # Empty values are left out, so that older closures keep their names.
    return closure_key({**asked, **{name: said for name, said in more.items() if said}})


def _entitlements(request: SolveRequest) -> dict[str, str]:
    """Return the files of the host's subscriptions: their path by path in the container."""
    return entitlements_of(request.distro, request.root) if request.needs_entitlements else {}


def _authorities(request: SolveRequest) -> dict[str, bytes]:
    """Return the certificates that this host trusts, by path below ``WORK``.

    Images have none of a site's own mirrors, nor of a proxy that reads along; Debian's and
    Ubuntu's have none at all. They are not needed without an https mirror or a proxy.
    """
    urls = [url for one in request.repositories for url in one.urls]
    is_needed = bool(_entitlements(request) or proxies())
    if not is_needed and not any(url.startswith("https:") for url in urls):
        return {}
    found = authorities_of(request.root)
    return {AUTHORITIES: found.read_bytes()} if found else {}


# Some minutes on a slow network; a mirror that hangs is given up earlier by the package manager.
_LIMIT_S = 3600.0
_VERSION = '. /etc/os-release && echo "$VERSION_ID"'


_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


class Solver:
    """Solves one request in containers of its base image; the caller holds the request's lock."""

    def __init__(self, engine: Engine, request: SolveRequest, store: PackageStore) -> None:
        self._engine = engine
        self._request = request
        self._store = store
        self._family = family_of(request.distro)
        self._headers = request.query.specs
        # Files of packages that no repository has.
        self._archived: Mapping[str, bytes] = {}

    @contextmanager
    def start(self) -> Iterator[Container]:
        """Start a container of the base image; it is removed at the end of the block."""
        request = self._request
        binds = self._binds()
        image = ensure_base(self._engine, request.base)
        require_architecture(image, request.base.image, request.architecture)
        container_request = ContainerRequest(
            image_id=image.id,
            owner=container_owner(self._store.state, request_key(request)),
            network=request.network,
            binds=binds,
            environment={"LC_ALL": "C.UTF-8", **proxies(), **request.distro.environment},
            limit=_LIMIT_S,
        )
        with self._engine.container(container_request) as container:
            yield container

    def _binds(self) -> dict[str, str]:
        request = self._request
        if request.needs_entitlements and lacking_entitlements(request.distro, request.root):
            raise missing_entitlement(self._failure(Ran(0, ""), ""))
        binds = _entitlements(request)
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

    def run(self, container: Container, script: Script) -> bytes:
        """Run a script and return its output."""

        def hear(line: str) -> None:
            if line.startswith(NOTE):
                report(Note(line.removeprefix(NOTE)))
            else:
                report(Output(line))

        # With the script, so that the folder exists even where it needs no files.
        container.put({**script.files, "script.sh": script.text.encode()}, WORK)
        ran = container.run(f"sh {WORK}/script.sh", on_line=hear)
        if ran.status != 0:
            version = container.run(_VERSION, on_line=lambda _line: None).said.strip()
            raise self._family.explain(self._failure(ran, version))
        return container.read(f"{WORK}/closure")

    def _failure(self, ran: Ran, version: str) -> SolverFailure:
        return SolverFailure(self._request, ran.status, ran.said, version or None)

    def _take(self, container: Container, packages: Iterable[Package]) -> None:
        pinned = {package.file: package.pinned.sha256 for package in packages}
        missing = {file: sha256 for file, sha256 in pinned.items() if not self._store.whole(sha256)}
        if not missing:
            return
        report(Note(f"Storing {len(missing)} packages"))
        for name, content in container.files(f"{WORK}/packages"):
            if name in missing:
                self._store.add(content, sha256=missing.pop(name), name=name)
        if missing:
            raise ProvisionError(
                f"The solving container lacks {', '.join(sorted(missing))}, which it listed.",
                resolution="Run the command again.",
            )

    def solve(self, opened: Container | None) -> Closure:
        """Return the closure of the request, mostly found in one round, with its files taken over.

        ``opened`` is a container of the base image in which apt was asked already.
        """
        request = self._request
        with nullcontext(opened) if opened else self.start() as container:
            if request.toolchain is None:
                text, found = self._with_headers(container)
            else:
                text, found = request.toolchain.cc_version_text or "", None
            compilers = self._family.compiler(request.distro, text) if text else ()
            left: deque[Spec | None] = deque(compilers or (None,))
            found = found or self._with_one_of(container, left, text)
        while found is None and left:
            # In a new container, whose cache lacks the packages of the other compiler.
            with self.start() as container:
                found = self._with_one_of(container, left, text)
        if found is None:
            raise _no_compiler(request, text, compilers)
        return found

    def _with_headers(self, container: Container) -> tuple[str, Closure | None]:
        """Solve for the headers and the tools, which mostly include the right compiler.

        Returns:
            ``CONFIG_CC_VERSION_TEXT`` of the kernel; and the closure, if it has that compiler.
        """
        request = self._request
        report(Note(f"Solving for the headers of {request.kernel} and the tools"))
        config = request.query.config
        script = self._script(request.tools, config=config)
        try:
            output = self.run(container, script)
        except HeadersGoneError as gone:
            spec, self._archived = self._archived_headers(container, gone)
            self._headers = (spec,)
            script = self._script(request.tools, config=config)
            output = self.run(container, script)
        text = cc_version_text(container.read(f"{WORK}/config").decode(errors="replace"))
        if text is None:
            raise ProvisionError(
                f"The configuration of the kernel {request.kernel} does not say which compiler"
                " built it (CONFIG_CC_VERSION_TEXT).",
                resolution="Take a kernel of version 4.18 or newer (--kernel).",
            )
        for compiler in self._family.compiler(request.distro, text):
            if found := self._closed(container, output, compiler, text):
                return text, found
        return text, None

    def _with_one_of(
        self, container: Container, left: deque[Spec | None], text: str
    ) -> Closure | None:
        """Return the closure with the first compiler that the distro has; remove tried ones.

        Return None if no compiler is left, or if the downloaded one has another version.
        """
        while left:
            compiler = left.popleft()
            name = compiler.text if compiler else None
            subject = f"{name} and the tools" if name else "the tools"
            report(Note(f"Solving for {subject} of the build"))
            script = self._script({*self._request.tools} - {name}, compiler)
            try:
                output = self.run(container, script)
            except NotFoundError as error:
                if not (name and f"'{name}'" in error.message):
                    raise
            else:
                return self._closed(container, output, compiler, text)
        return None

    def _script(
        self,
        tools: Iterable[str | None],
        compiler: Spec | None = None,
        *,
        config: str | None = None,
    ) -> Script:
        request = self._request
        specs = (
            *self._headers,
            *([compiler] if compiler else []),
            *(Spec(name) for name in sorted({name for name in tools if name})),
        )
        script = self._family.solve(request, specs, config)
        more = {**self._archived, **_authorities(request)}
        return script._replace(files={**script.files, **more})

    def _closed(
        self, container: Container, output: bytes, spec: Spec | None, text: str
    ) -> Closure | None:
        """Return the closure that a script wrote, with its files taken over.

        Return None where the compiler is missing or of another major version.
        """
        request, family = self._request, self._family
        packages = family.parse(output)
        # Those of the base image included.
        versions = {**family.installed(output)}
        versions |= {package.pinned.name: package.pinned.version for package in packages}
        headers = {name for name in versions if re.fullmatch(request.distro.header_packages, name)}
        self._require_headers(headers)
        compiler = None
        if spec is not None:
            version = versions.get(spec.text)
            if version is None or not _is_major(version, spec.major):
                return None
            compiler = PackagePin(name=spec.text, version=version)
        self._take(container, packages)
        tools = {*request.tools} - {spec.text if spec else ""}
        with refusing("The packages of the build can't be pinned."):
            return Closure(
                distro=request.distro.pin(request.release),
                kernel=request.kernel,
                architecture=request.architecture,
                cc_version_text=text,
                compiler=compiler,
                headers=() if request.toolchain else _pins(headers, versions),
                tools=_pins(tools, versions),
                packages=tuple(package.pinned for package in packages),
                urls={
                    package.pinned.sha256: urls
                    for package in packages
                    if (urls := tuple(filter(is_address, package.urls)))
                },
            )

    def _require_headers(self, names: Collection[str]) -> None:
        """Refuse the headers of another kernel: apt takes an unknown name as a pattern."""
        wanted = [spec.text.split("|") for spec in self._headers if self._request.distro.apt]
        if not all(any(name in names for name in one) for one in wanted):
            said = f"apt found {', '.join(sorted(names)) or 'no headers'}"
            raise self._family.no_headers(self._failure(Ran(0, said), ""))

    def _archived_headers(
        self, container: Container, gone: HeadersGoneError
    ) -> tuple[Spec, Mapping[str, bytes]]:
        """Download the headers of a kernel that the repositories have dropped.

        The download is not verified here: the script that gets it checks the package's signature,
        as that of every other package.
        """
        request = self._request
        archive = archive_of_headers(request.distro)
        # Configured repositories exclude all others, unless the archive is configured as well.
        if archive is None or (request.repositories and request.archive_mirror is None):
            raise gone
        keys = parse_keys(self.run(container, keys_script(request)))
        report(Note(f"The repositories have no headers of {request.kernel}; asking {archive.name}"))
        tried: list[str] = []
        for url in header_addresses(archive, request.kernel, keys, mirror=request.archive_mirror):
            try:
                with tempfile.TemporaryDirectory(prefix="provision-headers-") as folder:
                    path = Path(folder, "headers.rpm")
                    download_any(url, destination=path, limit=_LIMIT)
                    return archived_files(url, path.read_bytes())
            except UnreachableError as error:
                said = f"{url}: {error.details or error.message}\n{gone.details or ''}"
                raise UnreachableError(
                    f"{gone.message} {archive.name} may have them, and can't be reached.",
                    resolution=error.resolution,
                    details=said.strip(),
                ) from error
            except NotFoundError:
                tried.append(url)
            except ProvisionError as error:
                tried.append(f"{url}: {error.message}")
        looked = "\n".join(["no signed copy in the archive:", *tried]) if tried else ""
        raise HeadersGoneError(
            gone.message,
            resolution=gone.resolution,
            details="\n".join(filter(None, [gone.details, looked])),
        )


def closure_of(
    engine: Callable[[], Engine],
    request: SolveRequest,
    store: PackageStore,
    *,
    update: bool = False,
    container: Container | None = None,
) -> Closure:
    """Return the closure of a request: the kept one, or one that is solved for now.

    Args:
        engine: Connects to the engine that has the base image; not called if the store has the
            closure.
    """
    key = request_key(request)
    if not update and (kept := store.kept(key)):
        return kept
    with store.solving(key):
        if not update and (kept := store.kept(key)):
            return kept
        closure = Solver(engine(), request, store).solve(container)
        store.keep(key, closure)
        return closure


def _no_compiler(request: SolveRequest, text: str, compilers: tuple[Spec, ...]) -> NotFoundError:
    where = (
        "Enable the repository that has it in the base image, or take a base image of the release"
        " that the kernel is from (--base)."
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
        details=f"CONFIG_CC_VERSION_TEXT: {text}\n"
        f"looked for: {', '.join(spec.text for spec in compilers)}",
    )


def _is_major(version: str, major: int | None) -> bool:
    match = _MAJOR.match(version)
    return major is None or (match is not None and int(match[1]) == major)


def _pins(names: Iterable[str], versions: Mapping[str, str]) -> tuple[PackagePin, ...]:
    """Return packages with their versions; a virtual package has no version of its own."""
    return tuple(
        PackagePin(name=name, version=versions[name]) for name in sorted(names) if name in versions
    )


def solve_request(
    settings: Settings,
    distro: DistroPin,
    base: BasePin,
    *,
    kernel: str = "",
    packages: Iterable[str] = (),
    repositories: tuple[Repository, ...] = (),
    toolchain: Toolchain | None = None,
) -> SolveRequest:
    """Return the request of a build to a distro's solver, in a container of a base image.

    Args:
        packages: Further packages that a recipe needs, by Debian's names.
    """
    data, release = release_of(distro)
    more = toolchain.packages if toolchain else ()
    return SolveRequest(
        distro=data,
        release=release,
        base=base,
        kernel=kernel,
        architecture=settings.architecture,
        tools=data.build_tools(release, (*packages, *more)),
        repositories=repositories,
        root=settings.root,
        network=settings.config.engine.network,
        toolchain=toolchain,
        archive_mirror=settings.config.distro(distro.id).archive.mirror,
    )


def packages_request(
    settings: Settings, distro: DistroPin, base: BasePin, packages: tuple[str, ...]
) -> SolveRequest:
    """Return the request for some packages with what they need: no headers, no compiler."""
    request = solve_request(
        settings,
        distro,
        base,
        repositories=repositories_of(distro, settings.config.distro(distro.id), settings.root),
        toolchain=Toolchain(cc_version_text=None, packages=()),
    )
    return request._replace(tools=packages)


# Seconds for which an answer counts.
_MAX_AGE_S = 15 * 60


class SolvingSession:
    """A distro's package manager, in a container of the base image.

    The container starts with the first question that has no kept answer, and stays until the end of
    the ``with`` block: it can then solve.

    Args:
        recipes: Drivers whose packages are asked for; their components are read.
        reference: The base image to use instead of the distro's.
        update: Whether to ask although there are kept answers.
    """

    def __init__(
        self,
        settings: Settings,
        distro: DistroPin,
        recipes: Sequence[Recipe] = (),
        *,
        reference: str | None = None,
        update: bool = False,
    ) -> None:
        self._settings = settings
        self._distro = distro
        self._reference = reference
        self._update = update
        self._store = PackageStore(settings.state)
        self._started = ExitStack()
        self._container: Container | None = None
        self._base: BasePin | None = None
        self._repositories = repositories_of(
            distro, settings.config.distro(distro.id), settings.root
        )
        self._readable = self._repositories
        # What apt says of packages; None: the distro has no archive that apt reads.
        self.archive: Archive | None = None
        if uses_archive(distro):
            needed = [part for recipe in recipes for part in required_components(recipe, distro)]
            read = tuple(dict.fromkeys([*archive_of(distro).enabled, *needed]))
            self._readable = tuple(
                suite._replace(components=suite.components or read) for suite in self._repositories
            )
            names = source_names(distro)
            self.archive = Archive(
                distro.name,
                self._readable,
                [name for recipe in recipes for name in packages_of(recipe, names)],
                self._packages,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._started.close()

    def base(self) -> BasePin:
        """Return the base image, which is made if necessary."""
        if self._base is None:
            asked = base_request(self._settings, self._distro, reference=self._reference)
            self._base = ensure_distro_base(self._settings, asked)
        return self._base

    def kernels(self) -> tuple[str, ...]:
        """Return the kernels that the distro packages headers of, the newest first."""
        data, _release = release_of(self._distro)
        if data.family == "tree":
            raise NotFoundError(
                f"{data.name} has no packages of kernels that could be listed.",
                resolution="Any kernel whose tree is there can be built for: --kernel names it"
                " (docs/how-to/kernel-trees.md).",
            )
        family, request = family_of(data), self._question()
        return family.parse_kernels(data, self._answer(request, family.kernels(request)))

    def solve(
        self, kernel: str, packages: Iterable[str], toolchain: Toolchain | None = None
    ) -> Closure:
        """Return what a build for a kernel installs, as ``closure_of`` does."""
        request = solve_request(
            self._settings,
            self._distro,
            self.base(),
            kernel=kernel,
            packages=packages,
            repositories=self._repositories,
            toolchain=toolchain,
        )
        return closure_of(
            self._settings.engine,
            request,
            self._store,
            update=self._update,
            container=self._container,
        )

    def _packages(self, names: tuple[str, ...]) -> bytes:
        request = self._question()
        return self._answer(request, Apt().packages(request, names))

    def _question(self) -> SolveRequest:
        return solve_request(self._settings, self._distro, self.base(), repositories=self._readable)

    def _answer(self, request: SolveRequest, script: Script) -> bytes:
        """Return what a script prints, of late or now."""
        key = closure_key({"asked": request_key(request), "script": script.text})
        if not self._update and (kept := self._store.answer(key, max_age=_MAX_AGE_S)):
            return kept
        try:
            answer = self._run(request, script)
        except UnreachableError as error:
            return self._store.last_answer(key, error)
        self._store.keep_answer(key, answer)
        return answer

    def _run(self, request: SolveRequest, script: Script) -> bytes:
        report(Note(f"Asking what {request.distro.name} {request.release.version} packages"))
        solver = Solver(self._settings.engine(), request, self._store)
        if self._container is None:
            self._started.enter_context(self._store.solving(request_key(request)))
            self._container = self._started.enter_context(solver.start())
        files = {**script.files, **_authorities(request)}
        return solver.run(self._container, script._replace(files=files))


def required_components(recipe: Recipe, distro: DistroPin) -> tuple[str, ...]:
    """Return the components of a distro's archive that a driver needs besides those always read."""
    components = components_of(recipe, source_names(distro))
    known = archive_of(distro).components
    foreign = [name for name in components if name not in known]
    if foreign:
        raise NotFoundError(
            f"'{recipe.name}' is made from Debian's packages, in its components"
            f" {', '.join(foreign)}; {distro.id} {distro.version} has no such components.",
            resolution="Take a driver whose source is an archive or a git repository"
            " ('provision drivers' lists them).",
        )
    return components
