"""Puts accelerator drivers onto container hosts: builds, pins, verifies and installs them."""

import os

__version__ = "0.1.0"

# Plugins of pydantic's are no part of this program, and each command would look for some in all
# packages that are installed.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
