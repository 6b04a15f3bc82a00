"""Two builds of one Pin have the same modules; where they have not, that is said."""

from __future__ import annotations

import json
from collections.abc import Mapping

from provision.engine.docker_api import Engine, Image
from provision.engine.extract import read_file
from provision.errors import ProvisionError
from provision.kmod.verify import MANIFEST
from provision.pipeline.workspace import Settings

_SHOWN = 12


def module_sums(settings: Settings, engine: Engine, image: Image) -> dict[str, str]:
    """Return the sha256 of an artifact image's modules by path; empty if it can't be read."""
    try:
        manifest = json.loads(read_file(engine, image, str(MANIFEST), state=settings.state))
        return {str(one["path"]): str(one["sha256"]) for one in manifest["modules"]}
    except (ProvisionError, ValueError, KeyError, TypeError):
        return {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return which modules of two builds of one Pin differ, one line each; none: they are equal.

    Args:
        before: Sums by path, of the build before.
        after: Sums by path, of this one.
    """
    return tuple(
        f"{path}: was {_shown(before.get(path))}, is {_shown(after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def explanation(found: tuple[str, ...]) -> str:
    """Return what to say about modules that differ although every input is the same."""
    return (
        "The modules differ from those of the image that was replaced, although the Pin is the"
        f" same: {'; '.join(found)}. So the driver's own build puts something into them that is"
        " not pinned: the time (__DATE__, KBUILD_BUILD_TIMESTAMP), a random number, the order of"
        " files. What to do: find it with 'diffoscope', and set it in the recipe's command."
    )


def _shown(sha256: str | None) -> str:
    return "not there" if sha256 is None else f"{sha256[:_SHOWN]}…"
