"""The checks, in the order in which one reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from provision.doctor import builds, host, kernel, messages, settings
from provision.doctor.finding import Finding, State
from provision.doctor.scene import Scene


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is looked at.

    Attributes:
        id: Its name.
        find: Yields what is wrong; its docstring says what is right.
    """

    id: str
    find: Callable[[Scene], Iterator[Finding]]

    @property
    def right(self) -> str:
        """What holds where nothing is wrong."""
        return (self.find.__doc__ or "").strip().rstrip(".")


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found; a check may have several.

    Attributes:
        check: Its name.
        state: See ``Finding``; ``ok`` where nothing is wrong.
        seen: What was found.
        cause: Why it is so; None where nothing is wrong.
        cure: What to do; None where nothing is wrong.
        driver: The driver that it is about; None: the host.
    """

    check: str
    state: State
    seen: str
    cause: str | None = None
    cure: str | None = None
    driver: str | None = None


CHECKS: tuple[Check, ...] = (
    Check("running-kernel", builds.running_kernel),
    Check("loaded", kernel.loaded),
    Check("next-kernel", builds.next_kernel),
    Check("reboot-required", kernel.reboot_required),
    Check("conflicts", kernel.conflicts),
    Check("in-tree-copy", kernel.in_tree_copy),
    Check("signing", kernel.signing),
    Check("modules-disabled", kernel.modules_disabled),
    Check("selinux", kernel.selinux),
    Check("firmware", kernel.firmware),
    Check("device-nodes", kernel.device_nodes),
    Check("kernel-log", messages.kernel_log),
    Check("headers", builds.headers),
    Check("build", builds.build_failures),
    Check("compiler", builds.compiler),
    Check("kernel-range", builds.kernel_range),
    Check("branch", builds.branch),
    Check("matrix", builds.matrix),
    Check("distro", builds.distro),
    Check("entitlement", builds.entitlement),
    Check("headers-source", builds.headers_source),
    Check("engine", builds.engine),
    Check("registry", settings.registry),
    Check("host-libraries", host.host_libraries),
    Check("old-files", host.old_files),
    Check("other-copies", host.other_copies),
    Check("dkms", host.dkms),
    Check("units", host.units),
    Check("automatic-reboot", host.automatic_reboot),
    Check("policy", settings.policy),
    Check("catalogue", settings.catalogue),
    Check("runtime", settings.runtime),
    Check("store", host.store),
)


def diagnose(scene: Scene, checks: Iterable[Check] = CHECKS) -> list[Result]:
    """Return what all checks found, in their order."""
    return [result for check in checks for result in _results(check, scene)]


def _results(check: Check, scene: Scene) -> list[Result]:
    found = [
        Result(check.id, f.state, f.seen, f.cause, f.cure, f.driver) for f in check.find(scene)
    ]
    return found or [Result(check.id, "ok", check.right)]
