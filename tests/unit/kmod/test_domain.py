"""In which SELinux domain modprobe runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from provision.kmod.load import in_own_domain

if TYPE_CHECKING:
    from pathlib import Path

_ARGV = ["modprobe", "-d", "/var/lib/provision", "demo"]
_CONTEXT = "system_u:system_r:initrc_t:s0"


def _host(root: Path, *, enforce: str | None, context: str | None) -> Path:
    (root / "etc/selinux").mkdir(parents=True)
    (root / "etc/selinux/config").write_text("SELINUX=enforcing\n")
    (root / "sys/fs").mkdir(parents=True)
    (root / "proc/self/attr").mkdir(parents=True)
    if enforce is not None:
        (root / "sys/fs/selinux").mkdir()
        (root / "sys/fs/selinux/enforce").write_text(enforce)
    if context is not None:
        (root / "proc/self/attr/current").write_text(context)
    return root


@pytest.mark.parametrize("enforce", ["1", "0"])
def test_the_policys_own_domain_for_modprobe_is_not_entered(tmp_path: Path, enforce: str) -> None:
    host = _host(tmp_path, enforce=enforce, context=f"{_CONTEXT}\0")
    assert in_own_domain([*_ARGV], host) == ["runcon", _CONTEXT, *_ARGV]


@pytest.mark.parametrize(
    ("enforce", "context"),
    [(None, f"{_CONTEXT}\0"), ("1", None), ("1", "")],
    ids=["switched off", "no context", "an empty context"],
)
def test_without_selinux_modprobe_is_run_as_it_is(
    tmp_path: Path, enforce: str | None, context: str | None
) -> None:
    host = _host(tmp_path, enforce=enforce, context=context)
    assert in_own_domain([*_ARGV], host) == _ARGV


def test_a_host_that_never_heard_of_it_needs_no_runcon(tmp_path: Path) -> None:
    assert in_own_domain([*_ARGV], tmp_path) == _ARGV
