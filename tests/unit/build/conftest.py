"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: no test asserts how long something takes.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
