"""One module a command; ``command`` in each is what ``provision.cli.entry`` loads."""
