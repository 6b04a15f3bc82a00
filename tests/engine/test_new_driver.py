"""Adding a driver is adding a folder: a made-up one, with its source on a server of our own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from kit.fileserver import served
from kit.hosts import DISTRO, OLD_KERNEL
from kit.product import BUILD_NETWORK
from kit.tarball import write_tarball

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.hosts import Containers, Host
    from kit.product import Provision

_SOURCE = {
    "hello.c": """\
#include <linux/module.h>
static int __init hello_init(void) { return 0; }
static void __exit hello_exit(void) { }
module_init(hello_init);
module_exit(hello_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("1.2");
""",
    "Makefile": """\
obj-m := hello.o
all:
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules
""",
    "hello-tool": "#!/bin/sh\necho hello from the driver\n",
}
_RECIPE = """\
schema = 1
name = "hello"
summary = "A driver that exists in this test alone"
vendor = "Example"
homepage = "https://example.org"

[source]
kind = "archive"
[[source.releases]]
version = "1.2"
url = "{url}/hello-1.2.tar.gz"
sha256 = "{sha256}"

[[kernels]]
kernels = ">=6.1"

[flavours.only]
licences = ["GPL-2.0-only"]
[flavours.only.build]
command = ["make", "-j{{jobs}}", "KDIR={{kernel_build}}"]
modules = ["hello.ko"]

[container]
activation_flag = "OCI_HELLO"
driver_feature = ["tool"]
[container.features.tool]

[[files]]
kind = "binary"
from = "hello-tool"
to = "/usr/bin/hello-tool"
features = ["tool"]
"""


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """The made-up driver's source."""
    return write_tarball(tmp_path / "files", "hello-1.2", _SOURCE)


@pytest.fixture
def catalogue(tmp_path: Path, tarball: Path) -> Iterator[Path]:
    """A catalogue with the made-up driver, whose source is served as long as this lives."""
    folder = tmp_path / "drivers"
    (folder / "hello").mkdir(parents=True)
    sha256 = hashlib.sha256(tarball.read_bytes()).hexdigest()
    with served(tarball.parent) as url:
        (folder / "hello/driver.toml").write_text(_RECIPE.format(url=url, sha256=sha256))
        yield folder


def _target(catalogue: Path) -> tuple[str | Path, ...]:
    return ("hello", "--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)


def test_a_folder_is_all_that_a_new_driver_needs(
    provision: Provision, containers: Containers, host: Host, catalogue: Path
) -> None:
    built = provision.build(*_target(catalogue))
    provision("verify", built["image"])
    provision("install", built["image"], "--root", host.root)
    assert list(host.entry("hello").rglob("hello.ko*"))
    for start in (containers.docker, containers.in_podman):
        assert start("hello-tool", check=False).returncode == 127
        done = start("hello-tool", flags=("--env=OCI_HELLO=all",))
        assert done.stdout == "hello from the driver\n"


def test_a_download_with_another_sha256_fails_the_build_and_says_so(
    provision: Provision, catalogue: Path, tarball: Path
) -> None:
    tarball.write_bytes(tarball.read_bytes() + b"altered")
    status, error = provision.failure("build", *_target(catalogue), *BUILD_NETWORK)
    assert status == 1
    assert "sha256" in error["message"]
    assert tarball.name in f"{error['message']} {error['details']}"


def test_a_kernel_that_the_driver_is_not_known_to_build_on_is_refused_with_what_there_is(
    provision: Provision,
) -> None:
    kernel = "6.1.0-9999-amd64"
    status, error = provision.failure("resolve", "nvidia", "--kernel", kernel, "--distro", DISTRO)
    assert status == 3
    assert kernel in f"{error['message']} {error['details']}"
    assert OLD_KERNEL.rsplit("-", 2)[0] in f"{error['resolution']} {error['details']}"
