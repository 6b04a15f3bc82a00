"""The agent brings a host to its desired state: observe → plan → apply, once; systemd repeats it.

``model``, ``plan`` and ``status`` are pure. What builds and pulls, with the engine's SDK, is loaded
when an action needs it: most runs have nothing to do.
"""
