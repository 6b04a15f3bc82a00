"""Pages are in the words of a native technical writer: some turns of phrase are kept out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY
from kit.pages import pages

if TYPE_CHECKING:
    from pathlib import Path

# What to write instead stands beside each in the message of a failure.
_INSTEAD = {
    "alone": "only",
    "nobody": "no one, or say what does not happen",
    "somebody": "a person, a program, another",
    "whoever": "the one who, a person who",
    "anew": "again",
    "shall": "has to, will",
    "told": "given, asked",
    "tells of": "says",
    "mend": "correct, repair",
    "is none": "does not exist",
    "story": "scenario",
    "door": "front end, socket",
    "house": "",
    "at a desk": "",
}
_AVOIDED = re.compile(rf"\b({'|'.join(_INSTEAD)})\b", re.IGNORECASE)
# Messages that are quoted are the programs'.
_HELD = (
    "README.md", "CONTRIBUTING.md", "SECURITY.md",
    "docs/README.md", "docs/tutorials/", "docs/decisions/",
)  # fmt: skip
_HELD_TOO = (
    "docs/explanation/agent.md", "docs/explanation/pins-and-artifacts.md",
    "docs/reference/support.md", "docs/reference/glossary.md",
)  # fmt: skip
_HOW_TO = (
    "configure-an-engine", "coreos", "hpc", "ignition", "kubernetes", "secure-boot",
    "slurm-and-sarus", "troubleshooting", "upgrade-and-uninstall", "use-ansible", "vagrant",
)  # fmt: skip
_PREFIXES = (*_HELD, *_HELD_TOO, *(f"docs/how-to/{name}.md" for name in _HOW_TO))
_PAGES = [page for page in pages() if str(page.relative_to(REPOSITORY)).startswith(_PREFIXES)]


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_a_page_avoids_these_words(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$|`[^`]*`|^### .*?$", "", page.read_text())
    found = [match[1].lower() for match in _AVOIDED.finditer(text)]
    assert {word: _INSTEAD[word] for word in found} == {}


def test_the_pages_are_there() -> None:
    names = {str(page.relative_to(REPOSITORY)) for page in _PAGES}
    assert {name for name in _PREFIXES if name.endswith(".md")} <= names
