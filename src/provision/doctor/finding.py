"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, may become so, or could not be looked at.

    Attributes:
        state: ``fail``: a driver does not work, or won't after the next boot; ``warn``: it may not;
            ``unknown``: what a check needs can't be read.
        seen: What was found.
        cause: Why it is so.
        cure: What to do.
        driver: The driver that it is about; None: the host.
    """

    state: State
    seen: str
    cause: str
    cure: str
    driver: str | None = None
