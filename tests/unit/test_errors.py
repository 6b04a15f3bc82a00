"""Every error of the package says what to do; what other programs' failures make us do."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import provision
from kit.artifact import make_pin
from provision import errors
from provision.build.output import BuildStream, build_error
from provision.distros.distro import distro_named
from provision.distros.family import HeadersGoneError, SolveRequest, SolverFailure, family_of
from provision.errors import (
    ConfigError,
    DeniedError,
    Mistake,
    NotFoundError,
    ProvisionError,
    UnfitError,
    UnreachableError,
    WrongContentError,
    redact,
)
from provision.explain import Kind, Program, explain
from provision.kmod.load import refusal
from unit.build.made_up_driver import BASE
from unit.secret_forms import IN_MESSAGES, IN_SETTINGS, PUBLIC

_PACKAGE = Path(provision.__file__).parent
# A ConfigError without one shows each mistake at its key, which says what is wanted there.
_CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type)
    and issubclass(value, ProvisionError)
    and not issubclass(value, ConfigError)
}


def _without_resolution(source: str) -> Iterator[str]:
    """Yield the errors that a text makes without the argument ``resolution``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {keyword.arg for keyword in node.keywords}
            if node.func.id in _CLASSES and "resolution" not in given:
                yield ast.unparse(node)


def test_every_error_says_what_to_do() -> None:
    assert {"ProvisionError", "UsageError", "NotFoundError", "InUseError"} <= _CLASSES
    # None of the others lacks one, or is an error of ours.
    others = "UsageError('x', resolution='y'), ConfigError('x', []), click.UsageError('x')"
    assert [*_without_resolution(f"NotFoundError('x', details='y'), {others}")] == [
        "NotFoundError('x', details='y')"
    ]
    found = {
        f"{path.relative_to(_PACKAGE)}: {error}"
        for path in _PACKAGE.rglob("*.py")
        for error in _without_resolution(path.read_text())
    }
    assert not found


