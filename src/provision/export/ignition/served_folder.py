"""Writes the folder to serve: the files that machines fetch, and their Ignition configuration.

All inputs are checked before anything is written. /usr is read-only on these machines, so the paths
are those that the Ansible role uses in that case. The role keeps records of the files that it wrote
and of their originals; files without a record are foreign to it. Formats and paths are those of its
modules ``_provision_managed_files`` and ``provision_config``, and of ``oci-decorator configure``
(``hooks/src/engines/record.rs``).

Sources: https://coreos.github.io/ignition/configuration-v3_3/, https://coreos.github.io/butane/specs/
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from provision.build.dockerfile import fill_shipped
from provision.config import Config
from provision.documents import load_toml
from provision.elf import HEAD_SIZE, elf_machine
from provision.errors import ConfigError, Mistake, NotFoundError, UsageError, redact
from provision.export.ignition.wheels import (
    BundleOrigin,
    HostPython,
    bundles_folder,
    environment_name,
    have_bundle,
    origin,
    read_python,
)
from provision.files import replacing, write_atomic
from provision.progress import Step, report

Engine = Literal["docker", "podman"]
BIN = "/opt/provision/bin"
PROGRAM = f"{BIN}/oci-decorator"
RUNTIME = f"{BIN}/oci-decorator-runtime"
SETTINGS = "/etc/oci-decorator/config.toml"
VENDORS = "/etc/oci-decorator/oci-decorator.d"
DAEMON_JSON = "/etc/docker/daemon.json"
_HOOKS = "/etc/containers/oci/hooks.d"
_CONTAINERS_CONF = "/etc/containers/containers.conf.d/50-oci-decorator.conf"
_NAME = "oci-decorator"
FOLDER = "/var/lib/oci-decorator"
_FILES = f"{FOLDER}/files.json"
_CONFIG = f"{FOLDER}/config.json"
PROVISION_TOML = "/etc/provision/provision.toml"


def render(name: str, **values: str) -> str:
    """Return a template's text with its values filled in."""
    return fill_shipped(f"ignition/{name}", **values)


