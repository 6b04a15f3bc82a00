"""Many hosts from one place: how they are, and what is built for all of them."""
