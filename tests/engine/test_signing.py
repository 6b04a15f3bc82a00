"""Modules signed with keys in files and in tokens: by the real OpenSSL, read by the real modinfo.

That a kernel takes what comes out is shown by tests/vm/test_secure_boot.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.artifact import make_artifact
from kit.engine import Engine
from kit.foreign import kernels_sign_file
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.module_key import TOKEN_KEY, fill_token
from kit.probe import need_programs
from kit.process import Completed, run
from kit.product import BUILD_NETWORK, Provision
from provision.config import SigningConfig
from provision.documents import load_json
from provision.errors import ProvisionError
from provision.kmod.module_signatures import sign_modules, verify_signatures
from provision.kmod.verify import verify_artifact
from provision.manifest import MANIFEST, Manifest
from provision.registry.signatures import PIN_VARIABLE

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO, *BUILD_NETWORK)
# Found again wherever it leaks to; nothing else has these letters.
_PIN = "hunter2-4711"
_SCRIPT = """\
#!{python} -IS
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program on disk, and the calls that it has had."""

    path: Path
    _calls: Path

    def calls(self) -> list[Any]:
        """The arguments and the environment of each call, oldest first."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [json.loads(line) for line in lines]

    def forget(self) -> None:
        """Let the next call be the first."""
        self._calls.unlink(missing_ok=True)


def record(program: Path, folder: Path) -> RecordedProgram:
    """Write a program of the same name into `folder`, which becomes `program` as it was called."""
    path = folder / program.name
    calls = folder / f".{program.name}.calls"
    path.write_text(_SCRIPT.format(python=sys.executable, calls=str(calls), program=str(program)))
    path.chmod(0o755)
    return RecordedProgram(path, calls)


@dataclass(frozen=True, slots=True)
class Signed:
    """A host whose modules are signed: its root, and what is in its store."""

    host: AgentHost
    entry: Path
    manifest: Manifest

    @property
    def keys(self) -> Path:
        """The folder of key and certificate."""
        return self.host.root / "etc/keys"

    @property
    def certificate(self) -> Path:
        """Of the key."""
        return self.keys / "certificate"

    @property
    def module(self) -> Path:
        """The module in the store."""
        return self.entry / self.manifest.modules[0].path


def make_key(folder: Path, *words: str, form: str = "PEM") -> None:
    """A key and its certificate, as docs/how-to/secure-boot.md makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    what = ["-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=modules of a test/"]
    use = ["-addext", "extendedKeyUsage=codeSigning", "-outform", form]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    run(["openssl", "req", "-new", "-x509", *what, *use, *files, *(words or ("-nodes",))])


def _install(provision: Provision, host: AgentHost, *, check: bool = True) -> Completed:
    built = provision.json("build", *_TARGET, "--root", host.root)
    return provision("-v", "install", built["image"], "--root", host.root, "--json", check=check)


@pytest.fixture(scope="module")
def signed(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """The small driver, installed on a host with a key; it has no headers of its own."""
    need_programs("openssl")
    host = AgentHost.make(tmp_path_factory.mktemp("signed") / "root", running=OLD_KERNEL)
    make_key(host.root / "etc/keys", form="DER")
    host.configure(
        f"[drivers.{SMALL_DRIVER}]\n"
        '[signing]\nkey = "/etc/keys/key"\ncertificate = "/etc/keys/certificate"\n'
    )
    _install(Provision(engine.host), host)
    entry = (host.store(SMALL_DRIVER) / "current").resolve(strict=True)
    return Signed(host, entry, load_json(entry / MANIFEST, Manifest))


def test_modules_in_the_store_are_signed_and_the_pin_names_no_key(signed: Signed) -> None:
    assert run(["modinfo", "-F", "signer", signed.module]).stdout == "modules of a test\n"
    assert run(["modinfo", "-F", "sig_hashalgo", signed.module]).stdout == "sha256\n"
    assert verify_signatures(signed.entry, signed.manifest, signed.certificate) == ()
    # What was built is what the manifest says, below the signature.
    assert verify_artifact(signed.entry).findings == ()
    assert signed.module.stat().st_size > signed.manifest.modules[0].size


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_module_is_signed_as_the_kernels_own_program_does(
    unsigned: tuple[Path, Manifest], tmp_path: Path, algorithm: str
) -> None:
    entry, manifest = unsigned
    module, by_kernel = entry / manifest.modules[0].path, tmp_path / "by-kernel.ko"
    shutil.copy(module, by_kernel)
    keys = tmp_path / "keys"
    make_key(keys)
    program = kernels_sign_file(tmp_path / "bin")
    run([program, algorithm, keys / "key", keys / "certificate", by_kernel])
    config = SigningConfig.model_validate(
        {"key": f"{keys}/key", "certificate": f"{keys}/certificate", "hash": algorithm}
    )
    assert sign_modules(entry, manifest, config, root=Path("/")) == ("demo",)
    assert module.read_bytes() == by_kernel.read_bytes()


def test_a_byte_that_was_changed_is_found(signed: Signed, tmp_path: Path) -> None:
    run(["cp", "-a", signed.entry, tmp_path / signed.entry.name])
    entry = tmp_path / signed.entry.name
    module = entry / signed.manifest.modules[0].path
    data = bytearray(module.read_bytes())
    data[1000] ^= 1
    module.write_bytes(data)
    (fault,) = verify_signatures(entry, signed.manifest, signed.certificate)
    assert (fault.kind, "was changed since" in fault.message) == ("signature", True)
    assert [finding.kind for finding in verify_artifact(entry).findings] == ["altered"]


@pytest.fixture
def openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedProgram:
    """The real OpenSSL, and what it was started with."""
    need_programs("openssl")
    real = shutil.which("openssl")
    assert real is not None
    (tmp_path / "bin").mkdir()
    recorded = record(Path(real), tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return recorded


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a key and its certificate; the key is in a software token, too."""
    make_key(tmp_path / "keys")
    fill_token(tmp_path, tmp_path / "keys/key", _PIN, monkeypatch)
    return tmp_path / "keys"


