"""A host's key for modules, by the real OpenSSL."""

from __future__ import annotations

from pathlib import Path

from kit.probe import need_programs
from kit.process import run
from provision.config import SigningConfig


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
