"""Completion of command lines in bash, zsh and fish.

``provision``: click's own, which asks the program. ``oci-decorator``, which starts with containers
and has no code for it: a script made from its help.
"""

from __future__ import annotations

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from provision.cli import group
from reference.commands import Command, decorator, everything

_CLASSES: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}
_FILES = ("DIR", "FILE", "PATH")
_STAGES = ("createContainer", "startContainer", "poststart", "poststop")

_FISH_SEEN = "__fish_seen_subcommand_from"

_BASH = """\
# Completion of oci-decorator, made from its help.
_oci_decorator() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} words
    case $previous in
        {file_options})
            compopt -o default
            return
            ;;
    esac
    case "${{COMP_WORDS[1]-}} ${{COMP_WORDS[2]-}}" in
{cases}
        *) words='{top}' ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _oci_decorator oci-decorator
"""
_ZSH = """\
#compdef oci-decorator
# Completion of oci-decorator, made from its help.
_oci_decorator() {{
    case "$words[CURRENT-1]" in
        {file_options})
            _files
            return
            ;;
    esac
    if (( CURRENT == 2 )); then
        compadd -- {top}
        return
    fi
    case "$words[2] $words[3]" in
{cases}
    esac
}}
_oci_decorator "$@"
"""


def of_provision(shell: str) -> str:
    """Return the script for ``provision``; ``shell`` is ``bash``, ``zsh`` or ``fish``."""
    complete = _CLASSES[shell](group, {}, "provision", "_PROVISION_COMPLETE")
    # Not source(), which looks for a bash of this machine.
    return (complete.source_template % complete.source_vars()).strip() + "\n"


def of_decorator(shell: str) -> str:
    """Return the script for ``oci-decorator``; ``shell`` is ``bash``, ``zsh`` or ``fish``."""
    if shell == "fish":
        return _fish(decorator())
    return _script(decorator(), _BASH if shell == "bash" else _ZSH, shell)


def _leaves() -> list[Command]:
    return [one for one in everything(decorator()) if len(one.words) > 1]


def _script(top: Command, template: str, shell: str) -> str:
    rows = []
    for command in _leaves():
        words = " ".join([*_choices(command), *_names(command)])
        if shell == "bash":
            rows.append(f"        {_pattern(command)}) words='{words}' ;;")
        else:
            rows.append(f"        {_pattern(command)}) compadd -- {words} ;;")
    groups = sorted({one.words[1] for one in _leaves() if _is_below(one)})
    for name in groups:
        below = " ".join(one.words[2] for one in _leaves() if one.words[1] == name)
        line = f"words='{below}' ;;" if shell == "bash" else f"compadd -- {below} ;;"
        rows.append(f"        {name}\\ *) {line}")
    given = {
        name
        for one in everything(top)
        for o in one.options
        if o.value in _FILES
        for name in o.names
    }
    return template.format(
        cases="\n".join(rows),
        top=" ".join(_first_words()),
        file_options=" | ".join(sorted(given)),
    )


def _pattern(command: Command) -> str:
    return "\\ ".join(command.words[1:]) + ("" if _is_below(command) else "\\ *")


def _is_below(command: Command) -> bool:
    """Whether it is a command of a command, as `cdi list`."""
    _program, *words = command.words
    return len(words) > 1


def _first_words() -> list[str]:
    words = dict.fromkeys(one.words[1] for one in _leaves())
    return [*words, *_STAGES, "--help", "--version"]


def _choices(command: Command) -> list[str]:
    return command.arguments.split("|") if "|" in command.arguments else []


def _names(command: Command) -> list[str]:
    return [*(name for option in command.options for name in option.names), "--help"]


def _fish(top: Command) -> str:
    lines = [
        "# Completion of oci-decorator, made from its help.",
        "complete --command oci-decorator --no-files",
        *(
            f"complete --command oci-decorator --condition __fish_use_subcommand --arguments {name}"
            for name in _first_words()
            if not name.startswith("-")
        ),
    ]
    for command in (one for one in everything(top) if len(one.words) > 1):
        seen = "; and ".join(f"{_FISH_SEEN} {word}" for word in command.words[1:])
        start = f"complete --command oci-decorator --condition '{seen}'"
        lines += [f"{start} --arguments {choice}" for choice in _choices(command)]
        if _is_below(command):
            above = f"complete --command oci-decorator --condition '{_FISH_SEEN}"
            lines.append(f"{above} {command.words[1]}' --arguments {command.words[2]}")
        for option in command.options:
            for name in (name for name in option.names if name.startswith("--")):
                takes = " --require-parameter --force-files" if option.value in _FILES else ""
                takes = takes or (" --require-parameter" if option.value else "")
                lines.append(f"{start} --long-option {name.removeprefix('--')}{takes}")
    return "\n".join([*dict.fromkeys(lines), ""])
