"""Where a host looks for artifact images: folders of bundles first, then registries."""

from __future__ import annotations

from provision.errors import NotFoundError
from provision.files import in_root
from provision.pipeline.workspace import Settings
from provision.registry.image_layout import open_layout
from provision.registry.names import Reference, parse_reference
from provision.registry.repository import Repository
from provision.registry.storage import FolderFiles

# What the name of a folder begins with in place of a registry's: no registry can have it, and no
# rule of [trust.registries], because a port is a number.
FOLDER = "file:"
# Where a bundle has an image layout for each driver.
BUNDLE_IMAGES = "images"


def references(settings: Settings, driver: str) -> list[Reference]:
    """Return the repositories that a host looks for a driver in, in this order."""
    registry = settings.config.registry
    folders = [Reference(f"{FOLDER}{folder}", driver) for folder in registry.folders]
    return [*folders, *(parse_reference(f"{address}/{driver}") for address in registry.addresses)]


def folder_at(settings: Settings, reference: Reference) -> Repository | None:
    """Return the repository in a folder; None: the reference is a registry's.

    Raises:
        NotFoundError: The folder is not there, or has nothing of the driver.
        ProvisionError: What the folder has is no image layout.
    """
    if not reference.registry.startswith(FOLDER):
        return None
    folder = in_root(settings.root, reference.registry.removeprefix(FOLDER))
    layout = folder / BUNDLE_IMAGES / reference.repository
    if not layout.is_dir():
        raise NotFoundError(f"'{folder}' has no images of {reference.repository}.")
    return open_layout(FolderFiles(layout), reference)
