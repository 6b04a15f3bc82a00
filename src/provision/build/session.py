"""Asks a distro's package manager, in one container, for versions, kernels and closures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from provision import distros
from provision.build.base_image import base_request
from provision.build.bootstrap import ensure_distro_base
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.build.solve import Solver, SolveRequest, solve, solve_request
from provision.build.trees import Toolchain
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.distros import Script, Supply, archive_of, uses_archive
from provision.distros.apt import Apt
from provision.distros.archive import Archive
from provision.distros.repositories import repositories_of
from provision.engine.docker_api import Container
from provision.errors import NotFoundError, UnreachableError
from provision.pin import BasePin, DistroPin
from provision.progress import Note, report
from provision.sources.candidates import components_of, packages_of

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
                replace(suite, components=suite.components or read) for suite in self._repositories
            )
            names = distros.source_names(distro)
            self.archive = Archive(
                distro.name,
                self._readable,
                [name for recipe in recipes for name in packages_of(recipe, names)],
                lambda asked: self._answer(Apt().packages(self._supply(), asked)),
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
        data = self._supply().distro
        if data.family == "tree":
            raise NotFoundError(
                f"{data.name} has no packages of kernels that could be listed.",
                resolution="Any kernel whose tree is there can be built for: --kernel names it"
                " (docs/how-to/kernel-trees.md).",
            )
        family = distros.family_of(data)
        return family.parse_kernels(data, self._answer(family.kernels(self._supply())))

    def closure(
        self, kernel: str, packages: Iterable[str], toolchain: Toolchain | None = None
    ) -> Closure:
        """Return what a build for a kernel installs, as ``solve`` does."""
        request = solve_request(
            self._settings,
            self._distro,
            self.base(),
            kernel=kernel,
            packages=packages,
            repositories=self._repositories,
            toolchain=toolchain,
        )
        return solve(
            self._settings.engine,
            request,
            self._store,
            update=self._update,
            container=self._container,
        )

    def _supply(self) -> Supply:
        return Supply(*distros.release_of(self._distro), self._readable)

    def _answer(self, script: Script) -> bytes:
        """Return what a script prints, of late or now."""
        request = solve_request(
            self._settings, self._distro, self.base(), repositories=self._readable
        )
        key = closure_key({"asked": request.key, "script": script.text})
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
            self._started.enter_context(self._store.solving(request.key))
            self._container = self._started.enter_context(solver.start())
        files = {**script.files, **request.authorities()}
        return solver.run(self._container, replace(script, files=files))


def required_components(recipe: Recipe, distro: DistroPin) -> tuple[str, ...]:
    """Return the components of a distro's archive that a driver needs besides those always read."""
    components = components_of(recipe, distros.source_names(distro))
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
