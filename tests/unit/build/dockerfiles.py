"""Reads a Dockerfile as an engine does, as far as the tests need it.

Source: https://docs.docker.com/reference/dockerfile/#format
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """An instruction's keyword, and the rest of its line with continuations joined."""

    keyword: str
    text: str


def instructions(dockerfile: str) -> list[Instruction]:
    """Split a Dockerfile into instructions; comments and empty lines are dropped."""
    found: list[Instruction] = []
    pending = ""
    for line in dockerfile.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        body = re.fullmatch(r"(.*)\\[ \t]*", line)
        if body:
            pending += body.group(1)
            continue
        keyword, _, text = (pending + line).strip().partition(" ")
        found.append(Instruction(keyword, text.strip()))
        pending = ""
    assert not pending
    return found
