"""Takes secrets out of what is shown, logged or written down.

An address with a password in it is a legitimate setting (a mirror's), and errors name addresses.
They are read by every user: on a terminal, in the journal, in the status.
"""

from __future__ import annotations

import re

# In this order: the PIN in a PKCS#11 URI (RFC 7512, section 2.4); the password in an address
# (RFC 3986, 3.2.1), which ends at the last '@' before the path, for those who did not encode one; a
# token in the password's place (https://TOKEN@host); a value of the query whose name says that it
# is one; a query that is nothing but a token, as SUSE's.
_SECRET = re.compile(
    r"(pin-value=)[^&;\s'\"]+"
    r"|(://[^/@:\s]*:)[^/\s]+(?=@)"
    r"|(https?://)[^/@:\s?#]+(?=@)"
    r"|([?&](?:[\w.-]*(?:token|secret|passw|pwd|signature|credential|auth|api_?key)[\w.-]*|key|sig)=)"
    r"[^&\s'\"<>]+"
    r"|(https?://[^\s?'\"]+\?)[^&=\s'\"<>]{16,}=*(?=[\s'\"<>.,;)]|$)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return a text without the PINs of PKCS#11 URIs, and the passwords and tokens of addresses."""
    return _SECRET.sub(lambda found: f"{found[found.lastindex or 0]}***", text)
