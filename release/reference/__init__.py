"""What is written from the code: pages of the reference, manual pages, completion of shells.

``python -m reference`` writes the generated parts of docs/reference; with ``--check`` it only says
which of them are stale.
"""
