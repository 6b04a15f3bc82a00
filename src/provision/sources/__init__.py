"""Where drivers come from, and which versions and checksums their vendors publish."""
