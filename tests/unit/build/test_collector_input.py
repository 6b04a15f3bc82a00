"""build.json and the placeholders of recipes."""

from __future__ import annotations

import pytest

from golden.pins import pin
from provision.build.dockerfile import placeholders
from provision.catalogue.fields import PLACEHOLDERS

ARCHITECTURES = {
    "x86_64": ("x86_64", "x86_64-linux-gnu"),
    "aarch64": ("arm64", "aarch64-linux-gnu"),
    "ppc64le": ("powerpc", "powerpc64le-linux-gnu"),
    "s390x": ("s390", "s390x-linux-gnu"),
    "riscv64": ("riscv", "riscv64-linux-gnu"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_placeholder_of_a_recipe_has_a_value(architecture: str) -> None:
    pinned = pin("nvidia", "535.261.03", "open")
    kernel = pinned.kernel.model_copy(update={"architecture": architecture})
    values = placeholders(pinned.model_copy(update={"kernel": kernel}))
    # {jobs} is the build call's: it never changes the result.
    assert values.keys() | {"jobs"} == PLACEHOLDERS
    assert (values["arch"], values["multiarch"]) == ARCHITECTURES[architecture]
