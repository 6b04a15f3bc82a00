"""Quoting of values that come from data, so that none can leave its place in a Dockerfile.

Dockerfile syntax: https://docs.docker.com/reference/dockerfile/ (escape character, LABEL, RUN).
"""

from __future__ import annotations

import re
import shlex

from provision.errors import UsageError

# Characters of a label that stay on one line.
_LONG = 8000
# An instruction ends at the line's end, whatever quotes are open, and no escape stands for one.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def shell_word(text: str) -> str:
    """Return ``text`` as one word of a RUN instruction's shell line.

    Raises:
        UsageError: It holds a control character, such as a line's end.
    """
    return shlex.quote(_printable(text))


def shell_command(arguments: list[str], variables: dict[str, str]) -> str:
    """Return an argument list as a shell command.

    Args:
        arguments: The words.
        variables: Text to find in the words, and the shell variable that takes its place there.

    Raises:
        UsageError: A word holds a control character.
    """
    return " ".join(_with_variables(word, variables) for word in arguments)


def label_value(text: str) -> str:
    """Return ``text`` as the value of a LABEL instruction.

    Raises:
        UsageError: It holds a control character.
    """
    escaped = re.sub(r'(["$\\])', r"\\\1", _printable(text))
    if len(escaped) > _LONG:
        # A Dockerfile's line may have 64 KiB, and a Pin with some hundred packages has more. The
        # engine puts continued lines together as they are; none of these begins as a comment.
        escaped = escaped.replace("},{", "},\\\n{")
    return f'"{escaped}"'


def one_line(text: str) -> str:
    """Return text for people on one line: every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def _with_variables(word: str, variables: dict[str, str]) -> str:
    if not any(marker in word for marker in variables):
        return shell_word(word)
    pattern = "|".join(re.escape(marker) for marker in variables)
    parts = re.split(f"({pattern})", word)
    return "".join(
        f'"${{{variables[part]}}}"' if part in variables else shell_word(part)
        for part in parts
        if part
    )


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise UsageError(
            f"{text!r} can't go into a Dockerfile: it holds a control character",
            resolution="Remove line ends and other control characters from the recipe's values.",
        )
    return text
