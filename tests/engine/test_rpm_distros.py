"""Drivers for hosts of dnf and zypper: solved by the distro's own solver, built without a network.

The distros are stand-ins made from Debian's packages (`kit.rpm_sites`): their solvers, their layout
and their kernels' names are real, their packages are not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.files import write
from kit.fileserver import Mirror, guard, served
from kit.git_server import commit_files, git_served
from kit.made_up import (
    MADE_UP,
    made_up_files,
    made_up_source,
    write_made_up,
    write_made_up_in_git,
)
from kit.probe import need_programs
from kit.process import run, start
from kit.product import Provision, have_base
from kit.repackaged import signing_key
from kit.rpm_distros import Repository, RpmDistro, leap_15, rocky_9, rocky_10
from kit.rpm_sites import Site, koji_site, packaged_kernel, site_of
from kit.upstream import write_tarball

pytestmark = pytest.mark.minutes(5)

_DISTROS: dict[str, Callable[[], RpmDistro]] = {
    "rocky:9": rocky_9,
    "opensuse-leap:15.6": leap_15,
    "rocky:10": lambda: rocky_10(packaged_kernel("trixie")),
}
_IMAGES = {
    "rocky:9": "rockylinux/rockylinux:9",
    "opensuse-leap:15.6": "opensuse/leap:15.6",
    "rocky:10": "rockylinux/rockylinux:10",
}
_VERSION = "1.2"
_CONFIG = '[engine]\nnetwork = "host"\n'
_REPOSITORY = """
[[distros.{id}.repositories]]
id = "{repository}"
urls = ["{url}/{path}"]
keys = ["/etc/key.asc"]
"""
_ROCKY_9, _LEAP, _ROCKY_10 = _DISTROS
_AT_NIGHT = pytest.mark.nightly
# A test of one family, and at night of the other.
_one = pytest.mark.parametrize(
    "stand", [_ROCKY_9, pytest.param(_LEAP, marks=_AT_NIGHT)], indirect=True
)
# The same, and at night of newer headers and a newer compiler.
_each = pytest.mark.parametrize(
    "stand",
    [_ROCKY_9, *(pytest.param(one, marks=_AT_NIGHT) for one in (_LEAP, _ROCKY_10))],
    indirect=True,
)


@dataclass(frozen=True, slots=True)
class _Host:
    """A machine that builds: its root with provision.toml and provision's state."""

    root: Path
    provision: Provision

    def configure(self, text: str) -> None:
        write(self.root / "etc/provision/provision.toml", text)

    @property
    def packages(self) -> dict[str, Path]:
        """The files of the package store, by their sha256."""
        return {path.name: path for path in self.root.rglob("packages/sha256/*")}


