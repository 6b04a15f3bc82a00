"""One Dockerfile for each template against the file that is kept here, and what holds for all.

After a change that was meant: ``UPDATE_GOLDEN=1 pytest tests/golden``, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from golden.pins import patches, pin, recipe, templates, tree_pin, tree_templates
from provision.build.dockerfile import RenderedContext, render
from provision.pin import Pin
from unit.build.dockerfiles import instructions

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
    context, pinned = _rendered(case)
    return without_digest(context.dockerfile, pinned)


def _rendered(case: str) -> tuple[RenderedContext, Pin]:
    if case in TREE_CASES:
        driver, version, flavour, kind = TREE_CASES[case]
        sources = tree_templates()
        pinned = tree_pin(driver, version, flavour, kind=kind)
    else:
        driver, version, flavour = CASES[case]
        sources = templates()
        pinned = pin(driver, version, flavour)
    context = render(pinned, recipe(driver), templates=sources, patches=patches(driver))
    return context, pinned


def contexts(case: str) -> tuple[RenderedContext, RenderedContext]:
    """The contexts of a driver's toolchain and of its own stages."""
    return _rendered(case)[0].split()


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


@pytest.mark.parametrize("case", [*CASES, *TREE_CASES])
def test_every_step_speaks_english(case: str) -> None:
    """By what a step says it is known why it failed; a base image may have another language."""
    steps = [(step.keyword, step.text) for step in instructions(dockerfile(case))]
    first_run = [keyword for keyword, _ in steps].index("RUN")
    assert ("ENV", "LC_ALL=C.UTF-8") in steps[:first_run]


# What a toolchain is made from.
_SHARED = {"packages", "headers", "kernel", "install.sh", "step.py", "prepare_tree.py"}
_SHARED |= {"packages.sha256", "headers.sha256", "Dockerfile"}


@pytest.mark.parametrize("case", [*CASES, *TREE_CASES])
def test_a_build_is_a_toolchain_and_what_begins_with_its_image(case: str) -> None:
    """Each file of the context goes to where it is copied, and packages are not sent twice."""
    whole, (shared, own) = _rendered(case)[0], contexts(case)
    assert {name.partition("/")[0] for name in {**shared.files, **shared.downloads}} <= _SHARED
    assert not {"packages", "headers", "kernel"} & {name.split("/")[0] for name in own.downloads}
    assert {**shared.downloads, **own.downloads} == whole.downloads
    assert own.parts == whole.parts
    for part in (shared, own):
        copied = [step for step in instructions(part.dockerfile) if step.keyword in {"COPY", "ADD"}]
        for step in copied:
            sources = [] if "--from" in step.text else step.text.split()[:-1]
            given = {**part.files, **part.downloads, **part.parts, "git/": ""}
            assert all(any(name.startswith(s) for name in given) for s in sources), step
    steps = [*instructions(shared.dockerfile), *instructions(own.dockerfile)[2:]]
    assert steps == [one for one in instructions(whole.dockerfile) if "AS build" not in one.text]


def test_drivers_with_the_same_packages_share_a_toolchain() -> None:
    first, *others = (
        contexts(case)[0] for case in ("nvidia-open", "nvidia-runfile", "v4l2loopback")
    )
    assert [other.digest for other in others] == [first.digest] * 2
    other_tree, tree = (contexts(case)[0] for case in ("tree-prepared", "tree-source"))
    assert len({first.digest, tree.digest, other_tree.digest}) == 3


@pytest.mark.parametrize("driver", ["zfs", "gasket"])
def test_the_script_of_dkms_goes_where_it_is_run(driver: str) -> None:
    sources = templates()
    pinned = pin(*CASES[driver])
    context = render(pinned, recipe(driver), templates=sources, patches=patches(driver))
    is_run = "COPY dkms.bash" in context.files["Dockerfile"].decode()
    assert is_run == ("dkms.bash" in context.files) == (driver == "zfs")
