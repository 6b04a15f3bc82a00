"""The demo ends with the error that a command gave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest

from demo.choice import Choice, choose
from demo.engines import Engines
from demo.screen import DemoError, Screen
from demo.steps import Demo
from kit.product import Provision

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
