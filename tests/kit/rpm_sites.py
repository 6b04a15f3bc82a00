"""Images and mirrors of `kit.rpm_distros`: by createrepo_c, rpmbuild, rpmsign, koji's PathInfo.

They are made once and then kept in the cache.

An image has the real solver of its family and the real rpm. A mirror is a tree of repositories; it
has variants for what goes wrong on mirrors, which differ in the packages that they are named for
and share all other files. Root, because a distro's root is its own; minutes the first time.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from koji import PathInfo

from kit.cache import cached, key_of
from kit.engine import Engine
from kit.kernels import kernels
from kit.process import run
from kit.repackaged import Rpm, download, repackage, sign_rpms, signing_key, write_rpm
from kit.rpm_distros import Repository, RpmDistro, abi
from kit.rpm_kernels import El, unpack_headers

# What a mirror may look like; `good` is as it has to be.
#   out-of-step: the metadata names a file of the kernel's headers that is gone
#   wrong-key: a key that the distro doesn't know has signed the kernel's headers
#   conflict: the compiler can't be installed beside the kernel's headers
VARIANTS = ("good", "out-of-step", "wrong-key", "conflict")

_BASE = (
    *("bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip", "libc-bin", "mawk"),
    *("rpm", "sed", "tar", "xz-utils"),
)
_TO_BUILD = (
    *("ca-certificates", "gcc", "git", "kmod", "libc6-dev", "libelf-dev", "make", "openssl"),
    *("patch", "perl-base", "python3"),
)
# Debian 13's zypper is not asked for by anything.
_SOLVERS = {"bookworm": ("dnf", "zypper"), "trixie": ("dnf",)}
_KERNEL_STARTS = ("linux-headers-", "linux-kbuild-", "linux-compiler-")
# The code that makes packages, and the code that makes distros of them: an entry of the cache is
# made again where its code has changed.
_PACKAGES, *_DISTROS = [
    Path(__file__).with_name(name)
    for name in ("repackaged.py", "rpm_kernels.py", "rpm_distros.py", "rpm_sites.py")
]
_FOLDERS = (
    *("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/share", "usr/src", "etc/rpm", "var/tmp"),
    *("tmp", "root", "proc", "sys", "dev", "run", "home", "opt", "boot", "mnt", "srv"),
)
_REPOSITORY = """\
[{id}]
name={id}
baseurl={url}/{path}
enabled=1
gpgcheck=1
gpgkey=file://{key}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """What a distro publishes: its base image, its key, and mirrors in every variant."""

    distro: RpmDistro
    folder: Path

    @property
    def image(self) -> Path:
        """The base image's root, for `docker import`."""
        return self.folder / "image.tar"

    @property
    def key(self) -> Path:
        """The public key with which its packages are signed."""
        return signing_key("distro").armoured

    def mirror(self, variant: str = "good") -> Path:
        """The folder that a mirror serves."""
        return self.folder / variant

    def load(self, engine: Engine, tag: str, url: str) -> str:
        """Have the base image in an engine as `tag`, set up with the mirror at `url`; its id."""
        with tempfile.TemporaryDirectory() as folder:
            repositories = Path(folder) / "test.repo"
            repositories.write_text(repository_file(self.distro, self.distro.repositories, url))
            place = "zypp/repos.d" if self.distro.solver == "zypper" else "yum.repos.d"
            bare = engine.docker("import", self.image).stdout.strip()
            with engine.created(bare) as made:
                engine.docker("cp", repositories, f"{made}:/etc/{place}/")
                return engine.docker("commit", '--change=CMD ["bash"]', made, tag).stdout.strip()


def repository_file(distro: RpmDistro, repositories: Iterable[Repository], url: str) -> str:
    """What /etc/yum.repos.d of a host has for repositories of the mirror at `url`."""
    return "\n".join(
        _REPOSITORY.format(id=one.id, url=url, path=one.path, key=distro.key)
        for one in repositories
    )


def site_of(distro: RpmDistro) -> Site:
    """A distro's image and mirrors, made where the cache has none."""
    pool = _pool(distro.suite)
    name = f"rpm-site-{distro.name.replace(':', '-')}-{key_of(distro, pool.name, *_DISTROS)}"
    return Site(distro, cached(name, lambda folder: _make_site(distro, pool, folder)))


def koji_site() -> tuple[str, Path]:
    """A kernel of Fedora 43, and a folder with its headers where koji's own PathInfo has them.

    Below `data/signed/KEY` is the copy that the distro's key has signed; the other is not signed.
    """
    headers = El("6.1.0", f"{abi(kernels()[1])}.fc43")

    def make(folder: Path) -> None:
        unpacked = unpack_headers(kernels()[1], _debs("bookworm"), folder / "headers")
        (made,) = headers.write(unpacked, folder)
        plain, signed = koji_places(folder, headers, _short_id(signing_key("distro").armoured))
        for place in (plain, signed):
            place.parent.mkdir(parents=True)
            shutil.copy(made, place)
        sign_rpms([signed])
        made.unlink()
        shutil.rmtree(folder / "headers")

    return headers.kernel, cached(f"rpm-koji-{key_of(headers, *_DISTROS)}", make)


