"""The systemd units that run the agent, udev's rule, hooks of kernel packages, and Flatcar's gate.

They lie in /etc, where a host's own units belong. The links that ``systemctl enable`` would make
enable them, so that an image's root is prepared in the same way as a host. A program that systemd
could not start, because it is hidden from units or SELinux does not know it, is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from provision.errors import UsageError
from provision.files import glob_in_root, in_root, lock, selinux_label, switch_symlink
from provision.host import STORE
from provision.host.facts import selinux
from provision.progress import Note, report
from provision.run import find_program, run
from provision.store.foreign import RPM_DATABASES
from provision.store.layout import DAEMONS, ENGINES, SWITCH_SECONDS, UNITS, UNITS_LOCK
from provision.store.managed_files import Change, ManagedFiles, Record, refuse_foreign

# Packages of the distro put their units here; those in UNITS take precedence.
PACKAGED_UNITS = PurePosixPath("usr/lib/systemd/system")
KERNEL_HOOKS = PurePosixPath("etc/kernel")
UDEV_RULES = PurePosixPath("etc/udev/rules.d")
# The record of units, and copies of what others wrote in their places; no driver has this name.
UNITS_STORE = STORE / ".units"
_WAITING = "Another provision is writing units; waiting for it"
# The hooks that Debian's kernel packages and kernel-install run when a kernel comes or goes; both
# pass the kernel's release.
# Sources: https://kernel-team.pages.debian.net/kernel-handbook/ch-update-hooks.html and
# https://www.freedesktop.org/software/systemd/man/latest/kernel-install.html
_DEBIAN = ("header_postinst.d", "postinst.d", "postrm.d")
DEBIAN_HOOKS = tuple(KERNEL_HOOKS / folder / "provision" for folder in _DEBIAN)
KERNEL_INSTALL_HOOKS = (KERNEL_HOOKS / "install.d/95-provision.install",)
# flatcar-postinst finds it as /usr/share/oem/bin: on the OEM partition, which can be written.
# Source: https://www.flatcar.org/docs/latest/setup/releases/update-strategies/
_OEM_PROGRAMS = PurePosixPath("oem/bin")
# The units that start at once, without waiting for a boot.
WATCHERS = (
    "provision-kernel.path",
    "provision-apply.timer",
    "provision-repeat.timer",
    "provision-cdi.path",
    "provision-devices.path",
)
_CDI = "provision-cdi."
_UNIT_SUFFIXES = (".service.j2", ".path.j2", ".timer.j2")
# In a unit, blanks, quotes, '%' and '$' are special: systemd.service(5), COMMAND LINES.
_PROGRAM = re.compile(r"/[A-Za-z0-9._+/-]+")
_WANTED_BY = re.compile(r"^WantedBy=(\S+)$", re.MULTILINE)
# What a unit says where the program does not start. Quotes, '%' and '$' would be special.
_PACKAGED = "/usr/bin/provision"
_REPAIR_PACKAGE = (
    "install the package again: apt-get install --reinstall provision (dnf reinstall provision,"
    " zypper install --force provision)."
)
_REPAIR = (
    "install provision again, by your playbook (ansible-playbook site.yml) or, in the folder of its"
    " sources: python3 -m venv --clear /opt/provision && /opt/provision/bin/pip install ."
)
_FOREIGN = (
    "Put your changes into a drop-in (systemctl edit UNIT), or run the command with --replace,"
    " which keeps a copy in /var/lib/provision/.units."
)


class UnitFile(NamedTuple):
    """A unit or a hook: its path on the host, its text, and its permission bits."""

    path: PurePosixPath
    text: str
    mode: int


class UnitSettings(NamedTuple):
    """The values that the units of a host are rendered from."""

    # Absolute path of ``provision`` on the host.
    program: str
    # Address for ``Documentation=``.
    documentation: str
    # The hooks that the host's kernel packages run, from ``kernel_hooks``.
    hooks: Collection[PurePosixPath] = ()
    # Whether an update is held as long as drivers don't build for its kernel.
    with_gate: bool = False
    # Whether CDI specifications are written at boot and when drivers change.
    with_cdi: bool = True
    # Whether builds use podman, so that its socket is started for them.
    wants_podman: bool = False


def unit_files(templates: Path, settings: UnitSettings) -> list[UnitFile]:
    """Render all units, udev's rule, kernel hooks, and the gate that holds Flatcar's updates."""
    if not _PROGRAM.fullmatch(settings.program):
        raise UsageError(
            f"'{settings.program}' can't be run by a unit.",
            resolution="Give an absolute path without blanks and special characters (--program).",
        )
    values = {
        "program": settings.program,
        "documentation": settings.documentation,
        "wants_podman": settings.wants_podman,
        "repair": _REPAIR_PACKAGE if settings.program == _PACKAGED else _REPAIR,
    }

    def rendered(template: Path, folder: PurePosixPath, mode: int) -> UnitFile:
        text = filled(template.relative_to(templates).as_posix(), templates, **values)
        return UnitFile(folder / template.stem, text, mode)

    units = [
        p for p in sorted((templates / "systemd").iterdir()) if p.name.endswith(_UNIT_SUFFIXES)
    ]
    units = [p for p in units if settings.with_cdi or not p.name.startswith(_CDI)]
    files = [rendered(path, UNITS, 0o644) for path in units]
    # udev notices changes of its rules: systemd-udevd.service(8).
    rules = sorted((templates / "udev").glob("*.rules.j2"))
    files += [rendered(path, UDEV_RULES, 0o644) for path in rules]
    for hook in sorted(settings.hooks):
        files.append(rendered(templates / "kernel" / f"{hook.name}.j2", hook.parent, 0o755))
    if settings.with_gate:
        files.append(rendered(templates / "flatcar/oem-postinst.j2", _OEM_PROGRAMS, 0o755))
    return files


def filled(template: str, templates: Path, /, **values: object) -> str:
    """Return the text of a unit or a hook, which may use what other templates define."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        # The templates are units and scripts, not web pages.
        autoescape=False,  # noqa: S701
    )
    consumers = {"engines": ENGINES, "daemons": DAEMONS}
    return environment.get_template(template).render(consumers | values)


