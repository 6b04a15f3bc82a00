"""A kernel under Secure Boot judges our signatures: its key is in the firmware's list.

Not as after `mokutil --import`, which takes shim and a person at the firmware's screen; the
kernel puts keys of both lists into keyrings that it trusts for modules. The key, and the variables
that list it, come with Debian's `ovmf` for tests: its README.Debian.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.files import write
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.hosts import SMALL_DRIVER
from kit.probe import need, need_programs
from kit.process import run
from kit.product import Provision
from provision.config import SigningConfig
from provision.documents import load_json
from provision.kmod.module_signatures import sign_modules
from provision.manifest import MANIFEST, Manifest
from vm.stored import Store

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_KEY = Path("/usr/share/ovmf/PkKek-1-snakeoil.key")
_CERTIFICATE = _KEY.with_suffix(".pem")
_PASSPHRASE = "snakeoil"  # noqa: S105 - its README.Debian has it
_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd")
_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd")
_COMMAND_LINE = "root=/dev/vda1 ro console=ttyS0 net.ifnames=0 mitigations=off"
_ACCEPTED = ("sha256", "sha384", "sha512")
# What insmod says, and what the kernel logs: kernel/module/signing.c.
_REFUSED = {
    "unsigned": ("Key was rejected by service", "Loading of unsigned module is rejected"),
    "unknown": ("Key was rejected by service", "module with unavailable key is rejected"),
    "altered": ("Key was rejected by service", None),
    "malformed": ("Bad message", None),
}


@pytest.fixture(scope="module")
def store(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The small driver, signed with the key that the firmware trusts; it has a passphrase."""
    need(_VARIABLES.exists(), str(_VARIABLES), ".ci/setup test")
    need_programs("sbsign")
    folder = tmp_path_factory.mktemp("secure-boot")
    settings = (
        '[signing]\nkey = "/etc/keys/key"\ncertificate = "/etc/keys/certificate"\n'
        'pin_file = "/etc/keys/pin"\n'
    )
    store = Store(Provision(engine.host), folder / "root", settings)
    store.host.write("etc/keys/key", _KEY.read_text())
    store.host.write("etc/keys/certificate", _CERTIFICATE.read_text())
    store.host.write("etc/keys/pin", f"{_PASSPHRASE}\n")
    store.install(SMALL_DRIVER)
    return store


def _firmware(guest: Guest, folder: Path) -> list[str]:
    """Sign the running kernel of a guest, and return what QEMU starts it by from now on.

    The firmware wants SMM, which keeps its variables from us.
    """
    release = guest.kernel()
    kernel, key = folder / "vmlinuz", folder / "key"
    guest.get(f"/boot/vmlinuz-{release}", kernel)
    guest.get(f"/boot/initrd.img-{release}", folder / "initrd")
    run(["openssl", "pkey", "-in", _KEY, "-passin", f"pass:{_PASSPHRASE}", "-out", key])
    run(["sbsign", "--key", key, "--cert", _CERTIFICATE, "--output", kernel, kernel])
    shutil.copy(_VARIABLES, folder / "variables")
    flash = "if=pflash,format=raw,unit"
    return [
        *("-machine", "q35,smm=on"),
        *("-global", "driver=cfi.pflash01,property=secure,value=on"),
        *("-drive", f"{flash}=0,readonly=on,file={_CODE}"),
        *("-drive", f"{flash}=1,file={folder}/variables"),
        *("-kernel", str(kernel), "-initrd", f"{folder}/initrd", "-append", _COMMAND_LINE),
    ]


@pytest.fixture(scope="module")
def modules(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's module with each kind of signature, as `KIND.ko`."""
    folder = tmp_path_factory.mktemp("variants")
    entry = (store.host.store(SMALL_DRIVER) / "current").resolve(strict=True)
    manifest = load_json(entry / MANIFEST, Manifest)
    (module,) = manifest.modules
    content = (entry / module.path).read_bytes()[: module.size]
    words = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=unknown"]
    run(["openssl", "req", "-x509", *words, "-keyout", folder / "key", "-out", folder / "pem"])
    trusted = SigningConfig(
        key=str(_KEY), certificate=str(_CERTIFICATE), pin_file=f"{store.root}/etc/keys/pin"
    )
    unknown = SigningConfig(key=f"{folder}/key", certificate=f"{folder}/pem")
    configs = {kind: trusted.model_copy(update={"hash": kind}) for kind in _ACCEPTED}
    configs |= {"unknown": unknown, "altered": trusted, "malformed": trusted}
    for kind, config in configs.items():
        path = write(folder / module.path, content)
        assert sign_modules(folder, manifest, config, root=Path("/")) == (module.name,)
        path.rename(folder / f"{kind}.ko")
    _flip(folder / "altered.ko", content.index(b"v4l2loopback"))
    # The first byte of the message says that it is a sequence.
    _flip(folder / "malformed.ko", len(content))
    (folder / "unsigned.ko").write_bytes(content)
    return folder


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def guest(
    bookworm_product: Path,
    store: Store,
    modules: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guest]:
    """A guest with the driver in its store, booted under Secure Boot."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        store.put(guest)
        guest("mkdir /root/modules")
        for path in modules.glob("*.ko"):
            guest.put(path, f"/root/modules/{path.name}")
        guest.firmware = _firmware(guest, tmp_path_factory.mktemp("firmware"))
        guest.reboot()
        guest("modprobe videodev")
        yield guest


def test_the_kernel_is_locked_down_and_trusts_the_firmwares_key(guest: Guest) -> None:
    assert "[integrity]" in guest("cat /sys/kernel/security/lockdown").stdout
    assert "SnakeOil" in guest("grep asymmetri /proc/keys").stdout
    assert json.loads(guest("provision facts --json").stdout)["secure_boot"] == "enabled"


def test_a_driver_that_we_signed_is_loaded_and_taints_nothing_but_by_its_origin(
    guest: Guest,
) -> None:
    guest(f"provision load {SMALL_DRIVER}")
    # O: built out of tree; E would be one whose signature the kernel did not verify.
    assert guest("cat /sys/module/v4l2loopback/taint").stdout.strip() == "O"
    checks = json.loads(guest("provision doctor --json", check=False).stdout)["checks"]
    assert {row["state"] for row in checks if row["check"] == "signing"} == {"ok"}
    guest(f"provision unload {SMALL_DRIVER}")


@pytest.mark.parametrize("kind", _ACCEPTED)
def test_the_kernel_verifies_every_digest_that_can_be_chosen(guest: Guest, kind: str) -> None:
    guest(f"insmod /root/modules/{kind}.ko")
    taint = guest("cat /sys/module/v4l2loopback/taint; rmmod v4l2loopback").stdout.strip()
    assert taint == "O"


@pytest.mark.parametrize("kind", _REFUSED)
def test_the_kernel_refuses_others_each_for_its_reason(guest: Guest, kind: str) -> None:
    said, logged = _REFUSED[kind]
    guest("dmesg --clear")
    done = guest(f"insmod /root/modules/{kind}.ko", check=False)
    log = guest("dmesg").stdout
    assert done.returncode != 0
    assert said in done.stderr
    if logged is None:
        assert "is rejected" not in log
    else:
        assert logged in log
