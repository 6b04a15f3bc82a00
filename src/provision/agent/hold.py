"""Holds the boot loader's default while the kernel that would boot lacks a driver.

``[policy] hold_kernels`` asks for it. The default is then the newest kernel that has every driver,
set by the boot loader's own means, and what was set before comes back as soon as no driver lacks.
What someone else sets meanwhile stays.

Sources: info grub, "Simple configuration"; grub-editenv(1); bootctl(1);
https://systemd.io/BOOT_LOADER_INTERFACE.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from provision.agent.model import Desired, Held, Hold, Observed
from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, write_atomic
from provision.host import STORE
from provision.host.boot import (
    GRUB_DROP_INS,
    GRUB_ENVIRONMENTS,
    NAME_AN_ENTRY,
    assignments,
    grub_setting,
    is_numbered,
    named,
)
from provision.host.kernels import is_running_host, kernel_flavour, kernel_order, on_host
from provision.kmod.verify import stored_manifest
from provision.progress import Note, report
from provision.run import run, unconfined
from provision.store.entries import linked_kernels
from provision.store.layout import Layout

RECORD = STORE / ".hold.json"
_DROP_IN = PurePosixPath(GRUB_DROP_INS, "zz-provision.cfg")
_MENUS = ("boot/grub2/grub.cfg", "boot/grub/grub.cfg")
_FLATCAR = "boot/flatcar"
_BLS_ENTRIES = "boot/loader/entries"
_EFI_DEFAULT = PurePosixPath(
    "sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
)
# Before the text of an EFI variable, in UTF-16, are its attributes.
_EFI_ATTRIBUTES = 4
_SECONDS = 900.0
OTHER_LOADERS = (
    "Hold the kernel's package instead (apt-mark hold, dnf versionlock), or set [policy]"
    " hold_kernels = false."
)


@dataclass(frozen=True, slots=True)
class _Loader(ABC):
    """A boot loader: the one value that decides about its default, and is set here."""

    root: Path

    @abstractmethod
    def value(self) -> str | None:
        """Return the value; None: it is not set."""

    @abstractmethod
    def put(self, value: str | None) -> None:
        """Set the value, or unset it."""

    def beside(self) -> str:
        """Return the setting that names the default as long as the value is not set, if any."""
        return ""

    def entry(self, kernel: str) -> str | None:
        """Return the name of a kernel's entry; None: it has none."""
        return _menu_entry(self.root, kernel)

    def value_for(self, _held_kernel: str, entry: str) -> str:
        """Return the value that makes an entry the default."""
        return entry


@dataclass(frozen=True, slots=True)
class _GrubEnvironment(_Loader):
    """GRUB with ``GRUB_DEFAULT=saved``: the default is in its environment block."""

    file: str

    def value(self) -> str | None:
        return assignments(self.root, self.file).get("saved_entry") or None

    def put(self, value: str | None) -> None:
        is_named_2 = in_root(self.root, "usr/bin/grub2-editenv").exists()
        editor = "grub2-editenv" if is_named_2 else "grub-editenv"
        words = ("unset", "saved_entry") if value is None else ("set", f"saved_entry={value}")
        _tell(self.root, editor, f"/{self.file}", *words)

    def entry(self, kernel: str) -> str | None:
        for path in glob_in_root(self.root, f"{_BLS_ENTRIES}/*.conf"):
            # https://uapi-group.org/specifications/specs/boot_loader_specification
            text = in_root(self.root, path).read_text(errors="replace")
            image = re.search(r"(?m)^linux\s+(\S+)", text)
            if image is not None and named(image[1], [kernel]):
                return path.stem
        return _menu_entry(self.root, kernel)


class GrubDropIn(_Loader):
    """Debian's GRUB with any other ``GRUB_DEFAULT``: a file after the host's own overrides it."""

    __slots__ = ()

    def value(self) -> str | None:
        """Return the drop-in's text; None: there is none."""
        path = in_root(self.root, _DROP_IN)
        return path.read_text(errors="replace") if path.is_file() else None

    def put(self, value: str | None) -> None:
        """Write the drop-in, or remove it, and have the menu made again."""
        path = in_root(self.root, _DROP_IN, follow=False)
        if value is None:
            path.unlink(missing_ok=True)
        else:
            write_atomic(path, value)
        _tell(self.root, "update-grub")

    def beside(self) -> str:
        """Return ``GRUB_DEFAULT`` as it is without the drop-in."""
        return grub_setting(self.root, without=_DROP_IN)[1] or "0"

    def value_for(self, held_kernel: str, entry: str) -> str:
        """Return the drop-in that makes an entry the default."""
        # A package manager that removes the kernel runs update-grub, which then finds no image;
        # without a record, nobody would give the default back.
        return (
            "# Written by provision, as [policy] hold_kernels of provision.toml asks for, and"
            " removed when the\n# next kernel has its drivers: provision status\n"
            f"if [ -e /boot/vmlinuz-{held_kernel} ] && [ -e /{RECORD} ]; then\n"
            f"    GRUB_DEFAULT='{entry}'\n"
            "    GRUB_SAVEDEFAULT=false\n"
            "fi\n"
        )


