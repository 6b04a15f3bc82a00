"""Which versions a vendor offers, what it promises of their branches, and its checksums."""
