"""Kernel modules: verified, signed, loaded and unloaded, with their device nodes and firmware."""
