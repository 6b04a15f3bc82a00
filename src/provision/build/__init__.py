"""Artifact images: decided, solved, rendered and built.

A request (``request``) becomes a Pin (``resolve``, by ``versions`` and ``solve``), a Pin becomes
a Dockerfile with its context (``dockerfile``, ``context_files``), and an engine makes the image of
it (``image``). ``collector``, ``step`` and ``unpack_source`` run in the build container.
"""
