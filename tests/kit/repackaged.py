"""Debian's packages as signed RPMs, so that real dnf, rpm and zypper have something to solve.

A closure is downloaded with apt into a folder of its own (the machine's own packages don't matter)
and each package of it becomes one RPM: the same files below a merged /usr, the same dependencies
(alternatives as rich dependencies), a few names of the RPM distros besides. Maintainer scripts are
left out; what they would do stands in the release package of `kit.rpm_distros`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kit.cache import cached
from kit.debian import mirror, security_mirror
from kit.openpgp import Key, gnupg_home, new_home
from kit.probe import find_program
from kit.process import run

_DOMAIN = "example.org"

# What RPM distros call the same thing; `kernel-devel` and the specs of a build ask by these names.
_ALSO_KNOWN_AS = {
    "libc6": ("glibc",),
    "libc6-dev": ("glibc-devel",),
    "libelf-dev": ("elfutils-libelf-devel", "libelf-devel"),
    "libelf1": ("elfutils-libelf",),
    "libelf1t64": ("elfutils-libelf",),
    "libssl-dev": ("openssl-devel", "libopenssl-devel"),
    "libssl3": ("openssl-libs", "libopenssl3"),
    "libssl3t64": ("openssl-libs", "libopenssl3"),
    "linux-libc-dev": ("kernel-headers", "linux-glibc-devel"),
    "mawk": ("gawk",),
    "perl-base": ("perl-interpreter", "perl"),
    # Leap 15 and EL 8 have a newer Python beside their own, 3.6.
    "python3": ("python311", "python3.11"),
    "xz-utils": ("xz",),
}
# Debian counts these with an epoch, RPM distros don't: `gcc >= 12` has to mean the same.
_WITHOUT_EPOCH = {"gcc", "cpp", "make"}
_LEFT_OUT = ("doc", "man", "locale", "info", "lintian", "bug")
# Directories at the root that are links on a merged /usr are unpacked below it.
# `S` spares what links point to: a relative one stays right, as both its ends move.
_MERGE = r"--transform=s,^\./(bin|sbin|lib|lib64|lib32|libx32)/,./usr/\1/,xrSh"
_FIELDS = ("Package", "Version", "Architecture", "Pre-Depends", "Depends", "Provides")
_DEPENDENCY = re.compile(
    r"\s*(?P<name>[a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*"
    r"(?:\((?P<sign>>>|<<|>=|<=|=)\s*(?P<version>[^)\s]+)\s*\))?\s*"
)
_SIGNS = {">>": ">", "<<": "<", ">=": ">=", "<=": "<=", "=": "="}
_SPEC = """\
Name: {name}
Epoch: {epoch}
Version: {version}
Release: {release}
Summary: {summary}
License: GPL-2.0-only
AutoReqProv: no
{tags}
%description
{summary}
{scripts}%files
%defattr(-,root,root)
{files}
"""
# No step of ours: files are there already, and stay byte for byte what they are.
_DEFINES = {
    "__spec_install_pre": "%{nil}",
    "__spec_install_post": "%{nil}",
    "_build_id_links": "none",
    "debug_package": "%{nil}",
    "_unpackaged_files_terminate_build": "0",
    "_missing_build_ids_terminate_build": "0",
    "_binary_payload": "w1.zstdio",
    "_build_name_fmt": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
}


@cache
def signing_key(name: str) -> Key:
    """The key of that name, which is the same in each run; made where the cache has none."""

    def make(folder: Path) -> None:
        folder.mkdir()
        with gnupg_home() as home:
            gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
            user = f"Packages of tests <{name}@{_DOMAIN}>"
            run([*gpg, "--quick-gen-key", user, "rsa2048", "sign", "0"])
            run([*gpg, "--armor", "--output", folder / "public.asc", "--export"])
            secret = [*gpg, "--pinentry-mode", "loopback", "--armor", "--export-secret-keys"]
            (folder / "secret.asc").write_text(run(secret).stdout)

    folder = cached(f"rpm-key-{name}", make)
    home = new_home()
    key = Key(home, home / "pubring.kbx", folder / "public.asc")
    key.gpg("--quiet", "--import", folder / "secret.asc")
    return key


def sign_rpms(rpms: Sequence[Path], name: str = "distro") -> None:
    """Put a key's signature into packages, in place of another."""
    home = signing_key(name).home
    # A part of the name is enough: it is alone there.
    values = {"_gpg_name": _DOMAIN, "_gpg_path": home, "__gpg": find_program("gpg")}
    defines = [word for name, value in values.items() for word in ("-D", f"{name} {value}")]
    run(["rpmsign", "--resign", *defines, *rpms], env={"GNUPGHOME": str(home)})


