"""Makes the initramfs of a host again, where it has modules that are blacklisted or no longer are.

udev loads modules in the initramfs too, before the root filesystem with its modprobe.d is there.

Sources: update-initramfs(8), lsinitramfs(8); dracut(8), lsinitrd(1); systemd-run(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root
from provision.run import find_program, run, unconfined

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
_SECONDS = 900.0


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
        if without and not _has(lists, release, without):
            continue
        run(
            unconfined(_of(makes, release)),
            why=f"make the initramfs of {release} again",
            timeout=_SECONDS,
        )
        made.append(release)
    return made


def _has(lists: Sequence[str], release: str, names: Sequence[str]) -> bool:
    """Return whether an initramfs has one of some modules; a kernel without one has none."""
    try:
        text = run(_of(lists, release), why=f"list the initramfs of {release}").stdout
    except ProvisionError:
        return False
    files = re.findall(r"\S+\.ko(?:\.\w+)?\b", text)
    return not {module_name(file) for file in files}.isdisjoint(names)


def _of(words: Sequence[str], release: str) -> list[str]:
    return [word.format(release=release) for word in words]
