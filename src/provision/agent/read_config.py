"""Reads provision.toml for the agent; loads the models, so it is imported when the file changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from provision.agent.model import Desired, DesiredDriver
from provision.catalogue import catalogue_folders, templates_dir
from provision.config import PATH, Config, load
from provision.files import in_root


def read(root: Path, catalogues: Sequence[Path] = ()) -> Desired:
    """Return what the host under ``root`` should have.

    Raises:
        ConfigError: provision.toml has mistakes; all of them are named.
        NotFoundError: provision's own catalogue or templates are missing.
    """
    config = load(root)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Desired(
        drivers=tuple(
            DesiredDriver(name, wanted.version, wanted.flavour, wanted.options)
            for name, wanted in config.drivers.items()
        ),
        is_configured=in_root(root, PATH).exists(),
        unload=config.policy.unload,
        prebuild=config.policy.prebuild,
        keep=config.policy.keep,
        update=config.policy.update,
        textfile=config.metrics.textfile,
        settings=_settings_fingerprint(config),
        certificate=config.signing.certificate,
        catalogue=tuple(map(str, folders)),
        templates=str(templates_dir()),
    )


def _settings_fingerprint(config: Config) -> str:
    """Return a fingerprint of what changes the artifacts of all drivers.

    Mirrors do not: they have the same packages, or their checksums differ.
    """
    parts: dict[str, object] = {
        "base_images": {name: distro.base_images for name, distro in config.distros.items()},
        "signing": config.signing.model_dump(mode="json"),
    }
    keyrings = {
        name: distro.archive.keyring
        for name, distro in config.distros.items()
        if distro.archive.keyring is not None
    }
    if keyrings:
        parts["keyrings"] = keyrings
    if config.kernel_distro is not None:
        parts["kernel_distro"] = config.kernel_distro
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
