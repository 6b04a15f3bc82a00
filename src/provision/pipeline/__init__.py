"""Puts the parts together: facts → Pin → build context → image → store.

Small functions with explicit inputs, for the command line now and the agent later. Nothing here
prints; who wants to know what goes on passes a ``Progress``.
"""