@dataclass(frozen=True, slots=True)
class _Stand:
    """A distro's image in the engine, set up with a mirror that runs, and a driver to build."""

    site: Site
    mirror: Mirror
    engine: Engine
    catalogue: Path

    @property
    def distro(self) -> RpmDistro:
        return self.site.distro

    @property
    def headers_file(self) -> str:
        """The name of the file with the current kernel's headers."""
        headers = self.distro.headers
        start = f"{headers.package}-{headers.version}-{headers.release}"
        (rpm,) = self.site.mirror().rglob(f"{start}*.rpm")
        return rpm.name

    def target(self, kernel: str | None = None) -> tuple[str | Path, ...]:
        """What every command is asked for; without a kernel, the current one."""
        wanted = kernel or self.distro.headers.kernel
        named = ("--kernel", wanted, "--distro", self.distro.name)
        return (MADE_UP, *named, "--catalogue", self.catalogue)

    def fresh(self, root: Path, docker_host: str | None = None) -> _Host:
        """A machine that has built nothing yet."""
        (root / "etc").mkdir(parents=True)
        (root / "etc/os-release").write_text(self.distro.os_release)
        # A store of its own too.
        own = {"XDG_CACHE_HOME": str(root / "cache")}
        host = _Host(root, Provision(docker_host or self.engine.host, own))
        host.configure(_CONFIG)
        return host

    def started_by(self, call: Callable[[], object]) -> list[str]:
        """The containers that were started meanwhile."""
        since = time.time()
        call()
        span = ("--since", f"{since:.6f}", "--until", f"{time.time():.6f}")
        kind = ("--filter", "type=container", "--filter", "event=start")
        listed = self.engine.docker("events", *span, *kind, "--format", "{{.ID}}")
        return listed.stdout.split()

    @contextmanager
    def showing(self, folder: Path) -> Iterator[None]:
        """Let the mirror have other content meanwhile."""
        before, self.mirror.folder = self.mirror.folder, folder
        try:
            yield
        finally:
            self.mirror.folder = before


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with a driver whose source is on a server of its own."""
    folder = tmp_path_factory.mktemp("catalogue")
    tarball = made_up_source(folder / "files", _VERSION)
    with served(tarball.parent) as url:
        write_made_up(folder / "drivers", {_VERSION: tarball}, url)
        yield folder / "drivers"


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest, engine: Engine, catalogue: Path) -> Iterator[_Stand]:
    """One distro at a time."""
    need_programs("createrepo_c", "dnf", "rpmbuild", "rpmsign", "zypper", "gpg", "modinfo")
    site = site_of(_DISTROS[request.param]())
    mirror = Mirror(site.mirror())
    with mirror.serving() as url:
        site.load(engine, _IMAGES[request.param], url)
        yield _Stand(site, mirror, engine, catalogue)


@dataclass(frozen=True, slots=True)
class _AtOnce:
    """What came of two that resolved the same at the same time."""

    # Their machine.
    host: _Host
    # What each said.
    texts: list[str]
    # Each one's answer.
    documents: list[dict[str, Any]]
    # What the mirror was asked for.
    asked: list[str]


@pytest.fixture(scope="module")
def at_once(stand: _Stand, tmp_path_factory: pytest.TempPathFactory) -> _AtOnce:
    """Two processes of a machine that has solved nothing yet resolve for the current kernel."""
    host = stand.fresh(tmp_path_factory.mktemp("solved") / "root")
    words = ("resolve", *stand.target(), "--root", host.root, "--json")
    logs = [host.root / name for name in ("first", "second")]
    stand.mirror.asked.clear()
    processes = [_background(host, log, *words) for log in logs]
    ended = [process.wait(1200) for process in processes]
    texts = [_text(log) for log in logs]
    assert ended == [0, 0], texts
    documents = [json.loads(text[text.index("{\n") :]) for text in texts]
    return _AtOnce(host, texts, documents, list(stand.mirror.asked))


@pytest.fixture(scope="module")
def solved(at_once: _AtOnce) -> _Host:
    """A machine that has solved for the current kernel."""
    return at_once.host


@pytest.fixture(scope="module")
def pin(at_once: _AtOnce) -> dict[str, Any]:
    """What `resolve` said there."""
    return at_once.documents[0]


@pytest.fixture(scope="module")
def built(stand: _Stand, solved: _Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `build` says, run while the mirror is empty."""
    stand.mirror.asked.clear()
    with stand.showing(tmp_path_factory.mktemp("empty")):
        return solved.provision.json("build", *stand.target(), "--root", solved.root)


@pytest.fixture
def fresh(stand: _Stand, tmp_path: Path) -> _Host:
    return stand.fresh(tmp_path / "root")


def _named(stand: _Stand, *more: Repository, url: str | None = None) -> list[str]:
    """The mirror's repositories as tables of provision.toml, with the key of their packages."""
    place = url or stand.mirror.url
    return [
        _REPOSITORY.format(id=stand.distro.id, repository=one.id, url=place, path=one.path)
        for one in (*stand.distro.repositories, *more)
    ]


def _module(engine: Engine, image: str, folder: Path) -> Path:
    """The module of an artifact image, copied out."""
    (module,) = engine.copy_out(image, "/opt/.", folder).rglob("hello.ko*")
    return module


