"""Signs the modules of an artifact for hosts that refuse unsigned ones, and checks signatures.

The kernel's own ``sign-file`` signs, so keys may be wherever it can reach them: in a file, or
behind a PKCS#11 URI. Source: https://docs.kernel.org/admin-guide/module-signing.html.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.config import SigningConfig
from provision.errors import NotFoundError, ProvisionError
from provision.manifest import Manifest, Module
from provision.modules.signature import find_signature, read_content, read_signature
from provision.modules.verify import Finding
from provision.progress import Note, Progress, silent
from provision.run import Completed, run

# What sign-file and the kernel's own build read the key's passphrase or the token's PIN from.
PIN_VARIABLE = "KBUILD_SIGN_PIN"
# How OpenSSL's engine and tokens are told where they are: openssl-env(7), libp11's README.
_TOKEN_VARIABLES = ("OPENSSL_CONF", "OPENSSL_ENGINES", "PKCS11_MODULE_PATH", "SOFTHSM2_CONF")
# What sign-file says where OpenSSL has no provider for tokens.
_NO_WAY_TO_TOKENS = "OSSL_PROVIDER_try_load"
_DER_BEGIN = b"\x30"
_MODULE_MODE = 0o644


def fingerprint(certificate: Path) -> str:
    """Return the sha256 of a certificate in DER: what a Pin knows a signing key by.

    Raises:
        NotFoundError: There is no such file.
        ProvisionError: It holds no certificate.
    """
    return hashlib.sha256(_der(certificate)).hexdigest()


def sign(
    entry: Path,
    manifest: Manifest,
    signing: SigningConfig,
    tool: Path,
    *,
    root: Path = Path("/"),
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Sign the modules of an artifact that has not become a store entry yet.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest; stays as it is, because it describes what was built.
        signing: Key and certificate.
        tool: The kernel's sign-file.
        root: Root of the host that key and certificate are on.
        progress: Told what is done.

    Returns:
        The modules that were signed; none without a key.

    Raises:
        NotFoundError: Key or certificate are missing.
        ProvisionError: sign-file failed, or what it made is not signed with this certificate.
    """
    if signing.key is None or signing.certificate is None:
        return ()
    certificate = _on_host(root, signing.certificate)
    key = signing.key if _is_token(signing) else str(_key_file(root, signing.key))
    signer = _Signer(tool, key, certificate, signing.hash, _environment(root, signing))
    for module in manifest.modules:
        progress(Note(f"sign {module.name}"))
        path = entry / module.path
        done = signer.sign(path)
        if done.returncode != 0 and _is_token(signing) and _NO_WAY_TO_TOKENS in done.stderr:
            done = signer.sign_by_engine(path)
        if done.returncode != 0:
            raise _not_signed(module, signing, done.stderr)
        path.chmod(_MODULE_MODE)
    findings = verify_signatures(entry, manifest, certificate)
    if findings:
        raise ProvisionError(
            "What the kernel's sign-file made does not verify.",
            resolution="See that key and certificate in provision.toml belong together.",
            details="\n".join(map(str, findings)),
        )
    return tuple(module.name for module in manifest.modules)


def verify_signatures(entry: Path, manifest: Manifest, certificate: Path) -> tuple[Finding, ...]:
    """Return what is wrong with the signatures of an artifact's modules; nothing if all are good.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest.
        certificate: Of the key that they must be signed with, as PEM or DER.

    Raises:
        NotFoundError: There is no certificate, or no ``openssl``.
        OSError: A module can't be read.
    """
    pem = ssl.DER_cert_to_PEM_cert(_der(certificate))
    with tempfile.TemporaryDirectory(prefix="provision-") as name:
        folder = Path(name)
        (folder / "certificate.pem").write_text(pem)
        wrong = [(m, _fault(entry / m.path, folder)) for m in manifest.modules]
    return tuple(Finding(m.path, "signature", fault) for m, fault in wrong if fault)


def is_signed(module: Path) -> bool:
    """Return whether a module file carries a signature, by whomsoever.

    Raises:
        OSError: It can't be read.
    """
    try:
        return read_signature(module) is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Signer:
    """Signs files; see ``SigningConfig`` for what it signs with."""

    tool: Path
    key: str
    certificate: Path
    hash: str
    environment: Mapping[str, str]

    def sign(self, module: Path) -> Completed:
        """Sign with sign-file, which makes a new file and renames it."""
        return self._run([self.tool, self.hash, self.key, self.certificate, module])

    def sign_by_engine(self, module: Path) -> Completed:
        """Let OpenSSL's engine sign, and sign-file append that.

        sign-file of newer kernels reaches tokens by OpenSSL's provider alone, which distros of
        their time don't all have. The message is the same, byte for byte: openssl-cms(1) with the
        flags of scripts/sign-file.c.
        """
        with tempfile.TemporaryDirectory(prefix="provision-") as folder:
            message = Path(folder, "message")
            key: list[str | Path] = ["-engine", "pkcs11", "-keyform", "engine", "-inkey", self.key]
            if PIN_VARIABLE in self.environment:
                key += ["-passin", f"env:{PIN_VARIABLE}"]
            how = ["-binary", "-noattr", "-nocerts", "-md", self.hash, "-outform", "DER"]
            files: list[str | Path] = ["-signer", self.certificate, "-in", module, "-out", message]
            done = self._run(["openssl", "cms", "-sign", *key, *how, *files])
            if done.returncode != 0:
                return done
            return self._run([self.tool, "-s", message, self.hash, self.certificate, module])

    def _run(self, argv: Sequence[str | Path]) -> Completed:
        return run(argv, why="sign a kernel module", env=self.environment, check=False)


def _fault(module: Path, folder: Path) -> str | None:
    """Return what is wrong with a module's signature.

    Source: openssl-cms(1). Neither chain nor dates count, as they don't for the kernel.
    """
    try:
        appended = find_signature(module.read_bytes())
    except ValueError as error:
        return str(error)
    if appended is None:
        return "is not signed"
    (folder / "content").write_bytes(read_content(module, appended))
    (folder / "message").write_bytes(appended.message)
    what: list[str | Path] = [
        "-in",
        folder / "message",
        "-inform",
        "DER",
        "-content",
        folder / "content",
    ]
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


def _is_token(signing: SigningConfig) -> bool:
    return signing.key is not None and signing.key.startswith("pkcs11:")


def _key_file(root: Path, name: str) -> Path:
    path = _on_host(root, name)
    if not path.is_file():
        raise NotFoundError(
            f"There is no key '{path}'.",
            resolution="Correct [signing] in /etc/provision/provision.toml.",
        )
    return path


def _environment(root: Path, signing: SigningConfig) -> dict[str, str]:
    """Return the variables with the passphrase or PIN, and those that lead to a token."""
    names = (PIN_VARIABLE, *_TOKEN_VARIABLES)
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    if signing.pin_file is None:
        return inherited
    return inherited | {PIN_VARIABLE: _on_host(root, signing.pin_file).read_text().strip()}


def _on_host(root: Path, name: str) -> Path:
    return root / name.lstrip("/")


def _not_signed(module: Module, signing: SigningConfig, said: str) -> ProvisionError:
    hint = "The key may need a passphrase: [signing] pin_file in /etc/provision/provision.toml."
    if _is_token(signing):
        hint = (
            "See that the token is there and that OpenSSL has its PKCS#11 engine"
            " (libengine-pkcs11-openssl, openssl-pkcs11); the PIN comes from [signing] pin_file."
        )
    return ProvisionError(
        f"The module '{module.name}' could not be signed.",
        resolution=hint,
        details=said.strip() or None,
    )
