"""The kernels that a host may boot: the boot loader's default, deployments, slots, images.

What may be booted again is more than what an updater says comes next: the deployment before this
one, the other slot, an older image. All of that is read from the disk; no program is asked, so that
a broken updater can't make a kernel disappear.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, text_in_root
from provision.run import find_program, run, unconfined

# "CURRENT_OP=UPDATE_STATUS_UPDATED_NEED_REBOOT": the update is complete and boots next.
_COMPLETE = "UPDATE_STATUS_UPDATED_NEED_REBOOT"
# A kernel image on x86: "HdrS" at 0x202; at 0x20e the version's address, counted from 0x200.
# Source: https://docs.kernel.org/arch/x86/boot.html
_SETUP = 0x200
_MAGIC = (0x202, b"HdrS")
_VERSION = 0x20E
_HEADER_BYTES = 0x8000
# One on arm64: "ARM\x64" at 0x38, and no version but the text that the kernel logs first.
# Source: https://docs.kernel.org/arch/arm64/booting.html
_ARM64_MAGIC = (0x38, b"ARM\x64")
_BANNER = rb"Linux version (\S+) \("
_PARTITION_LABELS = "dev/disk/by-partlabel"
_SECONDS = 900.0
# It runs in its own mount namespace, so that nothing stays mounted, however it ends. Links are
# refused: a link to /usr would lead into the running /usr.
_SCRIPT = """\
set -e
device=$1 mounted=$2 folder=$3 draft=$4 known=$5
shift 5
mount -o ro "$device" "$mounted"
if [ ! -d "$mounted/$folder" ] || [ -L "$mounted/$folder" ]; then echo absent; exit; fi
# For each file: name, kind, mode, size, both times of change, inode, and the target of a link.
cd "$mounted/$folder"
found=$(find . -printf '%P\\0%y %m %s %T@ %C@ %i %l\\0' | sort -z | sha256sum)
echo "${found%% *}"
[ "${found%% *}" != "$known" ] || exit 0
exec tar --create "$@" --file "$draft" --directory "$mounted/$folder" .
"""
_ABSENT = "absent"

# Runs a program and returns its output; None if the program is missing or fails.
Ask = Callable[[Sequence[str]], str | None]


class BootKernels(NamedTuple):
    """Kernels that may be booted, and what is not known about them, for people."""

    releases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def next_of_ostree(root: Path, status: str | None) -> BootKernels:
    """Return the kernel of the deployment that boots next, unless that is the booted one.

    Args:
        status: The output of ``rpm-ostree status --json``. It lists deployments in the order of the
            boot loader.
    """
    try:
        first = json.loads(status or "")["deployments"][0]
        if first["booted"]:
            return BootKernels()
        name = f"{first['osname']}/deploy/{first['checksum']}.{first['serial']}"
    except IndexError:
        return BootKernels()
    except (ValueError, KeyError, TypeError):
        note = "'rpm-ostree status --json' does not say what boots next; run it by hand"
        return BootKernels(notes=(note,))
    folder = in_root(root, f"ostree/deploy/{name}")
    releases = _kernels_of_deployment(folder)
    notes = () if releases else (f"there is no kernel in {folder / 'usr/lib/modules'}",)
    return BootKernels(releases, notes)


def _kernels_of_deployment(folder: Path) -> tuple[str, ...]:
    # A deployment is a root.
    return tuple(path.parent.name for path in glob_in_root(folder, "usr/lib/modules/*/vmlinuz"))


def next_of_flatcar(root: Path, status: str | None) -> BootKernels:
    """Return the kernel of the slot that boots next, if an update waits for its reboot.

    Flatcar's updater copies the kernel to the boot partition, as ``vmlinuz-a`` or ``vmlinuz-b``.
    Source: flatcar-postinst in https://github.com/flatcar/update_engine.
    """
    fields = dict(re.findall(r"^([A-Z_]+)=(.*)$", status or "", re.MULTILINE))
    if not fields.get("CURRENT_OP", "").startswith("UPDATE_STATUS_"):
        note = "'update_engine_client -status' does not say what is next; run it by hand"
        return BootKernels(notes=(note,))
    if fields["CURRENT_OP"] != _COMPLETE:
        return BootKernels()
    version = fields.get("NEW_VERSION", "?")
    try:
        booted = in_root(root, "proc/cmdline").read_text()
        other = "a" if re.search(r"BOOT_IMAGE=\S*vmlinuz-b\b", booted) else "b"
        return BootKernels((image_release(in_root(root, f"boot/flatcar/vmlinuz-{other}")),))
    except (OSError, ValueError) as error:
        return BootKernels(notes=(f"the kernel of the update {version} can't be read: {error}",))


def image_release(path: Path) -> str:
    """Return the release that a kernel image for x86 or arm64 states."""
    with path.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
        if _has(head, _ARM64_MAGIC):
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as image:
                if (banner := re.search(_BANNER, image)) is None:
                    raise ValueError(f"'{path}' does not say its version")
                return bytes(banner[1]).decode("ascii", "replace")
    if not _has(head, _MAGIC) or len(head) < _VERSION + 2:
        raise ValueError(f"'{path}' is no kernel image for x86 or arm64")
    (offset,) = struct.unpack_from("<H", head, _VERSION)
    text = head[_SETUP + offset :].split(b"\0", 1)[0].decode("ascii", "replace")
    if not offset or not text:
        raise ValueError(f"'{path}' does not say its version")
    return text.split(" ", 1)[0]


def _has(head: bytes, magic: tuple[int, bytes]) -> bool:
    at, expected = magic
    return head[at : at + len(expected)] == expected


def other_slot(root: Path) -> Path | None:
    """Return the device of the /usr that is not booted; None if the host has no such slots.

    Source: https://www.flatcar.org/docs/latest/reference/developer-guides/sdk-disk-partitions/
    """
    booted = text_in_root(root, "proc/cmdline")
    if booted is None:
        return None
    other = "A" if re.search(r"BOOT_IMAGE=\S*vmlinuz-b\b", booted) else "B"
    device = in_root(root, f"{_PARTITION_LABELS}/USR-{other}", follow=False)
    return device if device.exists() else None


def pack_from_slot(
    root: Path, folder: str, draft: Path, options: Sequence[str], *, known: str | None = None
) -> str | None:
    """Pack a folder of the slot that is not booted into a tar file, unless it is unchanged.

    Args:
        known: Fingerprint of the state that has been packed before.

    Returns:
        Fingerprint of the folder's state; if it is the known one, nothing was packed. None if the
        host has no such slot, or the slot has no such folder.
    """
    device = other_slot(root)
    if device is None:
        return None
    with tempfile.TemporaryDirectory(prefix="provision-usr-") as mounted:
        places = [str(device), mounted, folder, str(draft), known or ""]
        shell = ["sh", "-c", _SCRIPT, "sh", *places, *options]
        done = run(
            ["unshare", "--mount", "--propagation", "private", *shell],
            why="read the kernel tree in the slot that boots next",
            timeout=_SECONDS,
        )
    output = done.stdout.strip()
    return None if output == _ABSENT else output


GRUB_ENVIRONMENTS = ("boot/grub2/grubenv", "boot/grub/grubenv")
GRUB_SETTINGS = "etc/default/grub"
# Debian's grub-mkconfig reads them after the settings, in the order of their names.
GRUB_DROP_INS = "etc/default/grub.d"
NAME_AN_ENTRY = (
    "name it by its id, as grub.cfg has it (GRUB_DEFAULT='SUBMENU>ENTRY'), or use GRUB_DEFAULT=0"
)


def default_kernel(root: Path, ask: Ask, installed: Sequence[str]) -> BootKernels:
    """Return the kernel that the boot loader starts if no one chooses another, if it is known.

    Sources: grubby(8); info grub-editenv and "Simple configuration" in info grub; bootctl(1).

    Args:
        installed: The kernels that are installed; entries have their names in titles and ids.
    """
    # On an EL it knows all boot loaders.
    found = named(ask(("grubby", "--default-kernel")) or "", installed)
    if found is not None:
        return BootKernels((found,))
    for key, value in _grub_defaults(root):
        found = named(value, installed)
        if found is not None:
            return BootKernels((found,))
        if is_numbered(value):
            note = f"the boot loader starts its entry number {value} ({key}), of an unknown kernel:"
            return BootKernels(notes=(f"{note} {NAME_AN_ENTRY}",))
    if not any(in_root(root, name).parent.is_dir() for name in GRUB_ENVIRONMENTS):
        output = ask(("bootctl", "list", "--json=short")) or "[]"
        with suppress(ValueError, AttributeError):
            defaults = [json.dumps(entry) for entry in json.loads(output) if entry.get("isDefault")]
            found = named(" ".join(defaults), installed)
    return BootKernels((found,) if found else ())


def _grub_defaults(root: Path) -> Iterator[tuple[str, str]]:
    file, setting = grub_setting(root)
    # What is saved has no effect with any other setting. An image may lack the settings.
    is_saved = setting == "saved" or not in_root(root, GRUB_SETTINGS).is_file()
    # The first is for one boot only, and counts before the other.
    keys = ("next_entry", "saved_entry") if is_saved else ("next_entry",)
    for name in GRUB_ENVIRONMENTS:
        saved = assignments(root, name)
        yield from ((f"/{name}", saved[key]) for key in keys if saved.get(key))
    if setting not in {"", "saved"}:
        yield f"/{file}", setting


def is_numbered(value: str) -> bool:
    """Return whether a default is an entry's number, which only the menu explains.

    Entry 0 is the newest kernel.
    """
    return re.fullmatch(r"[0-9>]+", value) is not None and value != "0"


def grub_setting(root: Path, *, without: PurePath | None = None) -> tuple[str, str]:
    """Return the last file that sets GRUB_DEFAULT, and the value; empty if none does.

    Args:
        without: A drop-in that is left out.
    """
    drop_ins = sorted(glob_in_root(root, f"{GRUB_DROP_INS}/*.cfg"))
    found = (GRUB_SETTINGS, "")
    for name in (GRUB_SETTINGS, *(str(path) for path in drop_ins if path != without)):
        value = assignments(root, name).get("GRUB_DEFAULT", "").strip("\"'")
        found = (name, value) if value else found
    return found


def assignments(root: Path, name: str) -> dict[str, str]:
    """Return the lines ``NAME=VALUE`` of a file; a file that can't be read has none."""
    return dict(re.findall(r"(?m)^\s*(\w+)=(.*?)\s*$", text_in_root(root, name) or ""))


