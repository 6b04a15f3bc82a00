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
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]


class DriverConfig(Frozen):
    """One driver that the host should have, such as ``[drivers.nvidia]``.

    Attributes:
        version: ``"latest"``; a branch (``"535"``, ``"0.12"``): its newest version that fits the
            kernel; a kind of branch (``"lts"``, ``"production"``, ``"new-feature"``); or one
            version (``"0.12.7"``).
        flavour: One of the driver's flavours. Without it: its default.
        options: Parameters of its modules: ``{ MODULE = { NAME = VALUE } }``; numbers and booleans
            may be given as such. They count at the next load and change no artifact. Without it:
            none.
    """

    version: Version = "latest"
    flavour: Name | None = None
    options: dict[ModuleName, dict[ParameterName, Parameter]] = Field(default_factory=dict)


class PolicyConfig(Frozen):
    """What may be done without asking.

    Attributes:
        unload: ``"idle"``: modules that no one uses are unloaded for newer ones; ``"never"``: that
            is left to a reboot.
        prebuild: Whether artifacts are made for kernels that may boot next, before they do.
        keep: How many older artifacts ``gc`` leaves of each kernel, to roll back to.
        update: ``"timer"``: ``provision-repeat.timer`` moves ``latest``, branches and kinds of
            branches forward; ``"never"``: they stay until they are moved by hand.
        hold_updates: Flatcar only: whether an update of the system is held as long as drivers
            don't build for its kernel; takes effect with ``provision units``
            ([how](../how-to/coreos.md)).
        build: ``"fallback"``: what the registry does not have is built here; ``"never"``: it is
            missing then (exit code 3); ``"always"``: the registry is not asked.
    """

    unload: Literal["idle", "never"] = "idle"
    prebuild: bool = True
    keep: int = Field(default=1, ge=0)
    update: Literal["never", "timer"] = "never"
    hold_updates: bool = False
    build: Literal["never", "fallback", "always"] = "fallback"
