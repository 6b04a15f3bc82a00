"""Which drivers a host should have, and what may be done to get there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from provision.documents import Frozen
from provision.pin import Name, Version


def _parameter(value: object) -> object:
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


# What the kernel takes as names: C identifiers; modprobe takes '-' for '_' in a module's.
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Source: https://docs.kernel.org/admin-guide/kernel-parameters.html: values end at a blank.
# Booleans are Y and N there.
Parameter = Annotated[
    str,
    StringConstraints(pattern=r"^[^\s\"]*$"),
    BeforeValidator(_parameter),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[^\s\"]*$"},
                {"type": "integer"},
                {"type": "boolean"},
            ]
        }
    ),
]
# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
RegistryAddress = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$")
]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]


class DriverConfig(Frozen):
    """One driver that the host should have, such as ``[drivers.nvidia]``.

    Attributes:
        version: ``latest``, a branch (``535``, ``0.12``: its newest version), a kind of branch
            (``lts``, ``production``, ``new-feature``), or one version.
        flavour: One of the driver's flavours; None: its default.
        options: Parameters of its modules: ``{ module = { name = value } }``.
    """

    version: Version = "latest"
    flavour: Name | None = None
    options: dict[ModuleName, dict[ParameterName, Parameter]] = Field(default_factory=dict)


class PolicyConfig(Frozen):
    """What may be done without asking.

    Attributes:
        unload: Whether a module that is not in use may be unloaded for a newer one.
        prebuild: Whether modules are built for kernels that may boot next.
        keep: How many artifacts are kept of each kernel beyond those that are needed.
        update: Whether the timer may move versions forward that are not fixed.
        hold_updates: Whether an update of the system is held that drivers don't build for, where
            its updater can be configured (Flatcar).
        build: Whether artifacts are built here: ``fallback``: where the registry does not have
            them; ``never``; ``always``: the registry is not asked.
    """

    unload: Literal["idle", "never"] = "idle"
    prebuild: bool = True
    keep: int = Field(default=1, ge=0)
    update: Literal["never", "timer"] = "never"
    hold_updates: bool = False
    build: Literal["never", "fallback", "always"] = "fallback"
