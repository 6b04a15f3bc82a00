"""Tries an artifact: boots the kernel that it is for, and lets its own loader load its modules.

A kernel that takes the modules here takes them on a host: it has resolved their symbols, compared
their versions, relocated them and run what they begin with. Hardware is missing, so a module may
say that there is none (``no-device``), which is all that can be found out about it.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from provision.build.workspace import Settings
from provision.errors import ExitCode, NotFoundError, ProvisionError, plain
from provision.explain import fill, last_line
from provision.files import glob_in_root, in_root, templates_dir
from provision.host import STORE
from provision.host.facts import command_line, secure_boot, signature_rules
from provision.kmod.guest import Initramfs, Ran, run_guest
from provision.kmod.guest_packages import boot_files, qemu_in_container
from provision.kmod.load import nowhere, reason_of
from provision.kmod.loader import (
    LOADER,
    MODULES_LINKS,
    Options,
    firmware_names,
    load_order,
    loader_script,
)
from provision.kmod.modules import read_signature
from provision.kmod.verify import stored_manifest
from provision.loader_script import Place
from provision.manifest import MANIFEST, Manifest
from provision.progress import Note, report
from provision.store.entries import is_entry
from provision.store.state import DOES_NOT_LOAD

State = Literal["loaded", "no-device", "refused", "crashed", "not-tried"]

# Seconds for loading and unloading: more than the loader allows for a module, and than the kernel
# takes to notice that a processor does nothing else.
LIMIT_S = 150.0
# A module's init says by these that it found nothing to drive: errno(3).
_NO_DEVICE = frozenset({"ENODEV", "ENXIO"})
_NUMBERS = {os.strerror(number): name for number, name in errno.errorcode.items()}
# modprobe has words of its own for two: kmod, tools/modprobe.c.
_OF_MODPROBE = {"Unknown symbol in module": "ENOENT", "Module already in kernel": "EEXIST"}
_SAID = re.compile(r"could not insert '(?P<name>[^']+)': (?P<why>.*)$")
_TRACE = re.compile(
    r"BUG:|Oops|Kernel panic|general protection fault|Unable to handle kernel|invalid opcode"
    r"|Internal error|stack-protector|soft lockup"
)
_TRACE_LINES = 12
_LOADED = re.compile(r"@load (\d+)")
_MARK = "provision: "
_LOG_LINES = 8
_OTHER_VERSION = (
    "Don't boot this kernel before there is a version of the driver for it. See which there are:"
    " provision drivers versions {driver}"
)
# Of the host's command line: what keeps a kernel from loading modules.
_DENIED = re.compile(r"(?:module_blacklist|modprobe\.blacklist)=.*")


class Outcome(NamedTuple):
    """What the kernel did with a module."""

    module: str
    # ``no-device``: it took the module, whose init found no hardware.
    state: State
    # Of the call, such as ``ENOENT``.
    error: str | None = None
    # What that means, in words.
    reason: str | None = None
    # What to do about it.
    advice: str | None = None
    # What the kernel said.
    lines: tuple[str, ...] = ()
    # Whether the driver does without it.
    optional: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether a host that boots this kernel has to do without the driver, or crashes."""
        return self.state == "crashed" or (self.state == "refused" and not self.optional)


class Trial(NamedTuple):
    """The result of a trial."""

    kernel: str
    accelerator: str
    seconds: float
    outcomes: tuple[Outcome, ...]
    # Modules that are there after they were to be unloaded.
    stayed: tuple[str, ...]
    # What could not be found out, in sentences.
    untried: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        """Whether the kernel takes every module that the driver can't do without."""
        return not any(one.is_bad for one in self.outcomes)


class TrialFailedError(ProvisionError):
    """A kernel does not take the modules of an artifact."""

    reason = DOES_NOT_LOAD

    def __init__(self, what: str, trial: Trial) -> None:
        bad = [one for one in trial.outcomes if one.is_bad]
        reasons = "; ".join(f"{one.module} {one.state}: {one.reason}" for one in bad)
        super().__init__(
            f"The kernel {trial.kernel} does not take the modules of {what}: {reasons}.",
            resolution=bad[0].advice if bad else None,
            details="\n".join(line for one in bad for line in one.lines) or None,
        )
        self.trial = trial

    def members(self) -> dict[str, object]:
        """Return the whole result."""
        return {"boot": plain(self.trial)}


def require_loading(
    settings: Settings,
    artifact: Path,
    manifest: Manifest,
    *,
    what: str,
    kernel: str | None = None,
) -> Trial:
    """Return the trial of an artifact, which it passed; ``what`` is its name for people.

    Raises:
        NotTriedError: No guest can run here.
        TrialFailedError: The kernel does not take a module that the driver can't do without.
    """
    trial = try_artifact(settings, artifact, manifest, kernel=kernel)
    if not trial.is_passed:
        raise TrialFailedError(what, trial)
    return trial


