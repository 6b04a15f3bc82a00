"""Loads the modules of an artifact into the running kernel, and unloads them.

The artifact's own modules come from the store (``modprobe -d``), so that /lib/modules may be
read-only. The kernel's modules that they need come from /lib/modules, by plain ``modprobe``.

SELinux policies run modprobe in a domain of its own (``kmod_t``). The reference policy (Debian's)
lets that domain read /lib/modules but not /var/lib, whatever labels the store's files have. The
process that installs drivers may read the store and load modules, so modprobe runs in its domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path

from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import in_root
from provision.host.facts import selinux
from provision.kmod.device_setup import make_nodes, offer_firmware, remove_nodes
from provision.kmod.loaded import loaded_modules, other_builds, users_of
from provision.kmod.refusals import KernelLog, Refusal, explain
from provision.kmod.unload import ModuleInUseError, unload_conflicts, unload_modules
from provision.kmod.verify import HOSTS
from provision.manifest import Manifest, Module
from provision.progress import Note, Progress, silent
from provision.run import find_program, run

# Module parameters: by module, then by name.
Parameter = str | int | bool
Options = Mapping[str, Mapping[str, Parameter]]
# Seconds for one module and its hardware: fewer than provision-boot.service has for all modules, so
# that the status can still name the one that hung.
_LIMIT_S = 120.0


def in_own_domain(argv: list[str | Path], root: Path = Path("/")) -> list[str | Path]:
    """Return an argument list that runs a program in this process's own SELinux domain.

    In a container (root is the host's, as a volume), no domain is entered: programs of images have
    none, and ``runcon`` needs selinuxfs and a policy, which containers do not have.

    Args:
        argv: Program and arguments.
        root: Root of the running host.

    Source: runcon(1), of coreutils; proc_pid_attr(5).
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return argv
    try:
        context = in_root(root, "proc/self/attr/current").read_text().rstrip("\0\n")
    except OSError:
        # This kernel has no SELinux, whatever the configuration says.
        return argv
    within: list[str | Path] = ["runcon", context]
    if not context or not find_program("runcon"):
        return argv
    probe = run([*within, "true"], why="see whether this process has SELinux", check=False)
    return argv if probe.returncode else [*within, *argv]


def load(
    entry: Path,
    manifest: Manifest,
    *,
    options: Options | None = None,
    root: Path = Path("/"),
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Load the modules of a store entry that are not loaded yet, and set up their devices.

    First, conflicting modules are unloaded, the firmware is linked, and the modules of the kernel
    that these need are loaded. Device nodes are made afterwards. If a module can't be loaded, those
    that this call has loaded are unloaded again.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest.
        options: Module parameters; they take precedence over those of /etc/modprobe.d.
        root: Root of the running host.
        progress: Receives a note of each step.

    Returns:
        The modules that this call loaded, in their order.

    Raises:
        NotFoundError: The artifact is for another kernel than the running one, or its hardware is
            missing.
        UsageError: Options name a module that the artifact does not have.
        InUseError: A module is loaded from another build, or a conflicting module is in use.
        ProvisionError: The kernel refused a module; says why.
    """
    missing = loadable(entry, manifest, root=root)
    parameters = parameters_of(manifest, options or {})
    if missing:
        unload_conflicts(manifest, root=root, progress=progress)
        offer_firmware(entry, manifest, root=root)
        _load_needed(manifest, missing, root, progress)
    loaded: list[str] = []
    try:
        for module in missing:
            try:
                _insert(entry, manifest, module.name, parameters.get(module.name, []), root)
            except ProvisionError as error:
                if module.name not in manifest.host.optional:
                    raise
                progress(Note(f"left out {module.name}, which is optional: {error.message}"))
            else:
                loaded.append(module.name)
                progress(Note(f"loaded {module.name}"))
    except BaseException:
        unload_modules(loaded, root=root, progress=progress)
        raise
    make_nodes(manifest, root=root, progress=progress)
    return tuple(loaded)


def loadable(entry: Path, manifest: Manifest, *, root: Path = Path("/")) -> list[Module]:
    """Return the modules of a store entry that are not loaded, in the order of loading.

    Arguments and errors as ``load``, which calls this first.
    """
    require_kernel(manifest, root)
    return _not_loaded(entry, manifest, root)


def unload(
    entry: Path,
    manifest: Manifest,
    *,
    options: Options | None = None,
    root: Path = Path("/"),
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Unload the modules of an artifact, whatever build of them is loaded; never by force.

    Args:
        entry: The artifact's folder, from which its own modules are loaded again if one stays.
        manifest: The artifact's manifest.
        options: Module parameters for that.
        root: Root of the running host.
        progress: Receives a note of each step.

    Returns:
        The modules that this call unloaded, in their order.

    Raises:
        InUseError: A module is in use; names its users. The driver is as it was then.
        ProvisionError: The kernel refused for another reason.
    """
    names = [module.name for module in manifest.modules]
    is_own = not other_builds(manifest, entry, loaded_modules(root))

    def reload(removed: Sequence[str]) -> None:
        parameters = parameters_of(manifest, options or {})
        with suppress(ProvisionError):
            for name in removed if is_own else ():
                _insert(entry, manifest, name, parameters.get(name, []), root)

    unloaded = unload_modules(
        names, devices=devices_of(manifest), root=root, progress=progress, reload=reload
    )
    remove_nodes(manifest, root=root)
    return unloaded


def load_order(manifest: Manifest) -> list[Module]:
    """Return the modules of an artifact, each after those of them that it depends on."""
    modules = {module.name: module for module in manifest.modules}
    depends = {name: [d for d in m.depends if d in modules] for name, m in modules.items()}
    return [modules[name] for name in TopologicalSorter(depends).static_order()]


def devices_of(manifest: Manifest) -> tuple[str, ...]:
    """Return globs below ``/dev`` of the devices that a driver serves."""
    features = manifest.container.features.values()
    return tuple(dict.fromkeys(device for feature in features for device in feature.devices))


def require_kernel(manifest: Manifest, root: Path = Path("/")) -> None:
    """Refuse an artifact that is for another kernel than the running one.

    Raises:
        NotFoundError: It is for another kernel, or no kernel runs under the root.
    """
    release = manifest.pin.kernel.release
    try:
        running = in_root(root, "proc/sys/kernel/osrelease").read_text().strip()
    except OSError as error:
        raise NotFoundError(
            f"No kernel runs under '{root}', so nothing can be loaded there.",
            resolution="Run this on the host itself.",
        ) from error
    if running != release:
        raise NotFoundError(
            f"The artifact of {manifest.pin.driver.name} is for the kernel {release}, and"
            f" {running} runs.",
            resolution="Build it for the running kernel: provision apply.",
        )


def parameters_of(manifest: Manifest, options: Options) -> dict[str, list[str]]:
    """Return each module's parameters as arguments of modprobe.

    Raises:
        UsageError: The artifact has no such module.
    """
    known = {module.name for module in manifest.modules}
    given = {module.replace("-", "_"): values for module, values in options.items()}
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"There are options for the module '{unknown[0]}', which {manifest.pin.driver.name}"
            " does not have.",
            resolution=f"Its modules are {', '.join(sorted(known))}.",
        )
    return {
        module: [f"{name}={_text(value)}" for name, value in values.items()]
        for module, values in given.items()
    }


def _text(value: Parameter) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    # The kernel splits parameters at blanks outside of quotes: kernel/params.c, lib/cmdline.c.
    return f'"{text}"' if any(character.isspace() for character in text) else text


def _not_loaded(entry: Path, manifest: Manifest, root: Path) -> list[Module]:
    loaded = loaded_modules(root)
    if others := other_builds(manifest, entry, loaded):
        names = ", ".join(others)
        driver = manifest.pin.driver.name
        raise ModuleInUseError(
            f"{names} is loaded already, from another build of {driver}.",
            users_of(others, loaded, devices=devices_of(manifest), root=root),
            resolution=f"Unload it first (provision unload {driver}), or reboot.",
        )
    missing = [module for module in load_order(manifest) if module.name not in loaded]
    # If only optional modules are missing, the kernel refused them before, and would again.
    return missing if any(m.name not in manifest.host.optional for m in missing) else []


def _load_needed(manifest: Manifest, modules: list[Module], root: Path, progress: Progress) -> None:
    """Load the kernel's own modules that the artifact's modules need.

    If they can't be loaded for an optional module, the kernel refuses that module later.
    """
    own = {module.name for module in manifest.modules}
    loaded = loaded_modules(root)
    for module in modules:
        needed = [name for name in module.depends if name not in own and name not in loaded]
        if not needed:
            continue
        elsewhere: list[str | Path] = [] if root == Path("/") else ["-d", root]
        with KernelLog(root) as log:
            done = run(
                ["modprobe", *elsewhere, "-a", *needed],
                why=f"load what {module.name} needs",
                check=False,
                timeout=_LIMIT_S,
            )
            if done.returncode == 0:
                progress(Note(f"loaded {', '.join(needed)} of the kernel's own"))
            elif module.name not in manifest.host.optional:
                raise _explained(manifest, ", ".join(needed), done.stderr, log)


def _insert(entry: Path, manifest: Manifest, name: str, parameters: list[str], root: Path) -> None:
    # Without -i, modprobe would run a command that modprobe.d has for the module.
    # The dependencies that modules.dep has for KMM are loaded already.
    folder = entry.resolve() if manifest.kmm is None else entry.resolve() / HOSTS
    where: list[str | Path] = ["-i", "-d", folder, "-S", manifest.pin.kernel.release]
    with KernelLog(root) as log:
        done = run(
            in_own_domain(["modprobe", *where, name, *parameters], root),
            why=f"load the module {name}",
            check=False,
            timeout=_LIMIT_S,
        )
        if done.returncode != 0:
            raise _explained(manifest, name, done.stderr, log)


def _explained(manifest: Manifest, name: str, said: str, log: KernelLog) -> ProvisionError:
    return explain(Refusal(name, manifest.pin.kernel.release, said.strip(), log.lines()))
