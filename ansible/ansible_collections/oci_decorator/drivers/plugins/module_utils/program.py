"""Calls ``provision`` and reads the one JSON document that it prints."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Where the role puts it, and where packages have it.
_PLACES = ("/opt/provision/bin/provision", "/usr/bin/provision")
# Exit codes: docs/reference/provision.md#errors-and-exit-codes.
DONE, FAILED, USAGE, NOT_FOUND, IN_USE = range(5)


class Runner(Protocol):
    """The part of AnsibleModule that this module needs."""

    def run_command(self, args: list[str]) -> tuple[int, str, str]:
        """Run a program; its exit code and both streams."""


class ProgramError(Exception):
    """``provision`` refused, or its output cannot be read."""

    def __init__(self, message: str, document: dict[str, Any] | None = None) -> None:
        """Keep the output."""
        super().__init__(message)
        self.document = document or {}


@dataclass(frozen=True)
class Answer:
    """The result of a call.

    Attributes:
        code: The exit code.
        document: What it printed.
        notes: What it said on standard error: progress.
    """

    code: int
    document: dict[str, Any]
    notes: str

    @property
    def error(self) -> str | None:
        """The error, its cause and what to do, as one text."""
        return explained(self.document.get("error"))


def located(program: str | None) -> str:
    """Return the program that a task names, or else the one of the role or of packages."""
    return program or next(filter(is_there, _PLACES), _PLACES[0])


def is_there(program: str) -> bool:
    """Whether the program is installed."""
    return os.access(program, os.X_OK)


def call(runner: Runner, program: str, words: Sequence[str]) -> Answer:
    """Run ``PROGRAM WORDS --json``.

    Raises:
        ProgramError: It printed no JSON document.
    """
    code, printed, notes = runner.run_command([program, *words, "--json"])
    try:
        document = json.loads(printed)
    except ValueError:
        said = (notes or printed).strip()
        text = f"'{' '.join([program, *words])}' ended with {code} and printed no JSON: {said}"
        raise ProgramError(text) from None
    return Answer(code, document, notes)


def explained(error: dict[str, Any] | None) -> str | None:
    """Return an error document as text."""
    if not error:
        return None
    mistakes = [f"{m['path']}: {m['message']}" for m in error.get("mistakes", [])]
    parts = [error["message"], *mistakes, error.get("details"), error.get("resolution")]
    return "\n".join(part for part in parts if part)
