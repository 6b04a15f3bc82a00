"""Artifact images: made, found, pushed and unpacked through a container engine's API.

``engine`` and ``connection`` are the only modules that know the Docker SDK; the others work on the
small interface of ``Engine``.
"""
