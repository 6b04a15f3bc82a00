"""Kernel trees: their files, from a host, its other slot or an address; compiler and packages.

Each file lies in the package store under its sha256, which the Pin names. Beside them lies a record
of each tree: the state of the folder that it was packed from, or its address. An unchanged tree is
neither packed nor downloaded again.
"""

import gzip
import hashlib
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from provision.build.package_store import PackageStore
from provision.build.request import TreeChoice
from provision.build.workspace import Settings
from provision.config import TreeConfig
from provision.distros.distro import release_address
from provision.distros.family import Toolchain
from provision.distros.prepare_tree import (
    TreeError,
    check_symvers,
    compiler_of,
    parse_config,
)
from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import download, download_summed
from provision.files import in_root, lock, mark_used, settled_path, state_of, write_atomic
from provision.host.boot import pack_from_slot
from provision.host.kernels import kernel_release
from provision.pin import Sha256, TreePin
from provision.progress import Note, report
from provision.run import run

_CONFIG = ".config"
_PACK_SECONDS = 900.0
_GZIP = b"\x1f\x8b"
# Of a configuration or a Module.symvers; the largest of these have some 5 MB.
_LARGEST = 256 << 20
# The same files give the same bytes at any time and for any user.
SAME_BYTES = (
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
)


class TreeRecord(Frozen):
    """The record of a tree in the package store."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    fingerprint: str
    tree: Sha256
    size: int
    # Text of the kernel's configuration in it; None: it was not looked for.
    config: str | None = None


def known_tree(
    store: PackageStore, origin: str, fingerprint: str | None = None
) -> TreeRecord | None:
    """Return the record of a tree whose file is there; None: it has to be fetched again.

    The file is not read: a build finds out whether it is damaged.

    Args:
        origin: The origin of the tree: an address, or a path on the host.
    """
    path = _record(store, origin)
    try:
        found = load_json(path, TreeRecord)
        size = store.path(found.tree).stat().st_size
    except (OSError, ProvisionError):
        return None
    if size != found.size or fingerprint not in {None, found.fingerprint}:
        return None
    mark_used(path)
    mark_used(store.path(found.tree))
    return found


def _remember(
    store: PackageStore, origin: str, fingerprint: str, tree: str, *, has_config: bool
) -> TreeRecord:
    path = store.path(tree)
    config = _config_in(path) if has_config else None
    size = path.stat().st_size
    known = TreeRecord(fingerprint=fingerprint, tree=tree, size=size, config=config)
    # An address may hold a password.
    write_atomic(_record(store, origin), f"{known.model_dump_json(by_alias=True)}\n", mode=0o600)
    return known


def _record(store: PackageStore, origin: str) -> Path:
    return store.trees / f"{hashlib.sha256(origin.encode()).hexdigest()}.json"


def _config_in(tar: Path) -> str:
    """Return the .config of a prepared tree: the topmost, if its archive has several.

    It is empty if the archive has none: packages that a kernel's own build makes leave it to /boot.
    """
    # Not files of the kernel's source with that ending: kernel/configs/hardening.config.
    listed = run(
        ["tar", "--list", "--no-anchored", "--file", tar, _CONFIG],
        why="look for the configuration in a kernel tree",
        check=False,
        timeout=_PACK_SECONDS,
    )
    names = [line for line in listed.stdout.splitlines() if line.rpartition("/")[2] == _CONFIG]
    if not names:
        return ""
    topmost = min(names, key=lambda name: name.count("/"))
    extract: list[str | Path] = ["tar", "--extract", "--to-stdout", "--file", tar, topmost]
    why = "read the configuration in a kernel tree"
    return run(extract, why=why, timeout=_PACK_SECONDS).stdout


def _read_plain(path: Path) -> bytes:
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        try:
            with gzip.open(file) if is_packed else file as stream:
                content: bytes = stream.read(_LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ProvisionError(
                f"'{path}' is a damaged gzip file: {error}.", resolution="Copy it again."
            ) from error
    if len(content) > _LARGEST:
        raise ProvisionError(
            f"'{path}' has more than {_LARGEST >> 20} MiB: it is neither the configuration of a"
            " kernel nor its Module.symvers.",
            resolution="Name the right file under [[trees]] in /etc/provision/provision.toml.",
        )
    return content


_COS_HEADERS = "kernel-headers.tgz"
_COS_COMPILER = "toolchain.tar.xz"


def prepare_tree(
    settings: Settings, choice: TreeChoice, kernel: str, *, update: bool
) -> tuple[TreePin, Toolchain]:
    """Return the tree that was chosen, with its files in the package store, and what compiles."""
    config: Mapping[str, str] | None = None
    if choice.tree is None:
        pin, config = ensure_cos_tree(settings, choice.build_id, update=update)
    elif choice.tree.kind == "image":
        pin = TreePin(kind="image")
    else:
        pin, config = ensure_tree(settings, choice.tree, kernel, update=update)
    # A compiler that comes as a file is no package.
    if choice.toolchain is None or pin.compiler is not None:
        toolchain = compiler_beside(config)
    else:
        toolchain = compiler_package(config or {}, kernel)
    if choice.toolchain is not None:
        packages = (*toolchain.packages, *build_packages(pin.kind, config or {}))
        toolchain = toolchain._replace(packages=packages)
    changes = {"toolchain": choice.toolchain, "llvm": toolchain.llvm}
    return pin.model_copy(update=changes), toolchain


def ensure_tree(
    settings: Settings, tree_config: TreeConfig, kernel: str, *, update: bool = False
) -> tuple[TreePin, Mapping[str, str]]:
    """Return a tree of provision.toml, with its files in the store; and the configuration."""
    store = PackageStore(settings.state)
    has_config = tree_config.kind == "prepared" and tree_config.config is None
    origin = _Origin(settings, kernel, has_config, update)
    name = tree_config.filled(str(tree_config.url or tree_config.path), kernel)
    seen = origin.download(name, str(tree_config.sha256)) if tree_config.url else origin.path(name)
    if seen.config:
        config = read_config(seen.config, name=f"{name}, .config")
        return TreePin(kind="prepared", tree=seen.tree), config
    config_file = _config_file(settings, tree_config, kernel)
    plain = _read_plain(config_file)
    config = read_config(plain.decode(errors="replace"), name=str(config_file))
    symvers = _symvers_file(settings, tree_config, kernel)
    require_symvers(
        config, kernel, has_symvers=symvers is not None or tree_config.kind == "prepared"
    )
    is_needed = config.get("CONFIG_MODVERSIONS") == "y"
    pin = TreePin(
        kind=tree_config.kind,
        tree=seen.tree,
        config=store.add_bytes(plain),
        symvers=store.add_bytes(_read_plain(symvers)) if symvers and is_needed else None,
    )
    return pin, config


def ensure_cos_tree(
    settings: Settings, build_id: str, *, update: bool = False
) -> tuple[TreePin, Mapping[str, str]]:
    """Return the tree of a build of Container-Optimized OS, as ``ensure_tree``.

    Published files never change, so that they are downloaded once, and again where one is damaged.

    Args:
        settings: The host; ``[distros.cos.archive] mirror`` names another address, ``sha256`` the
            files' checksums.
    """
    if not build_id:
        raise NotFoundError(
            "The os-release of this host has no BUILD_ID, so the files of its kernel can't be"
            " found.",
            resolution="Name the build: --distro cos:BUILD_ID, such as cos:18613.164.68.",
        )
    mirror = settings.config.distro("cos").archive.mirror
    place = release_address("cos", build_id, settings.architecture, mirror=mirror)
    headers, compiler = (
        _cos_file(settings, f"{place}/{name}", update=update, has_config=name == _COS_HEADERS)
        for name in (_COS_HEADERS, _COS_COMPILER)
    )
    config = read_config(headers.config or "", name=f"{place}/{_COS_HEADERS}, .config")
    pin = TreePin(kind="prepared", tree=headers.tree, compiler=compiler.tree)
    return pin, config


def _cos_file(settings: Settings, url: str, *, update: bool, has_config: bool) -> TreeRecord:
    store = PackageStore(settings.state)
    name = "/".join(url.split("/")[-2:])
    sha256 = settings.config.distro("cos").archive.sha256.get(name)
    seen = known_tree(store, url)
    if seen is not None and sha256 in {None, seen.tree} and (not update or store.whole(seen.tree)):
        return seen
    with store.draft() as draft:
        try:
            if sha256:
                download(url, sha256=sha256, destination=draft)
            else:
                download_summed(url, destination=draft)
        except UsageError as error:
            raise UsageError(
                error.message,
                resolution="In /etc/provision/provision.toml, name a mirror that begins with"
                " https://, or the checksum of the file: [distros.cos.archive] sha256 ="
                f' {{ "{name}" = "…" }} (sha256sum says it, of a copy that you trust).',
            ) from error
        return _remember(store, url, "", store.take(draft), has_config=has_config)


def _config_file(settings: Settings, tree_config: TreeConfig, kernel: str) -> Path:
    if tree_config.config is not None:
        names = [tree_config.filled(tree_config.config, kernel)]
    else:
        runs = kernel == kernel_release(settings.root)
        names = [*(["proc/config.gz"] if runs else []), f"boot/config-{kernel}"]
    paths = [settled_path(settings.root, name) for name in names]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise NotFoundError(
            f"The configuration of the kernel {kernel} is not there.",
            resolution="Name it as 'config' of [[trees]] in /etc/provision/provision.toml. A kernel"
            " that runs says it in /proc/config.gz (modprobe configs); of another, its build or its"
            " release has it, such as flatcar_production_image_kernel_config.txt.",
            details="\n".join(f"looked for /{name.lstrip('/')}" for name in names),
        )
    return found


def _symvers_file(settings: Settings, tree_config: TreeConfig, kernel: str) -> Path | None:
    if tree_config.symvers is None:
        path = in_root(settings.root, f"boot/symvers-{kernel}.gz")
        return path if path.is_file() else None
    path = settled_path(settings.root, tree_config.filled(tree_config.symvers, kernel))
    if not path.is_file():
        raise NotFoundError(
            f"There is no '{path}', which [[trees]] names as the Module.symvers of {kernel}.",
            resolution="Copy it from the folder in which the kernel was built.",
        )
    return path


class _Origin(NamedTuple):
    """The origin that provision.toml names of a tree; puts its tar file into the store."""

    settings: Settings
    kernel: str
    has_config: bool
    update: bool

    @property
    def _store(self) -> PackageStore:
        return PackageStore(self.settings.state)

    def download(self, url: str, sha256: str) -> TreeRecord:
        """Return the tree of an address with a checksum; download it if necessary."""
        if seen := self._seen(url, sha256):
            return seen
        with self._store.draft() as draft:
            download(url, sha256=sha256, destination=draft)
            return self._taken(url, sha256, draft)

    def path(self, name: str) -> TreeRecord:
        """Return the tree of a folder or tar file of the host or of its other slot."""
        inside = name.removeprefix("/usr/")
        path = settled_path(self.settings.root, name)
        usr = self.settings.usr
        # The running /usr lacks the tree of a kernel that boots next.
        if not path.exists() and usr is not None and (usr / inside).is_dir():
            path = usr / inside
        with lock(self.settings.state / "locks/trees"):
            if path.is_dir() or path.is_file():
                return self._packed(path)
            found = self._of_slot(inside) if inside != name else None
        if found is None:
            raise NotFoundError(
                f"There is no tree of the kernel {self.kernel}: '{name}' is missing, on this"
                " system and in the slot that boots next.",
                resolution="For a kernel that boots next, its update has to be complete: see"
                " 'update_engine_client -status'. For any other, name the tree under [[trees]] in"
                " /etc/provision/provision.toml.",
            )
        return found

    def _packed(self, path: Path) -> TreeRecord:
        origin, state = str(path), state_of(path)
        if seen := self._seen(origin, state):
            return seen
        with self._store.draft() as draft:
            if path.is_dir():
                run(
                    ["tar", "--create", *SAME_BYTES, "--file", draft, "--directory", path, "."],
                    why="pack a kernel tree",
                    timeout=_PACK_SECONDS,
                )
            else:
                shutil.copyfile(path, draft)
            # The earlier fingerprint: a folder that changes meanwhile has another one next time.
            return self._taken(origin, state, draft)

    def _of_slot(self, inside: str) -> TreeRecord | None:
        report(Note(f"Looking for the tree of {self.kernel} in the slot that boots next"))
        origin = f"slot:{self.settings.root}:{inside}"
        seen = self._seen(origin)
        known = seen.fingerprint if seen else None
        with self._store.draft() as draft:
            state = pack_from_slot(self.settings.root, inside, draft, SAME_BYTES, known=known)
            if state is None or state == known:
                return seen if state else None
            return self._taken(origin, state, draft)

    def _seen(self, origin: str, state: str | None = None) -> TreeRecord | None:
        seen = None if self.update else known_tree(self._store, origin, state)
        return seen if seen and (seen.config is not None or not self.has_config) else None

    def _taken(self, origin: str, state: str, draft: Path) -> TreeRecord:
        tree = self._store.take(draft)
        return _remember(self._store, origin, state, tree, has_config=self.has_config)


# What the kernel's own build calls.
# Source: https://docs.kernel.org/process/changes.html, checked with Linux 6.1 to 6.12.
_FOR_SOURCE = ("bc", "bison", "flex", "libelf-dev", "libssl-dev")
# What a prepared tree's own programs are linked with: objtool, sign-file.
_FOR_PREPARED = ("libelf-dev", "libssl-dev")
_ALWAYS = ("libc6-dev",)
# The kernel's build names the type information of modules after the tool that makes it.
_BTF = "CONFIG_DEBUG_INFO_BTF"
_BTF_PACKAGE = "dwarves"


def read_config(text: str, *, name: str) -> Mapping[str, str]:
    """Return the options of a kernel's configuration."""
    options = parse_config(text)
    if not any(option in options for option in ("CONFIG_64BIT", "CONFIG_MODULES", "CONFIG_SMP")):
        raise ProvisionError(
            f"'{name}' is not the configuration of a kernel.",
            resolution="Name the right file as 'config' of [[trees]] in"
            " /etc/provision/provision.toml. A kernel with CONFIG_IKCONFIG_PROC says its own:"
            " zcat /proc/config.gz",
        )
    return options