@pytest.mark.parametrize(("text", "secret", "shown"), [*IN_SETTINGS, *IN_MESSAGES])
def test_secrets_are_not_shown(text: str, secret: str, shown: str) -> None:
    assert redact(text) == shown
    assert secret not in str(ProvisionError(text, resolution="None."))
    assert secret not in str(ConfigError("file", [Mistake(text, text)]).members())


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("part", ["https://a", "://a:b", "x-", "eyJ-", '"a-', "?a=", "bearer a"])
def test_a_long_line_is_looked_at_in_time(part: str) -> None:
    """Builds and servers print what they like, and each line is looked at."""
    line = part * (100_000 // len(part))
    begun = time.process_time()
    redact(line)
    assert time.process_time() - begun < 10


_ROCKY = "5.14.0-427.13.1.el9_4.x86_64"
_LEAP = "6.4.0-150600.23.17-default"
_NOBLE = "6.8.0-31-generic"
_KERNELS = {"rocky": _ROCKY, "rhel": _ROCKY, "opensuse-leap": _LEAP, "ubuntu": _NOBLE}


@pytest.mark.parametrize(
    ("name", "said", "kind"),
    [
        (
            "rocky",
            (
                f"No match for argument: kernel-devel-uname-r = {_ROCKY}\n"
                f"Error: Unable to find a match: kernel-devel-uname-r = {_ROCKY}"
            ),
            HeadersGoneError,
        ),
        (
            "opensuse-leap",
            "No provider of 'kernel-default-devel = 6.4.0-150600.23.17' found.",
            HeadersGoneError,
        ),
        ("ubuntu", f"E: Unable to locate package linux-headers-{_NOBLE}", HeadersGoneError),
        ("rocky", "Error: Unable to find a match: frobnicate", NotFoundError),
        ("ubuntu", "E: Package 'gcc-14' has no installation candidate", NotFoundError),
        ("ubuntu", "x-dkms : Depends: dkms (>= 2.1.0.0) but it is not installable", NotFoundError),
        # Who has no subscription can't look.
        ("rhel", "Status code: 403 for https://cdn/repomd.xml", NotFoundError),
        ("ubuntu", "E: Failed to fetch https://m/InRelease  401  Unauthorized", DeniedError),
        (
            "rocky",
            "Error: \n Problem: package a-1 requires b = 1, but no provider can be installed",
            ProvisionError,
        ),
        (
            "rocky",
            (
                "[MIRROR] gcc-11.rpm: Status code: 404 for http://m/gcc-11.rpm\n"
                "  Cannot download gcc-11.rpm: All mirrors were tried"
            ),
            ProvisionError,
        ),
        ("ubuntu", "E: Failed to fetch x  Hash Sum mismatch", ProvisionError),
        (
            "opensuse-leap",
            (
                "[repo-oss|http://m/] Valid metadata not found at specified URL\n"
                "File '/repodata/repomd.xml' not found on medium 'http://m/'"
            ),
            UnreachableError,
        ),
        (
            "rocky",
            "Failed to download metadata for repo 'baseos': repomd.xml: Curl error (7): Couldn't",
            UnreachableError,
        ),
        (
            "ubuntu",
            "Err:1 http://m.example noble InRelease\n  Temporary failure resolving 'm.example'",
            UnreachableError,
        ),
        ("rocky", "Public key for gcc.rpm is not installed. GPG check FAILED", WrongContentError),
        (
            "rocky",
            (
                "repomd.xml GPG signature verification error: Bad GPG signature\n"
                "Ignoring repositories: own\n"
                "Error: Unable to find a match: aaa"
            ),
            WrongContentError,
        ),
        (
            "opensuse-leap",
            (
                "File 'repomd.xml' from repository 'own' is unsigned, continue? [yes/no] (no): no\n"
                "[own|http://m/] Valid metadata not found at specified URL"
            ),
            WrongContentError,
        ),
        (
            "ubuntu",
            "couldn't be verified because the public key is not available: NO_PUBKEY 871920D1991B",
            WrongContentError,
        ),
        ("ubuntu", "E: The archive serves the signed index of another suite.", WrongContentError),
    ],
)
def test_a_solvers_failure(name: str, said: str, kind: type[ProvisionError]) -> None:
    error = _of_a_solver(name, _KERNELS[name], said)
    assert type(error) is kind
    # The solver's own words, and what to do.
    assert said.splitlines()[-1].strip() in str(error.details)
    assert error.resolution


@pytest.mark.parametrize(
    ("kernel", "is_named"),
    [
        ("6.1.0-99-amd64", False),
        ("6.8.12-4-pve", True),
        ("6.6.51+rpt-rpi-v8", True),
        ("6.12.8-x64v3-xanmod1", True),
    ],
)
def test_headers_of_another_archive_are_not_waited_for(kernel: str, *, is_named: bool) -> None:
    error = _of_a_solver("debian", kernel, f"E: Unable to locate package linux-headers-{kernel}")
    named = [word in str(error.resolution) for word in ("[[trees]]", "snapshot.debian.org")]
    assert named == [is_named, not is_named]


def _of_a_solver(name: str, kernel: str, said: str) -> ProvisionError:
    distro = distro_named(name)
    assert distro is not None
    family = family_of(distro)
    return family.explain(
        SolverFailure(
            SolveRequest(distro, distro.releases[0], BASE, kernel, "x86_64"),
            status=1,
            said=said,
        )
    )


@pytest.mark.parametrize(
    ("said", "logged", "kind"),
    [
        ("Key was rejected by service", "Loading of unsigned module is rejected", ProvisionError),
        ("Required key not available", "", ProvisionError),
        ("Operation not permitted", "Lockdown: modprobe: unsigned module loading", ProvisionError),
        ("Permission denied", "", ProvisionError),
        ("Bad message", "", UnfitError),
        ("Exec format error", "demo: version magic '6.1.0-50' should be '6.1.0-47'", UnfitError),
        ("Invalid argument", "demo: disagrees about version of symbol module_layout", UnfitError),
        (
            "Unknown symbol in module, or unknown parameter (see dmesg)",
            "demo: Unknown symbol v4l2_device_register (err -2)",
            UnfitError,
        ),
        ("Invalid argument", "demo: `two' invalid for parameter `devices'", ProvisionError),
        ("No such device", "", NotFoundError),
        ("Cannot allocate memory", "", ProvisionError),
    ],
)
def test_a_kernels_refusal(said: str, logged: str, kind: type[ProvisionError]) -> None:
    """Lines of Linux 6.1 and kmod 30. Only a module that does not fit is rejected for good."""
    line = f"modprobe: ERROR: could not insert 'demo': {said}"
    names = {"kernel": "6.1.0-47-amd64", "artifact": "demo"}
    error = refusal("demo", line, [logged] if logged else [], names)
    assert type(error) is kind
    assert line in str(error.details)
    assert logged in str(error.details)


@pytest.mark.parametrize(
    ("line", "reason", "is_outside", "status"),
    [
        ("a.c:1: error: no", "compile", 0, 1),
        ("cp: error writing 'x': No space left on device", "build", 1, 1),
        ("exec /bin/sh: exec format error", "build", 1, 1),
        ("dkms: excluded: BUILD_EXCLUSIVE_KERNEL is '^5'", "build", 0, 3),
        ("dkms: BUILD_DEPENDS names other DKMS packages: spl", "build", 0, 3),
        ("dkms: the command failed", "build", 0, 1),
        ("collect: there is no file a (library)", "build", 0, 1),
        ("1 out of 2 hunks FAILED -- saving rejects", "build", 0, 1),
    ],
)
def test_a_builds_failure(line: str, reason: str, is_outside: int, status: int) -> None:
    stream = BuildStream()
    stream.feed({"stream": f"Step 1/2 : RUN x\n{line}\n"})
    stream.feed({"error": "returned a non-zero code: 1", "errorDetail": {"code": 1}})
    stream.finish()
    error = build_error(make_pin(), stream, Path("/log"))
    assert (error.reason, error.is_outside, error.exit_code) == (reason, is_outside, status)
    assert line in str(error.details)


@pytest.mark.parametrize("more", ["", "dkms: the running kernel is asked for: Makefile:2: K=x\n"])
@pytest.mark.parametrize(
    "folder", ["/lib/modules/6.18.44/build", f"/usr/src/linux-headers-{os.uname().release}"]
)
def test_who_asks_for_the_running_kernel_is_told_which_to_name(folder: str, more: str) -> None:
    """The most frequent mistake of a driver's Makefile; the first line is make's."""
    stream = BuildStream()
    missing = f"make[1]: *** {folder}: No such file or directory.  Stop."
    stream.feed({"stream": f"Step 1/2 : RUN x\n{missing}\n{more}"})
    stream.feed({"error": "returned a non-zero code: 2", "errorDetail": {"code": 2}})
    stream.finish()
    error = build_error(make_pin(), stream, Path("/log"))
    assert "uname -r" in str(error.resolution)
    assert "running kernel" in error.message
    assert ("Makefile:2" in error.message) == bool(more)


@pytest.mark.parametrize(
    ("program", "said", "kind"),
    [
        ("build", "unknown parent image ID sha256:1", Kind.IN_USE),
        ("git", "fatal: could not read Username for 'https://h': terminal prompts", Kind.DENIED),
        ("git", "fatal: unable to access: server certificate verification failed", Kind.UNTRUSTED),
        ("git", "ssh: connect to host h port 22: Connection refused", Kind.UNREACHABLE),
        ("git", "fatal: couldn't find remote ref v1", None),
        ("skopeo", 'msg="reading manifest 1: manifest unknown"', Kind.MISSING),
        ("skopeo", 'msg="requested access to the resource is denied"', Kind.DENIED),
        ("skopeo", 'msg="received unexpected HTTP status: 503"', Kind.UNREACHABLE),
        ("skopeo", 'msg="Digest did not match, unexpected EOF"', Kind.UNTRUSTED),
        ("skopeo", 'msg="write /x: no space left on device"', Kind.DISK_FULL),
        ("skopeo", 'msg="unknown flag"', None),
    ],
)
def test_what_is_done_next(program: Program, said: str, kind: Kind | None) -> None:
    found = explain(program, said, {})
    assert (found and found.kind) is kind
