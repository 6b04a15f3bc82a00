"""Compares an artifact on disk with its manifest, and reports everything that is wrong with it.

Signatures are verified elsewhere: those of images, before they are downloaded, by
``registry.signatures``; those of modules by ``kmod.module_signatures``.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.documents import load_if_readable
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.files import sha256_file
from provision.kmod.loader import LOADER, MODULES_LINKS
from provision.kmod.modules import content_digest, read_identity, read_signature
from provision.manifest import ADMISSION, MANIFEST, DriverFile, Manifest, Module, load_manifest
from provision.progress import Transfer, report
from provision.store.entries import current_entry, entries
from provision.store.layout import Layout


class Finding(NamedTuple):
    """One thing that is wrong with an artifact."""

    # The file, relative to the artifact.
    path: str
    # ``missing``, ``altered``, ``mode``, ``link``, ``extra``, ``vermagic``, ``modules.dep``,
    # ``signature``, ``pin`` or ``manifest``.
    kind: str
    # What is wrong, as it continues the path.
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Report(NamedTuple):
    """The result of a verification."""

    # The artifact's manifest; None if it is missing or can't be read.
    manifest: Manifest | None
    # Everything that is wrong; empty for a whole artifact.
    findings: tuple[Finding, ...]
    # Number of compared bytes.
    size: int = 0

    def require_whole(self, what: str) -> Manifest:
        """Return the manifest of a whole artifact."""
        if self.findings or self.manifest is None:
            driver = self.manifest.pin.driver.name if self.manifest else "DRIVER"
            raise DamagedError(what, self.findings, driver)
        return self.manifest


class DamagedError(ProvisionError):
    """An artifact differs from its manifest."""

    def __init__(self, what: str, findings: Sequence[Finding], driver: str) -> None:
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        super().__init__(
            f"{what} is damaged: {count}.",
            resolution="Have it made again: provision apply. If the image itself is damaged, build"
            f" it again, and install that: provision build --rebuild {driver}; provision install"
            " --again IMAGE",
            details="\n".join(str(finding) for finding in findings),
        )
        self.findings = tuple(findings)

    def members(self) -> dict[str, object]:
        """Return each finding."""
        return {"findings": [finding._asdict() for finding in self.findings]}


# The folder in which hosts find the modules of an artifact that also has a module for KMM.
HOSTS = PurePosixPath("host")
_MODULE_MODE = "0644"
_FOLDER_MODE = 0o755
# depmod writes these files in the build; the manifest does not list them.
_DEPMOD_FILE = re.compile(r"modules\.[a-z.]+")
# Files that are hashed at once.
_AT_ONCE = 4
_STORE_NAME = re.compile(r"[0-9a-f]{12}")


def verify_artifact(artifact: Path, *, pin_label: str | None = None) -> Report:
    """Compare an artifact with its manifest.

    Args:
        pin_label: The Pin's digest in the image's label, if there is an image.
    """
    if not artifact.is_dir():
        raise NotFoundError(
            f"There is no artifact at '{artifact}'.",
            resolution="Give the folder of a store entry: …/var/lib/provision/DRIVER/DIGEST.",
        )
    try:
        manifest = load_manifest(artifact)
    except NotFoundError:
        return Report(None, (Finding(str(MANIFEST), "missing", "is missing"),))
    except ConfigError as error:
        return Report(
            None, tuple(Finding(str(MANIFEST), "manifest", str(m)) for m in error.mistakes)
        )
    check = _Check(artifact.resolve(), manifest)
    check.pin(pin_label)
    check.modules()
    check.driver_files()
    check.extra_files()
    return Report(manifest, tuple(check.findings), check.size)


def verify_modules(artifact: Path) -> Report:
    """Compare only an artifact's modules with its manifest, before they are loaded."""
    manifest = load_manifest(artifact)
    check = _Check(artifact.resolve(), manifest)
    check.pin(None)
    check.modules()
    return Report(manifest, tuple(check.findings), check.size)


def stored_manifest(entry: Path) -> Manifest | None:
    """Return the manifest of a store entry; None if it is missing or damaged."""
    return load_if_readable(entry / MANIFEST, Manifest)


def kernel_entry(layout: Layout, release: str | None, named: Iterable[str] = ()) -> Path:
    """Return the folder of the artifact for a kernel; None: of the one in use.

    It is the one that the kernel uses, or else the newest: one that the kernel refused is not used.
    Arguments as ``not_installed``.
    """
    if release is None or not entries(layout):
        return current_entry(layout, named)
    made = [
        entry
        for entry in map(layout.entry, entries(layout))
        if (manifest := stored_manifest(entry)) and manifest.pin.kernel.release == release
    ]
    newest = max(made, key=lambda entry: entry.stat().st_ctime_ns, default=None)
    entry = layout.linked(layout.kernel_link(release)) or newest
    if entry is None:
        raise NotFoundError(
            f"The driver '{layout.driver}' has no artifact for the kernel {release} under"
            f" '{layout.root}'.",
            resolution=f"Install one: provision apply --kernel {release}",
        )
    return entry