def koji_places(folder: Path, headers: El, key: str) -> tuple[Path, Path]:
    """Where koji has the headers of a kernel: as they were built, and signed with a key."""
    paths = PathInfo(str(folder))
    edition = {"version": headers.version, "release": headers.release, "arch": "x86_64"}
    build = Path(paths.build({"name": "kernel", **edition}))
    package = {"name": headers.package, **edition}
    return build / paths.rpm(package), build / paths.signed(package, key)


def _short_id(key: Path) -> str:
    """The last eight digits of a key's id."""
    listed = run(["gpg", "--show-keys", "--with-colons", key]).stdout
    line = next(line for line in listed.splitlines() if line.startswith("pub:"))
    return line.split(":")[4][-8:].lower()


def packaged_kernel(suite: str) -> str:
    """The kernel whose headers a Debian suite has now: what its metapackage depends on."""
    (meta,) = (deb for deb in _debs(suite) if deb.name.startswith("linux-headers-amd64_"))
    depends = run(["dpkg-deb", "-f", meta, "Depends"]).stdout
    return depends.partition("linux-headers-")[2].split()[0].rstrip(",")


def _debs(suite: str) -> list[Path]:
    """All Debian packages that a suite's stand-ins are made from."""
    wanted = _wanted(suite)

    def make(folder: Path) -> None:
        folder.mkdir()
        download(suite, wanted, folder)

    return sorted(cached(f"rpm-debs-{suite}-{key_of(wanted)}", make).glob("*.deb"))


def _wanted(suite: str) -> tuple[str, ...]:
    kernel = "amd64" if suite == "trixie" else kernels()[1]
    return (*_BASE, *_SOLVERS[suite], *_TO_BUILD, f"linux-headers-{kernel}")


def _pool(suite: str) -> Path:
    """Those packages as signed RPMs; the kernel's headers are each distro's own."""

    def make(folder: Path) -> None:
        plain = [deb for deb in _debs(suite) if not deb.name.startswith(_KERNEL_STARTS)]
        repackage(plain, folder)

    inputs = (suite, _wanted(suite), signing_key("distro").armoured, _PACKAGES)
    return cached(f"rpm-pool-{suite}-{key_of(*inputs)}", make)


def _make_site(distro: RpmDistro, pool: Path, folder: Path) -> None:
    """Fill a folder with the image and all variants of the mirror."""
    folder.mkdir()
    with ThreadPoolExecutor() as workers:
        image = workers.submit(_make_image, distro, pool, folder)
        headers = unpack_headers(distro.debian_kernel, _debs(distro.suite), folder / "headers")
        current = workers.submit(distro.headers.write, headers, folder / "current")
        old = workers.submit(distro.old_headers.write, headers, folder / "old")
        sign_rpms([*current.result(), *old.result()])
        image.result()
        _make_good(distro, pool, folder)
        for done in [workers.submit(_make_variant, distro, folder, one) for one in VARIANTS[1:]]:
            done.result()
    for name in ("headers", "current", "old"):
        shutil.rmtree(folder / name)


def _make_good(distro: RpmDistro, pool: Path, folder: Path) -> None:
    packages = [*sorted(pool.glob("*.rpm")), *(folder / "current").iterdir()]
    for rpm in packages:
        repository = next(one for one in distro.repositories if rpm.name.startswith(one.starts))
        _add(rpm, folder / "good" / repository.path)
    for rpm in (folder / "old").iterdir():
        _add(rpm, folder / "good" / distro.vault.path)
    # What a base image is made of begins with it.
    work = folder / "release-rpm"
    work.mkdir()
    release = _release_rpm(distro, work)
    sign_rpms([release])
    shutil.copy(release, folder / "good" / distro.repositories[-1].path / "Packages")
    shutil.rmtree(work)
    for repository in (*distro.repositories, distro.vault):
        _index(distro, folder / "good" / repository.path)


def _make_variant(distro: RpmDistro, folder: Path, variant: str) -> None:
    """Link the good mirror's files to another one, and change what the variant is named for."""
    run(["cp", "-a", "--link", folder / "good", folder / variant])
    repository = folder / variant / distro.repositories[0].path
    (headers,) = repository.glob(f"Packages/{distro.headers.package}-*.rpm")
    if variant == "out-of-step":
        headers.unlink()
        return
    if variant == "wrong-key":
        _separate(headers)
        sign_rpms([headers], "foreign")
    if variant == "conflict":
        with tempfile.TemporaryDirectory() as work:
            _add_conflict(distro, folder / variant, Path(work))
    for one in distro.repositories:
        _index(distro, folder / variant / one.path)


