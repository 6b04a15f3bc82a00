"""The agent brings a host to its desired state: observe → plan → apply, once; systemd repeats it.

``model``, ``plan`` and ``status`` are pure. A run with nothing to do imports no heavy library: the
models of provision.toml and of manifests, the engine and the archive are loaded when an action
needs them.
"""