def named(text: str, releases: Sequence[str]) -> str | None:
    """Return the kernel that a text names, of some releases."""
    longest_first = sorted(releases, key=len, reverse=True)
    return next(
        (name for name in longest_first if re.search(rf"(?<![\d.]){re.escape(name)}(?!\w)", text)),
        None,
    )


_SLOTS = ("a", "b")
# Where distros, ostree and kernel-install(8) put kernel images; unified ones are TOKEN-RELEASE.efi,
# with the number of tries left. Each name has the kernel's release, however a menu calls its entry.
_IMAGES = (
    "boot/*-*",
    "boot/ostree/*/*-*",
    *(
        f"{partition}/{image}"
        for partition in ("boot", "efi", "boot/efi")
        for image in ("*/*/linux", "EFI/Linux/*.efi")
    ),
)
_IMAGE = (
    r"(?:vmlinuz|vmlinux|bzImage|zImage|linux|kernel|Image)-(?P<plain>\d+\.\d+[^/]*)$"
    r"|/(?P<folder>\d+\.\d+[^/]*)/linux$"
    r"|-(?P<unified>\d+\.\d+[^/]*?)(?:\+\d+(?:-\d+)?)?\.efi$"
)


def boot_entries(root: Path) -> BootKernels:
    """Return the kernels of all deployments, slots and images of a host."""
    warnings: list[str] = []
    found: list[str] = []
    for reader in (_deployments, _slots, _images):
        try:
            found += reader(root, warnings)
        except OSError as error:
            # A link that leads in a circle, for example.
            warnings.append(f"'{error.filename}' can't be read: {error.strerror or error}")
    return BootKernels(tuple(dict.fromkeys(found)), tuple(warnings))


