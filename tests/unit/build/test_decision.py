"""The Pin of a request: what it contains, and what changes its digest."""

import pytest

from provision.errors import ProvisionError
from unit.build.made_up_driver import (
    digest,
    packages,
    pin,
)
from unit.build.made_up_driver import index as index  # noqa: PLC0414 - a fixture
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": "Another text"},
        {"vendor": "Someone"},
        {"homepage": "https://elsewhere.example"},
        {"kernels": [{"works": ">=1"}]},
        {"hardware": {"pci": []}},
    ],
)
def test_what_doesnt_reach_the_build_leaves_the_digest(changes: dict[str, object]) -> None:
    assert digest(recipe(**changes)) == digest(recipe())


def test_what_reaches_the_build_changes_the_digest() -> None:
    base = recipe()
    flavours = {name: value.model_dump(mode="json") for name, value in base.flavours.items()}
    other = {**flavours, "plain": {**flavours["plain"], "licences": ["BSD-3-Clause"]}}
    container = {**base.container.model_dump(mode="json"), "log_level": "LOG_DEBUG"}
    changed = [recipe(flavours=other), recipe(container=container), recipe(files=[])]
    digests = {digest(one) for one in [base, *changed]}
    assert len(digests) == 4
    assert digest(recipe(flavours=other), "other") == digest(base, "other")


@pytest.mark.parametrize(
    "more",
    [
        stanza("tool-source", "1.11_1-1"),
        stanza("tool-companion", "0.9_1-1"),
        "\n".join(stanza(f"tool-{part}", f"1.{'1' * 70}-1") for part in ("source", "user")),
    ],
)
def test_a_package_that_a_pin_cant_hold_is_an_error_of_ours(more: str) -> None:
    made = archive_of({("bookworm", "main"): packages(more)})
    with pytest.raises(ProvisionError):
        pin(made)
