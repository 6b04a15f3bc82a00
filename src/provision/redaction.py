"""Takes secrets out of what is shown, logged or written down.

An address with a password in it is a legitimate setting (a mirror's), and errors name addresses.
They are read by every user: on a terminal, in the journal, in the status.
"""

from __future__ import annotations

import re

# The PIN in a PKCS#11 URI (RFC 7512, section 2.4), the password in an address (RFC 3986, 3.2.1);
# it ends at the last '@' before the path, for those who did not encode one.
_SECRET = re.compile(r"(pin-value=)[^&;\s'\"]+|(://[^/@:\s]*:)[^/\s]+(?=@)", re.IGNORECASE)


def redact(text: str) -> str:
    """Return a text without the PINs of PKCS#11 URIs and the passwords of addresses in it."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)