def _deployments(root: Path, warnings: list[str]) -> Iterator[str]:
    """Yield the kernels of every deployment of ostree, that of a rollback among them.

    Source: https://ostreedev.github.io/ostree/deployment/
    """
    if not in_root(root, "run/ostree-booted").exists():
        return
    found = (in_root(root, p) for p in glob_in_root(root, "ostree/deploy/*/deploy/*.[0-9]*"))
    deployments = [path for path in found if path.is_dir()]
    if not deployments:
        warnings.append(f"there is no deployment in {root / 'ostree/deploy'}")
    for deployment in deployments:
        yield from _kernels_of_deployment(deployment)


def _slots(root: Path, warnings: list[str]) -> Iterator[str]:
    """Yield the kernels of both of Flatcar's slots; a slot that was never written has no kernel."""
    for name in _SLOTS:
        path = in_root(root, f"boot/flatcar/vmlinuz-{name}")
        if not path.exists():
            continue
        try:
            yield image_release(path)
        except (OSError, ValueError) as error:
            warnings.append(f"the kernel of the slot {name} can't be read: {error}")


def _images(root: Path, _doubts: list[str]) -> Iterator[str]:
    for pattern in _IMAGES:
        for path in glob_in_root(root, pattern):
            match = re.search(_IMAGE, f"/{path}")
            if match is not None:
                yield next(release for release in match.groups() if release)


