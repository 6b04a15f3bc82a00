"""Loads the modules of an artifact into the running kernel, and takes them out again.

Policies send modprobe to a domain of its own (``kmod_t``), and those of the reference policy
(Debian's) let that one into /lib/modules but not into /var/lib, whatever label the store's files
have. Who installs drivers may read the store and load modules; so no other domain is needed.

The artifact's own come from the store (``modprobe -d``), so that /lib/modules may be read-only;
what they need of the kernel's own comes from there, by plain ``modprobe``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from provision.run import run

# Module parameters: by module, then by name.
Parameter = str | int | bool
Options = Mapping[str, Mapping[str, Parameter]]
# Seconds for one module and its hardware: less than provision-boot.service has for all of them, so
# that the status still says which one hung.
_LIMIT_S = 120.0


def in_own_domain(argv: list[str | Path], root: Path = Path("/")) -> list[str | Path]:
    """Return an argument list that runs a program in this process's own SELinux domain.

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
        # The kernel has no SELinux, whatever the configuration says.
        return argv
    return ["runcon", context, *argv] if context else argv


def load(
    entry: Path,
    manifest: Manifest,
    *,
    options: Options | None = None,
    root: Path = Path("/"),
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Load the modules of a store entry that aren't, with all that belongs to it.

    That is: what is in the way unloaded, firmware found, the kernel's own modules that they need
    loaded first, device nodes made. If one can't be loaded, those that this call loaded go again.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest.
        options: Module parameters; they win over those of /etc/modprobe.d.
        root: Root of the running host.
        progress: Receives what is done.

    Returns:
        The modules that were loaded, in their order; none if all were.

    Raises:
        NotFoundError: The artifact is for another kernel than the one that runs, or its hardware
            is missing.
        UsageError: Options name a module that the artifact hasn't got.
        InUseError: A module is loaded from another build, or one that is in the way is in use.
        ProvisionError: The kernel refused a module; says why.
    """
    wanted = loadable(entry, manifest, root=root)
    parameters = parameters_of(manifest, options or {})
    if wanted:
        unload_conflicts(manifest, root=root, progress=progress)
        offer_firmware(entry, manifest, root=root)
        _load_needed(manifest, wanted, root, progress)
    done: list[str] = []
    try:
        for module in wanted:
            try:
                _insert(entry, manifest, module.name, parameters.get(module.name, []), root)
            except ProvisionError as error:
                if module.name not in manifest.host.optional:
                    raise
                progress(Note(f"left out {module.name}, which is optional: {error.message}"))
                continue
            done.append(module.name)
            progress(Note(f"loaded {module.name}"))
    except BaseException:
        unload_modules(done, root=root, progress=progress)
        raise
    make_nodes(manifest, root=root, progress=progress)
    return tuple(done)


def loadable(entry: Path, manifest: Manifest, *, root: Path = Path("/")) -> list[Module]:
    """Return the modules of a store entry that are not loaded, in the order of loading.

    Arguments and errors as ``load``, which this is the first half of.
    """
    require_kernel(manifest, root)
    return _not_loaded(entry, manifest, root)


def unload(
    manifest: Manifest, *, root: Path = Path("/"), progress: Progress = silent
) -> tuple[str, ...]:
    """Unload the modules of an artifact, whatever build of them is loaded; never by force.

    Args:
        manifest: The artifact's.
        root: Root of the running host.
        progress: Receives what is done.

    Returns:
        The modules that were unloaded, in their order; none if none were loaded.

    Raises:
        InUseError: Someone uses one of them; names who. Nothing has been unloaded then.
        ProvisionError: The kernel refused for another reason.
    """
    names = [module.name for module in manifest.modules]
    unloaded = unload_modules(names, devices=devices_of(manifest), root=root, progress=progress)
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
    """Do nothing if an artifact is for the running kernel.

    Raises:
        NotFoundError: It is for another, or none runs under the root.
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
    """Return each module's parameters as modprobe takes them.

    Raises:
        UsageError: The artifact has no such module.
    """
    known = {module.name for module in manifest.modules}
    given = {module.replace("-", "_"): values for module, values in options.items()}
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"There are options for the module '{unknown[0]}', which {manifest.pin.driver.name}"
            " hasn't got.",
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
    # Only optional ones were refused when the others were loaded, and would be again.
    return missing if any(m.name not in manifest.host.optional for m in missing) else []


def _load_needed(manifest: Manifest, modules: list[Module], root: Path, progress: Progress) -> None:
    """Load what the modules need of the kernel's own.

    What only optional ones need is left to them: they are refused where it is missing.
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
    # Without -i a command that modprobe.d has for the module would run instead.
    # What KMM needs in modules.dep is loaded already, from the kernel's own.
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
