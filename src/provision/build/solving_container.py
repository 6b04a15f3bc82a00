"""The container in which a distro's solver runs: started, given its scripts, emptied of packages.

Packages are copied out while the container still checks their signatures. A copy is a draft of the
package store until the closure names its checksum, which happens only after the checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from provision.build.base_image import ensure_base
from provision.build.network_access import proxies
from provision.build.package_store import PackageStore, closure_key
from provision.build.solve_request import SolveRequest
from provision.distros import WORK, Package, Script, family_of
from provision.distros.family import NOTE
from provision.engine.containers import Container, ContainerRequest
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError
from provision.pin.architectures import names_of
from provision.progress import Note, Output, Progress

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
