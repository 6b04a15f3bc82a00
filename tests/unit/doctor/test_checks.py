"""Each check of ``provision doctor``: on a host that works, and on one that doesn't."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from kit.artifact import MODULE, write
from kit.probe import is_root, need
from provision.doctor import CHECKS, diagnose, observe
from provision.kmod.loader import firmware_names
from unit.doctor.host import NEXT_KERNEL, DoctorHost
from unit.doctor.troubles import (
    CASES,
    locked_down,
    log,
    podman_runtime,
    selinux,
)

_WELL = {"ok", "not-applicable"}
_PROXY = "http://me:secret@proxy.example:3128"


@pytest.fixture
def host(tmp_path: Path) -> DoctorHost:
    return DoctorHost.make(tmp_path)


def test_a_host_that_works_has_nothing_wrong(host: DoctorHost) -> None:
    results = diagnose(observe(host.root))
    assert [r for r in results if r.state not in _WELL] == []
    assert [r.check for r in results] == list(CHECKS)


@pytest.mark.parametrize("check", ["compiler", "signing", "host-libraries"])
def test_a_check_of_artifacts_says_nothing_without_one(host: DoctorHost, check: str) -> None:
    assert [result.state for result in host.results(check)] == ["ok"]
    shutil.rmtree(host.entry)
    assert [result.state for result in host.results(check)] == ["not-applicable"]


def test_without_a_kernel_nothing_is_known_of_it(host: DoctorHost) -> None:
    (host.root / "proc/sys/kernel/osrelease").unlink()
    shutil.rmtree(host.root / "lib/modules", ignore_errors=True)
    shutil.rmtree(host.root / "usr/lib/modules", ignore_errors=True)
    assert [result.state for result in host.results("status")] == ["unknown"]


def test_a_driver_that_no_catalogue_has_is_looked_for_there(host: DoctorHost) -> None:
    host.write("etc/provision/provision.toml", "[drivers.nvdia]\n")
    found = [one for one in diagnose(observe(host.root)) if one.driver == "nvdia"]
    assert [(one.check, one.state) for one in found] == [("status", "fail")]
    assert "nvidia" in (found[0].cure or "")


@pytest.mark.parametrize(
    ("trial", "has_qemu", "has_engine", "state", "is_tried"),
    [
        ("", True, False, "ok", True),
        ("", False, True, "ok", False),
        ("true", False, True, "ok", True),
        ("true", False, False, "warn", False),
        ("false", True, True, "ok", False),
    ],
)
def test_who_reboots_knows_whether_the_next_kernel_is_tried(
    host: DoctorHost,
    monkeypatch: pytest.MonkeyPatch,
    trial: str,
    state: str,
    *,
    has_qemu: bool,
    has_engine: bool,
    is_tried: bool,
) -> None:
    # Where the agent looks for it, too.
    programs = write(host.folder / "bin/sh", b"").parent
    monkeypatch.setenv("PATH", str(programs))
    if trial:
        host.write("etc/provision/provision.toml", f"[policy]\ntrial = {trial}\n")
    if has_qemu:
        write(programs / f"qemu-system-{os.uname().machine}", b"").chmod(0o755)
    if not has_engine:
        (host.root / "usr/bin/dockerd").unlink()
    (found,) = host.results("policy")
    assert (found.state, "not tried" not in found.seen) == (state, is_tried)


def test_one_cause_is_one_finding(host: DoctorHost) -> None:
    shutil.rmtree(host.root / "etc/systemd")
    assert len(host.results("units")) == 1
    host.next_kernel()
    host.fail(NEXT_KERNEL, "compile", "it does not compile")
    found = [r for r in diagnose(observe(host.root)) if "it does not compile" in r.seen]
    assert [result.check for result in found] == ["status"]
    # The log and the cure are in it.
    assert "x.log" in (found[0].cure or "")


def test_every_check_is_shown_to_find_something() -> None:
    # A full disk, a machine without QEMU and a device without its link have tests of their own.
    assert {check for check, *_ in CASES} == set(CHECKS) - {"device-nodes", "policy", "store"}


_PODMAN = "etc/containers/containers.conf.d/50-oci-decorator.conf"
_DOCKER = "etc/docker/daemon.json"


@pytest.mark.parametrize(
    "files",
    [
        {_DOCKER: '{"runtimes": {"oci-decorator": {"path": "a-name"}}}'},
        # Engines refuse these themselves.
        *[{_PODMAN: f"[engine.runtimes]\noci-decorator = {v}\n"} for v in ("1", '"/x"', "[]")],
        *[
            {_DOCKER: text, _PODMAN: text}
            for text in ("{", "[]", '{"runtimes": {"oci-decorator": 1}}', '{"a": "\xff')
        ],
    ],
)
def test_a_runtime_that_engines_judge_is_no_trouble(
    host: DoctorHost, files: dict[str, str]
) -> None:
    for name, text in files.items():
        host.write(name, text)
    assert {result.state for result in host.results("runtime")} <= _WELL


def test_a_runtime_that_is_there_is_no_trouble(host: DoctorHost) -> None:
    host.write("usr/bin/true", "")
    host.write("etc/docker/daemon.json", '{"runtimes": {"runc": 1}}')
    podman_runtime(host, "10-local", "/usr/bin/true")
    podman_runtime(host, "50-oci-decorator", "/usr/bin/true")
    assert [result.state for result in host.results("runtime")] == ["ok"]


def test_a_signed_module_is_no_trouble_whatever_the_kernel_demands(host: DoctorHost) -> None:
    locked_down(host)
    record = b"\0\0\x02\0\0\0\0\0\0\0\0\x01~Module signature appended~\n"
    path = host.entry / MODULE
    path.write_bytes(path.read_bytes() + b"s" + record)
    assert [result.state for result in host.results("signing")] == ["ok"]


def test_firmware_that_was_offered_is_found(host: DoctorHost) -> None:
    manifest = host.need(firmware=True)
    host.write("sys/module/firmware_class/parameters/path", "\n")
    for name, path in firmware_names(manifest).items():
        link = host.root / "run/provision/firmware" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/{(host.entry / path).relative_to(host.root)}")
    assert [result.state for result in host.results("firmware")] == ["ok"]


def test_firmware_of_other_drivers_is_not_ours_to_find(host: DoctorHost) -> None:
    log("platform regulatory.0: Direct firmware load for regulatory.db failed")(host)
    assert [result.state for result in host.results("kernel-log")] == ["ok"]


def test_a_device_without_its_link_is_named(host: DoctorHost) -> None:
    need(is_root(), "root", "only root can make device nodes")
    os.mknod(host.root / "dev/demo0", stat.S_IFCHR | 0o600, os.makedev(240, 3))
    (found,) = host.results("device-nodes")
    assert (found.state, found.seen) == ("warn", "no link in /dev/char for /dev/demo0")
    link = host.root / "dev/char/240:3"
    link.parent.mkdir()
    link.symlink_to("../demo0")
    assert [result.state for result in host.results("device-nodes")] == ["ok"]


def test_the_label_of_modules_counts(host: DoctorHost) -> None:
    need(is_root(), "root", "only root can set labels")
    selinux(host)
    labels = {"var_lib_t": "fail", "modules_object_t": "ok"}
    for kind, state in labels.items():
        label = f"system_u:object_r:{kind}:s0\0".encode()
        os.setxattr(host.entry / MODULE, "security.selinux", label)
        assert [result.state for result in host.results("selinux")] == [state]


@pytest.mark.parametrize(
    ("os_release", "settings"),
    [
        ("ID=flatcar\nVERSION_ID=4081.2.0\n", ""),
        ("ID=flatcar\nVERSION_ID=3227.2.4\n", ""),
        ("ID=cos\nVERSION_ID=117\nBUILD_ID=18613.164.68\n", ""),
        ("ID=arch\n", '[[trees]]\nkernels = "*"\npath = "/srv/linux.tar"\n'),
    ],
)
def test_kernels_with_a_tree_need_no_template_of_their_distro(
    host: DoctorHost, os_release: str, settings: str
) -> None:
    host.write("etc/os-release", os_release)
    host.write("etc/provision/provision.toml", settings)
    assert [result.state for result in host.results("distro")] == ["ok"]


def test_a_cloud_that_entitles_is_no_trouble(host: DoctorHost) -> None:
    host.write("etc/os-release", "ID=rhel\nVERSION_ID=9.4\n")
    assert [result.state for result in host.results("entitlement")] == ["warn"]
    host.write("etc/pki/rhui/product/content.crt", "")
    text = "[rhui]\nsslclientcert=/etc/pki/rhui/product/content.crt\n"
    host.write("etc/yum.repos.d/redhat-rhui.repo", text)
    assert [result.state for result in host.results("entitlement")] == ["ok"]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"etc/provision/provision.toml": f'[network]\nproxy = "{_PROXY}"\n'}, "[network]"),
        (
            {"etc/systemd/system.conf": f"[Manager]\nDefaultEnvironment=https_proxy={_PROXY}\n"},
            "systemd",
        ),
    ],
    ids=["provision.toml", "systemd's settings"],
)
def test_a_proxy_that_units_have_is_named_with_where_it_is_from(
    host: DoctorHost, files: dict[str, str], text: str
) -> None:
    host.variables["https_proxy"] = _PROXY
    for name, content in files.items():
        host.write(name, content)
    (found,) = host.results("network")
    assert (found.state, found.cure) == ("ok", None)
    assert "proxy.example:3128" in found.seen
    assert text in found.seen
    assert "secret" not in found.seen


@pytest.mark.parametrize(
    ("listening", "settings"),
    [
        ("/run/podman/podman.sock", ""),
        ("/var/run/docker.sock", ""),
        ("/run/x.sock", '[engine]\nhost = "unix:///run/x.sock"\n'),
        ("", '[engine]\nhost = "ssh://builder.example"\n'),
        ("", '[policy]\nbuild = "never"\n'),
    ],
)
def test_an_engine_that_listens_is_no_trouble(
    host: DoctorHost, listening: str, settings: str
) -> None:
    host.listen(listening)
    host.write("etc/provision/provision.toml", settings)
    assert {result.state for result in host.results("engine")} <= _WELL


def test_a_full_disk_is_noticed(host: DoctorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(host.root)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    (found,) = host.results("store")
    assert (found.state, "1 MiB are left" in found.seen) == ("warn", True)


def test_the_reference_has_every_check_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/doctor.md").read_text()
    text = text.partition("## Checks")[2].partition("##")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+?) \|", text, re.MULTILINE))
    assert rows == {name: check.holds for name, check in CHECKS.items()}
