"""Explains what is wrong with a host's drivers: causes and cures of the most common troubles.

Checks read files and the kernel's log; they change nothing, build nothing and use no network. They
stand here in the order in which they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from provision.doctor import build_checks, host_checks, kernel_checks, settings_checks
from provision.doctor.scene import Finding, Scene, State, observe

__all__ = ["CHECKS", "Check", "Finding", "Result", "Scene", "State", "diagnose", "observe"]


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        find: Yields problems; its docstring states what holds without problems.
    """

    id: str
    find: Callable[[Scene], Iterator[Finding]]

    @property
    def right(self) -> str:
        """The statement that holds if the check finds nothing."""
        return (self.find.__doc__ or "").strip().rstrip(".")


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a check, which may have several.

    Attributes:
        cause: Its cause; None if nothing is wrong.
        cure: What to do; None if nothing is wrong.
    """

    check: str
    state: State
    seen: str
    cause: str | None = None
    cure: str | None = None
    driver: str | None = None


CHECKS: tuple[Check, ...] = (
    Check("drivers", settings_checks.drivers),
    Check("running-kernel", build_checks.running_kernel),
    Check("loaded", kernel_checks.loaded),
    Check("next-kernel", build_checks.next_kernel),
    Check("reboot-required", kernel_checks.reboot_required),
    Check("conflicts", kernel_checks.conflicts),
    Check("in-tree-copy", kernel_checks.in_tree_copy),
    Check("signing", kernel_checks.signing),
    Check("modules-disabled", kernel_checks.modules_disabled),
    Check("selinux", kernel_checks.selinux),
    Check("firmware", kernel_checks.firmware),
    Check("device-nodes", kernel_checks.device_nodes),
    Check("kernel-log", kernel_checks.kernel_log),
    Check("headers", build_checks.headers),
    Check("build", build_checks.build_failures),
    Check("compiler", build_checks.compiler),
    Check("kernel-range", build_checks.kernel_range),
    Check("branch", build_checks.branch),
    Check("matrix", build_checks.matrix),
    Check("distro", build_checks.distro),
    Check("entitlement", build_checks.entitlement),
    Check("headers-source", build_checks.headers_source),
    Check("engine", build_checks.engine),
    Check("network", settings_checks.network),
    Check("registry", settings_checks.registry),
    Check("host-libraries", host_checks.host_libraries),
    Check("old-files", host_checks.old_files),
    Check("other-installations", host_checks.other_installations),
    Check("units", host_checks.units),
    Check("automatic-reboot", host_checks.automatic_reboot),
    Check("policy", settings_checks.policy),
    Check("catalogue", settings_checks.catalogue),
    Check("distros", settings_checks.distros),
    Check("runtime", settings_checks.runtime),
    Check("store", host_checks.store),
)


def diagnose(scene: Scene, checks: Iterable[Check] = CHECKS) -> list[Result]:
    """Return the results of all checks, in their order."""
    return [result for check in checks for result in _results(check, scene)]


def _results(check: Check, scene: Scene) -> list[Result]:
    found = [
        Result(check.id, f.state, f.seen, f.cause, f.cure, f.driver) for f in check.find(scene)
    ]
    return found or [Result(check.id, "ok", check.right)]
