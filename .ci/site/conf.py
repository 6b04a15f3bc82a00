"""The site that `make docs` makes from the Markdown pages, read by Sphinx.

Everything in it is local: no fonts, scripts or pictures of other hosts, and the search needs no
server. Warnings are errors (`-W`), so that a broken link or anchor ends the build.
"""

from __future__ import annotations

from typing import Any

project = "provision + oci-decorator"
project_copyright = ""
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = [".github/**"]
nitpicky = True
highlight_language = "none"  # of a block that names none

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# GitHub's names of headings, by which all pages link to each other.
myst_heading_anchors = 6
# Pages begin with tables and code as a forge shows them; these two are not worth a warning.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# The menu. Pages name no other page as their parent, so it is written behind the first one.
_MENU = (
    ("Learn", ("docs/README", "docs/tutorials/*")),
    ("Do", ("docs/how-to/*",)),
    ("Look up", ("docs/reference/*",)),
    ("Understand", ("docs/explanation/*", "docs/decisions/*")),
    ("Take part", ("CONTRIBUTING", "SECURITY", "CHANGELOG", "**/CHANGELOG", "**/README")),
)


def _add_menu(_app: object, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        for caption, names in _MENU:
            lines = ["```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *names]
            source[0] += "\n\n" + "\n".join([*lines, "```"]) + "\n"


def setup(app: Any) -> None:  # noqa: ANN401 - Sphinx is in another environment than the type checker
    """Have the menu in the first page."""
    app.connect("source-read", _add_menu)