class _SystemdBoot(_Loader):
    """systemd-boot: the default is in a variable of the firmware."""

    __slots__ = ()

    def value(self) -> str | None:
        try:
            data = in_root(self.root, _EFI_DEFAULT).read_bytes()[_EFI_ATTRIBUTES:]
        except OSError:
            return None
        return data.decode("utf-16-le", "replace").rstrip("\0") or None

    def put(self, value: str | None) -> None:
        # An empty name removes the variable.
        _tell(self.root, "bootctl", "set-default", value or "")

    def entry(self, kernel: str) -> str | None:
        entries = json.loads(_tell(self.root, "bootctl", "list", "--json=short") or "[]")
        found = (one for one in entries if named(json.dumps(one), [kernel]))
        return next((str(one["id"]) for one in found if one.get("id")), None)


def _menu_entry(root: Path, kernel: str) -> str | None:
    """Return GRUB's name of a kernel's entry in its menu, with that of its submenu.

    Source: util/grub.d/10_linux.in of GRUB.
    """
    menu = next((in_root(root, name) for name in _MENUS if in_root(root, name).is_file()), None)
    submenu = ""
    for line in menu.read_text(errors="replace").splitlines() if menu else ():
        found = re.match(r"\s*(menuentry|submenu) .*\$menuentry_id_option '([^']+)'", line)
        if line == "}":
            submenu = ""
        elif found and found[1] == "submenu":
            submenu = f"{found[2]}>"
        elif found and found[2].startswith(f"gnulinux-{kernel}-advanced-"):
            return submenu + found[2]
    return None


def _loader_of(root: Path) -> _Loader:
    """Return the boot loader whose default can be set here.

    Raises:
        NotFoundError: There is none.
    """
    none = NotFoundError(
        "this host has no boot loader whose default provision can set.",
        resolution=OTHER_LOADERS,
    )
    if in_root(root, "run/ostree-booted").exists():
        # The order of deployments decides, and not an entry.
        raise none
    file = next((name for name in GRUB_ENVIRONMENTS if in_root(root, name).is_file()), None)
    if in_root(root, _DROP_IN).is_file():
        return GrubDropIn(root)
    if file is not None and grub_setting(root, without=_DROP_IN)[1] == "saved":
        return _GrubEnvironment(root, file)
    if in_root(root, "usr/sbin/update-grub").exists():
        return GrubDropIn(root)
    if in_root(root, _EFI_DEFAULT.parent).is_dir() and in_root(root, "usr/bin/bootctl").exists():
        return _SystemdBoot(root)
    raise none


def _default_of(loader: _Loader, held: Held | None) -> str:
    """Return what names the default if nothing is held; empty: nothing does.

    Raises:
        NotFoundError: Only the loader's menu says which kernel that is.
    """
    text = loader.beside() or (held.before if held else loader.value()) or ""
    if is_numbered(text):
        raise NotFoundError(
            f"the boot loader's default is its entry number {text}, of an unknown kernel:"
            f" {NAME_AN_ENTRY}.",
            resolution=OTHER_LOADERS,
        )
    return text


def read_hold(root: Path, installed: Sequence[str]) -> Hold:
    """Return what is held: what the last run set, unless someone has changed it.

    Args:
        installed: The kernels that can boot. What is set for one that was removed has no effect.
    """
    hold = _recorded(root)
    if hold.held is None or not hold.held.is_set:
        return hold
    if hold.held.kernel not in installed:
        return Hold(problem=f"{hold.held.kernel}, which was held, is no longer installed")
    try:
        is_changed = _is_changed(_loader_of(root), hold.held)
    except NotFoundError:
        is_changed = True
    except OSError as error:
        return Hold(problem=f"its setting can't be read: {error}")
    return Hold(left=hold.held.instead_of) if is_changed else hold


def _is_changed(loader: _Loader, held: Held) -> bool:
    return loader.value() != held.ours or loader.beside() != held.beside


def _recorded(root: Path) -> Hold:
    path = in_root(root, RECORD)
    try:
        return load_json(path, Hold) if path.exists() else Hold()
    except ProvisionError as error:
        return Hold(problem=error.message)