@pytest.fixture
def unsigned(tmp_path: Path) -> tuple[Path, Manifest]:
    """An artifact whose modules are not signed, and its manifest."""
    entry = tmp_path / "entry"
    return entry, make_artifact(entry)


def _assert_secret(openssl: RecordedProgram) -> None:
    """Nothing that other processes can read had the PIN in it."""
    assert openssl.calls()
    seen = str(openssl.calls())
    assert _PIN not in seen


def test_a_key_with_a_passphrase_gets_it_from_a_file(
    unsigned: tuple[Path, Manifest], openssl: RecordedProgram, tmp_path: Path
) -> None:
    entry, manifest = unsigned
    keys = tmp_path / "keys"
    make_key(keys, "-passout", f"pass:{_PIN}")
    (keys / "pin").write_text(f"{_PIN}\n")
    openssl.forget()
    config = SigningConfig(
        key=f"{keys}/key", certificate=f"{keys}/certificate", pin_file=f"{keys}/pin", hash="sha512"
    )
    assert sign_modules(entry, manifest, config, root=Path("/")) == ("demo",)
    module = entry / manifest.modules[0].path
    assert run(["modinfo", "-F", "sig_hashalgo", module]).stdout == "sha512\n"
    assert verify_signatures(entry, manifest, keys / "certificate") == ()
    _assert_secret(openssl)


@pytest.mark.parametrize("where", ["pin_file", "environment"])
def test_a_key_in_a_token_signs_too(
    unsigned: tuple[Path, Manifest],
    token: Path,
    openssl: RecordedProgram,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry, manifest = unsigned
    (token / "pin").write_text(f"{_PIN}\n")
    if where == "environment":
        monkeypatch.setenv(PIN_VARIABLE, _PIN)
    config = SigningConfig(
        key=TOKEN_KEY,
        certificate=str(token / "certificate"),
        pin_file=f"{token}/pin" if where == "pin_file" else None,
    )
    assert sign_modules(entry, manifest, config, root=Path("/")) == ("demo",)
    assert verify_signatures(entry, manifest, token / "certificate") == ()
    _assert_secret(openssl)


@pytest.mark.parametrize("is_token", [True, False])
def test_a_secret_that_is_missing_or_wrong_is_an_error(
    unsigned: tuple[Path, Manifest], token: Path, *, is_token: bool
) -> None:
    entry, manifest = unsigned
    make_key(token / "locked", "-passout", f"pass:{_PIN}")
    key = TOKEN_KEY if is_token else f"{token}/locked/key"
    certificate = str(token / ("certificate" if is_token else "locked/certificate"))
    (token / "pin").write_text("wrong\n")
    for pin_file in (None, f"{token}/pin"):
        with pytest.raises(ProvisionError, match="could not be signed") as caught:
            sign_modules(
                entry,
                manifest,
                SigningConfig(key=key, certificate=certificate, pin_file=pin_file),
                root=Path("/"),
            )
        assert "pin_file" in str(caught.value.resolution)
    assert verify_artifact(entry).findings == ()


def test_a_pin_is_nowhere_but_where_it_was_put(
    signed: Signed,
    engine: Engine,
    openssl: RecordedProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(["openssl", "rsa", "-in", signed.keys / "key", "-out", tmp_path / "key.pem"])
    fill_token(tmp_path, tmp_path / "key.pem", _PIN, monkeypatch)
    openssl.forget()
    host = AgentHost.make(tmp_path / "root", running=OLD_KERNEL)
    shutil.copytree(signed.keys, host.root / "etc/keys")
    (host.root / "etc/keys/key").unlink()
    where = f'[drivers.{SMALL_DRIVER}]\n[signing]\ncertificate = "/etc/keys/certificate"\n'
    for pin in ("wrong", _PIN):
        pin_file = host.write("etc/keys/pin", f"{pin}\n")
        host.configure(f'{where}key = "{TOKEN_KEY}"\npin_file = "/etc/keys/pin"\n')
        done = _install(Provision(engine.host), host, check=pin == _PIN)
        assert "-passin stdin" in done.stderr
        assert _PIN not in done.output
    entry = (host.store(SMALL_DRIVER) / "current").resolve(strict=True)
    assert verify_signatures(entry, signed.manifest, signed.certificate) == ()
    _assert_secret(openssl)
    # What is refused is not repeated either.
    host.configure(f'{where}key = "{TOKEN_KEY}?pin-value={_PIN}"\n')
    for words in (["install", "provision/x:1", "--json"], ["apply"], ["status", "--json"]):
        refused = Provision(engine.host)("-v", *words, "--root", host.root, check=False)
        assert refused.returncode == 2, refused.output
        assert "pin_file" in refused.output
        assert _PIN not in refused.output
    written = [
        path
        for path in host.root.rglob("*")
        if path.is_file() and path != pin_file and path.name != "provision.toml"
    ]
    assert written
    assert [path for path in written if _PIN.encode() in path.read_bytes()] == []