@dataclass(frozen=True, slots=True)
class Rpm:
    """What an RPM says of itself, and its scriptlets."""

    name: str
    version: str
    release: str
    summary: str = "Repackaged for tests"
    epoch: str = "0"
    noarch: bool = False
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    scripts: str = ""

    @property
    def file(self) -> str:
        """Its file's name."""
        arch = "noarch" if self.noarch else "x86_64"
        return f"{self.name}-{self.version}-{self.release}.{arch}.rpm"

    def spec(self, files: Iterable[str]) -> str:
        """The spec with which rpmbuild packs `files`."""
        tags = [
            *(["BuildArch: noarch"] if self.noarch else []),
            *(f"Requires: {one}" for one in self.requires),
            *(f"Provides: {one}" for one in self.provides),
            *(f"Conflicts: {one}" for one in self.conflicts),
        ]
        return _SPEC.format(
            name=self.name,
            epoch=self.epoch,
            version=self.version,
            release=self.release,
            summary=self.summary,
            tags="\n".join(tags),
            scripts=self.scripts,
            files="\n".join(files),
        )


def write_rpm(rpm: Rpm, root: Path, folder: Path, *, directories: bool = False) -> Path:
    """Pack every file and link below `root` as an RPM into `folder`.

    Directories belong to it only where asked for. `root` is left as it is.
    """
    listed = []
    for parent, folders, files in os.walk(root):
        place = "" if parent == str(root) else f"/{os.path.relpath(parent, root)}"
        links = [name for name in folders if os.path.islink(f"{parent}/{name}")]  # noqa: PTH114
        listed += [_quoted(f"{place}/{name}") for name in (*files, *links)]
        if directories and place:
            listed.append(f"%dir {_quoted(place)}")
    work = root.parent / f"{root.name}.rpmbuild"
    work.mkdir()
    spec = work / "package.spec"
    spec.write_text(rpm.spec(listed))
    arch = "noarch" if rpm.noarch else "x86_64"
    defines = {**_DEFINES, "_rpmdir": str(folder), "_topdir": str(work)}
    options = [word for name, value in defines.items() for word in ("-D", f"{name} {value}")]
    where: list[str | Path] = ["--buildroot", root, "--noclean", "--target", arch]
    run(["rpmbuild", "-bb", "--quiet", *where, *options, spec])
    shutil.rmtree(work)
    return folder / rpm.file


def _quoted(path: str) -> str:
    return f'"{path.replace("%", "%%")}"'


def download(
    suite: str,
    packages: Sequence[str],
    folder: Path,
    *,
    components: str = "main",
    architecture: str = "amd64",
) -> list[Path]:
    """Download `packages` of a Debian suite and all that they depend on, as on an empty machine."""
    words = _apt(suite, folder / "apt", components, architecture)
    install = ["install", "--download-only", "--yes", "--no-install-recommends"]
    run(["apt-get", *words, "--quiet", *install, *packages])
    found = sorted((folder / "apt/archives").glob("*.deb"))
    moved = [deb.rename(folder / deb.name) for deb in found]
    shutil.rmtree(folder / "apt")
    return moved


def packaged(suite: str, prefix: str) -> list[str]:
    """The names of a Debian suite's packages that begin with a text."""
    with tempfile.TemporaryDirectory() as name:
        words = _apt(suite, Path(name, "apt"))
        return run(["apt-cache", *words, "pkgnames", prefix]).stdout.split()