def hook_texts(engines: Iterable[Engine], docker: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of all files, by their path on the machine."""
    texts = {SETTINGS: "# Settings of oci-decorator; written by 'provision export ignition'.\n"}
    if "podman" in engines:
        texts[_CONTAINERS_CONF] = render("containers.conf.j2", hooks=_HOOKS, runtime=RUNTIME)
        for name, stage in (("10-oci-decorator", "precreate"), ("20-oci-decorator", "prestart")):
            text = render("hook.json.j2", program=PROGRAM, stage=stage)
            texts[f"{_HOOKS}/{name}-{stage}.json"] = text
    if "docker" in engines:
        texts[DAEMON_JSON] = json.dumps(docker, indent=2) + "\n"
    return texts


def docker_with_runtime(given: Path | None, *, is_default: bool) -> dict[str, Any]:
    """Return a daemon.json with the runtime.

    Args:
        given: The daemon.json to extend; None: an empty one.
    """
    document = _read(given) if given is not None else {}
    runtimes = document.get("runtimes", {})
    if not isinstance(runtimes, dict):
        raise ConfigError(str(given), [Mistake("runtimes", "must be an object")])
    entered = {**document, "runtimes": {**runtimes, _NAME: {"path": RUNTIME}}}
    return {**entered, "default-runtime": _NAME} if is_default else entered


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file '{path}'.",
            resolution=f"Name one that is there, or write an empty one: echo '{{}}' > {path}",
        ) from error
    except ValueError as error:
        raise ConfigError(str(path), [Mistake("", f"not valid JSON: {error}")]) from error
    if not isinstance(document, dict):
        raise ConfigError(str(path), [Mistake("", "must be an object")])
    return document


def managed_records(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the role's records, by path.

    None has daemon.json: 'oci-decorator configure' takes the runtime out by its name.
    """
    found: dict[str, dict[str, object]] = {}
    for path, text in texts.items():
        if path == DAEMON_JSON:
            continue
        ledger = _CONFIG if path == PROVISION_TOML else _FILES
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        record = {"original": None, "mode": None, "folders": [], "written": [sha256]}
        found.setdefault(ledger, {})[path] = record
    return {
        ledger: json.dumps(records, indent=2, sort_keys=True) + "\n"
        for ledger, records in found.items()
    }


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
    if secret := list(_secrets(config.model_dump(mode="json"))):
        raise ConfigError(
            str(file),
            [Mistake(key, "has a password or token in it") for key in secret],
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


CONFIG = "config.ign"
BUTANE_FILE = "provision.bu"
# For each distro, the version of Butane's format that makes Ignition's 3.3.0.
_BUTANE: Mapping[Variant, str] = {"fcos": "1.4.0", "flatcar": "1.0.0"}
_FOLDER = "/opt/provision"
_STAGED = f"{_FOLDER}/first-boot"
_UNIT = "provision-first-boot.service"
_SHORT = 12
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Served:
    """A file that machines fetch."""

    # Its name in the folder.
    name: str
    url: str
    size: int
    # Of its content, as 128 hexadecimal digits.
    sha512: str

    @property
    def hash(self) -> str:
        """Its checksum, as Ignition writes it."""
        return f"sha512-{self.sha512}"

    def contents(self) -> dict[str, Any]:
        """Return it as content that a machine fetches and verifies."""
        return {"source": self.url, "verification": {"hash": self.hash}}


@dataclass(frozen=True, slots=True)
class Written:
    """The written files."""

    config: Served
    # The files that machines fetch besides.
    files: tuple[Served, ...]
    # Name of the virtual environment on machines.
    environment: str
    changed: bool


def check_output(folder: Path) -> None:
    """Refuse a folder that has foreign files."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise UsageError(
            f"'{folder}' has other files.", resolution="Name an empty folder, or a new one."
        )


def write(prepared: Prepared, folder: Path) -> Written:
    """Write all files, and the configuration that names them last.

    File names contain checksums, so that machines can still boot with an earlier configuration.
    """
    report(Step(1, _STEPS, "gather the wheels that provision needs"))
    bundle = prepared.bundle
    if not isinstance(bundle, Path):
        bundle = have_bundle(bundle, bundles_folder(os.environ))
    environment = environment_name(bundle, prepared.python)
    report(Step(2, _STEPS, "copy what machines fetch"))
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    files = {
        f"{_STAGED}/python.tar.gz": _serve(prepared.python.path, ".tar.gz", folder, prepared.url),
        f"{_FOLDER}/provision.tar": _serve(bundle, ".tar", folder, prepared.url),
    }
    if prepared.hook is not None:
        files[PROGRAM] = _serve(prepared.hook, "", folder, prepared.url)
    report(Step(3, _STEPS, f"write {CONFIG}"))
    text = _configuration(prepared, files, environment)
    sha512 = hashlib.sha512(text.encode()).hexdigest()
    config = Served(CONFIG, f"{prepared.url}/{CONFIG}", len(text.encode()), sha512)
    # It merges the configuration into the admin's own.
    butane = render(
        "provision.bu.j2",
        variant=prepared.variant,
        version=_BUTANE[prepared.variant],
        source=config.url,
        hash=config.hash,
    )
    changed = any(served.name not in before for served in files.values())
    changed |= write_atomic(folder / CONFIG, text)
    changed |= write_atomic(folder / BUTANE_FILE, butane)
    return Written(config, tuple(files.values()), environment, changed=changed)


def _serve(path: Path, suffix: str, folder: Path, url: str) -> Served:
    """Copy a file into the folder, under a name with its checksum."""
    sha512 = _sha512(path)
    name = f"{path.name.removesuffix(suffix)}-{sha512[:_SHORT]}{suffix}"
    target = folder / name
    if not target.is_file() or _sha512(target) != sha512:
        with path.open("rb") as content, replacing(target) as stream:
            shutil.copyfileobj(content, stream)
    return Served(name, f"{url}/{name}", target.stat().st_size, sha512)


def _sha512(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha512").hexdigest()


def _configuration(prepared: Prepared, fetched: Mapping[str, Served], environment: str) -> str:
    """Return the configuration of a machine; the same contents give the same text.

    3.3.0 is the newest version of the format that Ignition 2.14 reads.

    Args:
        fetched: Files that the machine fetches, by their path there.
        environment: Name of its virtual environment.
    """
    texts = {**prepared.texts, PROVISION_TOML: prepared.provision_toml}
    records = managed_records(texts)
    files = {
        **{path: (0o644, served.contents()) for path, served in fetched.items()},
        f"{_STAGED}/first-boot.sh": (0o755, _inline(render("first-boot.sh"))),
        **{path: (0o644, _inline(text)) for path, text in texts.items()},
        **{path: (0o600, _inline(text)) for path, text in records.items()},
    }
    folders = {_FOLDER, _STAGED, BIN, "/etc/provision", FOLDER}
    links = []
    if PROGRAM in fetched:
        files[PROGRAM] = (0o755, fetched[PROGRAM].contents())
        folders |= {"/etc/oci-decorator", VENDORS}
        links = [{"path": RUNTIME, "target": "oci-decorator", "overwrite": True}]
    unit = render(f"{_UNIT}.j2", staged=_STAGED, environment=environment)
    document = {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [{"path": path, "mode": 0o755} for path in sorted(folders)],
            # An existing file is replaced, so that Ignition can run again after a failure.
            "files": [
                {"path": path, "mode": mode, "contents": contents, "overwrite": True}
                for path, (mode, contents) in sorted(files.items())
            ],
            "links": links,
        },
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": unit}]},
    }
    return json.dumps(document, indent=2) + "\n"


def _inline(text: str) -> dict[str, Any]:
    """Return a text as inline content: https://www.rfc-editor.org/rfc/rfc2397."""
    return {"source": f"data:,{quote(text, safe='')}"}
