"""The certificate authorities that a host trusts: those of its system, which admins add to.

requests has a default of its own, the list of the Python package certifi, which no admin changes
and which differs between a virtual environment and a distro's package.
"""

from __future__ import annotations

from pathlib import Path

from provision.files import in_root

# Of Debian, Flatcar and Arch; of the RHEL family; of SUSE; of Alpine.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def authorities_of(root: Path) -> Path | None:
    """Return the file with the certificates that a host trusts; None where it has none."""
    bundles = [in_root(root, name) for name in _BUNDLES]
    return next((path for path in bundles if path.is_file()), None)
