"""Artifact images: made, found, pushed and unpacked through a container engine's API.

``engine`` is the only module that knows the Docker SDK; the others work on its small interface.
"""
