"""Artifacts on a host: the store, which of them is current, and the configuration made from it."""
