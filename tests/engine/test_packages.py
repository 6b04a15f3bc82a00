"""A release as a stranger has it: made from the checkout, installed on bare distros, and used.

Debian 12 and 13 are debootstrap's smallest; the RPM distro is the stand-in of `kit.rpm_sites`. What
is tested on each is the main job: a Pin, its Dockerfile, an artifact in the store, a container's
edits, and units that systemd takes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit.cache import REPOSITORY
from kit.debian import mirror
from kit.engine import Engine
from kit.files import remove_tree, write
from kit.fileserver import served
from kit.hosts import OLD_KERNEL
from kit.made_up import MADE_UP, MADE_UP_VERSION, made_up_source, write_made_up
from kit.openpgp import Key, gnupg_home
from kit.pages import blocks
from kit.probe import need_programs
from kit.process import Completed, run
from kit.product import BUILD_NETWORK, DISTRO
from kit.released import EARLIER, bare, earlier, publishing, shipping
from kit.repackaged import Rpm, write_rpm
from kit.rpm_distros import rocky_9
from kit.rpm_sites import site_of
from provision.errors import ExitCode

# Minutes: packages of four Pythons are downloaded, packed, and installed on three distros; and all
# of it twice more for two architectures.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(12)]

_RELEASED = (
    *("provision-*.whl", "provision-*.tar.gz", "oci_decorator-drivers-*.tar.gz"),
    *("oci-decorator_*_amd64.deb", "provision_*_amd64.deb", "oci-decorator-nvidia_*_all.deb"),
    *("oci-decorator-*.x86_64.rpm", "provision-*.x86_64.rpm", "oci-decorator-nvidia-*.noarch.rpm"),
    "provision-agent-*_amd64.image.tar",
)
_OF_ARM64 = (
    *("oci-decorator_*_arm64.deb", "provision_*_arm64.deb"),
    *("oci-decorator-*.aarch64.rpm", "provision-*.aarch64.rpm"),
)
_ENTER = """\
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --bind "$1" "$root$1"; shift; done
shift
exec chroot "$root" "$@"
"""
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")
_VARIABLES = {
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
    "LC_ALL": "C",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
}
_PAGE = REPOSITORY / "docs/tutorials/install.md"
_KEY = "/etc/provision/trust.d/admin.pub"
_SETTINGS = "/etc/provision/provision.toml"
_VENDOR = "/etc/oci-decorator/oci-decorator.d/mine.json"
_CONFIG = """\
[engine]
host = "{engine}"
network = "host"
"""
_EL_IMAGE = "rockylinux/rockylinux:9"
_INVENTORY: dict[str, Any] = {
    "activation_flag": "OCI_MINE",
    "driver_feature": ["tool"],
    "inventory": {"tool": {"devices": ["null"]}},
}


@dataclass(frozen=True, slots=True)
class _Host:
    """A distro's tree, and what of this machine it sees at the same path."""

    root: Path
    binds: list[Path] = field(default_factory=list)

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        argv = [*_NAMESPACES, "sh", "-c", _ENTER, "sh", self.root, *self.binds, "--", *words]
        kept = {name: "" for name in os.environ if name.startswith(("PYTHON", "PIP_"))}
        return run(argv, env={**kept, **_VARIABLES}, check=check)

    def json(self, *words: str | Path) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(*words, "--json").stdout)
        return document

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        write(self.path(name), text)


def test_everything_is_there_with_its_sum(release: Path) -> None:
    names = {path.name for path in release.iterdir()}
    assert {"SHA256SUMS", "sbom.cdx.json"} <= names
    for pattern in _RELEASED:
        assert list(release.glob(pattern)), pattern
    run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release)
    sums = (release / "SHA256SUMS").read_text().splitlines()
    others = {"SHA256SUMS", "SHA256SUMS.asc", "repository"}
    assert {line.split()[1] for line in sums} == names - others
    with gnupg_home() as home:
        run(["gpg", "--homedir", home, "--import", release / "repository/provision.asc"])
        run(["gpg", "--homedir", home, "--verify", release / "SHA256SUMS.asc"])
    bom = json.loads((release / "sbom.cdx.json").read_text())
    assert {"pydantic", "serde_json", "rustix"} <= {one["name"] for one in bom["components"]}


