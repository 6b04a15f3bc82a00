"""Modules into a real kernel and out of it: load, unload, in use, refused, nodes, firmware."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.demanding_driver import lab_catalogue
from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.process import run
from kit.product import Provision
from vm.stored import Store

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

TAINT_UNSIGNED = "OE"


@pytest.fixture(scope="module")
def store(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The small driver and the made-up one, installed."""
    folder = tmp_path_factory.mktemp("modules")
    store = Store(Provision(engine.host), folder / "root")
    store.install(SMALL_DRIVER)
    with lab_catalogue(folder) as catalogue:
        store.install("lab", "--catalogue", catalogue)
    return store


@pytest.fixture(scope="module")
def guest(bookworm_product: Path, store: Store) -> Iterator[Guest]:
    """A guest with both drivers in its store, and none loaded."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        store.put(guest)
        yield guest


@pytest.fixture(autouse=True)
def _nothing_loaded(guest: Guest) -> None:
    """Each test begins with neither driver loaded, nothing in their way, and no options."""
    for module in ("lab", "v4l2loopback", "dummy", "loop"):
        guest(f"if test -e /sys/module/{module}; then rmmod {module}; fi")
    guest("rm -f /etc/provision/provision.toml")


def _call(guest: Guest, *words: str) -> tuple[int, dict[str, Any]]:
    done = guest(f"provision {' '.join(words)} --json", check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise AssertionError(done.output) from None
    return done.returncode, document


def _modules(guest: Guest) -> set[str]:
    return set(guest("cut -d' ' -f1 /proc/modules").stdout.split())


@contextmanager
def _opened(guest: Guest, device: str) -> Iterator[int]:
    """Let a process of the guest hold a device open; yields its id."""
    script = f"sleep 1000 <{device} >/dev/null 2>&1 & echo $!"
    process = int(guest(script).stdout)
    try:
        yield process
    finally:
        guest(f"kill {process}; while kill -0 {process} 2>/dev/null; do sleep 0.1; done")


def test_a_driver_is_loaded_from_the_store_and_unloaded(guest: Guest) -> None:
    guest("test ! -e /dev/video0")
    options = f"[drivers.{SMALL_DRIVER}.options]\nv4l2loopback = {{ devices = 2 }}\n"
    guest.write("/etc/provision/provision.toml", options)
    status, document = _call(guest, "load", SMALL_DRIVER)
    (driver,) = document["drivers"]
    assert (status, driver["modules"], driver["changed"]) == (0, ["v4l2loopback"], True)
    # What it needs came from the kernel's own, by itself.
    assert {"v4l2loopback", "videodev"} <= _modules(guest)
    guest("test -c /dev/video0 && test -c /dev/video1 && test ! -e /dev/video2")
    assert guest("cat /sys/module/v4l2loopback/taint").stdout.strip() == TAINT_UNSIGNED
    guest("test ! -e /lib/modules/$(uname -r)/updates")
    assert _call(guest, "load", SMALL_DRIVER)[1]["drivers"][0]["changed"] is False
    status, document = _call(guest, "unload", SMALL_DRIVER)
    assert (status, document["drivers"][0]["modules"]) == (0, ["v4l2loopback"])
    assert "v4l2loopback" not in _modules(guest)
    assert _call(guest, "unload", SMALL_DRIVER)[1]["drivers"][0]["changed"] is False


def test_a_module_in_use_stays_and_its_user_is_named(guest: Guest) -> None:
    assert _call(guest, "load", SMALL_DRIVER)[0] == 0
    with _opened(guest, "/dev/video0") as process:
        for words in (["unload", SMALL_DRIVER], ["unload", SMALL_DRIVER, "--dry-run"]):
            status, document = _call(guest, *words)
            assert status == 4
            (user,) = document["error"]["users"]
            assert user["name"] == f"sleep (process {process}), /dev/video0"
        assert "v4l2loopback" in _modules(guest)
    assert _call(guest, "unload", SMALL_DRIVER)[0] == 0


def test_what_a_driver_needs_of_its_host_is_seen_to(guest: Guest) -> None:
    guest("modprobe dummy numdummies=0")
    status, document = _call(guest, "load", "lab")
    (driver,) = document["drivers"]
    # lab_extra refuses to load, and is optional.
    assert (status, driver["modules"], driver["conflicts"]) == (0, ["lab"], ["dummy"])
    assert "dummy" not in _modules(guest)
    assert guest("cat /etc/modprobe.d/provision-lab.conf").stdout.endswith(
        "blacklist dummy\nblacklist loop\n"
    )
    assert "lab: firmware has 8 bytes" in guest("dmesg").stdout
    major = guest("awk '$2 == \"lab\" { print $1 }' /proc/devices").stdout.strip()
    assert guest("stat -c '%t %T %a' /dev/lab0").stdout == f"{int(major):x} 0 666\n"
    assert guest(f"readlink -f /dev/char/{major}:0").stdout == "/dev/lab0\n"
    with _opened(guest, "/dev/lab0"):
        assert _call(guest, "unload", "lab")[0] == 4
    assert _call(guest, "unload", "lab")[0] == 0
    guest(f"test ! -e /dev/lab0 && test ! -e /dev/char/{major}:0")


def test_doctor_sees_what_is_so(guest: Guest) -> None:
    _call(guest, "load", SMALL_DRIVER)
    status, document = _call(guest, "doctor")
    states = {(row["check"], row["driver"]): row["state"] for row in document["checks"]}
    assert status == 1
    assert states["status", "lab"] == "fail"
    assert states["units", None] == "warn"
    assert {states[check, None] for check in ("kernel-log", "store", "modules-disabled")} == {"ok"}
    _call(guest, "unload", SMALL_DRIVER)


def test_parameters_that_a_module_does_not_take_are_named(guest: Guest) -> None:
    options = "[drivers.lab.options]\nlab = { depth = 'deep' }\n"
    guest.write("/etc/provision/provision.toml", options)
    status, document = _call(guest, "load", "lab")
    assert status == 1
    assert "its parameter 'depth' has a value" in document["error"]["message"]
    assert "lab" not in _modules(guest)


def test_another_build_that_is_loaded_is_not_taken_for_ours(guest: Guest) -> None:
    entry = f"/var/lib/provision/{SMALL_DRIVER}/current"
    module = f"{entry}/lib/modules/{OLD_KERNEL}/v4l2loopback.ko"
    guest("modprobe videodev")
    # The same code with another build id, as a rebuild for changed headers has it.
    guest(
        f"cp {module} /root/v4l2loopback.ko && python3 - <<'END'\n"
        "path = '/root/v4l2loopback.ko'\n"
        "data = bytearray(open(path, 'rb').read())\n"
        "data[data.index(b'GNU\\0') + 4] ^= 255\n"
        "open(path, 'wb').write(data)\n"
        "END\n"
        "insmod /root/v4l2loopback.ko"
    )
    status, document = _call(guest, "load", SMALL_DRIVER)
    assert status == 4
    assert "from another build" in document["error"]["message"]
    assert _call(guest, "unload", SMALL_DRIVER)[0] == 0
    assert _call(guest, "load", SMALL_DRIVER)[0] == 0
    assert _call(guest, "unload", SMALL_DRIVER)[0] == 0


def test_a_kernel_that_wants_signatures_says_so_and_is_understood(
    guest: Guest, engine: Engine, tmp_path: Path
) -> None:
    # Can be switched on and never off again: the last test of this guest.
    guest("echo Y >/sys/module/module/parameters/sig_enforce")
    status, document = _call(guest, "load", SMALL_DRIVER)
    assert status == 1
    assert "and this one is not signed" in document["error"]["message"]
    assert "Loading of unsigned module is rejected" in document["error"]["details"]
    (finding,) = [
        row
        for row in _call(guest, "doctor")[1]["checks"]
        if row["check"] == "signing" and row["driver"] == SMALL_DRIVER
    ]
    assert (finding["state"], "module.sig_enforce=1" in finding["seen"]) == ("fail", True)
    _signed_store(engine, tmp_path).put(guest)
    status, document = _call(guest, "load", SMALL_DRIVER)
    assert status == 1
    assert "signed with a key that it does not know" in document["error"]["message"]
    module = f"/var/lib/provision/{SMALL_DRIVER}/current/lib/modules/{OLD_KERNEL}/v4l2loopback.ko"
    assert guest(f"modinfo -F signer {module}").stdout == "foreign modules\n"


def _signed_store(engine: Engine, folder: Path) -> Store:
    """A store whose modules are signed with a key that no kernel knows."""
    store = Store(Provision(engine.host), folder / "root")
    keys = store.root / "etc/keys"
    keys.mkdir()
    words = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=foreign modules"]
    run(["openssl", "req", "-x509", *words, "-keyout", keys / "key", "-out", keys / "pem"])
    store.host.configure('[signing]\nkey = "/etc/keys/key"\ncertificate = "/etc/keys/pem"\n')
    store.install(SMALL_DRIVER)
    return store