def try_artifact(
    settings: Settings, artifact: Path, manifest: Manifest, *, kernel: str | None = None
) -> Trial:
    """Load an artifact into a kernel of its own, and unload it again; the host's is not touched.

    Args:
        kernel: The release of another kernel than that which the artifact is for.
    """
    pin = manifest.pin
    kernel = kernel or pin.kernel.release
    configured = settings.config.drivers.get(pin.driver.name)
    options = configured.options if configured else {}
    taken, untried = _taken_over(settings, artifact, manifest)
    others, needed = _needed(settings.root, kernel, manifest)
    with ExitStack() as opened:
        files = opened.enter_context(boot_files(settings, pin, kernel, sorted(needed)))
        report(Note(f"Starting {kernel} in a virtual machine"))
        image = opened.enter_context(tempfile.TemporaryFile())
        files.write_kernel(image)
        stream = opened.enter_context(tempfile.TemporaryFile())
        initramfs = Initramfs(stream)
        files.add_to(initramfs)
        for name, (entry, other) in others.items():
            its_own = settings.config.drivers.get(name)
            add_artifact(initramfs, entry, other, its_own.options if its_own else None)
            link = f"{STORE / name}/kernels/{kernel}"
            initramfs.add_link(link, f"../{other.pin.short_digest}")
        place = add_artifact(initramfs, artifact, manifest, options)
        names = " ".join(module.name for module in manifest.modules)
        head = f"loader={place}/{LOADER}\nnames={shlex.quote(names)}\n"
        initramfs.close(head + (templates_dir() / "guest/trial.sh").read_text())
        ran = run_guest(
            pin.kernel.architecture,
            image,
            stream,
            limit=LIMIT_S,
            options=taken,
            elsewhere=partial(qemu_in_container, settings, pin),
        )
    named = str(artifact) if is_entry(artifact) else None
    return judge(manifest, ran, kernel=kernel, artifact=named, untried=untried)


def _needed(
    root: Path, kernel: str, manifest: Manifest
) -> tuple[dict[str, tuple[Path, Manifest]], set[str]]:
    """Return the store entries of other drivers that a loader takes modules from, by driver.

    Returns:
        Those entries, and the names that neither they nor the artifact have: the kernel's own.
    """
    links = glob_in_root(root, f"{STORE}/*/kernels/{kernel}")
    entries = {link.parent.parent.name: in_root(root, link) for link in links}
    entries.pop(manifest.pin.driver.name, None)
    stored = {
        name: (entry, found)
        for name, entry in entries.items()
        if (found := stored_manifest(entry)) is not None
    }
    taken: dict[str, tuple[Path, Manifest]] = {}
    own: set[str] = set()
    needed: set[str] = set()
    wanted = [manifest]
    while wanted:
        one = wanted.pop()
        own |= {module.name for module in one.modules}
        needed |= {name for module in one.modules for name in module.depends}
        for name, (entry, other) in stored.items():
            has = {module.name for module in other.modules}
            if name not in taken and has & (needed - own):
                taken[name] = (entry, other)
                wanted.append(other)
    return taken, needed - own


def add_artifact(
    initramfs: Initramfs, artifact: Path, manifest: Manifest, options: Options | None = None
) -> str:
    """Add an artifact's modules, firmware and loader to an initramfs, as a store has them.

    Returns:
        Its folder in the guest.
    """
    pin = manifest.pin
    place = PurePosixPath(STORE, pin.driver.name, pin.short_digest)
    firmware = firmware_names(manifest)
    script = loader_script(artifact, manifest, Place(f"/{place}", firmware=firmware), options)
    for folder in ("lib/modules", "host/lib/modules"):
        if (artifact / folder).is_dir():
            initramfs.add_tree(str(place / folder), artifact / folder)
    for link in MODULES_LINKS:
        if (artifact / link.parent.parent.parent / "lib/modules").is_dir():
            initramfs.add_link(str(place / link), "../../lib/modules")
    for path in firmware.values():
        initramfs.add(str(place / path), artifact / path)
    initramfs.add(str(place / MANIFEST), artifact / MANIFEST)
    initramfs.add(str(place / LOADER), script.encode(), mode=0o755)
    return f"/{place}"


def _taken_over(
    settings: Settings, artifact: Path, manifest: Manifest
) -> tuple[list[str], tuple[str, ...]]:
    """Return the options of a host that the guest gets, and what can't be tried for them."""
    root = settings.root
    taken = [word for word in command_line(root) if _DENIED.fullmatch(word)]
    rules = signature_rules(root)
    signed = settings.config.signing.key is not None or any(
        read_signature(artifact / one.path) for one in manifest.modules
    )
    if rules and signed:
        # A guest has no keys that the host's firmware brings along.
        untried = "Whether the host's kernel knows the key that signs the modules was not tried."
        return taken, (untried,)
    if not rules and not signed and secure_boot(root) == "enabled":
        # A distro's kernel mostly does; the one that runs here does not.
        return taken, ("Whether Secure Boot makes this kernel refuse the modules was not tried.",)
    return [*taken, *rules], ()


