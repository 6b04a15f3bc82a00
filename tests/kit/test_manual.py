"""The manual's examples, as far as they can be looked at without an engine."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from kit.cache import REPOSITORY
from kit.pages import snippet

_PAGE = "how-to/configure-an-engine.md"


def test_a_snippet_is_the_block_after_its_title_with_the_programs_of_the_build() -> None:
    found = json.loads(snippet(_PAGE, "`/etc/docker/daemon.json`, then"))
    path = found["runtimes"]["oci-decorator"]["path"]
    assert path == str(REPOSITORY / "build/oci-decorator-runtime")


def test_a_snippet_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="no block of code"):
        snippet(_PAGE, "a title that no page has")
    with pytest.raises(LookupError, match="'--nowhere' is not in the block"):
        snippet(_PAGE, "## podman", {"--nowhere": ""})


def test_every_example_of_settings_can_be_read() -> None:
    text = (REPOSITORY / "docs" / _PAGE).read_text()
    blocks: list[tuple[str, str]] = re.findall(r"(?ms)^```(json|toml)\n(.*?)^```$", text)
    assert {kind for kind, _ in blocks} == {"json", "toml"}
    for kind, block in blocks:
        assert (json.loads if kind == "json" else tomllib.loads)(block)
