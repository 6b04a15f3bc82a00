"""Has the files of a kernel tree: found on the host or in its other slot, or downloaded.

Each file lies in the package store under its sha256, which is what the Pin names.
"""

from __future__ import annotations

import fnmatch
import gzip
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.config import TreeConfig
from provision.distros.tree import read_config, release_place, require_symvers
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.host.kernel import kernel_release
from provision.host.usr_slots import pack_from_slot
from provision.pin import TreePin
from provision.pipeline.settings import Settings
from provision.pipeline.tree_files import TreeStore
from provision.progress import Note, Progress, silent
from provision.rootfs import in_root
from provision.run import run

_COS_HEADERS = "kernel-headers.tgz"
_COS_COMPILER = "toolchain.tar.xz"
_GZIP = b"\x1f\x8b"
_PACK_SECONDS = 900.0
# The same files give the same bytes, whenever and by whomever they are packed.
_SAME_BYTES = (
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
)


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
    settings: Settings, wanted: TreeConfig, kernel: str, *, progress: Progress = silent
) -> Tree:
    """Have the files of a tree in the state folder.

    Raises:
        NotFoundError: The tree, its configuration or the Module.symvers that it needs are not
            there.
        ProvisionError: A download is not what it should be, or a folder can't be packed.
    """
    store = TreeStore(settings)
    tree = _tar_file(settings, store, wanted, kernel, progress)
    files = {"tree.tar": store.path(tree)}
    if wanted.kind == "prepared" and wanted.config is None:
        text = _config_in(store.path(tree))
        config = read_config(text, name=f"{_origin(wanted, kernel)}, .config")
        return Tree(TreePin(kind="prepared", tree=tree), files, config)
    config_file = _config_file(settings, wanted, kernel)
    plain = _plain(config_file)
    config = read_config(plain.decode(errors="replace"), name=str(config_file))
    config_digest = store.add(plain)
    files["config"] = store.path(config_digest)
    symvers = _symvers_file(settings, wanted, kernel)
    require_symvers(config, kernel, has_symvers=symvers is not None or wanted.kind == "prepared")
    symvers_digest = None
    if symvers is not None and config.get("CONFIG_MODVERSIONS") == "y":
        symvers_digest = store.add(_plain(symvers))
        files["Module.symvers"] = store.path(symvers_digest)
    pin = TreePin(kind=wanted.kind, tree=tree, config=config_digest, symvers=symvers_digest)
    return Tree(pin, files, config)


def have_cos_tree(
    settings: Settings, build_id: str, architecture: str, *, progress: Progress = silent
) -> Tree:
    """Have the headers and the compiler of a build of Container-Optimized OS.

    Args:
        settings: The host; ``[distros.cos.archive] mirror`` names another place.
        build_id: ``BUILD_ID`` of its os-release.
        architecture: As ``uname -m`` prints it.
        progress: Told what goes on.

    Raises:
        NotFoundError: There are no files of that build.
        ProvisionError: A file is not what its checksum says.
    """
    if not build_id:
        raise NotFoundError(
            "The os-release of this host has no BUILD_ID, so the files of its kernel can't be"
            " found.",
            resolution="Name the build: --distro cos:BUILD_ID, such as cos:18613.164.68.",
        )
    store = TreeStore(settings)
    mirror = settings.config.distro("cos").archive.mirror
    place = release_place("cos", build_id, architecture, mirror=mirror)
    headers = store.fetch_summed(f"{place}/{_COS_HEADERS}", progress)
    compiler = store.fetch_summed(f"{place}/{_COS_COMPILER}", progress)
    text = _config_in(store.path(headers))
    config = read_config(text, name=f"{place}/{_COS_HEADERS}, .config")
    pin = TreePin(kind="prepared", tree=headers, compiler=compiler)
    files = {"tree.tar": store.path(headers), "compiler.tar": store.path(compiler)}
    return Tree(pin, files, config)


def _tar_file(
    settings: Settings, store: TreeStore, wanted: TreeConfig, kernel: str, progress: Progress
) -> str:
    if wanted.url is not None and wanted.sha256 is not None:
        return store.fetch(_filled(wanted.url, kernel), wanted.sha256, progress)
    name = _filled(str(wanted.path), kernel)
    path = in_root(settings.root, name)
    draft = store.draft()
    try:
        with lock(settings.state / "locks/trees"):
            if path.is_dir():
                _pack(path, draft)
            elif path.is_file():
                shutil.copyfile(path, draft)
            else:
                _pack_next(settings, name, kernel, draft, progress)
            return store.take(draft)
    finally:
        draft.unlink(missing_ok=True)


def _pack_next(settings: Settings, name: str, kernel: str, draft: Path, progress: Progress) -> None:
    """Pack the tree of a kernel that the running /usr lacks: one that boots next.

    Raises:
        NotFoundError: It is nowhere.
    """
    inside = name.removeprefix("/usr/")
    if settings.usr is not None and (settings.usr / inside).is_dir():
        _pack(settings.usr / inside, draft)
        return
    if inside != name:
        progress(Note(f"Looking for the tree of {kernel} in the slot that boots next"))
        if pack_from_slot(settings.root, inside, draft, _SAME_BYTES):
            return
    raise NotFoundError(
        f"There is no tree of the kernel {kernel}: '{name}' is missing, on this system and in the"
        " slot that boots next.",
        resolution="For a kernel that boots next, its update has to be complete: see"
        " 'update_engine_client -status'. For any other, name the tree under [[trees]] in"
        " /etc/provision/provision.toml.",
    )


def _pack(folder: Path, draft: Path) -> None:
    run(
        ["tar", "--create", *_SAME_BYTES, "--file", draft, "--directory", folder, "."],
        why="pack a kernel tree",
        timeout=_PACK_SECONDS,
    )


def _config_in(tar: Path) -> str:
    """Return the .config of a prepared tree, wherever in its archive it lies.

    Raises:
        ProvisionError: It has none.
    """
    done = run(
        ["tar", "--extract", "--to-stdout", "--wildcards", "--file", tar, "*.config"],
        why="read the configuration in a kernel tree",
        check=False,
        timeout=_PACK_SECONDS,
    )
    if not done.stdout:
        raise ProvisionError(
            "The kernel tree has no .config, so it can't be said which compiler it takes.",
            resolution="Name the kernel's configuration as 'config' of [[trees]] in"
            " /etc/provision/provision.toml.",
            details=done.stderr.strip() or None,
        )
    return done.stdout


def _config_file(settings: Settings, wanted: TreeConfig, kernel: str) -> Path:
    if wanted.config is not None:
        names = [_filled(wanted.config, kernel)]
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
    path = in_root(settings.root, _filled(wanted.symvers, kernel))
    if not path.is_file():
        raise NotFoundError(
            f"There is no '{path}', which [[trees]] names as the Module.symvers of {kernel}.",
            resolution="Copy it from the folder in which the kernel was built.",
        )
    return path


def _plain(path: Path) -> bytes:
    """Return the content of a file that may be packed by gzip.

    Raises:
        ProvisionError: It is damaged.
    """
    content = path.read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise ProvisionError(
            f"'{path}' is a damaged gzip file: {error}.", resolution="Copy it again."
        ) from error


def _filled(text: str, kernel: str) -> str:
    return text.replace("{kernel}", kernel)


def _origin(wanted: TreeConfig, kernel: str) -> str:
    return _filled(str(wanted.url or wanted.path), kernel)
