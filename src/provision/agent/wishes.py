"""Reads provision.toml for the agent; loads the models, so it is imported when the file changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from provision.agent.model import Desired, DesiredDriver
from provision.catalogue import catalogue_folders, templates_dir
from provision.config import Config, DriverConfig, load


def read(root: Path, catalogues: Sequence[Path] = ()) -> Desired:
    """Return what the host under ``root`` should have.

    Raises:
        ConfigError: provision.toml has mistakes; all of them are named.
        NotFoundError: provision's own catalogue or templates are missing.
    """
    config = load(root)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Desired(
        drivers=tuple(_driver(name, wanted) for name, wanted in config.drivers.items()),
        unload=config.policy.unload,
        prebuild=config.policy.prebuild,
        keep=config.policy.keep,
        update=config.policy.update,
        textfile=config.metrics.textfile,
        basis=_basis(config),
        certificate=config.signing.certificate,
        catalogue=tuple(map(str, folders)),
        templates=str(templates_dir()),
    )


def _driver(name: str, wanted: DriverConfig) -> DesiredDriver:
    options = {
        module: {key: _parameter(value) for key, value in parameters.items()}
        for module, parameters in wanted.options.items()
    }
    return DesiredDriver(name, wanted.version, wanted.flavour, options)


def _parameter(value: str | int | bool) -> str:  # noqa: FBT001 - a value of the file, not a flag
    """Return a module's parameter as the kernel takes it: booleans are Y and N."""
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value)


def _basis(config: Config) -> str:
    """Return a fingerprint of what changes the artifacts of all drivers.

    Mirrors do not: they have the same packages, or their checksums differ.
    """
    parts = {
        "base_images": {name: distro.base_images for name, distro in config.distros.items()},
        "signing": config.signing.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
