"""Checks all that a configuration is made from, before anything is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision.config import Config
from provision.documents import load_toml
from provision.errors import ConfigError, Mistake, NotFoundError, UsageError
from provision.host.kernels import elf_machine
from provision.ignition.engine_files import Engine, docker_with_runtime, hook_texts
from provision.ignition.machine import Variant
from provision.ignition.pythons import HostPython, read_python
from provision.ignition.wheels import Origin, environment_name, origin

# What belongs to the image.
_SHIPPED = "/usr/"
# What these distros come with.
_ENGINES: Mapping[Variant, tuple[Engine, ...]] = {
    "fcos": ("docker", "podman"),
    "flatcar": ("docker",),
}
# Credentials in an address would be everybody's who reads the configuration.
_URL = re.compile(r"(https?|tftp|s3|gs)://[^\s@'\"\\]+")
# As much of a program as says what it is for.
_HEAD = 64


def check_config(config: Config, *, file: Path, expected: Collection[str]) -> None:
    """Refuse a provision.toml that can't be given to a machine as it is.

    Args:
        config: What it says.
        file: Where it is, for messages.
        expected: Files of the machine that someone else puts there.

    Raises:
        ConfigError: It holds a secret, or names a file that would be missing; all are named.
    """
    if secret := [Mistake(key, text) for key, text in _secrets(config)]:
        raise ConfigError(
            str(file),
            secret,
            resolution="Take it out: config.ign can be read by anyone who reaches its address, and"
            " stays on the machine.",
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
            resolution="Put it there by your own configuration, into which this one is merged, and"
            " say so (--expect PATH). Keys are never taken into config.ign.",
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
    """What someone wants a configuration for.

    Attributes:
        config: The provision.toml.
        url: Where the machine finds what is served.
        variant: What runs on the machine.
        python: An archive of a Python.
        hook: The program oci-decorator; None: containers get no drivers.
        engines: Those that get to know it; none: those of the distro.
        docker_config: The daemon.json that the machine would have otherwise.
        docker_default: Whether Docker's containers get drivers without asking for the runtime.
        bundle: An archive of wheels; None: one is made.
        source: What it is made from: a checkout, or a wheel of provision.
        wheelhouse: Where the wheels of others come from; None: the package index.
        expect: Files that provision.toml names and someone else puts onto the machine.
    """

    config: Path
    url: str
    variant: Variant
    python: Path
    hook: Path | None
    engines: tuple[Engine, ...]
    docker_config: Path | None
    docker_default: bool
    bundle: Path | None
    source: Path
    wheelhouse: Path | None
    expect: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A options that can be fulfilled.

    Attributes:
        url: Where the machine finds what is served, without a slash at the end.
        variant: What runs on it.
        provision_toml: The text of its provision.toml.
        python: Its Python.
        hook: The program oci-decorator, or None.
        texts: Further files of the machine, by path.
        daemon_json: Docker's, as it would be otherwise; None: there would be none.
        bundle: An archive of wheels, or what one is to be made from.
    """

    url: str
    variant: Variant
    provision_toml: str
    python: HostPython
    hook: Path | None
    texts: Mapping[str, str]
    daemon_json: str | None
    bundle: Path | Origin


def prepare(options: Options) -> Prepared:
    """Check a options.

    Raises:
        NotFoundError: A file is missing.
        UsageError: Something does not go together, or is not what it should be.
        ConfigError: provision.toml or daemon.json can't be given to a machine as it is.
    """
    if not _URL.fullmatch(options.url):
        raise UsageError(
            f"'{options.url}' is no address that a machine can fetch from.",
            resolution="Give the address of the output folder as machines see it (--url), such as"
            " https://files.example/provision, without a user or a password in it.",
        )
    config = load_toml(options.config, Config)
    check_config(config, file=options.config, expected=options.expect)
    python = read_python(options.python)
    _check_hook(options, python)
    bundle: Path | Origin = options.bundle or origin(options.source, options.wheelhouse, python)
    if isinstance(bundle, Path):
        # For what it checks.
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
            "There is something to say to Docker, which is not among the engines.",
            resolution="Add '--engine docker', or leave the options for Docker away.",
        )
    return hook_texts(engines, docker)


def _check_hook(options: Options, python: HostPython) -> None:
    """Check that the program is one, for the machine that the Python is for."""
    if options.hook is None:
        if options.engines or options.docker_config is not None or options.docker_default:
            raise UsageError(
                "Engines can't get to know a program that the machine doesn't have.",
                resolution="Name the program oci-decorator (--hook FILE).",
            )
        return
    if not options.hook.is_file():
        raise NotFoundError(
            f"There is no file '{options.hook}'.",
            resolution="'make build' makes it, as build/oci-decorator.",
        )
    with options.hook.open("rb") as stream:
        machine = elf_machine(stream.read(_HEAD))
    if machine is None:
        raise UsageError(
            f"'{options.hook}' is no program.", resolution="Name the program oci-decorator itself."
        )
    if machine != python.machine:
        raise UsageError(
            f"'{options.hook}' is for {machine}, and '{python.path}' for {python.machine}.",
            resolution="Name both for the machine that is to boot.",
        )
