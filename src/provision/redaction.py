"""Takes out of what is shown, logged or written down: secrets, and what a terminal would obey.

An address with a password in it is a legitimate setting (a mirror's), and errors name addresses.
They are read by every user: on a terminal, in the journal, in the status. And errors quote servers
and programs, which could move the cursor, or write over what stands before.
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

# Colours and the ends of lines of other systems go without a trace.
_HARMLESS = re.compile(r"\x1b\[[0-9;]*m|\r(?=\n)")
# All other control characters but the tab and the end of a line, and those that turn the direction
# of writing (https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def redact(text: str) -> str:
    """Return a text that any user may see on any terminal.

    It is without the PINs of PKCS#11 URIs, the passwords and tokens of addresses, and control
    characters, in whose place stands a question mark.
    """
    text = _CONTROL.sub("?", _HARMLESS.sub("", text))
    return _SECRET.sub(lambda found: f"{found[found.lastindex or 0]}***", text)
