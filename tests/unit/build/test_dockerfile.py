"""What a Pin and a recipe become, whatever their values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.pins import REPOSITORY, patches, pin, recipe, templates
from provision.build.dockerfile import RenderedContext, render, template_family
from provision.catalogue import Recipe
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import FORMAT
from unit.build.dockerfiles import Instruction, instructions
from unit.recipes import variant

NVIDIA = ("nvidia", "535.261.03", "open")
HOSTILE = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029{}/"),
    min_size=1,
).filter(lambda text: text not in {".", ".."})


def rendered(
    driver: str, version: str, flavour: str, changes: Mapping[str, object] = MappingProxyType({})
) -> RenderedContext:
    sources = templates()
    pinned = pin(driver, version, flavour)
    recipe_ = changed(recipe(driver), dict(changes))
    return render(pinned, recipe_, templates=sources, patches=patches(driver))


def changed(recipe_: Recipe, build: dict[str, object]) -> Recipe:
    """The recipe with other values in the build of its default flavour."""
    name = recipe_.default_flavour
    flavour = recipe_.flavours[name]
    flavour = flavour.model_copy(
        update={
            "licences": build.pop("licences", flavour.licences),
            "build": variant(recipe_).build.model_copy(update=build),
        }
    )
    sources = [source.model_copy(update={"build": {}}) for source in recipe_.sources]
    return recipe_.model_copy(update={"flavours": {name: flavour}, "source": tuple(sources)})


def make_step(context: RenderedContext) -> Instruction:
    steps = instructions(context.dockerfile)
    return steps[[step.text for step in steps].index("JOBS=1") + 1]


def test_kernels_share_compiler_and_tools() -> None:
    """Nothing of a kernel is in the stage that the engine is to know from the last kernel."""
    context = rendered(*NVIDIA)
    tools, _, rest = context.dockerfile.partition("\nFROM tools AS toolchain\n")
    release = pin(*NVIDIA).kernel.release
    _, _, tools = tools.partition("AS tools\n")
    assert "packages.sha256" in tools
    assert release not in tools
    assert f"headers.sha256 gcc 12 {release} " in rest
    folders = {name.partition("/")[0] for name in context.downloads if release in name}
    assert folders == {"headers"}
    assert release not in context.files["packages.sha256"].decode()


@given(command=st.lists(HOSTILE, min_size=1), directory=HOSTILE, archive=HOSTILE, licence=HOSTILE)
def test_values_of_a_recipe_stay_in_their_place(
    command: list[str], directory: str, archive: str, licence: str
) -> None:
    kept = (REPOSITORY / "tests/golden/Dockerfile.apt").read_text()
    usual = [step.keyword for step in instructions(kept)]
    context = rendered(
        *NVIDIA,
        {
            "command": tuple(command),
            "directory": directory,
            "archive": archive,
            "licences": (licence,),
        },
    )
    assert [step.keyword for step in instructions(context.dockerfile)] == usual
    words = shlex.split(make_step(context).text)
    assert words == ["cd", f"/source/{directory}", "&&", *command]


@pytest.mark.parametrize("key", ["command", "directory", "archive"])
def test_a_line_end_is_refused(key: str) -> None:
    hostile = "x\nRUN rm -rf /"
    with pytest.raises(UsageError):
        rendered(*NVIDIA, {key: (hostile,) if key == "command" else hostile})


def test_a_pin_of_another_format_is_refused() -> None:
    pinned = pin(*NVIDIA).model_copy(update={"format": FORMAT + 1})
    with pytest.raises(ProvisionError):
        render(pinned, recipe("nvidia"), templates=templates(), patches=patches("nvidia"))


def test_a_distro_without_a_template_is_refused() -> None:
    with pytest.raises(NotFoundError):
        template_family("plan9")


@pytest.mark.parametrize("contents", [{}, {"pci-resize-resource.patch": b"other"}])
def test_missing_or_changed_patch_is_refused(contents: dict[str, bytes]) -> None:
    sources = templates()
    pinned = pin(*NVIDIA)
    with pytest.raises(ProvisionError):
        render(pinned, recipe("nvidia"), templates=sources, patches=contents)
