"""The crate with the oldest compiler that it promises, how one is found, and what is shipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.arm64 import MACHINE, run_foreign_programs
from kit.cache import REPOSITORY
from kit.files import write_all
from kit.foreign import emulator
from kit.probe import is_root, need, need_programs
from kit.process import run
from kit.product import DECORATOR

_BUILD = REPOSITORY / "hooks/build.sh"
# What a rustc says of itself. It has no target but its own.
_RUSTC = """\
#!/bin/sh
case "$*" in
    --version) echo "rustc {version} (0123456 2026-01-01)" ;;
    -vV) echo "host: x86_64-unknown-linux-gnu" ;;
    *) exit 1 ;;
esac
"""
# An emulator of programs has several threads, so that none joins a mount namespace, as hooks do,
# and has neither bpf(2) nor seccomp: vm/test_micro_guest.py starts real containers. Libraries are
# made by this machine's compiler, and what is to take no time does, emulated.
_NOT_EMULATED = (
    *("container::", "container_root::", "namespace_of_a_process", "hostile::through_the_hook"),
    *("hook::a_container_", "hook::a_user_namespace_", "hook::code_of_", "hook::device_rules_"),
    *("hook::a_listed_device_", "every_way_gives_every_name_of_a_library"),
    *("hook::the_devices_", "nvidia_runc::newer_", "nvidia_runc::the_hook_"),
    *("nvidia_runc::the_old_name_", "cgroup::", "openat2_is_named"),
    *("check_holds_sonames", "in_no_time", "make_no_start_wait"),
    # They need x86-64.
    *("a_root_is_filled_in_the_mount_", "corpus::what_is_recorded_"),
)
_CARGO = '#!/bin/sh\necho "cargo {version}"\n'
_RUSTUP = "#!/bin/sh\necho no network >&2\nexit 1\n"


def _toolchain(folder: Path, version: str, *, has_rustup: bool = False) -> str:
    """What hooks/build.sh would take where programs of a toolchain are first on PATH."""
    programs = {"cargo": _CARGO.format(version=version), "rustc": _RUSTC.format(version=version)}
    if has_rustup:
        programs["rustup"] = _RUSTUP
    write_all(folder, programs, 0o755)
    path = f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"
    return run([_BUILD, "which"], env={"PATH": path, "CARGO_HOME": str(folder / "none")}).stdout


@pytest.mark.nightly
def test_the_crate_passes_its_tests_with_its_minimum_rustc() -> None:
    need(is_root(), "root", "run as root")
    need_programs("debootstrap", "unshare")
    run([_BUILD, "msrv"], timeout_s=3600)


@pytest.mark.nightly
@pytest.mark.minutes(8)
def test_the_crate_passes_its_tests_on_arm64() -> None:
    need(is_root(), "root", "run as root")
    need_programs(f"{MACHINE}-linux-gnu-gcc")
    run_foreign_programs()
    variables = {
        "ARCH": MACHINE,
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER": str(emulator()),
        "TESTS_QUICK": "1",
    }
    skipped = [word for name in _NOT_EMULATED for word in ("--skip", name)]
    run([_BUILD, "cargo", "test", "--locked", "--", *skipped], env=variables, timeout_s=3600)


def test_a_cargo_that_is_too_old_is_not_taken(tmp_path: Path) -> None:
    need(is_root(), "root", "run as root: others have to install one")
    assert "1.60.0" not in _toolchain(tmp_path, "1.60.0")


@pytest.mark.parametrize("has_rustup", [False, True])
def test_where_there_is_no_musl_the_compilers_own_target_serves(
    tmp_path: Path, *, has_rustup: bool
) -> None:
    taken = _toolchain(tmp_path, "99.0.0", has_rustup=has_rustup)
    assert taken == "the machine's cargo 99.0.0, target x86_64-unknown-linux-gnu\n"


def test_the_binary_is_static_and_needs_no_loader() -> None:
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    headers = run(["readelf", "--program-headers", DECORATOR]).stdout
    assert "LOAD" in headers
    assert "INTERP" not in headers


def test_the_other_name_is_the_same_binary() -> None:
    runtime = REPOSITORY / "build/oci-decorator-runtime"
    need(runtime.exists(), str(runtime), "make build")
    assert runtime.samefile(DECORATOR)


def test_no_folder_of_this_machine_is_in_the_binary() -> None:
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    content = DECORATOR.read_bytes()
    for folder in (str(REPOSITORY), f"{Path.home()}/.", "/registry/src/", "/lib/rustlib/src/"):
        assert folder.encode() not in content, folder


@pytest.mark.nightly
def test_the_same_bytes_from_every_folder(tmp_path: Path) -> None:
    need_programs("cargo", "git")
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    need((home / "registry").is_dir(), str(home / "registry"), "make build")
    made = []
    for name, settings in (
        ("one", {}),
        ("another and/longer", {"CARGO_TARGET_DIR": str(tmp_path / "target"), "RUSTFLAGS": "-g"}),
    ):
        clone, own = tmp_path / name, tmp_path / f"{name}.home"
        run(["git", "clone", "--quiet", f"file://{REPOSITORY}", clone])
        shutil.copytree(home / "registry", own / "registry")
        variables = {"CARGO_HOME": str(own), "CARGO_NET_OFFLINE": "true", **settings}
        run([clone / "hooks/build.sh", "build"], env=variables, timeout_s=1800)
        made.append((clone / "build/oci-decorator").read_bytes())
    assert made[0] == made[1]
