"""Compatibility matrices: which driver builds on which kernel of which distro."""