@_each
def test_the_closure_is_what_the_distros_solver_adds_to_the_base_image(
    stand: _Stand, solved: _Host, pin: dict[str, Any]
) -> None:
    compilers = {"bookworm": "12.", "trixie": "14."}
    closure = {package["name"]: package for package in pin["closure"]}
    headers = stand.distro.headers
    assert {headers.package, "gcc", "make"} <= set(closure)
    assert "bash" not in closure
    assert pin["compiler"]["name"] == "gcc"
    assert pin["compiler"]["version"].startswith(compilers[stand.distro.suite])
    found = closure[headers.package]
    assert found["repository"] == stand.distro.repositories[0].id
    (rpm,) = stand.site.mirror().rglob(found["location"].rpartition("/")[2])
    assert found["sha256"] == hashlib.sha256(rpm.read_bytes()).hexdigest()
    assert found["size"] == rpm.stat().st_size
    assert {package["sha256"] for package in closure.values()} <= set(solved.packages)


@_each
def test_a_build_installs_the_closure_and_asks_no_mirror(
    stand: _Stand, built: dict[str, Any], tmp_path: Path
) -> None:
    assert built["built"]
    assert stand.mirror.asked == []
    module = _module(stand.engine, built["image"], tmp_path)
    vermagic = run(["modinfo", "-F", "vermagic", module]).stdout.split()
    assert vermagic[0] == stand.distro.headers.kernel
    assert "modversions" in vermagic


