"""Many hosts at once: what is built for them, and how they are."""

from __future__ import annotations
