"""Kernel modules and user space of an artifact: is everything there, whole and for this kernel?"""
