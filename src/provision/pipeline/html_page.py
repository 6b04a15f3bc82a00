"""HTML pages that need nothing else: no server, no network, no other file.

What is shown comes from builds and hosts: everything is escaped, and a page's own policy lets
nothing be loaded and no script run but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

import provision
from provision.errors import NotFoundError


def render_html(
    templates: Path,
    name: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    time: float,
    values: Mapping[str, Any],
) -> str:
    """Return a page.

    Args:
        templates: Folder of the templates.
        name: The page's template; it gets ``style``, ``script``, ``policy``, ``made`` and
            ``version`` besides ``values``.
        styles: Style sheets below that folder, joined in this order.
        scripts: Scripts, likewise.
        time: Unix time that the page says it was made at.
        values: What the page shows; text of any origin.

    Raises:
        NotFoundError: The folder lacks one of them.
    """
    try:
        style = "".join((templates / one).read_text() for one in styles)
        script = "".join((templates / one).read_text() for one in scripts)
        template = _environment(templates).get_template(name)
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
    """Return a Unix time for people; what no calendar has is shown as the number that it is."""
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
