"""Checks all inputs of a configuration before anything is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from provision.config import Config
from provision.documents import load_toml
from provision.elf import HEAD_SIZE, elf_machine
from provision.errors import ConfigError, Mistake, NotFoundError, UsageError
from provision.export.ignition.engine_files import Engine, docker_with_runtime, hook_texts
from provision.export.ignition.pythons import HostPython, read_python
from provision.export.ignition.wheels import BundleOrigin, environment_name, origin

Variant = Literal["fcos", "flatcar"]
# Paths that belong to the system's image.
_SHIPPED = "/usr/"
# The engines that these distros include.
_ENGINES: Mapping[Variant, tuple[Engine, ...]] = {
    "fcos": ("docker", "podman"),
    "flatcar": ("docker",),
}
# Without credentials: everyone who reads the configuration would have them.
_URL = re.compile(r"(https?|tftp|s3|gs)://[^\s@'\"\\]+")


def check_config(config: Config, *, file: Path, expected: Collection[str]) -> None:
    """Refuse a provision.toml that can't be given to a machine as it is."""
    if secret := [Mistake(key, text) for key, text in _secrets(config)]:
        raise ConfigError(
            str(file),
            secret,
            resolution="Remove it: everyone who reaches the address of config.ign can read it, and"
            " it stays on the machine.",
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
            " here (--expect PATH). config.ign never contains keys.",
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


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    text = "has a password in it"
    addresses = {"engine.host": config.engine.host}
    for name, distro in config.distros.items():
        addresses[f"distros.{name}.archive.mirror"] = distro.archive.mirror
        addresses[f"distros.{name}.archive.security_mirror"] = distro.archive.security_mirror
    for key, address in addresses.items():
        if address is not None and urlsplit(address).password is not None:
            yield key, text


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a configuration."""

    config: Path
    # Address of the served folder, as the machine sees it.
    url: str
    variant: Variant
    python: Path
    # The program oci-decorator; None: containers get no drivers.
    hook: Path | None
    # The engines to configure; empty: those of the distro.
    engines: tuple[Engine, ...]
    docker_config: Path | None
    docker_default: bool
    # An archive of wheels; None: one is made.
    bundle: Path | None
    source: Path
    # A folder with the other wheels; None: the package index.
    wheelhouse: Path | None
    # Files that provision.toml names and that come from elsewhere.
    expect: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Options that were checked."""

    # Address of the served folder, without a slash at the end.
    url: str
    variant: Variant
    provision_toml: str
    python: HostPython
    hook: Path | None
    texts: Mapping[str, str]
    # Docker's original daemon.json; None where the host has no such file.
    daemon_json: str | None
    bundle: Path | BundleOrigin


def prepare(options: Options) -> Prepared:
    """Check options."""
    if not _URL.fullmatch(options.url):
        raise UsageError(
            f"'{options.url}' is not an address that a machine can fetch from.",
            resolution="Give the address of the output folder as machines see it (--url), such as"
            " https://files.example/provision, without a user or a password in it.",
        )
    config = load_toml(options.config, Config)
    check_config(config, file=options.config, expected=options.expect)
    python = read_python(options.python)
    _check_hook(options, python)
    bundle: Path | BundleOrigin = options.bundle or origin(
        options.source, options.wheelhouse, python
    )
    if isinstance(bundle, Path):
        # Called for its checks.
        environment_name(bundle, python)
    return Prepared(
        url=options.url.rstrip("/"),
        variant=options.variant,
        provision_toml=options.config.read_text(),
        python=python,
        hook=options.hook,
        texts=_texts(options),
        daemon_json=options.docker_config.read_text() if options.docker_config else None,
        bundle=bundle,
    )


def _texts(options: Options) -> dict[str, str]:
    if options.hook is None:
        return {}
    engines = options.engines or _ENGINES[options.variant]
    docker: dict[str, Any] = {}
    if "docker" in engines:
        docker = docker_with_runtime(options.docker_config, is_default=options.docker_default)
    elif options.docker_config is not None or options.docker_default:
        raise UsageError(
            "Options for Docker are given, which is not among the engines.",
            resolution="Add '--engine docker', or leave out the options for Docker.",
        )
    return hook_texts(engines, docker)


def _check_hook(options: Options, python: HostPython) -> None:
    """Check that the program is an executable for the same machine as the Python."""
    if options.hook is None:
        if options.engines or options.docker_config is not None or options.docker_default:
            raise UsageError(
                "Options for engines are given, and the machine gets no oci-decorator.",
                resolution="Name the program oci-decorator (--hook FILE).",
            )
        return
    if not options.hook.is_file():
        raise NotFoundError(
            f"There is no file '{options.hook}'.",
            resolution="Build it: make build (the result is build/oci-decorator)",
        )
    with options.hook.open("rb") as stream:
        machine = elf_machine(stream.read(HEAD_SIZE))
    if machine is None:
        raise UsageError(
            f"'{options.hook}' is not a program.",
            resolution="Name the program oci-decorator itself.",
        )
    if machine != python.machine:
        raise UsageError(
            f"'{options.hook}' is for {machine}, and '{python.path}' for {python.machine}.",
            resolution="Name files for the architecture of the machine.",
        )