@_AT_NIGHT
@_one
def test_a_dkms_conf_is_evaluated_and_built_from_there(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    files = {
        "hello.c": '#include <linux/module.h>\nMODULE_LICENSE("GPL");\n',
        "Makefile": "obj-m := hello.o\n",
        "dkms.conf": 'PACKAGE_NAME="hello"\nPACKAGE_VERSION="1.2"\n'
        'DEST_MODULE_LOCATION="/extra"\nBUILD_EXCLUSIVE_KERNEL="el9|default"\n',
    }
    tarball = write_tarball(tmp_path / "files", "hello-1.2", files)
    drivers, kernel = tmp_path / "drivers", stand.distro.headers.kernel
    target = ("--kernel", kernel, "--distro", stand.distro.name, "--root", fresh.root)
    with served(tarball.parent) as url:
        address = f"{url}/{tarball.name}"
        fresh.provision.json("drivers", "import", address, "--output", drivers)
        built = fresh.provision.build("hello", *target, "--catalogue", drivers)
    module = _module(stand.engine, built["image"], tmp_path / "out")
    assert run(["modinfo", "-F", "vermagic", module]).stdout.split()[0] == kernel


@_AT_NIGHT
@_one
def test_a_commit_is_fetched_by_the_toolchain_and_built_without_a_network(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    repositories, drivers = tmp_path / "repositories", tmp_path / "drivers"
    commit = commit_files(repositories, "hello", made_up_files(_VERSION))
    kernel = stand.distro.headers.kernel
    words = (MADE_UP, "--kernel", kernel, "--distro", stand.distro.name, "--catalogue", drivers)
    with git_served(repositories) as url:
        write_made_up_in_git(drivers, _VERSION, url, commit)
        built = fresh.provision.json("build", *words, "--root", fresh.root)
    module = _module(stand.engine, built["image"], tmp_path / "out")
    assert run(["modinfo", "-F", "vermagic", module]).stdout.split()[0] == kernel


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_ROCKY_9], indirect=True)
def test_a_cloud_of_rhel_serves_by_the_certificate_that_its_repository_file_names(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    """As RHUI does: who has no certificate gets nothing, and only the file names it."""
    guarded = guard(tmp_path, "")
    place = fresh.root / "etc/pki/rhui"
    place.mkdir(parents=True)
    shutil.copy(guarded.authority, place / "chain.crt")
    shutil.copy(guarded.certificate, place / "client.pem")
    # The name of the image's own file, which the host's hides in the container.
    file = fresh.root / "etc/yum.repos.d/test.repo"
    file.parent.mkdir()
    kernel = stand.distro.headers.kernel
    target = (MADE_UP, "--kernel", kernel, "--distro", "rhel:9", "--base", _IMAGES[_ROCKY_9])
    words = ("resolve", *target, "--catalogue", stand.catalogue, "--root", fresh.root)
    status, error = fresh.provision.failure(*words)
    assert (status, "need a subscription" in error["message"]) == (3, True)
    stand.mirror.asked.clear()
    with served(stand.site.mirror(), guarded.tls(clients=True)) as url:
        file.write_text(
            "\n".join(
                f"[{one.id}]\nname={one.id}\nbaseurl={url}/{one.path}\nenabled=1\ngpgcheck=1\n"
                "sslcacert=/etc/pki/rhui/chain.crt\nsslclientcert=/etc/pki/rhui/client.pem\n"
                "sslclientkey=/etc/pki/rhui/client.pem\n"
                for one in stand.distro.repositories
            )
        )
        pin = fresh.provision.json(*words)
    assert stand.distro.headers.package in {package["name"] for package in pin["closure"]}
    assert stand.mirror.asked == []


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_ROCKY_9], indirect=True)
def test_a_private_mirror_is_trusted_as_the_host_trusts_it(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    """Its authority is the host's only: the image has never heard of it."""
    guarded = guard(tmp_path, "")
    (fresh.root / "etc/key.asc").write_bytes(stand.site.key.read_bytes())
    words = ("resolve", *stand.target(), "--root", fresh.root)
    with served(stand.site.mirror(), guarded.tls()) as url:
        fresh.configure("".join([_CONFIG, *_named(stand, url=url)]))
        assert fresh.provision.failure(*words)[0] != 0
        bundle = fresh.root / "etc/pki/tls/certs/ca-bundle.crt"
        bundle.parent.mkdir(parents=True)
        shutil.copy(guarded.authority, bundle)
        pin = fresh.provision.json(*words)
    assert stand.distro.headers.package in {package["name"] for package in pin["closure"]}


@_one
def test_what_was_solved_once_starts_no_container_again(
    stand: _Stand, solved: _Host, pin: dict[str, Any]
) -> None:
    stand.mirror.asked.clear()
    said: list[dict[str, Any]] = []
    words = ("resolve", *stand.target(), "--root", solved.root)
    assert stand.started_by(lambda: said.append(solved.provision.json(*words))) == []
    assert stand.mirror.asked == []
    assert said == [pin]


@_one
def test_update_solves_again_and_finds_the_same_where_nothing_has_changed(
    stand: _Stand, solved: _Host, pin: dict[str, Any]
) -> None:
    said: list[dict[str, Any]] = []
    words = ("resolve", *stand.target(), "--root", solved.root, "--refresh")
    assert stand.started_by(lambda: said.append(solved.provision.json(*words)))
    assert said == [pin]


@pytest.mark.nightly
@_one
def test_another_machine_builds_a_pin_into_the_same_module(
    stand: _Stand, solved: _Host, built: dict[str, Any], tmp_path: Path
) -> None:
    pin, base = tmp_path / "pin.json", tmp_path / "base.tar"
    solved.provision("resolve", *stand.target(), "--root", solved.root, "--output", pin)
    first = _module(stand.engine, built["image"], tmp_path / "first").read_bytes()
    stand.engine.docker("save", "--output", base, _IMAGES[stand.distro.name])
    # An engine of its own: the other one remembers the steps of this build.
    with Engine() as engine:
        engine.docker("load", "--quiet", "--input", base)
        host = stand.fresh(tmp_path / "root", engine.host)
        words = ("build", "--pin", pin, "--catalogue", stand.catalogue, "--root", host.root)
        again = host.provision.json(*words)
        second = _module(engine, again["image"], tmp_path / "second").read_bytes()
    assert again["built"]
    assert again["digest"] == built["digest"]
    assert hashlib.sha256(second).hexdigest() == hashlib.sha256(first).hexdigest()


@_one
@pytest.mark.parametrize(
    ("variant", "is_trusted"),
    [("out-of-step", True), ("wrong-key", False), ("conflict", True)],
)
def test_a_mirror_with_a_fault_is_distinguished_from_others(
    stand: _Stand, fresh: _Host, variant: str, *, is_trusted: bool
) -> None:
    with stand.showing(stand.site.mirror(variant)):
        words = ("resolve", *stand.target(), "--root", fresh.root)
        status, error = fresh.provision.failure(*words)
    assert status == 1
    assert ("trusted key" in error["message"]) is not is_trusted
    # The solver's own words.
    assert stand.distro.headers.package in error["details"]
    # And the next one starts from nothing that this one left.
    stand.engine.wait_until_empty()


@_one
def test_a_superseded_kernel_is_missing_and_the_message_names_the_vault(
    stand: _Stand, fresh: _Host
) -> None:
    distro, kernel = stand.distro, stand.distro.old_headers.kernel
    words = ("resolve", *stand.target(kernel), "--root", fresh.root)
    status, error = fresh.provision.failure(*words)
    assert status == 3
    assert kernel in error["message"]
    assert f"[distros.{distro.id}] repositories" in error["resolution"]
    # The release of the base image, as a vault's folders are called.
    assert distro.version in error["resolution"]


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_ROCKY_9, _LEAP], indirect=True)
def test_a_superseded_kernel_is_built_from_the_vault(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    distro, kernel = stand.distro, stand.distro.old_headers.kernel
    (fresh.root / "etc/key.asc").write_bytes(stand.site.key.read_bytes())
    fresh.configure("".join([_CONFIG, *_named(stand, distro.vault)]))
    built = fresh.provision.json("build", *stand.target(kernel), "--root", fresh.root)
    module = _module(stand.engine, built["image"], tmp_path / "module")
    assert run(["modinfo", "-F", "vermagic", module]).stdout.split()[0] == kernel


def _as_fedora(stand: _Stand) -> None:
    """Have the base image once more, as Fedora 43's: its key lies where Fedora's lie."""
    place = "/etc/pki/rpm-gpg/RPM-GPG-KEY-fedora-43-primary"
    with stand.engine.created(_IMAGES[stand.distro.name]) as made:
        stand.engine.docker("cp", stand.site.key, f"{made}:{place}")
        stand.engine.docker("commit", '--change=CMD ["sh"]', made, "fedora:43")


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_ROCKY_9], indirect=True)
def test_a_kernel_that_the_repositories_have_dropped_is_built_from_koji(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    kernel, folder = koji_site()
    _as_fedora(stand)
    wanted = (MADE_UP, "--kernel", kernel, "--distro", "fedora:43", "--catalogue", stand.catalogue)
    with served(folder) as url:
        mirror = f'[distros.fedora.archive]\nmirror = "{url}/packages/kernel"\n'
        fresh.configure(_CONFIG + mirror)
        built = fresh.provision.json("build", *wanted, "--root", fresh.root)
        pin = fresh.provision.json("resolve", *wanted, "--root", fresh.root)
    module = _module(stand.engine, built["image"], tmp_path / "module")
    assert run(["modinfo", "-F", "vermagic", module]).stdout.split()[0] == kernel
    (headers,) = (package for package in pin["closure"] if package["name"] == "kernel-devel")
    (signed,) = folder.rglob("data/signed/*/x86_64/*.rpm")
    assert headers["repository"] == "archive"
    assert headers["sha256"] == hashlib.sha256(signed.read_bytes()).hexdigest()
    assert list(pin["urls"][headers["sha256"]]) == [f"{url}/{signed.relative_to(folder)}"]


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_ROCKY_9], indirect=True)
def test_an_unsigned_copy_in_koji_is_not_used(stand: _Stand, fresh: _Host, tmp_path: Path) -> None:
    kernel, made = koji_site()
    folder = tmp_path / "koji"
    shutil.copytree(made, folder)
    (signed,) = folder.rglob("data/signed/*/x86_64/*.rpm")
    (unsigned,) = folder.rglob("*.fc43/x86_64/*.rpm")
    shutil.copy(unsigned, signed)
    _as_fedora(stand)
    wanted = (MADE_UP, "--kernel", kernel, "--distro", "fedora:43", "--catalogue", stand.catalogue)
    with served(folder) as url:
        mirror = f'[distros.fedora.archive]\nmirror = "{url}/packages/kernel"\n'
        fresh.configure(_CONFIG + mirror)
        status, error = fresh.provision.failure("resolve", *wanted, "--root", fresh.root)
        assert status == 1
        assert "trusted key" in error["message"]
        signed.unlink()
        status, error = fresh.provision.failure("resolve", *wanted, "--root", fresh.root)
    assert status == 3
    assert kernel in error["message"]
    assert f"{url}/packages/kernel/" in error["details"]


