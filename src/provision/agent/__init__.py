"""Keeps one host as provision.toml wants it: observe → plan → apply, once; systemd repeats it.

``model`` and ``plan`` are pure. What runs when nothing is to be done imports no heavy library:
models of provision.toml and manifests, the engine and the archive are loaded when an action needs
them.
"""
