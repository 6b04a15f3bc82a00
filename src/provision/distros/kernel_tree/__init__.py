"""Kernels whose headers are no packages: built from a tree of the kernel."""
