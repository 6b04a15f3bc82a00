"""The family of apt: Debian and Ubuntu.

Only what the distro's keys have signed is trusted. Nothing here knows a mirror: the machine's
own apt configuration says where packages come from, or provision.toml.
"""
