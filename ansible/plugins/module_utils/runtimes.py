"""Enters our OCI runtime into the configuration of engines, beside what others put there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.oci_decorator.drivers.plugins.module_utils.json_text import (
    loads,
    remove_member,
    set_member,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.toml_text import (
    with_block,
    without_block,
)

try:
    import tomllib
except ImportError:  # Python 3.10 and older; the module says so.
    tomllib = None  # type: ignore[assignment]

HAS_TOML = tomllib is not None
# Where containerd's part for Kubernetes is, by the version of its configuration.
# Source: https://github.com/containerd/containerd/blob/main/docs/cri/config.md
_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_RUNC = "io.containerd.runc.v2"


class RuntimeConfigError(ValueError):
    """A configuration to which ours can't be added; says why, and what to do."""


def docker_with(
    text: str, name: str, program: str, *, is_default: bool, original: str | None
) -> str:
    """Return a daemon.json with a runtime, and with it as the default or as it was before.

    Args:
        text: The file as it is.
        name: The runtime's name.
        program: Its path.
        is_default: Whether containers get it without asking.
        original: The file before we first wrote it, whose default comes back.

    Raises:
        JsonTextError: The file is no JSON object.
    """
    document = loads(text)
    if document.get("runtimes", {}).get(name) != {"path": program}:
        text = set_member(text, ("runtimes", name), {"path": program})
    if is_default:
        return set_member(text, ("default-runtime",), name)
    return _with_own_default(text, name, original) if _is_default(document, name) else text


def docker_without(text: str, name: str, *, original: str | None) -> str | None:
    """Return a daemon.json without a runtime; None where nothing else was ever in it.

    Raises:
        JsonTextError: The file is no JSON object.
    """
    document = loads(text)
    before = loads(original or "")
    if _is_default(document, name):
        text = _with_own_default(text, name, original)
    text = remove_member(text, ("runtimes", name))
    if not loads(text).get("runtimes", True) and "runtimes" not in before:
        text = remove_member(text, ("runtimes",))
    return None if original is None and not loads(text) else text


def containerd_with(text: str, name: str, program: str) -> str:
    """Return a containerd configuration with a runtime for Kubernetes, in a block of ours.

    Raises:
        RuntimeConfigError: The file is no TOML, or what it has can't be added to.
    """
    rest = without_block(text)
    document = _toml(rest, "it is no TOML")
    version = document.get("version", 2 if not rest.strip() else 1)
    if version not in _CRI:
        raise RuntimeConfigError(
            f"its version is {version}, and runtimes are entered into version 2 or 3: convert it"
            " with 'containerd config migrate'"
        )
    plugin = _CRI[version]
    runtimes = _runtimes(document, plugin)
    if name in runtimes:
        raise RuntimeConfigError(f"it has a runtime '{name}' that somebody else wrote: remove it")
    # Built-in runtimes are gone as soon as a file names one.
    tables = [] if runtimes else [_containerd_table(plugin, "runc", None)]
    head = "" if "version" in document else "version = 2\n"
    block = head + "\n".join([*tables, _containerd_table(plugin, name, program)])
    new = with_block(rest, block)
    _toml(new, "it can't be added to; write the runtime's tables by hand")
    return new


def containerd_without(text: str) -> str | None:
    """Return a containerd configuration without our block; None where nothing else is in it."""
    rest = without_block(text)
    return rest if rest.strip() else None


def _with_own_default(text: str, name: str, original: str | None) -> str:
    before = loads(original or "").get("default-runtime")
    if before is None or before == name:
        return remove_member(text, ("default-runtime",))
    return set_member(text, ("default-runtime",), before)


def _is_default(document: Mapping[str, Any], name: str) -> bool:
    return bool(document.get("default-runtime") == name)


def _runtimes(document: Mapping[str, Any], plugin: str) -> Mapping[str, Any]:
    table: Any = document
    for name in ("plugins", plugin, "containerd", "runtimes"):
        table = table.get(name, {})
    runtimes: Mapping[str, Any] = table
    return runtimes


def _containerd_table(plugin: str, name: str, program: str | None) -> str:
    head = f'[plugins."{plugin}".containerd.runtimes.{name}'
    lines = [f"{head}]", f'runtime_type = "{_RUNC}"']
    if program is not None:
        lines += [f"{head}.options]", f'BinaryName = "{program}"']
    return "\n".join(lines)


def _toml(text: str, wrong: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RuntimeConfigError(f"{wrong}: {error}") from None