def require_symvers(config: Mapping[str, str], kernel: str, *, has_symvers: bool) -> None:
    """Refuse a kernel with modversions whose Module.symvers is not there."""
    try:
        check_symvers(config, has_symvers=has_symvers, kernel=kernel)
    except TreeError as error:
        raise NotFoundError(
            f"The kernel {kernel} has modversions (CONFIG_MODVERSIONS=y), and its Module.symvers is"
            " not there: the modules would hold no CRCs, and the kernel would refuse them.",
            resolution="The build of this kernel writes it. Distros ship it as"
            f" /boot/symvers-{kernel}.gz or in their headers; who builds a kernel finds it in the"
            " folder of the build: cp Module.symvers /etc/provision/. Name it as 'symvers' of"
            " [[trees]] in /etc/provision/provision.toml.",
        ) from error


def compiler_package(config: Mapping[str, str], kernel: str) -> Toolchain:
    """Return what compiles as the kernel was compiled, from a distro's packages."""
    compiler = compiler_of(config)
    if compiler is None:
        raise NotFoundError(
            f"The configuration of the kernel {kernel} does not say which compiler built it"
            " (CONFIG_CC_VERSION_TEXT).",
            resolution="Take the configuration that the kernel was built with, as it lies in"
            " /proc/config.gz or in the build's folder; Linux has that option since 4.18.",
        )
    text = config["CONFIG_CC_VERSION_TEXT"].strip('"')
    if compiler.name == "clang":
        more = (f"lld-{compiler.major}", f"llvm-{compiler.major}")
        return Toolchain(text, more, llvm=f"-{compiler.major}")
    return Toolchain(text, ())


def compiler_beside(config: Mapping[str, str] | None) -> Toolchain:
    """Return what compiles where that is no package: the build compares its major version."""
    compiler = None if config is None else compiler_of(config)
    return Toolchain(None, (), llvm="1" if compiler and compiler.name == "clang" else None)


def build_packages(kind: str, config: Mapping[str, str]) -> tuple[str, ...]:
    """Return names of the packages that a tree takes besides the compiler."""
    if kind != "source":
        return (*_ALWAYS, *_FOR_PREPARED)
    more = (_BTF_PACKAGE,) if config.get(_BTF) == "y" else ()
    return (*_ALWAYS, *_FOR_SOURCE, *more)
