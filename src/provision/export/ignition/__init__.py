"""Ignition configurations: what a machine without Python needs at its first boot to get drivers.

A machine gets what the Ansible role would give it, in the same places, so that either can go on
from what the other did.
"""