def files_fingerprint(entry: Path, manifest: Manifest) -> str:
    """Return a fingerprint of the sizes, modes and times of an entry's files.

    While it stays the same, nothing has written to the files, and another comparison of checksums
    could only find a defective disk.
    """
    total = hashlib.sha256()
    names = [module.path for module in manifest.modules]
    names += [f"driver{file.path}" for file in manifest.files if file.link is None]
    # Without it, modprobe finds no module.
    listed = f"lib/modules/{manifest.pin.kernel.release}/modules.dep"
    for name in (str(MANIFEST), *names, listed, f"{HOSTS}/{listed}"):
        status = _status(entry / name)
        # Not the ctime: it changes with a hard link in another entry.
        facts = status and (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
        total.update(f"{facts}\n".encode())
    for folder in _folders_of(names):
        status = _status(entry / folder)
        total.update(f"{status and status.st_mode}\n".encode())
    return total.hexdigest()


def _folders_of(names: Iterable[str]) -> list[PurePosixPath]:
    return sorted({folder for name in names for folder in PurePosixPath(name).parents})


def first_damage(entry: Path, *, modules_only: bool) -> str | None:
    """Return the first damage of a store entry; files that no manifest names are none."""
    try:
        report = verify_modules(entry) if modules_only else verify_artifact(entry)
    except (OSError, ProvisionError) as error:
        return str(error)
    return next((str(found) for found in report.findings if found.kind != "extra"), None)


class _Check:
    def __init__(self, artifact: Path, manifest: Manifest) -> None:
        self.findings: list[Finding] = []
        self.size = 0
        self._artifact = artifact
        self._manifest = manifest
        self._known = {MANIFEST, ADMISSION}
        if _STORE_NAME.fullmatch(artifact.name):
            # The host adds them; an image's own loader would run as root.
            self._known |= {LOADER, *MODULES_LINKS}
        # Hashing the user space takes most of the time, and processors can share it.
        self._digests: dict[Path, Future[str]] = {}
        release = manifest.pin.kernel.release
        self._kernel_folder = PurePosixPath("lib/modules") / release

    def pin(self, label: str | None) -> None:
        """Check that manifest, image label and store folder are of the same Pin."""
        pin = self._manifest.pin
        claims = {"it says": self._manifest.pin_digest}
        if label is not None:
            claims["the image's label says"] = label
        for claim, digest in claims.items():
            if digest != pin.digest:
                self._found(MANIFEST, "pin", f"its Pin's digest is {pin.digest}, {claim} {digest}")
        name = self._artifact.name
        if _STORE_NAME.fullmatch(name) and name != pin.short_digest:
            self._found(MANIFEST, "pin", f"its Pin is {pin.short_digest}, not {name}")

    def modules(self) -> None:
        """Check each kernel module and that modprobe will find it."""
        listed = self._listed_modules(self._kernel_folder)
        self._folders(module.path for module in self._manifest.modules)
        for module in filter(None, (*self._manifest.modules, self._manifest.kmm)):
            path = PurePosixPath(module.path)
            self._known.add(path)
            if not self._module(path, module):
                continue
            self._vermagic(path, module)
            if listed is not None and path not in listed:
                self._found(path, "modules.dep", f"is not in {self._kernel_folder}/modules.dep")
        if self._manifest.kmm is not None:
            self._hosts_modules()

    def _hosts_modules(self) -> None:
        """Check the folder for hosts: links to all modules but KMM's, and its own modules.dep."""
        folder = HOSTS / self._kernel_folder
        listed = self._listed_modules(folder)
        for module in self._manifest.modules:
            link = HOSTS / module.path
            self._known.add(link)
            self._link(link, f"{'../' * len(link.parent.parts)}{module.path}")
            if listed is not None and link not in listed:
                self._found(link, "modules.dep", f"is not in {folder}/modules.dep")

    def driver_files(self) -> None:
        """Check each file and link of the user space, and the folders that they are in."""
        self._folders(f"driver{file.path}" for file in self._manifest.files)
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            for file in self._manifest.files:
                full = self._artifact / f"driver{file.path}"
                status = _status(full)
                if status and stat.S_ISREG(status.st_mode) and status.st_size == file.size:
                    self._digests[full] = pool.submit(sha256_file, full)
            for file in self._manifest.files:
                path = PurePosixPath("driver" + file.path)
                self._known.add(path)
                if file.link is not None:
                    self._link(path, file.link)
                else:
                    self._driver_file(path, file)
        finally:
            pool.shutdown(cancel_futures=True)

    def extra_files(self) -> None:
        """Report every file that the manifest does not name."""
        hosts = HOSTS / self._kernel_folder
        for path in _files_below(self._artifact):
            made_by_depmod = path.parent in {self._kernel_folder, hosts} and _DEPMOD_FILE.fullmatch(
                path.name
            )
            if path not in self._known and not made_by_depmod:
                self._found(path, "extra", "is not in the manifest")

    def _folders(self, names: Iterable[str]) -> None:
        # What is unpacked elsewhere lies in a folder of this user alone.
        is_entry = _STORE_NAME.fullmatch(self._artifact.name)
        for folder in _folders_of(names)[0 if is_entry else 1 :]:
            status = _status(self._artifact / folder)
            if status and (found := stat.S_IMODE(status.st_mode)) & _FOLDER_MODE != _FOLDER_MODE:
                self._found(folder, "mode", f"has mode {found:04o}, not {_FOLDER_MODE:04o}")

    def _driver_file(self, path: PurePosixPath, file: DriverFile) -> None:
        if file.sha256 is None or file.size is None or file.mode is None:
            self._found(MANIFEST, "manifest", f"{file.path}: lacks sha256, size or mode")
            return
        self._content(path, sha256=file.sha256, size=file.size, mode=file.mode)

    def _module(self, path: PurePosixPath, module: Module) -> bool:
        """Check a module; the build made it without the signature that the host appends."""
        size, sha256 = module.size, module.sha256
        full = self._artifact / path
        if full.is_file():
            try:
                appended = read_signature(full)
            except ValueError as error:
                self._found(path, "signature", str(error))
                return False
            if appended is not None and appended.content_size == size:
                if content_digest(full, appended) != sha256:
                    self._found(
                        path, "altered", f"has another sha256 than {sha256} below its signature"
                    )
                    return False
                size, sha256 = full.stat().st_size, sha256_file(full)
        return self._content(path, sha256=sha256, size=size, mode=_MODULE_MODE)

    def _content(self, path: PurePosixPath, *, sha256: str, size: int, mode: str) -> bool:
        full = self._artifact / path
        status = _status(full)
        if status is None:
            self._found(path, "missing", "is missing")
            return False
        if not stat.S_ISREG(status.st_mode):
            self._found(path, "altered", "is no regular file")
            return False
        found_mode = f"{stat.S_IMODE(status.st_mode):04o}"
        if found_mode != mode:
            self._found(path, "mode", f"has mode {found_mode}, not {mode}")
        if status.st_size != size:
            self._found(path, "altered", f"has {status.st_size} bytes, not {size}")
            return False
        ahead = self._digests.get(full)
        digest = ahead.result() if ahead else sha256_file(full)
        self.size += size
        report(Transfer("Verifying", self.size))
        if digest != sha256:
            self._found(path, "altered", f"has the sha256 {digest}, not {sha256}")
            return False
        return True

    def _link(self, path: PurePosixPath, target: str) -> None:
        full = self._artifact / path
        if _status(full) is None:
            self._found(path, "missing", "is missing")
        elif not full.is_symlink():
            self._found(path, "link", f"is no symbolic link to '{target}'")
        elif (found := str(full.readlink())) != target:
            self._found(path, "link", f"points to '{found}', not to '{target}'")
        elif not full.exists():
            self._found(path, "link", f"points to '{target}', which is missing")

    def _vermagic(self, path: PurePosixPath, module: Module) -> None:
        try:
            _build_id, info = read_identity(self._artifact / path)
        except ProvisionError as error:
            self._found(path, "vermagic", error.message)
            return
        # The kernel's text ends with a blank, which readers of modinfo drop.
        found = info.get("vermagic", "").strip()
        release = self._manifest.pin.kernel.release
        if found.split(" ", 1)[0] != release:
            self._found(
                path, "vermagic", f"is for kernel '{found.split(' ', 1)[0]}', not {release}"
            )
        elif found != module.vermagic.strip():
            self._found(path, "vermagic", f"has vermagic '{found}', not '{module.vermagic}'")

    def _listed_modules(self, folder: PurePosixPath) -> set[PurePosixPath] | None:
        """Return the modules that a folder's modules.dep lists; None if it can't be read.

        Source: modules.dep(5); its paths are relative to its own folder.
        """
        path = folder / "modules.dep"
        status = _status(self._artifact / path)
        if status is None or not stat.S_ISREG(status.st_mode):
            self._found(path, "missing", "is missing")
            return None
        lines = (self._artifact / path).read_text(errors="replace").splitlines()
        return {folder / line.split(":", 1)[0] for line in lines if ":" in line}

    def _found(self, path: PurePosixPath, kind: str, message: str) -> None:
        self.findings.append(Finding(str(path), kind, message))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _files_below(folder: Path) -> Iterator[PurePosixPath]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*names, *linked]):
            yield PurePosixPath(Path(parent, name).relative_to(folder))
