"""Tables of settings, from the models that read them: keys, what they mean, their defaults.

What a key means stands in the docstring of its model, under ``Attributes:``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from provision.catalogue.fields import (
    BranchFacts,
    CardGeneration,
    DraDriver,
    Hardware,
    Installed,
    InstalledFeature,
    KnownKernels,
    Patch,
    Upstream,
)
from provision.catalogue.recipe import Flavour
from provision.catalogue.source_models import (
    ArchiveRelease,
    Build,
    DebSource,
    GitRelease,
    RunfileRelease,
    RunfileReleases,
    UserFile,
)
from provision.config import (
    ArchiveConfig,
    CdiConfig,
    Config,
    DriverConfig,
    EngineConfig,
    KubernetesConfig,
    MetricsConfig,
    NetworkConfig,
    PolicyConfig,
    RegistryConfig,
    RepositoryConfig,
    SigningConfig,
    TreeConfig,
    TrustConfig,
)
from provision.manifest import (
    Check,
    Container,
    ContainerFeature,
    DeviceNode,
    DriverPod,
    ForeignRoot,
    HostNeeds,
    PciMatch,
)

# What pages may ask for the table of.
_MODELS: dict[str, type[BaseModel]] = {
    model.__name__: model
    for model in (
        ArchiveConfig,
        ArchiveRelease,
        BranchFacts,
        CardGeneration,
        Build,
        CdiConfig,
        Config,
        Container,
        Check,
        ContainerFeature,
        DebSource,
        DeviceNode,
        DraDriver,
        ForeignRoot,
        DriverConfig,
        DriverPod,
        EngineConfig,
        Flavour,
        GitRelease,
        Hardware,
        HostNeeds,
        KubernetesConfig,
        Installed,
        InstalledFeature,
        KnownKernels,
        MetricsConfig,
        NetworkConfig,
        Patch,
        PciMatch,
        PolicyConfig,
        RegistryConfig,
        RepositoryConfig,
        RunfileRelease,
        RunfileReleases,
        SigningConfig,
        TreeConfig,
        TrustConfig,
        Upstream,
        UserFile,
    )
}
_HEAD = ("| key | meaning |", "|---|---|")
_HOOKS = Path(__file__).resolve().parents[2] / "hooks"
_ATTRIBUTE = re.compile(r"(?m)^    (\w+): ")
# The end of what an attribute means says what counts without it.
_WITHOUT = re.compile(r"[;,.]? ?(?:Without it|None|Empty): (?P<text>.+?)\.?$")
_SETTING = re.compile(r"^#(?P<key>[\w-]+) = (?P<value>.+)$")
# The example says which keys have no value unless one is given.
_NO_DEFAULT = re.compile(r"except for (.+?), which have none")
_SETTINGS_TABLE = re.compile(r"^#\[(?P<name>[\w.-]+)\]$")


def of_model(name: str) -> str:
    """Return the table of a model: its name, and which keys of it; without those, all.

    Raises:
        KeyError: There is no such model, or one of its fields is not described.
    """
    wanted, *keys = name.split()
    return "\n".join(_model_rows(_MODELS[wanted], keys))


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return what the fields of a model mean, from its docstring and those of its bases."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        parts = _ATTRIBUTE.split(text.partition("Attributes:\n")[2])
        found |= {
            key: " ".join(part.split()) for key, part in zip(parts[1::2], parts[2::2], strict=True)
        }
    return found


def of_schema(name: str) -> str:
    """Return the table of a part of the vendor file's schema: ``file``, or a definition's name."""
    schema = json.loads((_HOOKS / "schema/vendor.schema.json").read_text())
    part = schema if name == "file" else schema["$defs"][name]
    return "\n".join(_schema_rows(part))


def of_settings(name: str) -> str:
    """Return the table of config.toml's keys: ``top``, or the name of a table.

    They stand in the commented example, which the crate's tests hold to the keys that it reads.
    """
    text = (_HOOKS / "config/config.toml").read_text()
    return "\n".join(_setting_rows(text, "" if name == "top" else name))


def _model_rows(model: type[BaseModel], keys: Collection[str]) -> Iterator[str]:
    meant = descriptions(model)
    yield from _HEAD
    for key, field in model.model_fields.items():
        if keys and key not in keys:
            continue
        text = meant[key]
        match = _WITHOUT.search(text)
        if match is not None:
            text = text[: match.start()]
        value = field.get_default(call_default_factory=True)
        default = match["text"] if match else _default(value)
        yield _row(field.alias or key, text, default, is_required=field.is_required())


def _default(value: object) -> str:
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, (list, tuple, dict, frozenset)) and not value:
        return ""
    return f"`{json.dumps(value, default=str)}`"


def _row(key: str, text: str, default: str = "", *, is_required: bool = False) -> str:
    """Return a row; a key without a default, and without which nothing is missing, says neither."""
    more = " (required)" if is_required else f" (default: {default})" if default else ""
    return f"| `{key}` | {_cell(text.rstrip('.') + more)} |"


def _schema_rows(part: dict[str, Any]) -> Iterator[str]:
    required = part.get("required", [])
    yield from _HEAD
    for key, field in part["properties"].items():
        yield _row(key, field["description"], is_required=key in required)


def _setting_rows(text: str, table: str) -> Iterator[str]:
    header = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    without = _NO_DEFAULT.search(header)
    bare = set(re.findall(r"[\w.-]+", without[1])) if without else set()
    yield from _HEAD
    here, comment = "", list[str]()
    for line in text.splitlines():
        if match := _SETTINGS_TABLE.match(line):
            above, _, key = match["name"].rpartition(".")
            if above == table:
                yield _row(key, " ".join(comment))
            here = match["name"]
        elif (match := _SETTING.match(line)) and here == table:
            default = "" if match["key"] in bare else f"`{match['value']}`"
            yield _row(match["key"], " ".join(comment), default)
        comment = [*comment, line[2:]] if line.startswith("# ") else []


def _cell(text: str) -> str:
    """Return text as a cell: code as Markdown has it, and nothing else that Markdown reads."""
    plain = text.replace("``", "`").replace("|", "\\|")
    parts = plain.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
