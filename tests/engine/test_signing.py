"""Real modules, signed with keys in files and in tokens, by the kernel's own sign-file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.agent_host import AgentHost
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need, need_programs
from kit.process import run
from kit.product import BUILD_NETWORK, Provision
from provision.config import SigningConfig
from provision.documents import load_json
from provision.manifest import Manifest
from provision.modules.signing import PIN_VARIABLE, fingerprint, sign, verify_signatures
from provision.modules.verify import MANIFEST, verify

if TYPE_CHECKING:
    from kit.engine import Engine

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO, *BUILD_NETWORK)
_SOFTHSM = Path("/usr/lib/softhsm/libsofthsm2.so")
_PIN = "4711"


@dataclass(frozen=True, slots=True)
class Signed:
    """A host whose modules are signed: its root, and what is in its store."""

    host: AgentHost
    entry: Path
    manifest: Manifest

    @property
    def certificate(self) -> Path:
        """Of the key."""
        return self.host.root / "etc/keys/certificate"

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


@pytest.fixture(scope="module")
def signed(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """The small driver, installed on a host with a key; it has no headers of its own."""
    need_programs("openssl")
    host = AgentHost.make(tmp_path_factory.mktemp("signed") / "root", running=OLD_KERNEL)
    make_key(host.root / "etc/keys", form="DER")
    host.configure('[signing]\nkey = "/etc/keys/key"\ncertificate = "/etc/keys/certificate"\n')
    Provision(engine.host)("install", *_TARGET, "--root", host.root)
    entry = (host.store(SMALL_DRIVER) / "current").resolve(strict=True)
    return Signed(host, entry, load_json(entry / MANIFEST, Manifest))


def test_modules_in_the_store_are_signed_and_the_pin_says_by_whom(signed: Signed) -> None:
    assert signed.manifest.pin.signing_key == fingerprint(signed.certificate)
    assert run(["modinfo", "-F", "signer", signed.module]).stdout == "modules of a test\n"
    assert run(["modinfo", "-F", "sig_hashalgo", signed.module]).stdout == "sha256\n"
    assert verify_signatures(signed.entry, signed.manifest, signed.certificate) == ()
    # What was built is what the manifest says, below the signature.
    assert verify(signed.entry).findings == ()
    assert signed.module.stat().st_size > signed.manifest.modules[0].size


def test_a_byte_that_was_changed_is_found(signed: Signed, tmp_path: Path) -> None:
    run(["cp", "-a", signed.entry, tmp_path / signed.entry.name])
    entry = tmp_path / signed.entry.name
    module = entry / signed.manifest.modules[0].path
    data = bytearray(module.read_bytes())
    data[1000] ^= 1
    module.write_bytes(data)
    (fault,) = verify_signatures(entry, signed.manifest, signed.certificate)
    assert (fault.kind, "was changed since" in fault.message) == ("signature", True)
    assert [finding.kind for finding in verify(entry).findings] == ["altered"]


def test_another_key_is_not_the_one(signed: Signed, tmp_path: Path) -> None:
    make_key(tmp_path)
    (fault,) = verify_signatures(signed.entry, signed.manifest, tmp_path / "certificate")
    assert "not signed with the certificate's key" in fault.message


@pytest.fixture
def unsigned(signed: Signed, tmp_path: Path) -> Path:
    """A copy of the artifact without signatures."""
    run(["cp", "-a", signed.entry, tmp_path / "entry"])
    for module in signed.manifest.modules:
        path = tmp_path / "entry" / module.path
        path.write_bytes(path.read_bytes()[: module.size])
    return tmp_path / "entry"


@pytest.fixture
def tool(signed: Signed) -> Path:
    """The kernel's sign-file, which the installation fetched."""
    del signed
    cache = Path(Provision().variables()["XDG_CACHE_HOME"]) / "provision/sign-file"
    (found,) = [path for path in cache.iterdir() if re.match(r"linux-kbuild-6\.1_", path.name)]
    return found


def test_a_key_with_a_passphrase_gets_it_from_a_file(
    signed: Signed, unsigned: Path, tool: Path, tmp_path: Path
) -> None:
    make_key(tmp_path / "keys", "-passout", f"pass:{_PIN}")
    (tmp_path / "keys/pin").write_text(f"{_PIN}\n")
    keys = str(tmp_path / "keys")
    config = SigningConfig(
        key=f"{keys}/key", certificate=f"{keys}/certificate", pin_file=f"{keys}/pin", hash="sha512"
    )
    assert sign(unsigned, signed.manifest, config, tool) == ("v4l2loopback",)
    module = unsigned / signed.manifest.modules[0].path
    assert run(["modinfo", "-F", "sig_hashalgo", module]).stdout == "sha512\n"


def test_a_key_in_a_token_signs_too(
    signed: Signed, unsigned: Path, tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_programs("softhsm2-util")
    need(_SOFTHSM.exists(), str(_SOFTHSM), "tests/kit/setup.sh packages")
    make_key(tmp_path / "keys")
    _make_token(tmp_path, monkeypatch)
    monkeypatch.setenv(PIN_VARIABLE, _PIN)
    config = SigningConfig(
        key="pkcs11:token=modules;object=mok",
        certificate=str(tmp_path / "keys/certificate"),
    )
    assert sign(unsigned, signed.manifest, config, tool) == ("v4l2loopback",)
    assert verify_signatures(unsigned, signed.manifest, tmp_path / "keys/certificate") == ()


def _make_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A software token that has the private key below `folder`."""
    (folder / "tokens").mkdir()
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {folder}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    monkeypatch.setenv("PKCS11_MODULE_PATH", str(_SOFTHSM))
    words = ["--free", "--label", "modules", "--so-pin", _PIN, "--pin", _PIN]
    run(["softhsm2-util", "--init-token", *words])
    words = ["--token", "modules", "--label", "mok", "--id", "01", "--pin", _PIN]
    run(["softhsm2-util", "--import", folder / "keys/key", *words])
