"""Has the files of a kernel tree: found on the host or in its other slot, or downloaded.

Each file lies in the package store under its sha256, which is what the Pin names.
"""

from __future__ import annotations

import fnmatch
import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.config import TreeConfig
from provision.distros.kernel_tree import read_config, release_address, require_symvers
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import in_root
from provision.host.kernels import kernel_release
from provision.pin import TreePin
from provision.pipeline.tree_files import SeenTree, TreeStore
from provision.pipeline.tree_origin import TreeOrigin, config_in, filled
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent

_COS_HEADERS = "kernel-headers.tgz"
_COS_COMPILER = "toolchain.tar.xz"
_GZIP = b"\x1f\x8b"
# Of a configuration or a Module.symvers; the largest of these have some 5 MB.
_LARGEST = 256 << 20


@dataclass(frozen=True, slots=True)
class Tree:
    """A kernel tree whose files are there.

    Attributes:
        pin: What the Pin says of it; without the toolchain.
        files: What the build context gets, by name there.
        config: The kernel's configuration; None: it lies in the tree, which only the build reads.
    """

    pin: TreePin
    files: Mapping[str, Path] = field(default_factory=dict)
    config: Mapping[str, str] | None = None


def configured_tree(settings: Settings, kernel: str) -> TreeConfig | None:
    """Return the first of ``[[trees]]`` in provision.toml that is for a kernel."""
    return next(
        (tree for tree in settings.config.trees if fnmatch.fnmatchcase(kernel, tree.kernels)), None
    )


