"""A host's key for modules, by the real OpenSSL, and a token that has a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.probe import need, need_programs
from kit.process import run
from provision.config import SigningConfig

# Where `fill_token` puts a key.
TOKEN_KEY = "pkcs11:token=kit;object=key"  # noqa: S105 - where it is, not what it is
_SOFTHSM = Path("/usr/lib/softhsm/libsofthsm2.so")


def module_key(root: Path, name: str = "mine") -> SigningConfig:
    """Make a key and its certificate below the root of a host; what provision.toml says of it."""
    need_programs("openssl")
    root.mkdir(parents=True, exist_ok=True)
    words = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        f"/CN={name}/",
    )
    files = ("-keyout", root / f"{name}.key", "-out", root / f"{name}.crt")
    run(("openssl", "req", "-x509", *words, *files))
    return SigningConfig(key=f"/{name}.key", certificate=f"/{name}.crt")


def fill_token(folder: Path, key: Path, pin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a key into a software token below `folder`, which OpenSSL finds from now on."""
    need_programs("openssl", "softhsm2-util")
    need(_SOFTHSM.exists(), str(_SOFTHSM), ".ci/setup test")
    (folder / "tokens").mkdir()
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {folder}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    monkeypatch.setenv("PKCS11_MODULE_PATH", str(_SOFTHSM))
    run(
        ["softhsm2-util", "--init-token", "--free", "--label", "kit", "--so-pin", pin, "--pin", pin]
    )
    named = ("--token", "kit", "--label", "key", "--id", "01", "--pin", pin)
    run(["softhsm2-util", "--import", key, *named])
