"""Artifact images: decided, rendered, solved and built.

Facts and a recipe become a Pin (``decision``), a Pin becomes a Dockerfile with its context
(``dockerfile``), and an engine makes the image of it (``artifact_image``).
"""