def _add_conflict(distro: RpmDistro, mirror: Path, work: Path) -> None:
    """Put a newer compiler into a mirror that is in conflict with the kernel's headers."""
    # gcc itself, not gcc-12 and its like.
    packages = mirror.glob("**/Packages/gcc-*.rpm")
    (found,) = (one for one in packages if re.fullmatch(r"gcc-[\d.]+-[^-]+\.rpm", one.name))
    asked = run(["rpm", "-qp", "--qf", "%{VERSION}", found]).stdout
    (work / "root/usr/share/gcc").mkdir(parents=True)
    (work / "root/usr/share/gcc/in-conflict").touch()
    newer = Rpm("gcc", asked, "999", noarch=True, conflicts=(f"{distro.headers.package} >= 0",))
    made = write_rpm(newer, work / "root", work)
    sign_rpms([made])
    found.unlink()
    shutil.copy(made, found.parent)


def _add(rpm: Path, repository: Path) -> None:
    packages = repository / "Packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / rpm.name).hardlink_to(rpm)


def _separate(rpm: Path) -> None:
    """Give a package its own bytes: it is one file with that of other variants until then."""
    draft = rpm.with_suffix(".draft")
    shutil.copy(rpm, draft)
    draft.rename(rpm)


def _index(distro: RpmDistro, repository: Path) -> None:
    """Write a repository's metadata; SUSE's is signed, EL's is not."""
    repodata = repository / "repodata"
    # Its files are those of another variant too: taken away, not written over.
    shutil.rmtree(repodata, ignore_errors=True)
    run(["createrepo_c", "--quiet", "--no-database", repository])
    if distro.solver == "zypper":
        key = signing_key("distro")
        key.sign_file(repodata / "repomd.xml", armour=True)
        shutil.copy(key.armoured, repodata / "repomd.xml.key")


def _make_image(distro: RpmDistro, pool: Path, folder: Path) -> None:
    """Install a root by the distro's own solver, and pack it."""
    work = folder / "image"
    repository, root = work / "repository", work / "root"
    repository.mkdir(parents=True)
    for rpm in pool.glob("*.rpm"):
        _add(rpm, repository)
    _add(_release_rpm(distro, work), repository)
    run(["createrepo_c", "--quiet", "--no-database", repository])
    # Debian's rpm keeps its database in the user's home, unless it says otherwise.
    (work / "home").mkdir()
    (work / "home/.rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
    wanted = [f"{distro.id}-release", *_BASE, distro.solver]
    install = _dnf if distro.solver == "dnf" else _zypper
    run([*install(root, repository), *wanted], env={"HOME": str(work / "home")})
    _finish(distro, root)
    run(["tar", "-C", root, "-cf", folder / "image.tar", "."])
    run(["rm", "-rf", work])


def _dnf(root: Path, repository: Path) -> list[str | Path]:
    options = [
        f"--installroot={root}",
        "--releasever=none",
        "--disablerepo=*",
        f"--repofrompath=made,file://{repository}",
        "--enablerepo=made",
        "--nogpgcheck",
        "--setopt=install_weak_deps=False",
    ]
    return ["dnf", "-y", "-q", *options, "install"]


def _zypper(root: Path, repository: Path) -> list[str | Path]:
    run(
        ["zypper", "--root", root, "-q", "addrepo", "--no-gpgcheck", f"file://{repository}", "made"]
    )
    options = ["--non-interactive", "--no-gpg-checks"]
    return ["zypper", "--root", root, *options, "install", "--no-recommends"]


def _finish(distro: RpmDistro, root: Path) -> None:
    """What no package has: the trusted key, and nothing that was for making the root."""
    for name in ("var/cache/dnf", "var/cache/zypp", "etc/zypp/repos.d", "var/log"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("etc/yum.repos.d", "etc/zypp/repos.d", "var/log"):
        (root / name).mkdir(parents=True, exist_ok=True)
    key = root / distro.key.lstrip("/")
    key.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(signing_key("distro").armoured, key)
    run(["chroot", root, "env", "--unset=TMPDIR", "rpmkeys", "--import", distro.key])


def _release_rpm(distro: RpmDistro, work: Path) -> Path:
    """The package with the folders of a merged /usr, os-release, and settings of the solver.

    Maintainer scripts of Debian's packages don't run: what they make is here too.
    """
    root = work / "release"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/awk").symlink_to("mawk")
    (root / "usr/lib/os-release").write_text(distro.os_release)
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/rpm/macros").write_text("%_dbpath /var/lib/rpm\n")
    (root / "etc/dnf/vars").mkdir(parents=True)
    (root / "etc/dnf/vars/releasever").write_text(f"{distro.major}\n")
    release = Rpm(
        f"{distro.id}-release",
        distro.version,
        "1",
        noarch=True,
        summary=f"Release files of {distro.id}",
        # What a shell, and the links that are made here, are for.
        requires=("dash", "diffutils", "libc-bin", "mawk"),
        provides=(
            f"system-release = {distro.version}",
            f"system-release(releasever) = {distro.major}",
            f"distribution-release = {distro.version}",
            "filesystem = 3.16",
            "base-files = 13",
        ),
    )
    return write_rpm(release, root, work, directories=True)
