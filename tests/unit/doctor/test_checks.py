"""Each check of ``provision doctor``: on a host that works, and on one that doesn't."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.probe import is_root, need
from provision.doctor import CHECKS, diagnose, observe
from provision.manifest import DeviceNode
from provision.modules.firmware import offer_firmware
from unit.doctor.host import DRIVER, NEXT_KERNEL, DoctorHost
from unit.modules.artifact import KERNEL, MODULE, make_module, make_pin, write

Break = Callable[[DoctorHost], object]


@pytest.fixture
def host(tmp_path: Path) -> DoctorHost:
    return DoctorHost(tmp_path / "root")


def test_a_host_that_works_has_nothing_wrong(host: DoctorHost) -> None:
    results = diagnose(observe(host.root))
    assert [r for r in results if r.state != "ok"] == []
    assert [r.check for r in results] == [check.id for check in CHECKS]


def test_a_host_without_drivers_has_nothing_wrong(tmp_path: Path) -> None:
    write(tmp_path / "etc/os-release", b"ID=debian\nVERSION_ID=12\n")
    write(tmp_path / "dev/kmsg", b"")
    assert {result.state for result in diagnose(observe(tmp_path))} == {"ok"}


def _nothing_stored(host: DoctorHost) -> None:
    shutil.rmtree(host.layout.folder)
    host.file("etc/provision/provision.toml", f"[drivers.{DRIVER}]\n")


def _built_for_another_kernel(host: DoctorHost) -> None:
    host.file("proc/sys/kernel/osrelease", NEXT_KERNEL)
    host.fail(NEXT_KERNEL, "compile", "it does not compile")


def _in_use(host: DoctorHost) -> None:
    host.file("sys/module/demo/version", "0.11\n")
    host.file("proc/modules", "demo 16384 1 - Live 0x0 (OE)\n")
    (host.root / "proc/77/fd").mkdir(parents=True)
    (host.root / "proc/77/fd/4").symlink_to("/dev/demo0")
    host.file("proc/77/comm", "ffmpeg\n")


def _in_tree_loaded(host: DoctorHost) -> None:
    host.file("sys/module/demo/version", "0.11\n")
    host.file("sys/module/demo/taint", "\n")


def _nouveau(host: DoctorHost) -> None:
    host.need(conflicts=("nouveau",))
    host.install()
    host.file("proc/modules", "demo 1 0 - Live 0x0\nnouveau 1 3 - Live 0x0\n")
    device = host.root / "sys/bus/pci/devices/0000:01:00.0"
    for name, value in {"vendor": "0x10de", "device": "0x1eb8", "class": "0x030200"}.items():
        write(device / name, f"{value}\n".encode())
    (device / "driver").symlink_to("../../../../bus/pci/drivers/nouveau")


def _no_blacklist(host: DoctorHost) -> None:
    host.need(conflicts=("nouveau",))


def _locked_down(host: DoctorHost) -> None:
    host.file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")


def _enforcing(host: DoctorHost) -> None:
    host.file("sys/module/module/parameters/sig_enforce", "Y\n")


def _secure_boot(host: DoctorHost) -> None:
    name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    write(host.root / "sys/firmware/efi/efivars" / name, b"\x06\0\0\0\x01")


def _no_efivars(host: DoctorHost) -> None:
    (host.root / "sys/firmware/efi").mkdir(parents=True)


def _modules_disabled(host: DoctorHost) -> None:
    host.file("proc/sys/kernel/modules_disabled", "1\n")


def _selinux(host: DoctorHost) -> None:
    host.file("sys/fs/selinux/enforce", "1")


def _missing_node(host: DoctorHost) -> None:
    host.need(nodes=(DeviceNode(name="democtl", major=195, minor=255),))
    host.file("proc/devices", "Character devices:\n195 demo\n")


def _other_firmware_folder(host: DoctorHost) -> None:
    host.need(firmware=True)
    host.file("sys/module/firmware_class/parameters/path", "/srv/firmware\n")


def _no_firmware(host: DoctorHost) -> None:
    host.need(firmware=True)
    host.file("sys/module/firmware_class/parameters/path", "/run/provision/firmware\n")


def _log(line: str) -> Break:
    return lambda host: host.file("dev/kmsg", f"3,1,1,-;{line}\n4,2,2,-;{line}\n")


def _no_firmware_at_boot(host: DoctorHost) -> None:
    host.need(firmware=True)
    _log("lab lab: Direct firmware load for demo/fw.bin failed with error -2")(host)


def _no_log(host: DoctorHost) -> None:
    (host.root / "dev/kmsg").unlink()


def _failure(reason: str, message: str, *, attempts: int = 1) -> Break:
    return lambda host: host.fail(KERNEL, reason, message, attempts=attempts)


def _other_compiler(host: DoctorHost) -> None:
    host.file("proc/version", "Linux version 6 (gcc-13 (Debian 13.2.0-1) 13.2.0, GNU ld)\n")


def _too_new_a_kernel(host: DoctorHost) -> None:
    host.file("lib/modules/6.12.1-amd64/modules.dep", "")


def _other_distro(host: DoctorHost) -> None:
    host.file("etc/os-release", "ID=plan9\nVERSION_ID=4\n")


def _immutable(host: DoctorHost) -> None:
    host.file("proc/mounts", "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /usr ext4 ro 0 0\n")


def _no_engine(host: DoctorHost) -> None:
    (host.root / "usr/bin/dockerd").unlink()


def _other_library(host: DoctorHost) -> None:
    manifest = host.manifest
    library = manifest.files[1].model_copy(update={"path": "/usr/lib64/demo/libdemo.so.0.12.7"})
    host.manifest = manifest.model_copy(update={"files": (library,)})
    host.need()
    host.file("usr/lib/x86_64-linux-gnu/libdemo.so.0.11.2", "")


def _old_process(host: DoctorHost) -> None:
    host.file("proc/9/comm", "persistenced\n")
    path = f"/var/lib/provision/{DRIVER}/0123456789ab/driver/usr/lib64/libdemo.so.0.11"
    host.file("proc/9/maps", f"7f00-7f01 r-xp 0 08:01 1  {path}\n7f00-7f01 rw-p 0 00:00 0\n")


def _dkms_module(host: DoctorHost) -> None:
    host.file(f"lib/modules/{KERNEL}/updates/dkms/demo.ko.xz", "")


def _dkms_left_out(host: DoctorHost) -> None:
    host.file(f"var/lib/dkms/{DRIVER}/0.12.7/source", "")
    host.file(f"var/lib/dkms/{DRIVER}/0.12.7/6.1.0-46-amd64/x86_64/log", "")


def _no_units(host: DoctorHost) -> None:
    shutil.rmtree(host.root / "etc/systemd")


def _no_hook(host: DoctorHost) -> None:
    (host.root / "etc/kernel/postinst.d/provision").unlink()


def _reboots(host: DoctorHost) -> None:
    _no_units(host)
    host.file(
        "etc/apt/apt.conf.d/50unattended-upgrades",
        '//comment\nUnattended-Upgrade::Automatic-Reboot "true";\n',
    )


def _no_prebuild(host: DoctorHost) -> None:
    host.file("etc/provision/provision.toml", "[policy]\nprebuild = false\n")


def _no_catalogue(host: DoctorHost) -> None:
    host.file("etc/provision/provision.toml", 'catalogue = ["/srv/drivers"]\n')


def _podman_runtime(host: DoctorHost, name: str, program: str) -> None:
    text = f'[engine.runtimes]\noci-decorator = ["{program}"]\n'
    host.file(f"etc/containers/containers.conf.d/{name}.conf", text)


def _docker_runtime(host: DoctorHost) -> None:
    host.file("etc/docker/daemon.json", '{"runtimes": {"oci-decorator": {"path": "/opt/gone"}}}')


def _redefined(host: DoctorHost) -> None:
    host.file("usr/bin/true", "")
    _podman_runtime(host, "50-oci-decorator", "/opt/provision/bin/oci-decorator-runtime")
    _podman_runtime(host, "90-local", "/usr/bin/true")


def _damaged(host: DoctorHost) -> None:
    write(host.entry / MODULE, make_module()[:-1] + b"x")


def _no_manifest(host: DoctorHost) -> None:
    (host.entry / "driver/manifest.json").write_text("{")


def _odd_update(host: DoctorHost) -> None:
    host.file("run/ostree-booted", "")


CASES: list[tuple[str, Break, str, str]] = [
    ("running-kernel", _nothing_stored, "fail", "nothing in the store for the running kernel"),
    ("running-kernel", _built_for_another_kernel, "fail", "it does not compile"),
    ("next-kernel", DoctorHost.next_kernel, "fail", f"not ready for {NEXT_KERNEL}"),
    ("next-kernel", _odd_update, "unknown", "rpm-ostree"),
    ("loaded", lambda host: host.file("proc/modules", ""), "fail", "not loaded: demo"),
    ("reboot-required", _in_use, "warn", "ffmpeg (process 77), /dev/demo0"),
    ("in-tree-copy", _in_tree_loaded, "fail", "demo is the kernel's own"),
    ("conflicts", _nouveau, "fail", "nouveau is loaded and drives 0000:01:00.0"),
    ("conflicts", _no_blacklist, "warn", f"/etc/modprobe.d/provision-{DRIVER}.conf is missing"),
    ("signing", _locked_down, "fail", "locked down (integrity), and these are not signed: demo"),
    ("signing", _enforcing, "fail", "module.sig_enforce is on"),
    ("signing", _secure_boot, "warn", "Secure Boot is on"),
    ("signing", _no_efivars, "unknown", "can't be read"),
    ("modules-disabled", _modules_disabled, "fail", "modules_disabled is 1"),
    ("selinux", _selinux, "unknown", "can't be read"),
    ("firmware", _other_firmware_folder, "fail", "looks for firmware in /srv/firmware"),
    ("firmware", _no_firmware, "fail", "can't find demo/fw.bin"),
    ("device-nodes", _missing_node, "fail", "missing: /dev/democtl"),
    ("kernel-log", _log("NVRM: API mismatch: the client has the version 550.1,"), "warn", "old"),
    ("kernel-log", _no_firmware_at_boot, "warn", "(2 times)"),
    ("kernel-log", _log("audit: avc:  denied  { module_load } for"), "warn", "SELinux"),
    ("kernel-log", _log("Loading of unsigned module is rejected"), "warn", "secure-boot.md"),
    (
        "kernel-log",
        _log("Lockdown: modprobe: unsigned module loading is restricted"),
        "warn",
        "key",
    ),
    ("kernel-log", _log("demo: disagrees about version of symbol a"), "warn", "other headers"),
    ("kernel-log", _no_log, "unknown", "log can't be read"),
    ("headers", _failure("missing", "No headers are packaged"), "fail", "No headers are packaged"),
    ("build", _failure("compile", "it does not compile", attempts=4), "fail", "(4 times)"),
    ("compiler", _other_compiler, "warn", "built by gcc-12, and the running kernel by gcc 13"),
    ("kernel-range", _too_new_a_kernel, "warn", "not known to build on 6.12.1-amd64"),
    ("distro", _other_distro, "warn", "'plan9'"),
    ("headers-source", _immutable, "warn", "immutable (read-only)"),
    ("engine", _no_engine, "warn", "no container engine"),
    ("host-libraries", _other_library, "warn", "libdemo.so.0.11.2 is not of version 0.12.7"),
    ("old-files", _old_process, "warn", "persistenced (process 9) still uses 0123456789ab"),
    ("other-copies", _dkms_module, "warn", "updates/dkms/demo.ko.xz"),
    ("dkms", _dkms_left_out, "warn", f"DKMS has {DRIVER} 0.12.7, and not for {KERNEL}"),
    ("units", _no_units, "warn", "provision-boot.service is not enabled"),
    ("units", _no_hook, "warn", "/etc/kernel/postinst.d/provision is missing"),
    ("automatic-reboot", _reboots, "warn", "50unattended-upgrades"),
    ("policy", _no_prebuild, "warn", "prebuild is false"),
    ("catalogue", _no_catalogue, "warn", "/srv/drivers, and there is no such folder"),
    ("runtime", _redefined, "warn", "90-local.conf gives podman another oci-decorator"),
    ("runtime", lambda host: _podman_runtime(host, "50-oci-decorator", "/x"), "warn", "no /x"),
    ("runtime", _docker_runtime, "warn", "/etc/docker/daemon.json has the runtime"),
    ("store", _damaged, "fail", "has the sha256"),
    ("store", _no_manifest, "fail", "no manifest that can be read"),
]


@pytest.mark.parametrize(("check", "broken", "state", "text"), CASES)
def test_a_trouble_is_found_and_explained(
    host: DoctorHost, check: str, broken: Break, state: str, text: str
) -> None:
    broken(host)
    found = [result for result in host.results(check) if result.state == state]
    assert found, host.results(check)
    assert any(text in f"{r.seen} {r.cause} {r.cure}" for r in found), found
    assert all(result.cause and result.cure for result in found)


def test_every_check_is_shown_to_find_something() -> None:
    assert {check for check, *_ in CASES} == {check.id for check in CHECKS}


def test_a_runtime_that_is_there_is_no_trouble(host: DoctorHost) -> None:
    host.file("usr/bin/true", "")
    host.file("etc/docker/daemon.json", '{"runtimes": {"runc": 1}}')
    _podman_runtime(host, "10-local", "/usr/bin/true")
    _podman_runtime(host, "50-oci-decorator", "/usr/bin/true")
    assert [result.state for result in host.results("runtime")] == ["ok"]


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": {"oci-decorator": 1}}', '{"a": "\xff'])
def test_settings_that_engines_refuse_themselves_are_no_trouble(
    host: DoctorHost, text: str
) -> None:
    host.file("etc/docker/daemon.json", text)
    host.file("etc/containers/containers.conf.d/50-oci-decorator.conf", text)
    assert [result.state for result in host.results("runtime")] == ["ok"]


def test_a_kernel_that_is_prepared_is_no_trouble(host: DoctorHost) -> None:
    host.next_kernel()
    other = make_pin(driver=DRIVER, kernel=NEXT_KERNEL)
    host.layout.entry(other.short_digest).mkdir()
    host.layout.kernel_link(NEXT_KERNEL).symlink_to(f"../{other.short_digest}")
    assert [result.state for result in host.results("next-kernel")] == ["ok"]


def test_a_signed_module_is_no_trouble_whatever_the_kernel_demands(host: DoctorHost) -> None:
    _locked_down(host)
    record = b"\0\0\x02\0\0\0\0\0\0\0\0\x01~Module signature appended~\n"
    path = host.entry / MODULE
    path.write_bytes(path.read_bytes() + b"s" + record)
    assert [result.state for result in host.results("signing")] == ["ok"]


def test_firmware_that_was_offered_is_found(host: DoctorHost) -> None:
    manifest = host.need(firmware=True)
    host.file("sys/module/firmware_class/parameters/path", "\n")
    offer_firmware(host.entry, manifest, root=host.root)
    assert [result.state for result in host.results("firmware")] == ["ok"]


def test_firmware_of_other_drivers_is_not_ours_to_find(host: DoctorHost) -> None:
    _log("platform regulatory.0: Direct firmware load for regulatory.db failed")(host)
    assert [result.state for result in host.results("kernel-log")] == ["ok"]


def test_a_device_without_its_link_is_named(host: DoctorHost) -> None:
    need(is_root(), "root", "device nodes are made by root alone")
    os.mknod(host.root / "dev/demo0", stat.S_IFCHR | 0o600, os.makedev(240, 3))
    (found,) = host.results("device-nodes")
    assert (found.state, found.seen) == ("warn", "no link in /dev/char for /dev/demo0")
    link = host.root / "dev/char/240:3"
    link.parent.mkdir()
    link.symlink_to("../demo0")
    assert [result.state for result in host.results("device-nodes")] == ["ok"]


def test_the_label_of_modules_counts(host: DoctorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _selinux(host)
    labels = {"var_lib_t": "fail", "modules_object_t": "ok"}
    for kind, state in labels.items():
        label = f"system_u:object_r:{kind}:s0\0".encode()
        monkeypatch.setattr(os, "getxattr", lambda _path, _name, label=label: label)
        assert [result.state for result in host.results("selinux")] == [state]


def test_a_registry_is_a_source_for_an_immutable_host(host: DoctorHost) -> None:
    _immutable(host)
    host.file("etc/provision/provision.toml", '[registry]\naddress = "registry.example:5000"\n')
    assert [result.state for result in host.results("headers-source")] == ["ok"]


def test_a_full_disk_is_noticed(host: DoctorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(host.root)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    (found,) = host.results("store")
    assert (found.state, "1 MiB are left" in found.seen) == ("warn", True)


def test_the_reference_has_every_check_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/doctor.md").read_text()
    text = text.partition("## Checks")[2].partition("##")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+?) \|", text, re.MULTILINE))
    assert rows == {check.id: check.right for check in CHECKS}
