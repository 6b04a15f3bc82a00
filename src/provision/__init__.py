"""Puts accelerator drivers onto container hosts: builds, pins, verifies and installs them."""

__version__ = "0.1.0"