def judge(
    manifest: Manifest,
    ran: Ran,
    *,
    kernel: str,
    artifact: str | None = None,
    untried: tuple[str, ...] = (),
) -> Trial:
    """Say of each module what the kernel did with it, by what a guest printed.

    Args:
        artifact: What 'provision verify' knows it by; None: the image of its Pin.

    Raises:
        NotFoundError: The loader found that the artifact is for another kernel.
    """
    driver = manifest.pin.driver.name
    names = {"driver": driver, "kernel": kernel, "artifact": artifact or manifest.pin.image}
    said, status = _loading(ran.lines)
    if status == ExitCode.NOT_FOUND:
        raise NotFoundError(
            f"The artifact of {driver} is for the kernel {manifest.pin.kernel.release}, and"
            f" {kernel} was started.",
            resolution=f"Build it for that kernel: provision build {driver} --kernel {kernel}",
        )
    log = _after(ran.console, "load")
    loaded = {line.removeprefix(f"{driver}: loaded ") for line in said}
    failed = {found["name"]: line for line in said if (found := _SAID.search(line))}
    outcomes: dict[str, Outcome] = {}
    stop = None
    for module in load_order(manifest):
        name = module.name
        optional = name in manifest.host.optional
        if name in loaded:
            outcome = Outcome(name, "loaded")
        elif name in failed:
            outcome = _refused(name, names, [failed[name]], [*log, *nowhere(driver, said)])
        elif stop is not None:
            outcome = Outcome(name, "not-tried", reason=f"{stop} comes before it")
        elif status is None:
            outcome = _crashed(name, names, ran, log)
        else:
            # The loader ended before it: one of the kernel's own is missing, or a file damaged.
            others = [line for line in said if not line.startswith(f"{driver}: ")]
            outcome = _refused(name, names, others or said, log)
        if outcome.state != "loaded" and not (optional and outcome.state == "refused"):
            stop = stop or name
        outcomes[name] = outcome._replace(optional=optional)
    if status == ExitCode.DONE and ran.end != "ended":
        # The last that was loaded is the first to go.
        last = next(one for one in reversed(outcomes.values()) if one.state == "loaded")
        crashed = _crashed(last.module, names, ran, _after(ran.console, "unload"))
        outcomes[last.module] = crashed._replace(reason=f"when it was unloaded: {crashed.reason}")
    return Trial(
        kernel=kernel,
        accelerator=ran.accelerator,
        seconds=round(ran.seconds, 1),
        outcomes=tuple(outcomes.values()),
        stayed=tuple(line.partition(" ")[2] for line in ran.lines if line.startswith("@stayed ")),
        untried=untried,
    )


def _loading(lines: Sequence[str]) -> tuple[list[str], int | None]:
    """Return what the loader said while it loaded, and its exit status; None: it never ended."""
    output: list[str] = []
    for line in lines:
        if found := _LOADED.fullmatch(line):
            return output, int(found[1])
        output.append(line)
    return output, None


def _after(console: Sequence[str], mark: str) -> list[str]:
    """Return what the kernel said from a mark of the guest's script to the next one."""
    found: list[str] = []
    inside = False
    for line in console:
        if line.startswith(_MARK):
            inside = line == f"{_MARK}{mark}"
        elif inside:
            found.append(line)
    return found


def _refused(
    module: str, names: Mapping[str, str], said: Sequence[str], log: Sequence[str]
) -> Outcome:
    found = next((match for line in said if (match := _SAID.search(line))), None)
    why = found["why"] if found else ""
    own = (name for text, name in _OF_MODPROBE.items() if why.startswith(text))
    error = next(own, _NUMBERS.get(why))
    if error in _NO_DEVICE:
        reason = "the kernel took it, and it found no device to drive"
        return Outcome(module, "no-device", error, reason, lines=tuple(log[-_LOG_LINES:]))
    known = reason_of("\n".join(said), log, names)
    what = known.cause if known else why or last_line("\n".join(said))
    advice = known.what_to_do if known else fill(_OTHER_VERSION, names)
    return Outcome(module, "refused", error, what, advice, tuple(log[-_LOG_LINES:]))


def _crashed(module: str, names: Mapping[str, str], ran: Ran, log: Sequence[str]) -> Outcome:
    begin = next((at for at, line in enumerate(log) if _TRACE.search(line)), None)
    if begin is not None:
        reason, lines = log[begin], log[begin : begin + _TRACE_LINES]
    else:
        lines = log[-_LOG_LINES:]
        hung = f"it did not end within {LIMIT_S:g} s"
        reason = hung if ran.end == "limit" else "the kernel reset the machine"
    advice = fill(_OTHER_VERSION, names)
    return Outcome(module, "crashed", None, reason.rstrip("."), advice, tuple(lines))
