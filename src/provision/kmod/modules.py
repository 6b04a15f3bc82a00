"""Kernel modules: what their files say, which are loaded from which build, and who uses them.

A module is a relocatable ELF file; its ``.modinfo`` section holds ``key=value`` strings, each
ended by a zero byte, and a note holds the identity of the build. Source:
include/linux/moduleparam.h of the kernel.

It may be followed by a PKCS#7 message, a fixed record with that message's length, and a magic text.
Source: struct module_signature in the kernel's include/linux/module_signature.h;
https://docs.kernel.org/admin-guide/module-signing.html.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Literal, NamedTuple

from provision.elf import elf_section
from provision.errors import ProvisionError
from provision.files import in_root
from provision.manifest import Manifest

# The part of a cgroup's path that names a pod by its uid: kubepods…/pod<uid>/ or …-pod<uid>.slice.
_POD = re.compile(r"kubepods.*[/-]pod([0-9a-f_-]{32,36})(?:[/.]|$)", re.MULTILINE)
_PERMANENT = "[permanent]"
# IFF_UP: https://docs.kernel.org/networking/netdevices.html, number in <linux/if.h>.
_IS_UP = 1


class LoadedModule(NamedTuple):
    """A module that the kernel has loaded."""

    # With ``_``, as the kernel writes it.
    name: str
    # Number of users, the modules in ``holders`` among them.
    references: int
    # Modules that use it.
    holders: tuple[str, ...]
    # The version that it states.
    version: str | None = None
    # A checksum of its source.
    srcversion: str | None = None
    # The note that identifies its build.
    build_id: bytes | None = None
    # Whether it can't be unloaded.
    is_permanent: bool = False


class User(NamedTuple):
    """Someone who keeps a module from being unloaded."""

    module: str
    # ``module``, ``process``, ``interface`` (of the network), or ``kernel`` if no more is known.
    kind: Literal["module", "process", "interface", "kernel"]
    name: str

    def __str__(self) -> str:
        return f"{self.module} is used by {self.name}"


def loaded_modules(root: Path) -> dict[str, LoadedModule]:
    """Return the loaded modules by name; empty if no kernel runs under the root.

    Sources: proc(5), /proc/modules; /sys/module in
    https://docs.kernel.org/admin-guide/abi-stable.html.
    """
    try:
        lines = in_root(root, "proc/modules").read_text().splitlines()
    except FileNotFoundError:
        return {}
    modules = (_loaded(line, in_root(root, "sys/module")) for line in lines if line.strip())
    return {module.name: module for module in modules}


def other_builds(
    manifest: Manifest, entry: Path, loaded: Mapping[str, LoadedModule]
) -> tuple[str, ...]:
    """Return the modules of an artifact that are loaded from another build."""
    present = [module for module in manifest.modules if module.name in loaded]
    return tuple(m.name for m in present if not is_same_build(entry / m.path, loaded[m.name]))


def is_same_build(module: Path, loaded: LoadedModule) -> bool:
    """Return whether a loaded module is that of a file.

    They are compared by the build id; if one side lacks it, by the checksum of the source; if one
    side lacks that too, by the version.
    """
    try:
        build_id, info = read_identity(module)
    except (ProvisionError, OSError):
        # Verification reports such a file; the kernel can't have loaded it.
        return False
    if build_id is not None and loaded.build_id is not None:
        return build_id == loaded.build_id
    srcversion = info.get("srcversion")
    if srcversion is not None and loaded.srcversion is not None:
        return srcversion == loaded.srcversion
    return info.get("version") == loaded.version


def users_of(
    names: Iterable[str],
    loaded: Mapping[str, LoadedModule],
    *,
    devices: Iterable[str] = (),
    root: Path,
) -> tuple[User, ...]:
    """Return the users that keep modules from being unloaded; empty if they can be unloaded.

    Args:
        names: The modules, which are unloaded together: their use of each other doesn't count.
        devices: Globs below ``/dev`` of the modules' devices, by which processes are found.
    """
    removed = [name for name in names if name in loaded]
    users: list[User] = []
    for name in removed:
        module = loaded[name]
        users += [User(name, "module", f"the module {h}") for h in set(module.holders) - {*removed}]
        users += [User(name, "interface", f"the network interface {i}") for i in _up(root, name)]
        if module.is_permanent:
            users.append(User(name, "kernel", "the kernel: it can't be unloaded at all"))
        elif module.references > len(module.holders):
            users += _openers(name, devices, root)
    return tuple(sorted(set(users), key=lambda user: (removed.index(user.module), user.name)))


def _loaded(line: str, modules: Path) -> LoadedModule:
    name, _size, references, users, *_ = line.split()
    folder = modules / name
    holders = [user for user in users.split(",") if user not in {"", "-"}]
    return LoadedModule(
        name=name,
        # A kernel that can't unload modules does not count references.
        references=0 if references == "-" else int(references),
        holders=tuple(user for user in holders if user != _PERMANENT),
        version=_text(folder / "version"),
        srcversion=_text(folder / "srcversion"),
        build_id=_bytes(folder / "notes/.note.gnu.build-id"),
        is_permanent=_PERMANENT in holders or references == "-",
    )


def _up(root: Path, module: str) -> list[str]:
    """Return the network interfaces of a module that are up: the kernel counts no references."""
    found = []
    for interface in sorted(in_root(root, "sys/class/net").glob("*")):
        driver = interface / "device/driver/module"
        flags = _text(interface / "flags")
        if driver.exists() and driver.resolve().name == module and flags is not None:
            found += [interface.name] if int(flags, 16) & _IS_UP else []
    return found


def _openers(module: str, devices: Iterable[str], root: Path) -> list[User]:
    patterns = [f"/dev/{pattern}" for pattern in devices]
    found = []
    for process in in_root(root, "proc").glob("[0-9]*"):
        paths = _open_files(process)
        opened = {path for path in paths if any(fnmatchcase(path, one) for one in patterns)}
        if opened:
            name = _text(process / "comm") or "?"
            whose = f"process {process.name}{_of_pod(process, root)}"
            found.append(User(module, "process", f"{name} ({whose}), {', '.join(sorted(opened))}"))
    return found or [
        User(module, "kernel", "a process or the kernel; no process has a device open")
    ]


def _of_pod(process: Path, root: Path) -> str:
    """Return the pod of Kubernetes that a process is of, in words; empty if it is of none.

    Sources: kubepods in pkg/kubelet/cm/cgroup_manager_linux.go of Kubernetes, for both drivers of
    cgroups; the folders of /var/log/pods in pkg/kubelet/kuberuntime/helpers.go.
    """
    found = _POD.search(_text(process / "cgroup") or "")
    if found is None:
        return ""
    uid = found[1].replace("_", "-")
    logs = next(in_root(root, "var/log/pods").glob(f"*_{uid}"), None)
    if logs is None:
        return f" of the pod {uid}"
    namespace, name, _ = logs.name.rsplit("_", 2)
    return f" of the pod {namespace}/{name}"


def _open_files(process: Path) -> list[str]:
    try:
        return [str(link.readlink()) for link in (process / "fd").iterdir()]
    except OSError:
        # The process has ended, or this user may not look at it.
        return []


def _text(path: Path) -> str | None:
    data = _bytes(path)
    return None if data is None else data.decode(errors="replace").strip()


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


# The exceptions that parsing raises for bytes that are no module.
UNREADABLE = (struct.error, IndexError, ValueError)
_MODINFO = b".modinfo"
_BUILD_ID = b".note.gnu.build-id"
MAGIC = b"~Module signature appended~\n"
# algo, hash, id_type, signer_len, key_id_len, three bytes of padding, sig_len.
_RECORD = struct.Struct(">5B3xI")
_PKCS7 = 2


def parse_modinfo(data: bytes | mmap) -> dict[str, str]:
    """Return the first value of each key of a module's bytes.

    Raises:
        UNREADABLE: They are not those of a 64-bit ELF file with a ``.modinfo`` section.
    """
    values: dict[str, str] = {}
    for entry in elf_section(data, _MODINFO).split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator:
            values.setdefault(key.decode("ascii", "replace"), value.decode("utf-8", "replace"))
    return values


def read_identity(path: Path) -> tuple[bytes | None, dict[str, str]]:
    """Return the build-id note of a module file, if it has one, and its modinfo.

    Only these parts are read: modules of 60 MB are not rare.
    """
    try:
        with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            info = parse_modinfo(data)
            try:
                return elf_section(data, _BUILD_ID), info
            except ValueError:
                return None, info
    except UNREADABLE as error:
        raise ProvisionError(
            f"'{path}' is no kernel module: {error}",
            resolution="Have the artifact made again: provision apply",
        ) from error


class Appended(NamedTuple):
    """A signature at the end of a module."""

    # Number of bytes before it; these are signed.
    content_size: int
    # The PKCS#7 message, in DER.
    message: bytes


def find_signature(data: bytes | mmap) -> Appended | None:
    """Return the signature at the end of a module's bytes; None if it has none.

    Raises:
        ValueError: The magic text is there, and the bytes before it are not a valid signature.
    """
    size = len(data)
    record_at = size - len(MAGIC) - _RECORD.size
    if record_at < 0 or data[size - len(MAGIC) : size] != MAGIC:
        return None
    algorithm, hash_, kind, signer, key_id, length = _RECORD.unpack(
        data[record_at : record_at + _RECORD.size]
    )
    if (algorithm, hash_, kind, signer, key_id) != (0, 0, _PKCS7, 0, 0):
        raise ValueError("its signature is of a kind that the kernel does not take")
    begin = record_at - length
    if begin < 0:
        raise ValueError("its signature is longer than the module")
    return Appended(begin, data[begin:record_at])


def read_signature(path: Path) -> Appended | None:
    """Return the signature of a module file; None if it has none."""
    if path.stat().st_size == 0:
        return None
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        return find_signature(data)


def append_signature(path: Path, message: bytes) -> None:
    """Append a signature to a module file; an earlier signature in it no longer counts.

    Args:
        path: The module, which must not be in use yet: a killed run leaves it half written.
    """
    record = _RECORD.pack(0, 0, _PKCS7, 0, 0, len(message))
    with path.open("ab") as stream:
        stream.write(message + record + MAGIC)


def content_digest(path: Path, appended: Appended) -> str:
    """Return the sha256 of a module without its signature, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(appended.content_size)).hexdigest()
