"""The demo reads what commands print, and ends with the error that one of them gave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest

from demo.choice import Choice, choose, usable_kernels
from demo.engines import Engines
from demo.screen import DemoError, Screen
from demo.steps import Demo
from kit.product import Provision
from provision.store.availability import KernelOffer

_DRIVER = "no-such-driver"
_CHOICE = Choice(_DRIVER, "debian:12", "6.1.0-1-amd64", "")


def _build(demo: Demo) -> None:
    demo.choice = _CHOICE
    demo.engines = cast("Engines", SimpleNamespace(network_flags=()))
    demo.build()


def _choose(demo: Demo) -> None:
    choose(demo.provision, {"kernel": "6.1", "distro": {"id": "debian", "version": "12"}})


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (_build, ("build", _DRIVER, "--kernel", _CHOICE.kernel, "--distro", _CHOICE.distro)),
        (_choose, ("drivers", "kernels", _DRIVER, "--distro", _CHOICE.distro)),
    ],
)
def test_a_step_ends_with_the_error_of_its_command(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[Demo], None], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DEMO_DRIVER", _DRIVER)
    screen = Screen()
    demo = Demo(screen, ExitStack())
    demo.provision = Provision()
    _, error = demo.provision.failure(*words)
    with pytest.raises(DemoError) as caught, screen.step(3, "a step"):
        step(demo)
    for said in (error["message"], error["details"], error["resolution"]):
        assert said in str(caught.value)


def test_a_kernel_is_chosen_on_which_the_distros_own_version_works() -> None:
    offers = [
        KernelOffer("7.2.0-1-amd64", "untried", "590.48.01"),
        KernelOffer("6.12.1-amd64", "works", "590.48.01"),
        KernelOffer("6.1.0-2-amd64", "works", "535.261.03"),
        KernelOffer("6.1.0-1-amd64", "fails", None, "it crashes"),
    ]
    rows = [offer._asdict() for offer in offers]
    assert usable_kernels(Provision(), "nvidia", rows) == ["6.1.0-2-amd64"]
    # Another than Debian's serves where Debian has none.
    assert usable_kernels(Provision(), "nvidia", rows[:2]) == ["6.12.1-amd64"]
