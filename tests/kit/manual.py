"""The manual's own examples, so that tests run what users are asked to type."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kit.cache import REPOSITORY
from kit.product import DECORATOR, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["snippet"]


def snippet(page: str, title: str, replace: Mapping[str, str] | None = None) -> str:
    """The block of code of `docs/PAGE` that follows the first line with `title` in it.

    The installed program's paths become those of the build, and then the words of `replace` what
    they stand for.

    Raises:
        LookupError: the page has no such block, or doesn't have a word of `replace`.
    """
    text = (REPOSITORY / "docs" / page).read_text()
    after = text[text.index(title) :] if title in text else ""
    block = re.search(r"(?ms)^ *```\w*\n(.*?)^ *```$", after)
    if block is None:
        raise LookupError(f"docs/{page} has no block of code after {title!r}")
    found = block[1].replace("/usr/bin/oci-decorator-runtime", str(RUNTIME))
    found = found.replace("/usr/bin/oci-decorator", str(DECORATOR))
    for word, value in (replace or {}).items():
        if word not in found:
            raise LookupError(f"docs/{page}: {word!r} is not in the block after {title!r}")
        found = found.replace(word, value)
    return found