def test_a_repository_needs_a_key_and_an_address(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    key, url = ("--key", "nobody"), ("--url", "https://files.test")
    for words in (key, url, (*key, *url)):
        done = publishing(*words, "--output", tmp_path, check=False)
        assert done.returncode == ExitCode.USAGE


def test_what_was_changed_after_it_was_made_is_not_signed(release: Path, tmp_path: Path) -> None:
    (changed,) = release.glob("provision_*_amd64.deb")
    for path in (release / "SHA256SUMS", changed):
        shutil.copy(path, tmp_path)
    (tmp_path / "SHA256SUMS").write_text(
        "".join(
            f"{line}\n"
            for line in (release / "SHA256SUMS").read_text().splitlines()
            if line.endswith(changed.name)
        )
    )
    with (tmp_path / changed.name).open("ab") as stream:
        stream.write(b"more")
    with gnupg_home() as home:
        key = Key.make(home, "Releaser")
        words = ("--key", "Releaser", "--url", "https://files.test", "--output", tmp_path)
        done = publishing(*words, env={"GNUPGHOME": str(key.home)}, check=False)
    assert done.returncode == ExitCode.FAILED
    assert not (tmp_path / "SHA256SUMS.asc").exists()


def test_the_same_commit_gives_the_same_bytes_for_both_architectures(tmp_path: Path) -> None:
    run([REPOSITORY / "hooks/build.sh", "build"], env={"ARCH": "aarch64"}, timeout_s=1200)
    made = tmp_path / "dist"
    shipping("--output", made)
    for pattern in _OF_ARM64:
        assert list(made.glob(pattern)), pattern
    # Its exit code says whether they are.
    shipping("--verify", "--output", made, mask=0o077)


@contextmanager
def _copy(tree: Path, folder: Path, binds: Sequence[Path]) -> Iterator[_Host]:
    run(["cp", "-a", "--reflink=auto", tree, folder])
    try:
        yield _Host(folder, list(binds))
    finally:
        remove_tree(folder)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def debian(
    request: pytest.FixtureRequest,
    release: Path,
    repository: str,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[_Host]:
    """A bare Debian with the packages of the release, installed as the first page says."""
    suite = request.param
    tree = bare(suite)
    folder = tmp_path_factory.mktemp(suite)
    socket = Path(engine.host.removeprefix("unix://")).parent
    with _copy(tree, folder / "root", [release, socket, folder.parent]) as host:
        shutil.copy("/etc/resolv.conf", host.path("/etc/resolv.conf"))
        host.write("/etc/apt/sources.list", f"deb {mirror()} {suite} main\n")
        host.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        host.path("/usr/sbin/policy-rc.d").chmod(0o755)
        # The engine is this machine's; what else is recommended is not needed for what is shown.
        host.write("/etc/apt/apt.conf.d/90test", 'APT::Install-Recommends "false";\n')
        host("sh", "-euc", "apt-get -q update && apt-get -q install -y curl systemd gpgv")
        install, look, _ = (text for kind, text in blocks(_PAGE.read_text()) if kind == "sh")
        host("sh", "-euc", f"REPOSITORY='{repository}'\n{install}")
        host("sh", "-euc", look)
        yield host


@pytest.fixture(scope="module")
def el(
    release: Path, repository: str, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Host]:
    """The stand-in of Rocky Linux 9 with Python, and with the packages of the release."""
    need_programs("dnf", "rpm", "createrepo_c")
    site = site_of(rocky_9())
    folder = tmp_path_factory.mktemp("el")
    socket = Path(engine.host.removeprefix("unix://")).parent
    root = folder / "root"
    root.mkdir()
    try:
        run(["tar", "-C", root, "-xf", site.image])
        host = _Host(root, [release, socket, folder.parent, site.folder])
        for one in site.distro.repositories:
            text = f"[{one.id}]\nname={one.id}\nbaseurl=file://{site.mirror()}/{one.path}\ngpgcheck=0\n"
            host.write(f"/etc/yum.repos.d/{one.id}.repo", text)
        found = (release / "repository/provision.repo").read_text()
        assert f"baseurl={repository}/rpm/" in found
        host.write("/etc/yum.repos.d/provision.repo", found)
        # Of what the distro itself has: its bash, which is Debian's here, and skopeo.
        (folder / "empty").mkdir()
        shell = Rpm("stand-in-sh", "1", "1", noarch=True, provides=("/bin/sh", "skopeo"))
        packages: list[str | Path] = ["oci-decorator", "provision"]
        packages.append(write_rpm(shell, folder / "empty", folder))
        words = ("--setopt=install_weak_deps=False", "--setopt=localpkg_gpgcheck=0")
        host("dnf", "-y", "-q", *words, "install", *packages)
        yield host
    finally:
        remove_tree(root)


def _main_job(
    host: _Host, engine: Engine, folder: Path, *, kernel: str, distro: str, settings: str
) -> None:
    """From the facts to an artifact in a store, by the installed programs."""
    _host_tree(host, kernel)
    assert host("provision", "--version").stdout.startswith("provision ")
    assert host.json("provision", "facts")["distro"]["id"] in {"debian", "rocky"}
    assert {one["name"] for one in host.json("provision", "drivers")["drivers"]} >= {
        "nvidia",
        "zfs",
    }
    source = made_up_source(folder / "sources", MADE_UP_VERSION)
    catalogue = folder / "catalogue"
    with served(source.parent) as url:
        write_made_up(catalogue, {MADE_UP_VERSION: source}, url)
        config = _CONFIG.format(engine=engine.host) + settings
        host.write(_SETTINGS, config)
        named = f'[drivers.{MADE_UP}]\nversion = "{MADE_UP_VERSION}"\n'
        host.write(f"/srv/host{_SETTINGS}", config + named)
        target = (
            *("--catalogue", catalogue, "--kernel", kernel, "--distro", distro),
            *BUILD_NETWORK,
        )
        pin = host.json("provision", "resolve", MADE_UP, *target)
        context = folder / "context"
        host("provision", "build", MADE_UP, *target, "--render", context)
        assert "FROM scratch" in (context / "Dockerfile").read_text()
        image = host.json("provision", "build", MADE_UP, *target)["image"]
    assert image == pin["image"]
    host("provision", "install", image, "--root", "/srv/host")
    (vendor,) = host.path("/srv/host/etc/oci-decorator/oci-decorator.d").glob("*.json")
    assert json.loads(vendor.read_text())["activation_flag"] == "OCI_HELLO"
    checked = host(
        "oci-decorator", "check", "--root", "/srv/host", "--env", "OCI_HELLO=all", check=False
    )
    assert "/usr/bin/hello-tool" in checked.output
    host.write(_VENDOR, json.dumps(_INVENTORY))
    assert host("oci-decorator", "check", "--env", "OCI_MINE=all").returncode == 0
    for shell in ("provision", "oci-decorator"):
        assert host.path(f"/usr/share/bash-completion/completions/{shell}").is_file()


def _host_tree(host: _Host, kernel: str) -> None:
    """A host of its own for the store, below the tree."""
    host.path("/srv/host/etc").mkdir(parents=True, exist_ok=True)
    shutil.copy(host.path("/etc/os-release"), host.path("/srv/host/etc/os-release"))
    (host.path("/srv/host/lib/modules") / kernel).mkdir(parents=True, exist_ok=True)


def test_the_main_job_on_debian(debian: _Host, engine: Engine) -> None:
    folder = debian.binds[-1] / f"work-{debian.root.parent.name}"
    settings = f'[distros.debian.archive]\nmirror = "{mirror()}"\n'
    _main_job(debian, engine, folder, kernel=OLD_KERNEL, distro=DISTRO, settings=settings)


def test_units_of_the_package_are_enabled_and_whole(debian: _Host) -> None:
    units = sorted(path.name for path in debian.path("/usr/lib/systemd/system").glob("provision-*"))
    assert units == sorted(
        path.stem for path in (REPOSITORY / "templates/systemd").glob("provision-*.j2")
    )
    debian("systemd-analyze", "verify", *(f"/usr/lib/systemd/system/{name}" for name in units))
    links = {path.name for path in debian.path("/etc/systemd/system").glob("*.wants/provision-*")}
    assert {"provision-boot.service", "provision-kernel.path"} <= links
    assert {"provision-apply.timer", "provision-repeat.timer"} <= links
    assert "Nothing to do." in debian("provision", "units", "install").stdout
    assert "package has installed the units" in debian("provision", "units", "install").stderr


def test_a_host_goes_back_to_an_earlier_release_and_upgrades(
    debian: _Host, release: Path, tmp_path: Path
) -> None:
    debian.write(_SETTINGS, "[drivers]\n")
    installed = _versions(debian)
    packages = [
        earlier(found, tmp_path)
        for name in installed
        for found in release.glob(f"{name}_*.deb")
        if not found.name.endswith("_arm64.deb")
    ]
    debian("apt-get", "-qy", "--allow-downgrades", "install", *packages)
    assert set(_versions(debian).values()) == {EARLIER}
    debian("apt-get", "-qy", "upgrade")
    assert _versions(debian) == installed
    assert debian.path(_SETTINGS).read_text() == "[drivers]\n"
    assert debian("provision", "--version").returncode == 0


def _versions(host: _Host) -> dict[str, str]:
    names = ("oci-decorator", "provision")
    listed = host("dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *names).stdout
    return dict(line.split() for line in listed.splitlines())


def test_bash_completes_words(debian: _Host) -> None:
    script = (
        "set +u; source /usr/share/bash-completion/completions/{name}\n"
        "COMP_WORDS=({words}); COMP_CWORD={last}; {function} {name} 2>/dev/null\n"
        'printf "%s\\n" "${{COMPREPLY[@]}}"'
    )

    def completed(name: str, function: str, *words: str) -> list[str]:
        given = " ".join(f"'{word}'" for word in (name, *words))
        text = script.format(name=name, words=given, last=len(words), function=function)
        return debian("bash", "-c", text).stdout.split()

    assert completed("provision", "_provision_completion", "res") == ["resolve"]
    assert "--kernel" in completed("provision", "_provision_completion", "resolve", "--k")
    assert completed("oci-decorator", "_oci_decorator", "inst") == ["install-links"]
    assert completed("oci-decorator", "_oci_decorator", "configure", "pod") == ["podman"]
    assert completed("oci-decorator", "_oci_decorator", "cdi", "") == ["generate", "list"]


def test_what_is_purged_leaves_what_the_admin_wrote(debian: _Host) -> None:
    debian.write(_KEY, "a key\n")
    debian.write(_SETTINGS, "[drivers]\n")
    with debian.path("/etc/oci-decorator/config.toml").open("a") as stream:
        stream.write('log-level = "debug"\n')
    debian("apt-get", "-qy", "purge", "provision", "oci-decorator")
    for name in (_KEY, _SETTINGS, _VENDOR, "/etc/oci-decorator/config.toml"):
        assert debian.path(name).is_file(), name
    for name in ("/usr/lib/provision", "/usr/share/provision", "/usr/bin/oci-decorator",
                 "/etc/kernel/postinst.d/provision", "/var/lib/oci-decorator"):  # fmt: skip
        assert not debian.path(name).exists(), name
    assert not [*debian.path("/etc/systemd/system").glob("*.wants/provision-*")]


def test_the_main_job_on_an_rpm_distro(el: _Host, engine: Engine) -> None:
    folder = el.binds[2] / "work-el"
    site = site_of(rocky_9())
    kernel = site.distro.headers.kernel
    with served(site.mirror()) as url:
        site.load(engine, _EL_IMAGE, url)
        _main_job(el, engine, folder, kernel=kernel, distro=site.distro.name, settings="")
    el.write(_KEY, "a key\n")
    el("rpm", "--erase", "provision", "oci-decorator")
    assert el.path(_KEY).is_file()
    assert el.path(_SETTINGS).is_file()
    assert not el.path("/usr/lib/provision").exists()
