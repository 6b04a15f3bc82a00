"""The Dockerfile of RPM's families against the one that is kept here, and what holds for all."""

from __future__ import annotations

import hashlib
import json

import pytest

from golden.pins import recipe as shipped
from golden.test_golden import assert_is_kept, without_digest
from provision.build.dockerfile import load_templates, render
from provision.catalogue import Recipe
from provision.distros.distro import find_distro
from provision.documents import parse_json
from provision.errors import NotFoundError
from provision.pin import (
    FORMAT,
    ArchiveSource,
    BasePin,
    ClosurePackage,
    DriverPin,
    FilePin,
    GitSource,
    GitSubmodule,
    KernelPin,
    PackagePin,
    Pin,
    RunfileSource,
)

PATCH = b"--- a/x.c\n+++ b/x.c\n"
CASES = {
    "rocky": ("rocky:9", "5.14.0-427.13.1.el9_4.x86_64", "gcc"),
    "leap": ("opensuse-leap:15.6", "6.4.0-150600.23.17-default", "gcc7"),
    # A compiler that is not on the usual search path.
    "uek": ("ol:9", "5.15.0-205.149.5.4.el9uek.x86_64", "gcc-toolset-14-gcc"),
    "clang": ("rocky:10", "6.12.0-55.el10.x86_64", "clang"),
}
# NVIDIA's driver from its .run.
NVIDIA = "nvidia-runfile"
_VERSIONS = {"gcc": "11.4.1-3.el9", "gcc7": "7.5.0+r278197-150000.4.41.1"}
_RECIPE = """{
 "schema": 1, "name": "hello", "summary": "A driver for tests", "vendor": "Example",
 "homepage": "https://example.org",
 "source": {"kind": "archive", "releases": [
   {"version": "1.0", "url": "https://example.org/hello-1.0.tar.xz", "sha256": "%s"}]},
 "kernels": [{"works": ">=5"}],
 "flavours": {"only": {"licences": ["GPL-2.0-only"], "build": {
   "directory": "module", "modules": ["hello.ko"],
   "command": ["make", "-j{jobs}", "-C", "{kernel_build}", "M={source}/module", "modules"]}}},
 "container": {"activation_flag": "OCI_HELLO", "driver_feature": ["hello"],
   "features": {"hello": {"devices": ["hello"]}}}
}"""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def recipe() -> Recipe:
    return parse_json(_RECIPE % sha256("source"), Recipe, name="driver.toml")


def package(name: str, version: str) -> ClosurePackage:
    return ClosurePackage(
        name=name,
        version=version,
        arch="x86_64",
        sha256=sha256(name),
        size=1000,
        repository="appstream",
        location=f"Packages/{name[0]}/{name}-{version.rpartition(':')[2]}.x86_64.rpm",
    )


def pin(case: str) -> Pin:
    distro, kernel, compiler = CASES[case]
    version = _VERSIONS.get(compiler, "14.2.1-1.2.el9")
    return Pin(
        driver=DriverPin(name="hello", version="1.0", flavour="only"),
        kernel=KernelPin(release=kernel, architecture="x86_64"),
        distro=find_distro(distro),
        base=BasePin(image="base:image", digest=f"sha256:{sha256('base')}"),
        compiler=PackagePin(name=compiler, version=version),
        headers=(PackagePin(name="kernel-devel", version="5.14.0-427.el9"),),
        packages=(),
        closure=(package(compiler, version), package("openssl-devel", "1:3.0.7-27.el9")),
        sources=(
            ArchiveSource(url="https://example.org/hello-1.0.tar.xz", sha256=sha256("source")),
        ),
        patches=(FilePin(name="x.patch", sha256=hashlib.sha256(PATCH).hexdigest()),),
        recipe=sha256("recipe"),
        format=FORMAT,
    )