def _apt(
    suite: str, state: Path, components: str = "main", architecture: str = "amd64"
) -> list[str]:
    """The options with which apt reads a Debian suite and nothing else."""
    for name in ("lists/partial", "archives/partial", "etc"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    keyring = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    sources = [(mirror(), suite), (security_mirror(), f"{suite}-security")]
    lines = [f"deb {keyring} {uri} {name} {components}" for uri, name in sources]
    (state / "etc/sources.list").write_text("\n".join([*lines, ""]))
    options = {
        "Dir::Etc": f"{state}/etc",
        "Dir::Etc::Parts": "/dev/null",
        "Dir::State": str(state),
        "Dir::State::status": f"{state}/status",
        "Dir::Cache": str(state),
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    words = [f"-o{name}={value}" for name, value in options.items()]
    run(["apt-get", *words, "--quiet", "update"])
    return words


def repackage(debs: Sequence[Path], folder: Path) -> None:
    """Write each Debian package as a signed RPM into `folder`, some at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f"{folder.name}.work")
    work.mkdir()
    signing_key("distro")

    def one(deb: Path) -> None:
        rpm, root = _unpacked(deb, work)
        sign_rpms([write_rpm(rpm, root, folder)])
        shutil.rmtree(root)

    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        list(pool.map(one, debs))
    shutil.rmtree(work)


def _unpacked(deb: Path, work: Path) -> tuple[Rpm, Path]:
    """What the RPM of a Debian package says of itself, and the folder with its files."""
    said = run(["dpkg-deb", "-f", deb, *_FIELDS]).stdout
    # A field goes on in lines that begin with a space.
    lines = re.sub(r"\n[ \t]+", " ", said).splitlines()
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = fields["Package"]
    epoch, version, release = edition(name, fields["Version"])
    root = work / name
    root.mkdir()
    unwanted = [f"--exclude=./usr/share/{part}" for part in _LEFT_OUT]
    script = 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" "${@:3}"'
    run(["bash", "-o", "pipefail", "-c", script, "bash", deb, root, _MERGE, *unwanted])
    depends = f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}"
    provides = dependencies(fields.get("Provides", ""))
    also = [f"{other} = {version}-{release}" for other in _ALSO_KNOWN_AS.get(name, ())]
    return (
        Rpm(
            name,
            version,
            release,
            epoch=epoch,
            noarch=fields["Architecture"] == "all",
            requires=dependencies(depends),
            provides=(*provides, *also),
        ),
        root,
    )


def edition(name: str, version: str) -> tuple[str, str, str]:
    """Epoch, version and release of an RPM for Debian's version of a package."""
    epoch, _, rest = version.rpartition(":")
    upstream, _, revision = rest.rpartition("-")
    if not upstream:
        upstream, revision = rest, "1"
    epoch = "0" if name in _WITHOUT_EPOCH else epoch or "0"
    return epoch, upstream.replace("-", "_"), revision.replace("-", "_")


def dependencies(text: str) -> tuple[str, ...]:
    """What RPM says for a field of Debian's, such as Depends."""
    return tuple(_dependency(one) for one in text.split(",") if one.strip())


def _dependency(text: str) -> str:
    """One dependency; alternatives become a rich one."""
    found = [match for part in text.split("|") if (match := _DEPENDENCY.fullmatch(part))]
    written = [_written(match["name"], match["sign"], match["version"]) for match in found]
    return written[0] if len(written) == 1 else f"({' or '.join(written)})"


def _written(name: str, sign: str | None, version: str | None) -> str:
    # "Older than VERSION-." is Debian's way to say "any revision of VERSION or older"; rpm compares
    # the lone dot as older than every revision.
    if sign is None or version is None or version.endswith("-."):
        return name
    epoch, upstream, revision = edition(name, version)
    start = f"{epoch}:" if epoch != "0" else ""
    # A bound without a revision has none in RPM either: `>= 2.36` includes `2.36-9`. But there
    # `> 2.36` would not.
    end = f"-{revision}" if "-" in version else "-0" if sign in (">>", "<<") else ""
    return f"{name} {_SIGNS[sign]} {start}{upstream}{end}"
