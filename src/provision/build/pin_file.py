"""A Pin as a file, which ``resolve`` writes and any machine can build from at any later time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from provision.build.dockerfile import variant_of
from provision.build.resolve import Resolved, recipe_digest
from provision.build.templates import load_templates, load_tree_templates
from provision.build.trees import kept_files
from provision.build.workspace import Settings
from provision.documents import load_json, parse_json
from provision.errors import ConfigError, Mistake, ProvisionError, redact
from provision.pin import ImageDigest, Pin, Sha256, Url
from provision.shipped import templates_dir

_BESIDE = ("digest", "image", "urls")


class PinFile(Pin):
    """A Pin with fields that are no inputs of the build."""

    digest_of_pin: ImageDigest = Field(alias="digest")
    image_of_pin: str = Field(alias="image")
    urls: dict[Sha256, tuple[Url, ...]] = Field(default_factory=dict)


def pin_document(pin: Pin, urls: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Any]:
    """Return a Pin for ``json.dumps``: digest, image, every input, and addresses.

    Addresses with a password or a token are left out, because the file is for other machines.
    """
    inputs: dict[str, Any] = json.loads(pin.canonical_json())
    public = {
        sha256: found
        for sha256, known in (urls or {}).items()
        if (found := [url for url in known if _is_public(url)])
    }
    beside = {"urls": public} if public else {}
    return {"digest": pin.digest, "image": pin.image, **inputs, **beside}


def _is_public(url: str) -> bool:
    """Return whether an address has no secret; addresses of SUSE have a token in their query."""
    parts = urlsplit(url)
    return not (parts.username or parts.password or parts.query)


def read_pin(settings: Settings, path: Path, *, network: str | None = None) -> Resolved:
    """Return the Pin of a file with everything that its build needs here."""
    file = load_json(path, PinFile)
    pin = _pin_of(file, path)
    secrets = [
        Mistake(
            f"sources.{number}",
            "its address holds a password or token, which the artifact's labels would show to every"
            " user",
        )
        for number, source in enumerate(pin.sources)
        if redact(source.text) != source.text
    ]
    if secrets:
        raise ConfigError(
            str(path), secrets, resolution="Leave it out of driver.toml, and resolve again."
        )
    entry = settings.catalogue.entry(pin.driver.name)
    variant = variant_of(pin, entry.recipe)
    if variant is None or recipe_digest(entry.recipe, variant) != pin.recipe:
        raise ProvisionError(
            f"The recipe of '{pin.driver.name}' ({entry.folder}) is not what the Pin in '{path}'"
            " was made from.",
            resolution="Use the catalogue that it was made from (--catalogue), or resolve again.",
        )
    network = network or settings.config.engine.network
    if pin.tree is None:
        templates = load_templates(templates_dir(), pin.distro.id)
        return Resolved(pin, entry, templates, urls=file.urls, network=network)
    templates = load_tree_templates(templates_dir(), pin.tree.toolchain)
    kept = kept_files(settings, pin, pin.tree)
    return Resolved(pin, entry, templates, attached=kept, urls=file.urls, network=network)


def load_pin(path: Path) -> Pin:
    """Return only the Pin of a file."""
    return _pin_of(load_json(path, PinFile), path)


def _pin_of(file: PinFile, path: Path) -> Pin:
    plain = json.loads(file.canonical_json())
    data = {name: value for name, value in plain.items() if name not in _BESIDE}
    pin = parse_json(json.dumps(data), Pin, name=str(path))
    if pin.digest != file.digest_of_pin:
        problem = f"it says {file.digest_of_pin}, and its content has {pin.digest}"
        raise ConfigError(str(path), [Mistake("digest", f"{problem}: the file was changed")])
    return pin