def enabling_links(files: Iterable[UnitFile]) -> dict[PurePosixPath, str]:
    """Return the links that enable units, as their ``[Install]`` sections ask for them."""
    return {
        UNITS / f"{target}.wants" / file.path.name: f"/{file.path}"
        for file in files
        if file.path.parent == UNITS
        for target in _WANTED_BY.findall(file.text)
    }


def kernel_hooks(root: Path) -> tuple[PurePosixPath, ...]:
    """Return the hooks that a host's kernel packages run; empty for image-based hosts.

    Kernel packages of Debian's family run the hooks in /etc/kernel. Those of the RPM families call
    kernel-install, which runs its plugins. If an RPM distro's packages do not call it, the plugin
    never runs, and provision-kernel.path notices the kernel's folder instead.
    """
    if in_root(root, "var/lib/dpkg").is_dir():
        return DEBIAN_HOOKS
    has_rpm = any(in_root(root, name).is_dir() for name in RPM_DATABASES)
    is_image = in_root(root, "run/ostree-booted").exists()
    if has_rpm and not is_image and in_root(root, "usr/bin/kernel-install").is_file():
        return KERNEL_INSTALL_HOOKS
    return ()


def plan_units(root: Path, files: Iterable[UnitFile], *, replace: bool = False) -> list[Change]:
    """Return the changes after which a host has exactly these units, enabled.

    Args:
        files: The units and hooks; empty to remove all of provision's.
    """
    managed = _managed_files(root)
    record = managed.load()
    planned = {root / file.path: file for file in files}
    ours = [root / name.lstrip("/") for name in record.files]
    changes: list[Change] = []
    for path in dict.fromkeys([*planned, *ours]):
        file = planned.get(path)
        text, mode = (file.text, file.mode) if file else (None, 0)
        changes += managed.file_changes(record, path, text, mode=mode)
    if not replace:
        refuse_foreign(changes, _FOREIGN)
    links = {root / path: target for path, target in enabling_links(planned.values()).items()}
    gone = _own_links(root, record) - set(links)
    changes += [Change("remove", path) for path in sorted(gone)]
    changes += [
        Change("switch", path, target)
        for path, target in links.items()
        if not (place := managed.place(path)).is_symlink() or str(place.readlink()) != target
    ]
    return changes


