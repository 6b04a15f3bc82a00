"""Renders the texts of templates/ignition."""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from provision.catalogue import templates_dir


def render(name: str, **values: str) -> str:
    """Return a template's text with values in it.

    Raises:
        NotFoundError: provision's own templates are missing.
    """
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "ignition"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        # What is rendered are units and settings, not web pages.
        autoescape=False,  # noqa: S701
    )
    return environment.get_template(name).render(values)
