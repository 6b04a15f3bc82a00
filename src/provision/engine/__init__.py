"""Container engines: found, spoken to, and what goes in and comes out of them."""
