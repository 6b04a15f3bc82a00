"""Puts the parts together: facts → Pin → build context → image → store.

Small functions with explicit inputs, for the command line and the agent. Nothing here prints; a
caller that wants to know what goes on passes a ``Progress``.
"""
