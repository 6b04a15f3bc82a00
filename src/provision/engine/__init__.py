"""Container engines."""
