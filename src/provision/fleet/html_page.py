"""Self-contained HTML pages, which need no server, no network and no other file.

Their content comes from builds and hosts, so all of it is escaped. The policy of a page forbids
loading files and running scripts other than its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

import provision
from provision.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files of a kind of page, by their names in the folder of templates."""

    template: str
    styles: Sequence[str]
    scripts: Sequence[str]


def render_html(
    templates: Path, files: PageFiles, *, time: float, values: Mapping[str, Any]
) -> str:
    """Return a page.

    Args:
        time: Unix time at which the page was made.
    """
    try:
        style = "".join((templates / one).read_text() for one in files.styles)
        script = "".join((templates / one).read_text() for one in files.scripts)
        template = _environment(templates).get_template(files.template)
    except (OSError, TemplateError) as error:
        raise NotFoundError(
            f"The page's template can't be read: {error}.",
            resolution=f"It belongs to '{templates}': install this version of provision again.",
        ) from error
    return template.render(
        style=Markup(style),  # noqa: S704 - our own files, not what a build or a host says
        script=Markup(script),  # noqa: S704 - the same
        policy=_policy(style, script),
        made=shown_time(time),
        version=provision.__version__,
        **values,
    )


def _environment(templates: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shown_time(time: float) -> str:
    """Return a Unix time for people; a time outside of the calendar as a number."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return str(time)


def _policy(style: str, script: str) -> str:
    """Return the policy that names the page's own style and script by their digests.

    Source: https://www.w3.org/TR/CSP3/#grammardef-hash-source
    """
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    parts = [
        "default-src 'none'",
        f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)
