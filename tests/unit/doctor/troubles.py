"""What is done to a host that works, and what doctor has to say of it then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from kit.artifact import KERNEL, MODULE, make_module, write
from kit.files import plug_in
from provision.config import catalogue_folders
from provision.store.entries import Admission, record_admission
from unit.doctor.host import DRIVER, DoctorHost

Break = Callable[[DoctorHost], object]
_OS_RELEASE, _SETTINGS = "etc/os-release", "etc/provision/provision.toml"
_REGISTRY = '[registry]\naddress = "registry.example:5000"\n'
_DOCKER_RUNTIME = '{"runtimes": {"oci-decorator": {"path": "/opt/gone"}}}'
_KEYS = '[trust]\nkeys = "/etc/provision/trust.d"\n'


def _has(*files: tuple[str, str]) -> Break:
    return lambda host: [host.write(name, content) for name, content in files]


def _lacks(name: str) -> Break:
    return lambda host: (host.root / name).unlink()


def _no_driver(host: DoctorHost) -> None:
    shutil.rmtree(host.layout.folder)


def _nothing_stored(host: DoctorHost) -> None:
    shutil.rmtree(host.layout.folder)
    host.write(_SETTINGS, f"[drivers.{DRIVER}]\n")


def _in_use(host: DoctorHost) -> None:
    host.write("sys/module/demo/version", "0.11\n")
    host.write("proc/modules", "demo 16384 1 - Live 0x0 (OE)\n")
    (host.root / "proc/77/fd").mkdir(parents=True)
    (host.root / "proc/77/fd/4").symlink_to("/dev/demo0")
    host.write("proc/77/comm", "ffmpeg\n")


def _nouveau(host: DoctorHost) -> None:
    host.need(conflicts=("nouveau",))
    host.install()
    host.write("proc/modules", "demo 1 0 - Live 0x0\nnouveau 1 3 - Live 0x0\n")
    plug_in(host.root, "1eb8", driver="nouveau")


def _recipe(host: DoctorHost, change: Callable[[str], str], more: str = "") -> None:
    """Have the driver's recipe in a catalogue of the host's, changed; and these settings."""
    recipe = (catalogue_folders((), root=host.root)[0] / DRIVER / "driver.toml").read_text()
    host.write(f"srv/drivers/{DRIVER}/driver.toml", change(recipe))
    host.write(_SETTINGS, f'catalogue = ["/srv/drivers"]\n{more}')


def _cards(host: DoctorHost, *tables: str, vendor: str = "1234", settings: str = "") -> None:
    """Have cards 0001 and on, and a recipe for those of the vendor 1234, with these tables."""
    tables = ('[[hardware.pci]]\nvendor = "1234"\n', *tables)
    _recipe(
        host,
        lambda recipe: recipe.replace("[source]", "\n".join([*tables, "[source]"]), 1),
        f"[drivers.{DRIVER}]\n{settings}",
    )
    plug_in(host.root, *(f"{n:04}" for n in range(1, max(2, len(tables)))), vendor=vendor)


def _generation(name: str, device: str, only: str) -> str:
    return f'[[hardware.cards]]\nname = "{name}"\ndevices = ["{device}"]\n{only}\n'


def _no_card(host: DoctorHost) -> None:
    _cards(host, vendor="4321")


def _cards_apart(host: DoctorHost) -> None:
    """No version drives both."""
    versions = ('versions = "<2"', 'versions = ">=2"')
    _cards(host, _generation("Old", "0001", versions[0]), _generation("New", "0002", versions[1]))


def _card_left_out(host: DoctorHost) -> None:
    """Of two cards, the flavour that is named serves one."""
    flavours = ('flavours = ["dkms"]', 'flavours = ["other"]')
    generations = _generation("Old", "0001", flavours[0]), _generation("New", "0002", flavours[1])
    _cards(host, *generations, settings='flavour = "dkms"\n')
    path = host.root / f"srv/drivers/{DRIVER}/driver.toml"
    path.write_text(f'{path.read_text()}\n[flavours.other]\nlicences = ["GPL-2.0-only"]\n')


def _cards_left_out(host: DoctorHost) -> None:
    """Of two cards, the version that is named serves none."""
    generations = (
        _generation(*one, 'versions = "<2"') for one in (("Old", "0001"), ("New", "0002"))
    )
    _cards(host, *generations, settings='version = "3"\n')


def _card_without_driver(host: DoctorHost) -> None:
    plug_in(host.root, "1c81")


def locked_down(host: DoctorHost) -> None:
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")


def _secure_boot(host: DoctorHost) -> None:
    name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    write(host.root / "sys/firmware/efi/efivars" / name, b"\x06\0\0\0\x01")


def _no_efivars(host: DoctorHost) -> None:
    (host.root / "sys/firmware/efi").mkdir(parents=True)


def selinux(host: DoctorHost) -> None:
    host.write("sys/fs/selinux/enforce", "1")


def _library_as_program(host: DoctorHost) -> None:
    selinux(host)
    program = host.write("bin/true", "")
    os.setxattr(program, "security.selinux", b"system_u:object_r:lib_t:s0\0")


def _other_firmware_folder(host: DoctorHost) -> None:
    host.need(firmware=True)
    host.write("sys/module/firmware_class/parameters/path", "/srv/firmware\n")


def _no_firmware(host: DoctorHost) -> None:
    host.need(firmware=True)
    host.write("sys/module/firmware_class/parameters/path", "/run/provision/firmware\n")


def log(line: str) -> Break:
    return lambda host: host.write("dev/kmsg", f"3,1,1,-;{line}\n4,2,2,-;{line}\n")


def _no_firmware_at_boot(host: DoctorHost) -> None:
    host.need(firmware=True)
    log("lab lab: Direct firmware load for demo/fw.bin failed with error -2")(host)


def _ended_branch(host: DoctorHost, more: str = "") -> None:
    branches = """
