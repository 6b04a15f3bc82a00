"""Puts the parts together: facts → Pin → build context → image → store.

Small functions with explicit inputs, for the command line and the agent. Nothing here prints: a
caller passes a ``Progress``, which receives every event.
"""
