"""Each trouble of dnf and zypper has a message of its own, with what to do."""

import pytest

from provision.distros import Failure, distro_named, family_of
from provision.distros.family import NO_CONFIG
from provision.distros.rpm_based.solver_messages import BAD_SIGNATURE, NO_KEYS
from provision.errors import NotFoundError, ProvisionError

_ROCKY = "5.14.0-427.13.1.el9_4.x86_64"
_SUPERSEDED = f"""No match for argument: kernel-devel-uname-r = {_ROCKY}
Error: Unable to find a match: kernel-devel-uname-r = {_ROCKY}"""
_LEAP = "6.4.0-150600.23.17-default"


def failure(name: str, kernel: str, said: str, status: int = 1) -> ProvisionError:
    distro = distro_named(name)
    assert distro is not None
    family = family_of(distro)
    return family.explain(
        Failure(
            status=status,
            said=said,
            distro=distro,
            release=distro.releases[0],
            kernel=kernel,
            architecture="x86_64",
            query=family.headers(distro, kernel, "x86_64"),
            image="base:image",
        )
    )


@pytest.mark.parametrize(
    ("name", "kernel", "said", "message", "what_to_do"),
    [
        (
            "rocky",
            _ROCKY,
            _SUPERSEDED,
            "no headers of the kernel",
            "https://dl.rockylinux.org/vault/rocky/9.4/AppStream/x86_64/os/",
        ),
        (
            "opensuse-leap",
            _LEAP,
            "No provider of 'kernel-default-devel = 6.4.0-150600.23.17' found.",
            "no headers of the kernel",
            "https://download.opensuse.org/update/leap/15.6/sle/",
        ),
        (
            "rhel",
            "4.18.0-553.rt7.342.el8_10.x86_64",
            "No match for argument: kernel-devel-uname-r = 4.18.0-553.rt7.342.el8_10.x86_64",
            "RHEL for Real Time",
            "EUS",
        ),
        ("rocky", _ROCKY, "Error: Unable to find a match: frobnicate", "frobnicate", "driver.toml"),
        (
            "rocky",
            _ROCKY,
            "Error: \n Problem: package a-1 requires b = 1, but no provider can be installed",
            "can't be installed together",
            "--base",
        ),
        (
            "opensuse-leap",
            _LEAP,
            "Problem: 1: nothing provides 'libb = 2' needed by the to be installed a-1.x86_64",
            "can't be installed together",
            "--base",
        ),
        (
            "rocky",
            _ROCKY,
            """Last metadata expiration check: 0:00:07 ago on Sun Nov 22 14:10:20 2026.
[MIRROR] gcc-11.rpm: Status code: 404 for http://m/gcc-11.rpm
Error: Error downloading packages:
  Cannot download gcc-11.rpm: All mirrors were tried""",
            "out of step",
            "another mirror",
        ),
        (
            "opensuse-leap",
            _LEAP,
            """Retrieving repository 'repo-oss' metadata [.done]
Retrieving: gcc-7.rpm [not found]
Abort, retry, ignore? [a/r/i/...? shows all options] (a): a
File './x86_64/gcc-7.rpm' not found on medium 'http://m/'""",
            "out of step",
            "another mirror",
        ),
        (
            "opensuse-leap",
            _LEAP,
            """Retrieving repository 'repo-oss' metadata [.error]
Repository 'repo-oss' is invalid.
[repo-oss|http://m/] Valid metadata not found at specified URL
File '/repodata/repomd.xml' not found on medium 'http://m/'""",
            "can't be reached",
            "[engine] network",
        ),
        (
            "rocky",
            _ROCKY,
            "Failed to download metadata for repo 'baseos': repomd.xml: Curl error (7): Couldn't",
            "can't be reached",
            "[engine] network",
        ),
        ("rhel", _ROCKY, "Status code: 403 for https://cdn/repomd.xml", "subscription", "/etc/pki"),
        (
            "rocky",
            _ROCKY,
            "Public key for gcc.rpm is not installed. GPG check FAILED",
            "not signed with a key of the distro",
            "keys = ",
        ),
        (
            "rocky",
            _ROCKY,
            """own  938 kB/s | 961  B
repomd.xml GPG signature verification error: Bad GPG signature
Ignoring repositories: own
No match for argument: aaa
Error: Unable to find a match: aaa""",
            "index of a repository",
            "signed = false",
        ),
        (
            "opensuse-leap",
            _LEAP,
            """File 'repomd.xml' from repository 'own' is unsigned, continue? [yes/no] (no): no
[own|http://m/] Valid metadata not found at specified URL
 - Signature verification failed for repomd.xml""",
            "index of a repository",
            "signed = false",
        ),
        ("rocky", _ROCKY, "Segmentation fault", "could not be solved for", "--verbose"),
    ],
)
def test_troubles(name: str, kernel: str, said: str, message: str, what_to_do: str) -> None:
    error = failure(name, kernel, said)
    assert message in error.message
    assert what_to_do in str(error.resolution)
    # The solver's own words.
    assert said.splitlines()[-1].strip() in str(error.details)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (BAD_SIGNATURE, "not signed with a key of the distro"),
        (NO_KEYS, "'base:image' has no key"),
        (NO_CONFIG, "hold no configuration"),
        (127, "lacks a program of dnf"),
    ],
)
def test_the_scripts_own_findings(status: int, message: str) -> None:
    error = failure("rocky", _ROCKY, "what it said", status)
    assert message in error.message
    assert error.resolution
    assert error.details == "what it said"


def test_what_is_not_packaged_has_the_exit_code_of_that() -> None:
    said = f"No match for argument: kernel-devel-uname-r = {_ROCKY}"
    assert isinstance(failure("rocky", _ROCKY, said), NotFoundError)