def change_units(root: Path, files: Iterable[UnitFile], *, replace: bool) -> list[Change]:
    """Have exactly these units on a host, and return what was changed for it."""
    with lock(in_root(root, UNITS_LOCK), waiting=_WAITING, limit=SWITCH_SECONDS):
        changes = plan_units(root, files, replace=replace)
        apply_units(root, changes)
    return changes


def apply_units(root: Path, changes: list[Change]) -> None:
    """Make changes, and have a running systemd read them."""
    if not changes:
        return
    managed = _managed_files(root)
    is_running = root.resolve() == Path("/") and Path("/run/systemd/system").is_dir()
    removed = [c.path.name for c in changes if c.kind == "remove" and c.path.parent == root / UNITS]
    if is_running and removed:
        _systemctl("stop", *removed)
    for change in changes:
        report(Note(str(change)))
        if change.kind == "switch":
            switch_symlink(managed.place(change.path), change.value)
        else:
            managed.make(change)
    _forget_removed(managed)
    if is_running:
        _systemctl("daemon-reload")
        if removed:
            # One that had failed is remembered without its file.
            _systemctl("reset-failed", "provision-*")
        if starting := [name for name in WATCHERS if (root / UNITS / name).exists()]:
            _systemctl("start", *starting)


def own_program(root: Path, started_as: str) -> str:
    """Return the path by which a host's units run ``provision``.

    Args:
        root: Root of the host. Another root than / has its own provision, in /opt/provision.
    """
    if root.resolve() != Path("/"):
        return "/opt/provision/bin/provision"
    found = find_program(started_as) or find_program("provision")
    if found is None:
        raise UsageError(
            "The program 'provision' was not found, neither as it was started nor on PATH.",
            resolution="Name its path: provision units install --program PATH.",
        )
    return str(Path(found).absolute())


def _own_links(root: Path, record: Record) -> set[Path]:
    names = set(record.files)
    found = {
        root / path: in_root(root, path, follow=False)
        for path in glob_in_root(root, f"{UNITS}/*.wants/*")
    }
    return {
        path
        for path, place in found.items()
        if place.is_symlink() and str(place.readlink()) in names
    }


def _forget_removed(managed: ManagedFiles) -> None:
    record = managed.load()
    files = record.files.items()
    left = {name: sums for name, sums in files if in_root(managed.root, name).exists()}
    if left:
        managed.store(record.model_copy(update={"files": left}))
    else:
        managed.path.unlink(missing_ok=True)


def _managed_files(root: Path) -> ManagedFiles:
    folder = in_root(root, UNITS_STORE)
    return ManagedFiles(root, folder / "written.json", folder)


def _systemctl(*words: str) -> None:
    run(["systemctl", *words], why="let systemd know of provision's units")


# What ProtectHome=yes and PrivateTmp=yes hide: systemd.exec(5). All units have the one or the
# other, and those of the boot have both.
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - nothing is written there
# As much of a script's first line as the kernel reads: BINPRM_BUF_SIZE in linux/binfmts.h.
_FIRST_LINE = 256
# What pip writes where that is too little for the path of Python: the shell starts it from the
# second line. Source: distlib/scripts.py, ScriptMaker._build_shebang.
_SHELL = re.compile(rb"#!/bin/sh\s*$")
_LAUNCHED = re.compile(rb"^'''exec'\s+")
_LONGEST_LINE = 8192
# What a service may execute under the policies of distros: bin_t, and the TYPE_exec_t of programs
# with a domain of their own.
_PROGRAM_LABEL = re.compile(r":(bin_t|\w+_exec_t)(:|$)")
# A folder for which all policies know which files in it are programs, unlike for /usr/local/lib.
_ADVICE = (
    "/usr/bin/python3 -m venv /opt/provision && /opt/provision/bin/pip install {source} &&"
    " /opt/provision/bin/provision units install"
)


