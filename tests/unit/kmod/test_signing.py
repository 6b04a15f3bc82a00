"""Modules that the host signs, with the real OpenSSL. For what is read: engine/test_signing.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import MODULE, make_artifact
from kit.module_key import module_key
from provision.config import SigningConfig
from provision.errors import ProvisionError
from provision.kmod.module_signatures import is_signed, is_signed_for_host, sign_modules

_MINE = SigningConfig(key="/mine.key", certificate="/mine.crt")
_OTHER = SigningConfig(key="/other.key", certificate="/other.crt")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a host that has two keys."""
    assert (module_key(tmp_path), module_key(tmp_path, "other")) == (_MINE, _OTHER)
    return tmp_path


def test_only_signatures_of_the_hosts_key_count(root: Path) -> None:
    entry = root / "entry"
    manifest = make_artifact(entry)
    assert is_signed_for_host(entry, manifest, SigningConfig(), root=root)
    assert not is_signed_for_host(entry, manifest, _MINE, root=root)
    sign_modules(entry, manifest, _MINE, root=root)
    assert is_signed_for_host(entry, manifest, _MINE, root=root)
    assert not is_signed_for_host(entry, manifest, _OTHER, root=root)


def test_a_key_that_is_not_the_certificates_signs_nothing(root: Path) -> None:
    entry = root / "entry"
    manifest = make_artifact(entry)
    mixed = SigningConfig(key=_MINE.key, certificate=_OTHER.certificate)
    with pytest.raises(ProvisionError) as caught:
        sign_modules(entry, manifest, mixed, root=root)
    # What OpenSSL said.
    assert caught.value.details
    assert not is_signed(entry / MODULE)