@_AT_NIGHT
@pytest.mark.parametrize("stand", [_LEAP], indirect=True)
@pytest.mark.parametrize("change", ["unsigned", "foreign"])
def test_an_index_that_is_not_signed_is_not_used(
    stand: _Stand, fresh: _Host, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "mirror"
    shutil.copytree(stand.site.mirror(), folder, copy_function=os.symlink)
    index = folder / stand.distro.repositories[0].path / "repodata/repomd.xml"
    index.with_name("repomd.xml.asc").unlink()
    if change == "foreign":
        # With its key beside it, as a mirror would have it.
        key = signing_key("foreign")
        index.with_name("repomd.xml.key").unlink()
        shutil.copy(key.armoured, index.with_name("repomd.xml.key"))
        key.sign_file(index, armour=True)
    with stand.showing(folder):
        words = ("resolve", *stand.target(), "--root", fresh.root)
        status, error = fresh.provision.failure(*words)
        assert status == 1
        assert "trusted key" in error["message"]
        (fresh.root / "etc/key.asc").write_bytes(stand.site.key.read_bytes())
        named = _named(stand)
        fresh.configure("".join([_CONFIG, *named]))
        assert fresh.provision.failure(*words)[0] == 1
        fresh.configure("".join([_CONFIG, *[f"{text}signed = false\n" for text in named]]))
        if change == "unsigned":
            assert fresh.provision.json(*words)["closure"]
        else:
            # A signature that is there has to be a good one.
            assert fresh.provision.failure(*words)[0] == 1


@_AT_NIGHT
@_one
def test_a_base_image_is_made_from_the_distros_packages(
    stand: _Stand, fresh: _Host, tmp_path: Path
) -> None:
    distro = stand.distro
    # The host is of the distro, and has no repositories of it.
    with Engine() as engine:
        made = have_base(Provision(engine.host), distro.name, root=fresh.root)
    error = made["error"]
    assert error["exit_code"] == 3
    assert f"[distros.{distro.id}] repositories" in error["resolution"]
    (fresh.root / "etc/key.asc").write_bytes(stand.site.key.read_bytes())
    with Engine() as engine:
        host = stand.fresh(tmp_path / "other", engine.host)
        (host.root / "etc/key.asc").write_bytes(stand.site.key.read_bytes())
        host.configure("".join([_CONFIG, *_named(stand)]))
        made = have_base(host.provision, distro.name, root=host.root)
        assert made["made"]
        image = made["image"]
        printed = engine.docker(
            "run", "--rm", "--network=none", image, "rpm", "-q", "rpm", "coreutils"
        )
        assert "rpm-" in printed.stdout
        left = engine.docker(
            "run", "--rm", image, "sh", "-c", "ls -d /provision* /tmp/*", check=False
        )
        assert left.stdout == ""
        # Whatever was trusted to make it: packages count by the keys of provision.toml.
        built = host.provision.json("build", *stand.target(), "--root", host.root)
        module = _module(engine, built["image"], tmp_path / "module")
    assert run(["modinfo", "-F", "vermagic", module]).stdout.split()[0] == distro.headers.kernel


@_one
def test_of_two_at_once_one_solves(stand: _Stand, at_once: _AtOnce) -> None:
    assert sorted("Solving for the headers" in text for text in at_once.texts) == [False, True]
    assert at_once.documents[0] == at_once.documents[1]
    # And its second round has the headers of the first.
    asked = [path for path in at_once.asked if path.endswith(stand.headers_file)]
    assert len(asked) == 1


@_one
def test_a_download_that_is_killed_is_done_again(stand: _Stand, fresh: _Host) -> None:
    words = ("resolve", *stand.target(), "--root", fresh.root)
    stand.mirror.stall(stand.headers_file)
    process = _background(fresh, fresh.root / "log", *words)
    stalled = stand.mirror.stalled.wait(300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stand.mirror.go_on()
    assert stalled, _text(fresh.root / "log")
    closure = fresh.provision.json(*words)["closure"]
    assert {package["sha256"] for package in closure} <= set(fresh.packages)
    for sha256, path in fresh.packages.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    stand.engine.wait_until_empty()


def _background(host: _Host, log: Path, *words: str | Path) -> subprocess.Popen[bytes]:
    return start([host.provision.program, *words], log=log, env=host.provision.variables())


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
