"""The functions that resolve and build, which load their modules when they are called.

A host that never builds calls none of them, so it loads neither the resolver nor the templates:
tests/golden/test_never.py verifies that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from provision.build.driver_request import BuildSettings, DriverRequest
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.progress import Progress, silent

if TYPE_CHECKING:
    from provision.build.artifact_image import Built
    from provision.build.package_pins import Resolved
    from provision.store.pulling import Obtained


def open_engine(settings: Settings) -> Engine:
    """As ``provision.build.image_builds.open_engine``."""
    from provision.build import image_builds  # noqa: PLC0415 - only hosts that build load it

    return image_builds.open_engine(settings)


def resolve_pin(
    settings: Settings,
    engine: Callable[[], Engine],
    request: DriverRequest,
    *,
    progress: Progress = silent,
) -> Resolved:
    """As ``provision.build.resolving.resolve_pin``."""
    from provision.build import resolving  # noqa: PLC0415 - as above

    return resolving.resolve_pin(settings, engine, request, progress=progress)


def obtain(
    settings: Settings,
    engine: Callable[[], Engine],
    resolved: Resolved,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Obtained:
    """As ``provision.store.obtaining.obtain``."""
    from provision.store import obtaining  # noqa: PLC0415 - as above

    return obtaining.obtain(settings, engine, resolved, replace=replace, progress=progress)


def build_image(
    settings: Settings,
    engine: Engine,
    resolved: Resolved,
    how: BuildSettings,
    *,
    progress: Progress = silent,
) -> Built:
    """As ``provision.build.image_builds.build_image``."""
    from provision.build import image_builds  # noqa: PLC0415 - as above

    return image_builds.build_image(settings, engine, resolved, how, progress=progress)
