"""Signs the modules of an artifact for hosts that refuse unsigned ones, and checks signatures.

OpenSSL makes the messages, and provision appends them (docs/decisions/07-store-and-modules.md).
Keys may be in files or in tokens.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from binascii import Error as Base64Error
from pathlib import Path

from provision.config import SigningConfig
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root, settled_path
from provision.kmod.modules import (
    append_signature,
    find_signature,
    read_signature,
)
from provision.kmod.verify import Finding
from provision.manifest import Manifest, Module
from provision.progress import Note, report
from provision.registry.signatures import open_key
from provision.run import run

_DER_BEGIN = b"\x30"


def is_signed_for_host(
    entry: Path, manifest: Manifest, signing: SigningConfig, *, root: Path
) -> bool:
    """Return whether an entry's modules carry the signatures that this host would give them.

    A Pin names no key: if provision.toml names another key now, the entry stays the right one, and
    only its signatures are outdated.
    """
    if signing.certificate is None:
        return True
    return not verify_signatures(entry, manifest, in_root(root, signing.certificate))


def sign_modules(
    entry: Path, manifest: Manifest, signing: SigningConfig, *, root: Path
) -> tuple[str, ...]:
    """Sign the modules of an artifact that has not become a store entry yet with the host's key.

    Args:
        manifest: Its manifest; it stays as it is, because it describes what was built.
    """
    key = open_key(root, signing)
    if key is None or signing.certificate is None:
        return ()
    certificate = settled_path(root, signing.certificate)
    with tempfile.TemporaryDirectory(prefix="provision-") as name:
        # Every version of OpenSSL reads PEM.
        pem, message = Path(name, "certificate.pem"), Path(name, "message")
        pem.write_text(ssl.DER_cert_to_PEM_cert(_der(certificate)))
        # A detached PKCS#7 message without certificates and signed attributes: the kernel looks
        # for its own copy of the certificate, and hashes nothing but the module.
        # Sources: openssl-cms(1); the kernel's crypto/asymmetric_keys/pkcs7_{parser,verify}.c.
        form = ["-binary", "-noattr", "-nocerts", "-nosmimecap", "-outform", "DER"]
        command = ["openssl", "cms", "-sign", "-md", signing.hash, *form]
        for module in manifest.modules:
            report(Note(f"sign {module.name}"))
            path = entry / module.path
            done = run(
                [*command, "-signer", pem, "-in", path, "-out", message, *key.words],
                why="sign a kernel module",
                env=key.environment,
                stdin=key.secret,
                check=False,
            )
            if done.returncode != 0:
                raise _not_signed(module, done.stderr, is_token=signing.is_token)
            append_signature(path, message.read_bytes())
    findings = verify_signatures(entry, manifest, certificate)
    if findings:
        raise ProvisionError(
            "The modules were signed, and their signatures do not verify.",
            resolution="Check that the key and the certificate in provision.toml belong together.",
            details="\n".join(map(str, findings)),
        )
    return tuple(module.name for module in manifest.modules)


def verify_signatures(entry: Path, manifest: Manifest, certificate: Path) -> tuple[Finding, ...]:
    """Return what is wrong with the signatures of an artifact's modules; empty if all are good."""
    pem = ssl.DER_cert_to_PEM_cert(_der(certificate))
    with tempfile.TemporaryDirectory(prefix="provision-") as name:
        folder = Path(name)
        (folder / "certificate.pem").write_text(pem)
        wrong = [(m, _fault(entry / m.path, folder)) for m in manifest.modules]
    return tuple(Finding(m.path, "signature", fault) for m, fault in wrong if fault)


def is_signed(module: Path) -> bool:
    """Return whether a module file has a signature, whatever key made it."""
    try:
        return read_signature(module) is not None
    except ValueError:
        return False


def _fault(module: Path, folder: Path) -> str | None:
    """Return what is wrong with a module's signature; None if it is good.

    As for the kernel, neither the certificate's chain nor its dates count. Source: openssl-cms(1).
    """
    data = module.read_bytes()
    try:
        appended = find_signature(data)
    except ValueError as error:
        return str(error)
    if appended is None:
        return "is not signed"
    (folder / "content").write_bytes(data[: appended.content_size])
    (folder / "message").write_bytes(appended.message)
    what: list[str | Path] = ["-in", folder / "message", "-inform", "DER"]
    what += ["-content", folder / "content"]
    who: list[str | Path] = ["-certfile", folder / "certificate.pem", "-nointern", "-noverify"]
    done = run(
        ["openssl", "cms", "-verify", "-binary", *what, *who, "-out", os.devnull],
        why="verify the signature of a kernel module",
        check=False,
    )
    if done.returncode == 0:
        return None
    return "is not signed with the certificate's key, or was changed since"


def _der(certificate: Path) -> bytes:
    try:
        data = certificate.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no certificate '{certificate}'.",
            resolution="Correct [signing] in /etc/provision/provision.toml.",
        ) from error
    if data.startswith(_DER_BEGIN):
        return data
    try:
        return ssl.PEM_cert_to_DER_cert(data.decode("ascii").strip())
    except (ValueError, Base64Error) as error:
        raise ProvisionError(
            f"'{certificate}' is no certificate, neither in PEM nor in DER.",
            resolution="Correct [signing] in /etc/provision/provision.toml.",
        ) from error


def _not_signed(module: Module, said: str, *, is_token: bool) -> ProvisionError:
    hint = (
        "Check that key and certificate belong together. The key may need a passphrase: name a file"
        " that has it, [signing] pin_file in /etc/provision/provision.toml."
    )
    if is_token:
        hint = (
            "See that the token is there (pkcs11-tool --list-slots), that PKCS11_MODULE_PATH names"
            " its module, and that the file that [signing] pin_file names has its PIN."
        )
    return ProvisionError(
        f"The module '{module.name}' could not be signed.",
        resolution=hint,
        details=said.strip() or None,
    )
