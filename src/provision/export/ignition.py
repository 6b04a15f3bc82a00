"""The Ignition configuration with which Fedora CoreOS and Flatcar get their drivers.

At its first boot, a machine takes the agent tree out of the agent's image, by digest; that tree
then writes everything else by its own commands.

Sources: https://coreos.github.io/ignition/configuration-v3_3/, https://www.rfc-editor.org/rfc/rfc2397
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from provision.build.dockerfile import fill_shipped
from provision.config import PATH, Config
from provision.documents import load_toml
from provision.errors import ConfigError, Mistake, UsageError, redact
from provision.files import templates_dir

Variant = Literal["fcos", "flatcar"]
# The engines that these distros include.
_ENGINES: Mapping[Variant, tuple[str, ...]] = {
    "fcos": ("docker", "podman"),
    "flatcar": ("docker",),
}
_UNIT = "provision-first-boot.service"
_STAGED = "/opt/provision/first-boot"
_HOOKS = "/etc/containers/oci/hooks.d"
# podman looks for hooks in /usr only, which is read-only here.
_HOOKS_CONF = "/etc/containers/containers.conf.d/49-oci-decorator-hooks.conf"
_FOLDERS = ("/opt/provision", _STAGED, "/etc/provision", "/etc/oci-decorator/oci-decorator.d")
_TRUST = "/etc/provision/trust.d"
# Paths that belong to the system's image.
_SHIPPED = "/usr/"
_BY_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:\[\]-]*@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a configuration."""

    config: Path
    # The agent's image, by digest.
    image: str
    variant: Variant
    # Files that provision.toml names and that come from elsewhere.
    expect: tuple[str, ...] = ()
    # Public keys by file name.
    keys: Mapping[str, str] = field(default_factory=dict)


def configuration(options: Options) -> dict[str, Any]:
    """Return the configuration; the same options give the same one.

    3.3.0 is the newest version of the format that Ignition 2.14 reads.
    """
    if not _BY_DIGEST.fullmatch(options.image):
        raise UsageError(
            f"'{options.image}' does not name an image by its digest.",
            resolution="Look it up: skopeo inspect --format '{{.Name}}@{{.Digest}}'"
            " docker://registry.example/agent:0.1.0",
        )
    engines = _ENGINES[options.variant]
    check_config(load_toml(options.config, Config), file=options.config, expected=options.expect)
    script = fill_shipped(
        "ignition/first-boot.sh.j2",
        staged=_STAGED,
        image=options.image,
        engines=engines,
        hooks=_HOOKS,
    )
    texts = {
        f"{_STAGED}/agent-tree.sh": (templates_dir() / "agent/agent-tree.sh").read_text(),
        f"{_STAGED}/first-boot.sh": script,
        f"/{PATH}": options.config.read_text(),
        **{f"{_TRUST}/{name}": text for name, text in options.keys.items()},
    }
    if "podman" in engines:
        folders = json.dumps(["/usr/share/containers/oci/hooks.d", _HOOKS])
        texts[_HOOKS_CONF] = f"[engine]\nhooks_dir = {folders}\n"
    unit = fill_shipped(f"ignition/{_UNIT}.j2", staged=_STAGED)
    return {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [{"path": path, "mode": 0o755} for path in _FOLDERS],
            # An existing file is replaced, so that Ignition can run again after a failure.
            "files": [
                {
                    "path": path,
                    "mode": 0o644,
                    "contents": {"source": f"data:,{quote(text, safe='')}"},
                    "overwrite": True,
                }
                for path, text in sorted(texts.items())
            ],
        },
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": unit}]},
    }


def check_config(config: Config, *, file: Path, expected: Collection[str]) -> None:
    """Refuse a provision.toml that can't be given to a machine as it is."""
    if secret := list(_secrets(config.model_dump(mode="json"))):
        raise ConfigError(
            str(file),
            [Mistake(key, "has a password or token in it") for key in secret],
            resolution="Remove it: whoever can read the machine's configuration would have it.",
        )
    missing = [
        Mistake(key, f"'{path}' would not be on the machine")
        for key, path in _named_files(config)
        if path not in expected and not path.startswith(_SHIPPED)
    ]
    if missing:
        raise ConfigError(
            str(file),
            missing,
            resolution="Write it with your own configuration, which merges this one, and name it"
            " here (--expect PATH). This one never contains private keys.",
        )


def _named_files(config: Config) -> Iterator[tuple[str, str]]:
    signing = config.signing
    files = {"key": signing.key, "certificate": signing.certificate, "pin_file": signing.pin_path}
    for name, path in files.items():
        if path is not None and path.startswith("/"):
            yield f"signing.{name}", path
    for name, distro in config.distros.items():
        if distro.archive.keyring is not None:
            yield f"distros.{name}.archive.keyring", distro.archive.keyring
    for number, folder in enumerate(config.catalogue):
        yield f"catalogue.{number}", folder


def _secrets(value: object, *keys: str) -> Iterator[str]:
    """Yield the keys of settings, at any depth, that hold a password or token."""
    if isinstance(value, str) and redact(value) != value:
        yield ".".join(keys)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets(inner, *keys, str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _secrets(inner, *keys, str(number))