def settle(root: Path, desired: Desired, observed: Observed | None) -> Hold:
    """Hold the boot loader's default, or give it back, as the kernels' drivers are.

    A failure is part of the result: it costs no driver. The caller holds the host's lock.

    Args:
        observed: The host; None: nothing is held any more, whatever the policy says.
    """
    before = _recorded(root)
    if observed is not None and not desired.config.policy.hold_kernels:
        observed = None
    # Another machine boots another root, and its programs are not run here.
    if (observed is None and before == Hold()) or not is_running_host(root):
        return before
    if in_root(root, _FLATCAR).is_dir():
        return before
    holding = _Holding(root, before)
    try:
        holding.settle(desired, observed)
        holding.store(problem=None)
    except (OSError, ProvisionError, ValueError) as error:
        problem = error.message if isinstance(error, ProvisionError) else str(error)
        if problem != before.problem:
            report(Note(f"The boot loader's default is as it was: {problem}"))
        holding.store(problem=problem)
    return holding.hold


class _Holding:
    def __init__(self, root: Path, hold: Hold) -> None:
        self.root = root
        self.hold = hold

    @cached_property
    def loader(self) -> _Loader:
        return _loader_of(self.root)

    def settle(self, desired: Desired, observed: Observed | None) -> None:
        held = self.hold.held
        if held is not None and held.is_set and _is_changed(self.loader, held):
            report(Note(f"Someone has set another default than {held.kernel}, which stays"))
            if self.loader.value() == held.ours:
                self.loader.put(held.before)
            self.hold, held = Hold(left=held.instead_of), None
            self.store()
        would_boot = self._would_boot(observed, held) if observed else None
        kernel = None
        if observed is not None and would_boot is not None and would_boot != self.hold.left:
            kernel = self._newest_ready(desired, observed, would_boot)
        if kernel is not None and would_boot is not None:
            self._keep(kernel, would_boot, held)
        elif held is not None:
            self._give_back(held)
        if observed is None or would_boot != self.hold.left:
            self.hold = self.hold.model_copy(update={"left": None})

    def _would_boot(self, observed: Observed, held: Held | None) -> str | None:
        installed = observed.kernels.installed
        return named(_default_of(self.loader, held), installed) or next(iter(installed), None)

    def _newest_ready(self, desired: Desired, observed: Observed, would_boot: str) -> str | None:
        """Return the kernel to boot instead; None: that one is ready, or no older one is."""
        if _is_ready(self.root, desired, observed, would_boot):
            return None
        older = [
            release
            for release in observed.kernels.installed
            if kernel_order(release) < kernel_order(would_boot)
            and _is_ready(self.root, desired, observed, release)
        ]
        flavour = kernel_flavour(would_boot)
        return next(
            (one for one in older if kernel_flavour(one) == flavour), next(iter(older), None)
        )

    def _keep(self, kernel: str, would_boot: str, held: Held | None) -> None:
        entry = self.loader.entry(kernel)
        if entry is None:
            raise NotFoundError(
                f"its menu has no entry of {kernel}",
                resolution="Make the boot loader's menu again: update-grub (Debian),"
                " grub2-mkconfig -o /boot/grub2/grub.cfg (RHEL, SUSE).",
            )
        if held is not None and held.is_set and (held.kernel, held.entry) == (kernel, entry):
            self.hold = Hold(held=held.model_copy(update={"instead_of": would_boot}))
            return
        now, ours = self.loader.value(), self.loader.value_for(kernel, entry)
        new = Held(
            kernel=kernel,
            instead_of=would_boot,
            entry=entry,
            # Where the record was lost, ours is there.
            before=held.before if held else None if now == ours else now,
            ours=ours,
            beside=self.loader.beside(),
        )
        # If this process is killed after it, the next run does this again.
        self.hold = Hold(held=new)
        self.store()
        try:
            self.loader.put(new.ours)
        except (OSError, ProvisionError):
            with suppress(OSError, ProvisionError):
                self._give_back(new)
            raise
        self.hold = Hold(held=new.model_copy(update={"is_set": True}))
        report(Note(f"{kernel} boots next: {would_boot} lacks a driver"))

    def _give_back(self, held: Held) -> None:
        self.loader.put(held.before)
        self.hold = Hold()
        report(Note(f"The boot loader's default is no longer held at {held.kernel}"))

    def store(self, **changes: str | None) -> None:
        """Write the state down, if it is another."""
        self.hold = self.hold.model_copy(update=changes)
        path = in_root(self.root, RECORD, follow=False)
        if self.hold == Hold():
            path.unlink(missing_ok=True)
        else:
            write_atomic(path, self.hold.model_dump_json(indent=2) + "\n")


def _is_ready(root: Path, desired: Desired, observed: Observed, release: str) -> bool:
    for name in desired.drivers:
        artifact = observed.drivers[name].artifacts.get(release)
        if artifact is None:
            # A kernel that neither runs nor comes next was not looked at.
            layout = Layout(root, name)
            digest = linked_kernels(layout).get(release)
            if digest is None or stored_manifest(layout.entry(digest)) is None:
                return False
        elif not artifact.is_whole or artifact.distrust is not None:
            return False
    return True


def _tell(root: Path, *words: str) -> str:
    argv = unconfined(on_host(root, words))
    return run(argv, why="set the boot loader's default", timeout=_SECONDS).stdout
