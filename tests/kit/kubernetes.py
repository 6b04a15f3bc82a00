"""Kubernetes' own programs, compiled from the Go modules that tests/data/go/kubernetes pins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.go_program import go_programs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["VERSION", "kubernetes"]

VERSION = "1.37.2"


def kubernetes(*names: str) -> Path:
    """A folder with these programs; minutes, the first time."""
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in names]
    stamps = {"k8s.io/component-base/version.gitVersion": f"v{VERSION}"}
    return go_programs("kubernetes", *packages, stamps=stamps)
