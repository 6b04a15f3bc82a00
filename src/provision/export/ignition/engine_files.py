"""The files that give containers their drivers: oci-decorator's own, podman's and Docker's.

/usr is read-only on these machines, so the paths are those that the Ansible role uses in that case.

The role keeps records of the files that it wrote and of their originals; files without a record are
foreign to it. Formats and paths are those of its modules ``_provision_managed_files`` and
``provision_config``, and of ``oci-decorator configure`` (``hooks/src/engines/record.rs``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from provision.build.templates import fill_shipped
from provision.errors import ConfigError, Mistake, NotFoundError

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
_RUNTIMES = f"{FOLDER}/runtimes.json"
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


def managed_records(texts: Mapping[str, str], *, daemon_json: str | None) -> dict[str, str]:
    """Return the texts of the role's records, by path.

    Args:
        daemon_json: Docker's original daemon.json; None where the host has no such file.
    """
    found: dict[str, dict[str, object]] = {}
    for path, text in texts.items():
        if path == DAEMON_JSON:
            ledger = _RUNTIMES
            record: dict[str, object] = {
                "original": daemon_json,
                "written": [text],
                "runtimes": [_NAME],
                "folders": [],
            }
        else:
            ledger = _CONFIG if path == PROVISION_TOML else _FILES
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            record = {"original": None, "mode": None, "folders": [], "written": [sha256]}
        found.setdefault(ledger, {})[path] = record
    return {
        ledger: json.dumps(records, indent=2, sort_keys=True) + "\n"
        for ledger, records in found.items()
    }
