"""The catalogue of drivers: a folder each, with a ``driver.toml`` and its patches."""

from __future__ import annotations

from provision.catalogue.entry import Entry, load_entry
from provision.catalogue.folders import Catalogue
from provision.catalogue.places import catalogue_folders, documentation_url, templates_dir

__all__ = [
    "Catalogue",
    "Entry",
    "catalogue_folders",
    "documentation_url",
    "load_entry",
    "templates_dir",
]
