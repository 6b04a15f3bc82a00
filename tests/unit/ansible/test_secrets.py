"""What of a configuration is secret, and so is kept out of messages."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import (
    secrets_in,
)

from unit.secret_forms import IN_SETTINGS, PUBLIC

_PASSWORD = "s3cr:et"  # noqa: S105 - of no one


def _mirror(address: str) -> dict[str, Any]:
    return {"distros": {"debian": {"archive": {"mirror": address}}}}


@pytest.mark.parametrize(
    ("document", "secrets"),
    [
        (_mirror(f"https://me:{_PASSWORD}@mirror.example/debian"), {_PASSWORD}),
        (_mirror("https://me:a@b@mirror.example/debian"), {"a@b"}),
        # A name without a password may be a token, and counts as one.
        (_mirror("https://T0KEN@mirror.example/debian"), {"T0KEN"}),
        (_mirror("https://mirror.example:8443/debian"), set()),
        ({"signing": {"key": "pkcs11:token=x?pin-value=1234&y=z"}}, {"1234"}),
        ({"signing": {"key": "pkcs11:token=x?pin%2Dvalue=12'34"}}, {"12'34"}),
        ({"catalogue": ["http://:pw@a/b", "plain"]}, {"pw"}),
        ({"url": "https://m.example/a?access_token=t0k&arch=x86_64"}, {"t0k"}),
        ({"url": "https://updates.example/repo?0123456789abcdef0123"}, {"0123456789abcdef0123"}),
        ({"url": "https://m.example/a?release=9&arch=x86_64"}, set()),
        ({"drivers": {"nvidia": {}}, "policy": {"keep": 2, "prebuild": True}}, set()),
        ('mirror = "https://me:pw@a/b"\nother = "http://b:8080/c@d"\n', {"pw"}),
        (None, set()),
    ],
)
def test_secrets_are_found(document: object, secrets: set[str]) -> None:
    assert secrets_in(document) == secrets


@pytest.mark.parametrize(("text", "secret", "_shown"), IN_SETTINGS)
def test_ansible_hides_what_provision_hides(text: str, secret: str, _shown: str) -> None:
    assert secret in secrets_in({"distros": {"debian": {"archive": {"mirror": text}}}})


@pytest.mark.parametrize("text", PUBLIC)
def test_ansible_shows_what_provision_shows(text: str) -> None:
    assert secrets_in(text) == set()