def require_visible(root: Path, program: str, *, checkout: Path | None) -> None:
    """Refuse a program that units could not start, because it is hidden from them.

    Args:
        program: Its absolute path on the host; the file may be missing yet.
        checkout: The clone that this process runs from, for the advice in the error; None if
            provision is installed.
    """
    needed = [PurePosixPath(program), *executed(root, program)]
    if root == Path("/") and needed[1].is_relative_to(Path(sys.prefix).resolve()):
        # An editable installation, or a Python of its own.
        needed += [PurePosixPath(__file__), PurePosixPath(sys.base_prefix)]
    places = {name: _resolved(root, PurePosixPath(name)) for name in _HIDDEN}
    found = {
        f"{path} (units don't see {name})": name
        for path in needed
        for name, place in places.items()
        if path.is_relative_to(place) or path.is_relative_to(name)
    }
    if found:
        raise UsageError(
            f"Units can't run '{program}': it lies, or something that it needs does, in"
            f" {' and '.join(sorted(set(found.values())))}, which is hidden from them.",
            resolution="Install a copy outside of home directories and of /tmp, and let that one"
            f" install the units: {_ADVICE.format(source=checkout or 'CHECKOUT')}",
            details="\n".join(found),
        )


def require_label(root: Path, program: str, *, checkout: Path | None) -> None:
    """Refuse a program that SELinux would not let units start; its label is corrected first.

    pip gives new files the label of their folder, and no policy knows them as programs there.

    Args:
        root: Root of the host. Labels of another root than / are only looked at.
        checkout: As ``require_visible``.
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return
    found = dict(unlabelled(root, program))
    if found and root == Path("/") and find_program("restorecon"):
        run(["restorecon", *map(str, found)], why="label the program of the units", check=False)
        found = dict(unlabelled(root, program))
    if found:
        raise UsageError(
            f"SELinux does not let units run '{program}'.",
            resolution="Install a copy where the policy expects programs, and let that one install"
            f" the units: {_ADVICE.format(source=checkout or 'CHECKOUT')}",
            details="\n".join(f"{path} has the label {label}" for path, label in found.items()),
        )


def unlabelled(root: Path, program: str) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield what ``executed`` returns and SELinux knows as no program, with its label."""
    for file in executed(root, program):
        label = selinux_label(root / file.relative_to("/"))
        if label and not _PROGRAM_LABEL.search(label):
            yield file, label


def executed(root: Path, program: str) -> list[PurePosixPath]:
    """Return what the kernel executes to start a program: the file, and a script's interpreter."""
    script = _resolved(root, PurePosixPath(program))
    interpreter = _interpreter(root / script.relative_to("/"))
    return [script, _resolved(root, interpreter)] if interpreter else [script]


def _resolved(root: Path, path: PurePosixPath) -> PurePosixPath:
    place = in_root(root, path.relative_to("/"))
    return PurePosixPath(place.resolve() if root == Path("/") else f"/{place.relative_to(root)}")


def _interpreter(script: Path) -> PurePosixPath | None:
    """Return the absolute path that a script's first line names: execve(2)."""
    try:
        with script.open("rb") as stream:
            line = stream.readline(_FIRST_LINE)
            if _SHELL.match(line):
                line = _LAUNCHED.sub(b"#!", stream.readline(_LONGEST_LINE))
    except OSError:
        return None
    words = line[2:].split()
    if not line.startswith(b"#!") or not words or not words[0].startswith(b"/"):
        return None
    return PurePosixPath(words[0].decode(errors="surrogateescape"))
