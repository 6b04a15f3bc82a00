"""Explains what is wrong with a host's drivers: cause and cure of the troubles that are commonest.

Checks read files and the kernel's log; nothing is changed, built, or asked over the network.
"""

from __future__ import annotations

from provision.doctor.checks import CHECKS, Check, Result, diagnose
from provision.doctor.scene import Finding, Scene, State, observe

__all__ = ["CHECKS", "Check", "Finding", "Result", "Scene", "State", "diagnose", "observe"]