def nvidia_pin() -> Pin:
    source = RunfileSource(
        url="https://example.org/NVIDIA-Linux-x86_64-580.95.05.run",
        sha256=sha256("run"),
        version="580.95.05",
        architecture="x86_64",
    )
    driver = DriverPin(name="nvidia", version="580.95.05", flavour="open")
    update = {"driver": driver, "sources": (source,), "patches": ()}
    return pin("rocky").model_copy(update=update)


def dockerfile(case: str) -> str:
    templates = load_templates("rpm")
    if case == NVIDIA:
        pinned, recipe_ = nvidia_pin(), shipped(case.partition("-")[0])
    else:
        pinned, recipe_ = pin(case), recipe()
    context = render(pinned, recipe_, templates=templates, patches={"x.patch": PATCH})
    return without_digest(context.dockerfile, pinned)


def test_the_dockerfile_is_the_one_kept() -> None:
    assert_is_kept(dockerfile("rocky"), "Dockerfile.rpm")


@pytest.mark.parametrize("case", [*CASES, NVIDIA])
def test_no_step_uses_a_network_or_evaluates_anything(case: str) -> None:
    steps, _, _labels = dockerfile(case).partition("LABEL")
    for word in ("dnf", "zypper", "curl", "http", "uname", "nproc", "$(", "`"):
        assert word not in steps, word


def test_a_dkms_conf_is_built_from_without_a_network() -> None:
    data = json.loads(_RECIPE % sha256("source"))
    data["source"]["kind"] = "dkms"
    del data["kernels"], data["flavours"]["only"]["build"]
    recipe_ = parse_json(json.dumps(data), Recipe, name="driver.toml")
    templates = load_templates("rpm")
    pinned = pin("rocky")
    context = render(pinned, recipe_, templates=templates, patches={"x.patch": PATCH})
    steps = context.files["Dockerfile"].decode()
    assert "COPY dkms.bash /provision/\n" in steps
    command = f"bash /provision/dkms.bash build {pinned.kernel.release} x86_64"
    assert f'RUN cd /source \\\n && {command} "${{JOBS}}"\n' in steps
    assert json.loads(context.files["build.json"])["modules"] == ["dkms-modules/*.ko"]


def test_another_compiler_than_the_distros_is_refused() -> None:
    templates = load_templates("rpm")
    odd = pin("rocky").model_copy(update={"compiler": PackagePin(name="tcc", version="1.0")})
    with pytest.raises(NotFoundError, match="tcc"):
        render(odd, recipe(), templates=templates, patches={"x.patch": PATCH})


def test_commits_of_a_git_source_and_its_submodules_come_with_the_context() -> None:
    templates = load_templates("rpm")
    inner = GitSubmodule(
        url="https://example.org/y.git", commit="3" * 40, sha256="4" * 64, path="lib/y"
    )
    source = GitSource(
        url="https://example.org/x.git", commit="1" * 40, sha256="2" * 64, submodules=(inner,)
    )
    odd = pin("rocky").model_copy(update={"sources": (source,)})
    text = render(odd, recipe(), templates=templates, patches={"x.patch": PATCH}).dockerfile
    assert "COPY git/ /provision/git/" in text
    assert "git fetch" not in text
    first, second = (commit.file_name for commit in source.commits)
    assert text.index(first) < text.index("mkdir -p lib/y && cd lib/y") < text.index(second)
    assert f"{'2' * 64}  /provision/source.tar" in text
    assert f"{'4' * 64}  /provision/source.tar" in text


def test_a_base_image_that_has_everything_takes_no_packages() -> None:
    templates = load_templates("rpm")
    bare = pin("rocky").model_copy(update={"closure": ()})
    context = render(bare, recipe(), templates=templates, patches={"x.patch": PATCH})
    assert "/provision/packages/" not in context.dockerfile
    assert not [name for name in context.downloads if name.startswith("packages/")]
    assert "RUN sh /provision/install.sh headers.sha256 gcc 11 5.14.0" in context.dockerfile