def have_tree(
    settings: Settings,
    wanted: TreeConfig,
    kernel: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Have the files of a tree in the state folder.

    Args:
        settings: The host.
        wanted: Where the tree is.
        kernel: The kernel's release.
        update: Whether it is packed again although nothing about it seems to have changed.
        progress: Receives what goes on.

    Raises:
        NotFoundError: The tree, its configuration or the Module.symvers that it needs are not
            there.
        ProvisionError: A download is not what it should be, or a folder can't be packed.
    """
    store = TreeStore(settings)
    has_config = wanted.kind == "prepared" and wanted.config is None
    origin = TreeOrigin(settings, store, kernel, has_config=has_config, update=update)
    seen = (
        origin.download(wanted, progress) if wanted.url else origin.path(str(wanted.path), progress)
    )
    files = {"tree.tar": store.path(seen.tree)}
    if has_config:
        config = read_config(seen.config or "", name=f"{_named(wanted, kernel)}, .config")
        return Tree(TreePin(kind="prepared", tree=seen.tree), files, config)
    config_file = _config_file(settings, wanted, kernel)
    plain = _plain(config_file)
    config = read_config(plain.decode(errors="replace"), name=str(config_file))
    added = {"config": store.add(plain)}
    symvers = _symvers_file(settings, wanted, kernel)
    require_symvers(config, kernel, has_symvers=symvers is not None or wanted.kind == "prepared")
    if symvers is not None and config.get("CONFIG_MODVERSIONS") == "y":
        added["Module.symvers"] = store.add(_plain(symvers))
    files |= {name: store.path(digest) for name, digest in added.items()}
    symvers_digest = added.get("Module.symvers")
    pin = TreePin(kind=wanted.kind, tree=seen.tree, config=added["config"], symvers=symvers_digest)
    return Tree(pin, files, config)


def have_cos_tree(
    settings: Settings,
    build_id: str,
    architecture: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Have the headers and the compiler of a build of Container-Optimized OS.

    Its files never change once they are published, so what was downloaded stays.

    Args:
        settings: The host; ``[distros.cos.archive] mirror`` names another place, ``sha256`` the
            files' checksums.
        build_id: ``BUILD_ID`` of its os-release.
        architecture: As ``uname -m`` prints it.
        update: Whether the files are downloaded again.
        progress: Receives what goes on.

    Raises:
        NotFoundError: There are no files of that build.
        UsageError: The mirror is no address of HTTPS, and a file's sha256 is not known.
        ProvisionError: A file is not what its checksum says.
    """
    if not build_id:
        raise _no_build_id()
    store = TreeStore(settings)
    archive = settings.config.distro("cos").archive
    place = release_address("cos", build_id, architecture, mirror=archive.mirror)
    files_there = _CosFiles(store, place, build_id, archive.sha256, progress)
    headers = files_there.have(_COS_HEADERS, update=update, has_config=True)
    compiler = files_there.have(_COS_COMPILER, update=update)
    config = read_config(headers.config or "", name=f"{place}/{_COS_HEADERS}, .config")
    pin = TreePin(kind="prepared", tree=headers.tree, compiler=compiler.tree)
    files = {"tree.tar": store.path(headers.tree), "compiler.tar": store.path(compiler.tree)}
    return Tree(pin, files, config)


@dataclass(frozen=True, slots=True)
class _CosFiles:
    """The published files of a build of Container-Optimized OS.

    Attributes:
        store: Keeps them.
        place: Address of the folder that they are in.
        build_id: The build.
        sums: The sha256 of files, by build and name, as provision.toml says.
        progress: Receives what is downloaded.
    """

    store: TreeStore
    place: str
    build_id: str
    sums: Mapping[str, str]
    progress: Progress

    def have(self, name: str, *, update: bool, has_config: bool = False) -> SeenTree:
        """Have one of them; errors as ``have_cos_tree``."""
        store = self.store
        url, known = f"{self.place}/{name}", self.sums.get(f"{self.build_id}/{name}")
        seen = None if update else store.seen(url)
        if seen is not None and known in {None, seen.tree}:
            return seen
        try:
            digest = (
                store.fetch(url, known, self.progress)
                if known
                else store.fetch_summed(url, self.progress)
            )
        except UsageError as error:
            raise _no_checksum(error, f"{self.build_id}/{name}") from error
        config = config_in(store.path(digest)) if has_config else None
        return store.remember(url, "", digest, config=config)


def _no_build_id() -> NotFoundError:
    return NotFoundError(
        "The os-release of this host has no BUILD_ID, so the files of its kernel can't be found.",
        resolution="Name the build: --distro cos:BUILD_ID, such as cos:18613.164.68.",
    )


def _no_checksum(error: UsageError, name: str) -> UsageError:
    return UsageError(
        error.message,
        resolution="In /etc/provision/provision.toml, name a mirror that begins with https://, or"
        f' the checksum of the file: [distros.cos.archive] sha256 = {{ "{name}" = "…" }} (sha256sum'
        " says it, of a copy that you trust).",
    )


def _config_file(settings: Settings, wanted: TreeConfig, kernel: str) -> Path:
    if wanted.config is not None:
        names = [filled(wanted.config, kernel)]
    else:
        runs = kernel == kernel_release(settings.root)
        names = [*(["proc/config.gz"] if runs else []), f"boot/config-{kernel}"]
    found = next((p for name in names if (p := in_root(settings.root, name)).is_file()), None)
    if found is None:
        raise NotFoundError(
            f"The configuration of the kernel {kernel} is not there.",
            resolution="Name it as 'config' of [[trees]] in /etc/provision/provision.toml. A kernel"
            " that runs says it in /proc/config.gz (modprobe configs); of another, its build or its"
            " release has it, such as flatcar_production_image_kernel_config.txt.",
            details="\n".join(f"looked for /{name.lstrip('/')}" for name in names),
        )
    return found


def _symvers_file(settings: Settings, wanted: TreeConfig, kernel: str) -> Path | None:
    if wanted.symvers is None:
        path = in_root(settings.root, f"boot/symvers-{kernel}.gz")
        return path if path.is_file() else None
    path = in_root(settings.root, filled(wanted.symvers, kernel))
    if not path.is_file():
        raise NotFoundError(
            f"There is no '{path}', which [[trees]] names as the Module.symvers of {kernel}.",
            resolution="Copy it from the folder in which the kernel was built.",
        )
    return path


def _plain(path: Path) -> bytes:
    """Return the content of a file that may be packed by gzip.

    Raises:
        ProvisionError: It is damaged, or too large for what it should be.
    """
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


def _named(wanted: TreeConfig, kernel: str) -> str:
    return filled(str(wanted.url or wanted.path), kernel)
