"""Explains what is wrong with a host's drivers: causes and cures of the most common troubles.

Checks read files and the kernel's log; they change nothing, build nothing and use no network.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.doctor import host_checks, kernel_checks
from provision.doctor.observation import Check, Finding, Observation, State, observe

__all__ = ["CHECKS", "Check", "Finding", "State", "diagnose", "observe"]

# In the order in which they are shown.
CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        host_checks.status,
        kernel_checks.cards,
        kernel_checks.conflicts,
        kernel_checks.signing,
        kernel_checks.modules_disabled,
        kernel_checks.selinux,
        kernel_checks.firmware,
        kernel_checks.device_nodes,
        kernel_checks.kernel_log,
        host_checks.compiler,
        host_checks.branch,
        host_checks.old_tables,
        host_checks.distro,
        host_checks.entitlement,
        host_checks.engine,
        host_checks.network,
        host_checks.registry,
        host_checks.host_libraries,
        host_checks.old_files,
        host_checks.dra,
        host_checks.units,
        host_checks.policy,
        host_checks.catalogue,
        host_checks.distros,
        host_checks.runtime,
        host_checks.store,
    )
}


def diagnose(host: Observation) -> list[Finding]:
    """Return what each check finds, or that it found nothing wrong, or nothing to look at."""
    return [finding for check in CHECKS.values() for finding in check.results(host)]
