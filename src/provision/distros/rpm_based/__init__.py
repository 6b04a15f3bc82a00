"""The families of dnf and zypper: distros whose packages are RPM's."""
