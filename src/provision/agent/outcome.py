"""What became of an action."""

from __future__ import annotations

from dataclasses import dataclass

from provision.agent.plan import Action
from provision.agent.unexpected import UnexpectedError
from provision.errors import ProvisionError
from provision.store.state import Failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action.

    Attributes:
        action: The action.
        result: In one line.
        seconds: How long it took.
        error: Why it failed; None: it didn't.
        failure: The same, as it is remembered.
    """

    action: Action
    result: str
    seconds: float
    error: ProvisionError | None = None
    failure: Failure | None = None

    @property
    def is_defect(self) -> bool:
        """Whether something failed that no part of the program has words for."""
        return isinstance(self.error, UnexpectedError)