IF_IT_COMES_BACK = (
    "If it is loaded again after a reboot, the initramfs loads it: make that again (Debian, Ubuntu:"
    " update-initramfs -u -k all; RHEL, Fedora, SUSE: dracut --force --regenerate-all; ostree:"
    " rpm-ostree kargs --append=rd.driver.blacklist=MODULE)."
)
# Each program that makes an initramfs, what lists the files in one, and what makes one. The first
# that a host has is the one it uses: Debian's dracut brings an update-initramfs of its own.
_MAKERS = (
    (
        ("lsinitramfs", "/boot/initrd.img-{release}"),
        ("update-initramfs", "-u", "-k", "{release}"),
    ),
    (("lsinitrd", "--kver", "{release}"), ("dracut", "--force", "--kver", "{release}")),
)


def in_tree(root: Path, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return which of some modules each kernel of a host has in its /lib/modules."""
    wanted = {name.replace("-", "_") for name in names}
    found = {}
    for folder in ("usr/lib/modules", "lib/modules"):
        for path in glob_in_root(root, f"{folder}/*/modules.dep"):
            text = in_root(root, path).read_text(errors="replace")
            files = (line.partition(":")[0] for line in text.splitlines())
            present = wanted & {module_name(file) for file in files}
            if present:
                found[path.parent.name] = frozenset(present)
    return found


def module_name(file: str) -> str:
    """Return the name of a module by its file, which may be compressed."""
    return PurePosixPath(file).name.partition(".ko")[0].replace("-", "_")


def make_again(kernels: Iterable[str], without: Sequence[str]) -> list[str]:
    """Make the initramfs of kernels again.

    Args:
        without: Only where it has one of these modules; empty: everywhere.

    Returns:
        The kernels whose initramfs was made.
    """
    if Path("/run/ostree-booted").exists():
        raise NotFoundError("ostree makes the initramfs.", resolution=IF_IT_COMES_BACK)
    maker = next((pair for pair in _MAKERS if all(find_program(words[0]) for words in pair)), None)
    if maker is None:
        programs = " or ".join(make[0] for _, make in _MAKERS)
        raise NotFoundError(f"There is no {programs} here.", resolution=IF_IT_COMES_BACK)
    lists, makes = maker
    made = []
    for release in kernels:
        if without and not _holds_one(lists, release, without):
            continue
        run(
            unconfined(_of(makes, release)),
            why=f"make the initramfs of {release} again",
            timeout=_SECONDS,
        )
        made.append(release)
    return made


def _holds_one(lists: Sequence[str], release: str, names: Sequence[str]) -> bool:
    """Return whether an initramfs has one of some modules; a kernel without one has none."""
    try:
        text = run(_of(lists, release), why=f"list the initramfs of {release}").stdout
    except ProvisionError:
        return False
    files = re.findall(r"\S+\.ko(?:\.\w+)?\b", text)
    return not {module_name(file) for file in files}.isdisjoint(names)


def _of(words: Sequence[str], release: str) -> list[str]:
    return [word.format(release=release) for word in words]
