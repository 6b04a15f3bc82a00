"""One Dockerfile for each template against the file that is kept here, and what holds for all.

After a change that was meant: ``UPDATE_GOLDEN=1 pytest tests/golden``, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from golden.pins import patches, pin, recipe, templates, tree_pin, tree_templates
from provision.build.dockerfile import render
from provision.pin import Pin

HERE = Path(__file__).parent
CASES = {
    "nvidia-open": ("nvidia", "535.261.03", "open"),
    "nvidia-proprietary": ("nvidia", "535.261.03", "proprietary"),
    "nvidia-runfile": ("nvidia", "580.95.05", "open"),
    "v4l2loopback": ("v4l2loopback", "0.12.7", "dkms"),
    "onload": ("onload", "9.0.2", "full"),
    "amdgpu": ("amdgpu", "6.10.5", "dkms"),
    "gasket": ("gasket", "1.0.18.post20240425", "apex"),
    "hailo8": ("hailo8", "4.23.0", "pcie"),
    "hailo10": ("hailo10", "5.3.0", "pcie"),
    "i915-backports": ("i915-backports", "25.14.803.145", "i915"),
    "tenstorrent": ("tenstorrent", "2.10.0", "dkms"),
    "zfs": ("zfs", "2.1.11", "dkms"),
}
# The same in a kernel tree: which driver, and how the tree comes.
TREE_CASES = {
    "tree-source": ("v4l2loopback", "0.12.7", "dkms", "source"),
    "tree-prepared": ("onload", "9.0.2", "full", "prepared"),
    "tree-runfile": ("nvidia", "580.95.05", "proprietary", "source"),
    "tree-image": ("onload", "9.0.2", "full", "image"),
}


def dockerfile(case: str) -> str:
    if case in TREE_CASES:
        driver, version, flavour, kind = TREE_CASES[case]
        sources = tree_templates()
        pinned = tree_pin(driver, version, flavour, kind=kind)
    else:
        driver, version, flavour = CASES[case]
        sources = templates()
        pinned = pin(driver, version, flavour)
    context = render(pinned, recipe(driver), templates=sources, patches=patches(driver))
    return without_digest(context.dockerfile, pinned)


def without_digest(text: str, pinned: Pin) -> str:
    """A Dockerfile without the digest that any change of the Pin changes."""
    return text.replace(pinned.digest, "sha256:<pin>")


def assert_is_kept(text: str, name: str) -> None:
    """Compare a Dockerfile with the one that is kept, or replace that."""
    path = HERE / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("case", "name"), [("nvidia-open", "Dockerfile.apt"), ("tree-source", "Dockerfile.tree")]
)
def test_the_dockerfile_is_the_one_kept(case: str, name: str) -> None:
    assert_is_kept(dockerfile(case), name)


def test_every_driver_has_a_case() -> None:
    catalogue = HERE.parents[1] / "driver_images"
    drivers = {path.parent.name for path in catalogue.glob("*/driver.toml")}
    assert {driver for driver, _, _ in CASES.values()} == drivers


@pytest.mark.parametrize("case", [*CASES, *TREE_CASES])
def test_nothing_is_evaluated_inline(case: str) -> None:
    text = dockerfile(case)
    for word in ("uname", "nproc", "$(", "`"):
        assert word not in text, word


@pytest.mark.parametrize("driver", ["zfs", "gasket"])
def test_the_script_of_dkms_goes_where_it_is_run(driver: str) -> None:
    sources = templates()
    pinned = pin(*CASES[driver])
    context = render(pinned, recipe(driver), templates=sources, patches=patches(driver))
    is_run = "COPY dkms.bash" in context.files["Dockerfile"].decode()
    assert is_run == ("dkms.bash" in context.files) == (driver == "zfs")
