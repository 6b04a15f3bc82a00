"""Writes each role's README.md from its argument specs: ``python ansible/document_roles.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_ROLES = Path(__file__).resolve().parent / "ansible_collections/oci_decorator/drivers/roles"
_MARKS = re.compile(r"([CVIPBM])\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_EXAMPLES = {
    "provision_host": "provision_host_engine: docker",
    "provision_driver": "provision_driver_config:\n  drivers:\n    nvidia: {version: production}",
    "provision_hook": "provision_hook_docker_default: true",
}


def readme(role: Path) -> str:
    """Return a role's README."""
    spec = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    lines = [
        "<!-- Made from meta/argument_specs.yml by document_roles.py; change that. -->",
        f"# {role.name}",
        "",
        *(f"{_plain(text)}\n" for text in _texts(spec["description"])),
        "## Variables",
        "",
        "| variable | type | default | meaning |",
        "|---|---|---|---|",
        *_rows(spec["options"], ""),
        "",
        "## Example",
        "",
        "```yaml",
        "- hosts: all",
        "  become: true",
        "  roles:",
        *(f"    - role: oci_decorator.drivers.{name}" for name in _with_first(role.name)),
        "  vars:",
        *(f"    {line}" for line in _EXAMPLES[role.name].splitlines()),
        "```",
        "",
        "Needs Python 3.11 or newer on the host, and ansible-core 2.17 or newer on the controller.",
        "",
    ]
    return "\n".join(lines)


def _with_first(name: str) -> list[str]:
    """Return a role and the one that prepares the host for it, in their order."""
    return list(dict.fromkeys(["provision_host", name]))


def roles() -> list[Path]:
    """Return the folders of all roles."""
    return sorted(path for path in _ROLES.iterdir() if path.is_dir())


def _rows(options: Mapping[str, Any], parent: str) -> Iterator[str]:
    for name, option in options.items():
        full = f"{parent}.{name}" if parent else name
        kind = option["type"]
        if "elements" in option:
            kind += f" of {option['elements']}"
        default = f"`{_literal(option['default'])}`" if "default" in option else ""
        text = " ".join(_plain(part) for part in _texts(option["description"]))
        if "choices" in option:
            text += f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}."
        yield f"| `{full}` | {kind} | {default} | {text} |"
        yield from _rows(option.get("options", {}), full)


def _literal(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n")
    return text.strip() or "''"


def _texts(description: str | list[str]) -> list[str]:
    return [description] if isinstance(description, str) else description


def _plain(text: str) -> str:
    """Return Ansible's markup as Markdown.

    Source: https://docs.ansible.com/ansible/latest/dev_guide/ansible_markup.html
    """
    return _MARKS.sub(lambda found: f"`{found.group(2).removesuffix('#role')}`", text)


if __name__ == "__main__":
    for folder in roles():
        (folder / "README.md").write_text(readme(folder))