[upstream.branches]
"0.12" = { maturity = "lts", end_of_life = "2020-01" }
"0.15" = { maturity = "lts" }
"""
    _recipe(host, lambda recipe: recipe + branches, more)


def _old_table(host: DoctorHost) -> None:
    old = '[upstream]\nreviewed = "2020-01"'
    _recipe(host, lambda recipe: recipe.replace("[upstream]", old))


def _ended_branch_asked_for(host: DoctorHost) -> None:
    _ended_branch(host, f'[drivers.{DRIVER}]\nversion = "0.12"\n')
    shutil.rmtree(host.layout.folder)


def _old_for_dra(trace: str) -> Break:
    dra = '\n[dra]\nname = "video.example"\npods = "*dra*"\nversions = ">=0.13"\nreason = "r"\n'

    def spoil(host: DoctorHost) -> None:
        _recipe(host, lambda recipe: recipe + dra)
        host.write(trace, "")

    return spoil


def _no_engine(host: DoctorHost) -> None:
    (host.root / "usr/bin/dockerd").unlink()
    host.listen()


def _podman_without_its_socket(host: DoctorHost) -> None:
    _no_engine(host)
    host.write("usr/bin/podman", "")


def _proxy_of_a_shell(host: DoctorHost) -> None:
    host.variables["https_proxy"] = "http://me:secret@proxy.example:3128"


def _other_library(host: DoctorHost) -> None:
    manifest = host.manifest
    library = manifest.files[1].model_copy(update={"path": "/usr/lib64/demo/libdemo.so.0.12.7"})
    host.manifest = manifest.model_copy(update={"files": (library,)})
    host.need()
    host.write("usr/lib/x86_64-linux-gnu/libdemo.so.0.11.2", "")


def _old_process(host: DoctorHost) -> None:
    host.write("proc/9/comm", "persistenced\n")
    path = f"/var/lib/provision/{DRIVER}/0123456789ab/driver/usr/lib64/libdemo.so.0.11"
    host.write("proc/9/maps", f"7f00-7f01 r-xp 0 08:01 1  {path}\n7f00-7f01 rw-p 0 00:00 0\n")


def _dkms_left_out(host: DoctorHost) -> None:
    host.write(f"var/lib/dkms/{DRIVER}/0.12.7/source", "")
    host.write(f"var/lib/dkms/{DRIVER}/0.12.7/6.1.0-46-amd64/x86_64/log", "")


def _no_units(host: DoctorHost) -> None:
    shutil.rmtree(host.root / "etc/systemd")


def _no_cdi(host: DoctorHost) -> None:
    (host.root / "etc/systemd/system/paths.target.wants/provision-cdi.path").unlink()


def _no_cdi_of_a_package(host: DoctorHost) -> None:
    _no_cdi(host)
    packaged = host.root / "usr/lib/systemd/system"
    packaged.mkdir(parents=True)
    (host.root / "etc/systemd/system/provision-cdi.path").rename(packaged / "provision-cdi.path")


def _no_plugin(host: DoctorHost) -> None:
    (host.root / "var/lib/dpkg").rmdir()
    (host.root / "var/lib/rpm").mkdir()
    host.write("usr/bin/kernel-install", "")


def podman_runtime(host: DoctorHost, name: str, program: str) -> None:
    text = f'[engine.runtimes]\noci-decorator = ["{program}"]\n'
    host.write(f"etc/containers/containers.conf.d/{name}.conf", text)


def _redefined(host: DoctorHost) -> None:
    host.write("usr/bin/true", "")
    podman_runtime(host, "50-oci-decorator", "/opt/provision/bin/oci-decorator-runtime")
    podman_runtime(host, "90-local", "/usr/bin/true")


def _damaged(host: DoctorHost) -> None:
    write(host.entry / MODULE, make_module()[:-1] + b"x")


def _registry_without_skopeo(host: DoctorHost) -> None:
    host.write(_SETTINGS, f"{_REGISTRY}[trust]\ninsecure = true\n")
    (host.root / "usr/bin/skopeo").unlink()


def _unsigned(host: DoctorHost) -> None:
    record_admission(
        host.entry, Admission(image="registry.example/demo:1", repository="registry.example/demo")
    )


CASES: list[tuple[str, Break, str]] = [
    ("status", _no_driver, "unknown"),
    ("status", _nothing_stored, "fail"),
    ("status", DoctorHost.next_kernel, "fail"),
    ("status", _has(("run/ostree-booted", "")), "unknown"),
    ("status", _has(("proc/modules", "")), "fail"),
    ("status", lambda host: host.fail(KERNEL, "compile", "it does not compile"), "fail"),
    ("status", _damaged, "fail"),
    ("status", _in_use, "warn"),
    ("status", _unsigned, "warn"),
    ("status", _has((_SETTINGS, f'[drivers.{DRIVER}]\nflavour = "opne"\n')), "warn"),
    ("cards", _no_card, "warn"),
    ("status", _cards_apart, "fail"),
    ("cards", _card_left_out, "warn"),
    ("cards", _cards_left_out, "warn"),
    ("cards", _card_without_driver, "warn"),
    ("conflicts", _nouveau, "fail"),
    ("signing", locked_down, "fail"),
    ("signing", _has(("sys/module/module/parameters/sig_enforce", "Y\n")), "fail"),
    ("signing", _secure_boot, "warn"),
    ("signing", _no_efivars, "unknown"),
    ("modules-disabled", _has(("proc/sys/kernel/modules_disabled", "1\n")), "fail"),
    ("selinux", selinux, "unknown"),
    ("selinux", _library_as_program, "fail"),
    ("firmware", _other_firmware_folder, "fail"),
    ("firmware", _no_firmware, "fail"),
    ("kernel-log", log("NVRM: API mismatch: the client has the version 550.1,"), "warn"),
    ("kernel-log", _no_firmware_at_boot, "warn"),
    ("kernel-log", log("audit: avc:  denied  { module_load } for"), "warn"),
    ("kernel-log", log("Loading of unsigned module is rejected"), "warn"),
    ("kernel-log", log("Lockdown: modprobe: unsigned module loading is restricted"), "warn"),
    ("kernel-log", log("demo: disagrees about version of symbol a"), "warn"),
    ("kernel-log", _lacks("dev/kmsg"), "unknown"),
    (
        "compiler",
        _has(("proc/version", "Linux version 6 (gcc-13 (Debian 13.2.0-1) 13.2.0, GNU ld)\n")),
        "warn",
    ),
    ("branch", _ended_branch, "warn"),
    ("old-tables", _old_table, "warn"),
    ("branch", _ended_branch_asked_for, "warn"),
    ("distro", _has((_OS_RELEASE, "ID=plan9\nVERSION_ID=4\n")), "warn"),
    ("distro", _has((_OS_RELEASE, "ID=rocky\nVERSION_ID=7\n")), "warn"),
    ("entitlement", _has((_OS_RELEASE, "ID=rhel\nVERSION_ID=9.4\n")), "warn"),
    ("engine", _no_engine, "warn"),
    ("engine", _podman_without_its_socket, "warn"),
    ("engine", _has((_SETTINGS, '[engine]\nhost = "unix:///run/x.sock"\n')), "warn"),
    ("engine", _lacks("proc/net/unix"), "unknown"),
    ("network", _proxy_of_a_shell, "warn"),
    ("registry", _has((_SETTINGS, _REGISTRY)), "fail"),
    ("registry", _has((_SETTINGS, '[registry]\nfolders = ["/srv/drivers"]\n')), "fail"),
    ("registry", _registry_without_skopeo, "fail"),
    (
        "registry",
        _has((_SETTINGS, f"{_REGISTRY}{_KEYS}"), ("etc/provision/trust.d/fleet.pub", "no key")),
        "fail",
    ),
    ("registry", _has((_SETTINGS, f"{_REGISTRY}[trust]\ninsecure = true\n")), "warn"),
    ("host-libraries", _other_library, "warn"),
    ("old-files", _old_process, "warn"),
    ("status", _has((f"lib/modules/{KERNEL}/updates/dkms/demo.ko.xz", "")), "warn"),
    ("status", _dkms_left_out, "warn"),
    ("dra", _old_for_dra("var/lib/kubelet/plugins_registry/video.example-reg.sock"), "warn"),
    ("dra", _old_for_dra("var/log/pods/jobs_video-dra-x1_0-1/start/0.log"), "warn"),
    ("units", _no_units, "warn"),
    ("units", _no_cdi, "warn"),
    ("units", _no_cdi_of_a_package, "warn"),
    ("units", _lacks("etc/kernel/postinst.d/provision"), "warn"),
    ("units", _no_plugin, "warn"),
    ("units", lambda host: host.write("bin/true", "").chmod(0o666), "fail"),
    ("catalogue", _has((_SETTINGS, 'catalogue = ["/srv/drivers"]\n')), "warn"),
    ("distros", _has((_SETTINGS, '[distros.rocki]\nbase_images = { 9 = "rocky:9" }\n')), "warn"),
    ("runtime", _redefined, "warn"),
    ("runtime", lambda host: podman_runtime(host, "50-oci-decorator", "/x"), "warn"),
    ("runtime", _has(("etc/docker/daemon.json", _DOCKER_RUNTIME)), "warn"),
    # With a byte order mark, which Docker takes.
    ("runtime", _has(("etc/docker/daemon.json", f"\ufeff{_DOCKER_RUNTIME}")), "warn"),
]
