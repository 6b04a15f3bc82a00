"""Asks apt what a distro's archive has, in a container of the base image that can then solve."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from provision import distros
from provision.build.base_image import base_request
from provision.build.bootstrap import ensure_distro_base
from provision.build.package_store import PackageStore, closure_key
from provision.build.solve import Solver, SolveRequest, solve_request, suites_of
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.distros import archive_of, uses_archive
from provision.distros.debian.apt import Apt
from provision.distros.debian.archive import HEADERS, ArchiveIndex, packages_script
from provision.engine.docker_api import Container
from provision.errors import NotFoundError, ProvisionError, UnreachableError
from provision.pin import BasePin, DistroPin
from provision.pin.architectures import names_of
from provision.progress import Note, report
from provision.run import find_program, run
from provision.sources.candidates import SourceContext, components_of, packages_of

# Seconds for which an answer counts, and for which it does when the archive can't be reached.
_MAX_AGE_S = 15 * 60
_UNREACHABLE_S = 7 * 24 * 3600


class Archive:
    """A distro's archive, as apt reads it in a container of the base image.

    The container starts with the first question that has no kept answer, and stays until the end of
    the ``with`` block: it can then solve.

    Args:
        words: What is asked for besides, as in ``ArchiveIndex``.
    """

    def __init__(
        self,
        settings: Settings,
        distro: DistroPin,
        recipes: Sequence[Recipe] = (),
        *,
        words: Iterable[str] = (),
        components: Iterable[str] = (),
        reference: str | None = None,
        update: bool = False,
    ) -> None:
        self.container: Container | None = None
        self._settings = settings
        self._distro = distro
        self._reference = reference
        self._update = update
        self._store = PackageStore(settings.state)
        self._started = ExitStack()
        self._base: BasePin | None = None
        self.repositories = suites_of(settings, distro)
        needed = [part for recipe in recipes for part in required_components(recipe, distro)]
        enabled = archive_of(distro).enabled
        read = tuple(dict.fromkeys([*enabled, *needed, *components]))
        self._readable = tuple(replace(suite, components=read) for suite in self.repositories)
        names = distros.source_names(distro)
        packages = [name for recipe in recipes for name in packages_of(recipe, names)]
        self.index = ArchiveIndex(
            distro=distro,
            architecture=names_of(settings.architecture).debian,
            suites=self.repositories,
            components=read,
            words=[*packages, f"{HEADERS}*", *words],
            answer=self._answer,
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

    def _answer(self, words: tuple[str, ...]) -> bytes:
        """Return what apt says, of late or now: a base image may be made for it."""
        try:
            base = self.base()
        except ProvisionError as error:
            own = _own_answer(self._settings, self._distro, words)
            if own is None:
                raise
            report(Note(f"{error.message} This machine's own apt is asked instead."))
            return own
        request = solve_request(self._settings, self._distro, base, repositories=self._readable)
        components = [list(repository.components) for repository in self._readable]
        key = closure_key({"asked": request.key, "components": components, "words": words})
        if not self._update and (kept := self._store.answer(key, max_age=_MAX_AGE_S)):
            return kept
        try:
            answer = self._run_apt(request, words)
        except UnreachableError as error:
            kept = self._store.answer(key, max_age=_UNREACHABLE_S)
            if kept is None:
                raise
            report(Note(f"{error.message} Its last answer is used."))
            return kept
        self._store.keep_answer(key, answer)
        return answer

    def _run_apt(self, request: SolveRequest, words: tuple[str, ...]) -> bytes:
        report(Note(f"Asking apt what {request.distro.name} {request.release.version} has"))
        solver = Solver(self._settings.engine(), request, self._store)
        if self.container is None:
            self._started.enter_context(self._store.solving(request.key))
            self.container = self._started.enter_context(solver.start())
        script = Apt().packages(request.supply, words)
        files = {**script.files, **request.authorities()}
        return solver.run(self.container, replace(script, files=files))


@contextmanager
def open_context(
    settings: Settings, driver: str, distro: DistroPin, context: SourceContext
) -> Iterator[SourceContext]:
    """Yield a context with the index of the distro's archive, if it has one of Debian's kind."""
    if not uses_archive(distro):
        yield context
        return
    recipe = settings.catalogue.entry(driver).recipe
    with Archive(settings, distro, (recipe,)) as archive:
        yield replace(context, index=archive.index)


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


def _own_answer(settings: Settings, distro: DistroPin, words: Iterable[str]) -> bytes | None:
    """Return what this machine's own apt answers, as of its last update; None: it can't.

    It knows its own release and architecture, and no mirror of provision.toml.
    """
    here = settings.facts.distro
    if (
        settings.root != Path("/")
        or settings.architecture != platform.machine()
        or settings.config.distro(distro.id).archive.mirror
        or (here.id, here.version) != (distro.id, distro.version)
        or find_program("apt-cache") is None
    ):
        return None
    script = f'set -eu\napt_cache() {{ apt-cache "$@"; }}\n{packages_script(words)}'
    done = run(["sh", "-c", script], why="ask apt what the archive has", check=False)
    is_answer = done.returncode == 0 and "Filename: " in done.stdout
    return done.stdout.encode() if is_answer else None
