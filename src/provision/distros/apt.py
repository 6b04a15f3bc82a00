"""The family of apt: Debian and Ubuntu.

A script ends in a listing (``closure``), one record a line, its words separated by tabs:

* ``installed NAME ARCH VERSION``: a package of the base image.
* ``package URL FILE SIZE SHA256``: a package that is installed, as apt names its file.

Source: apt-get(8), ``--print-uris``, and ``Acquire::ForceHash``, without which it prints MD5 sums
of Debian's main archive and no checksum of its security archive.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from provision.distros.archive import packages_script
from provision.distros.distro import Distro
from provision.distros.family import (
    AUTHORITIES,
    NOTE,
    WORK,
    Family,
    Package,
    Repository,
    Script,
    SolveRequest,
    SolverFailure,
    Spec,
    records,
)
from provision.documents import refusing
from provision.errors import ProvisionError
from provision.host.kernels import kernel_order
from provision.pin import ClosurePackage

_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_FIELDS = {"installed": 4, "package": 5}
_FILE = re.compile(r"(?P<name>[^_]+)_(?P<version>[^_]+)_(?P<arch>[^_]+)\.deb")
_SHA256 = re.compile(r"(?:SHA256:)?(?P<hex>[0-9a-f]{64})")
_NUMBER = re.compile(r"[0-9]{1,15}")
# Below the archive's address; Debian's security archive has one folder more.
_POOL = re.compile(r"/(?P<location>pool/(?:updates/)?(?P<component>[a-z0-9-]+)/.+)$")
# name | version | place; a name that only other packages mention has no such line.
_VERSIONED = re.compile(r"\s*(?P<name>\S+) \| .*", re.ASCII)


class Apt(Family):
    """The family of apt; methods as ``Family`` says."""

    def solve(
        self, request: SolveRequest, specs: tuple[Spec, ...], config: str | None = None
    ) -> Script:
        """Return what downloads the closure of packages."""
        packages = " ".join(_word(spec.text) for spec in specs)
        parts = [_prelude(request.repositories), _SOLVE.replace("@packages@", packages)]
        if config:
            parts.append(_CONFIG.replace("@config@", shlex.quote(config)))
        return Script("\n".join(parts), source_files(request.distro, request.repositories))

    def parse(self, output: bytes) -> tuple[Package, ...]:
        """Return the closure that a script wrote, in the order of names."""
        found = records(output, _FIELDS, _broken)
        installed = {(name, arch) for name, arch, _version in found["installed"]}
        packages = [_package(record, installed) for record in found["package"]]
        return tuple(sorted(packages, key=lambda one: (one.pinned.name, one.pinned.arch)))

    def installed(self, output: bytes) -> Mapping[str, str]:
        """Return the versions of the base image's own packages by name."""
        found = records(output, _FIELDS, _broken)["installed"]
        return {name: version for name, _arch, version in found}

    def superseded(self, failure: SolverFailure) -> str:
        """Return how to get at headers that the archive has dropped, or never had."""
        if failure.request.query.flavour == _FOREIGN:
            return _ELSEWHERE
        where = " ".join(
            f"That is {archive.name} ({archive.url}): {archive.hint}"
            for archive in failure.request.distro.archives
        )
        return _SUPERSEDED + where

    def kernels(self, request: SolveRequest) -> Script:
        """Return what lists the kernels whose headers the repositories have."""
        names = " ".join(
            f"$(apt_cache pkgnames {shlex.quote(prefix)})"
            for prefix, _pattern in _plain_headers(request.distro)
        )
        return self._question(request, f'set -- {names}\n[ $# = 0 ] || apt_cache madison "$@"')

    def parse_kernels(self, distro: Distro, output: bytes) -> tuple[str, ...]:
        """Return the plain kernels' releases, the newest first."""
        kernels = {
            name.removeprefix(prefix)
            for line in output.decode(errors="replace").splitlines()
            if (match := _VERSIONED.fullmatch(line)) and (name := match["name"])
            for prefix, pattern in _plain_headers(distro)
            if name.startswith(prefix) and re.fullmatch(pattern, name.removeprefix(prefix))
        }
        return tuple(sorted(kernels, key=kernel_order, reverse=True))

    def packages(self, request: SolveRequest, names: Iterable[str]) -> Script:
        """Return what answers a question of ``Archive``."""
        return self._question(request, packages_script(names))

    def _question(self, request: SolveRequest, commands: str) -> Script:
        text = f"{_prelude(request.repositories)}\n{{\n{commands}\n}} > closure"
        return Script(text, source_files(request.distro, request.repositories))


# Of a distro's rules, the one for kernels that it does not package.
_FOREIGN = "foreign"
_ELSEWHERE = (
    "The distro packages no kernel of this kind: install the headers from where the kernel came"
    " from, and name their folder under [[trees]] in /etc/provision/provision.toml"
    " (docs/how-to/kernel-trees.md). Or name the archive that has them there"
    " ([distros.debian.archive] mirror)."
)
_SUPERSEDED = (
    "'provision drivers kernels DRIVER' lists the packaged ones. Headers may come later than their"
    " kernel: try again then ('provision apply' and its timer do). If the distro has dropped them,"
    " boot a kernel that is packaged (--kernel builds for it), or take them from where superseded"
    " packages stay. "
)


def _plain_headers(distro: Distro) -> tuple[tuple[str, str], ...]:
    """Return how names of headers begin, and what follows: the plain kernels'."""
    plain = distro.headers[0]
    names = plain.specs[0].split("|")
    return tuple((name.removesuffix("{kernel}"), plain.kernels) for name in names)


def _prelude(repositories: tuple[Repository, ...]) -> str:
    own = f"-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts={WORK}/sources"
    options = " ".join(
        [
            f"-o Dir::State::Lists={WORK}/lists",
            f"-o Dir::Cache={WORK}/cache",
            f"-o Dir::Etc::Preferences={WORK}/preferences",
            # Docker's images keep none, and then each program of apt reads all lists again.
            "-o Dir::Cache::pkgcache=pkgcache.bin -o Dir::Cache::srcpkgcache=srcpkgcache.bin",
            f"-o Dir::Cache::Archives={WORK}/archives",
            # Some base images delete each package after its installation.
            "-o APT::Keep-Downloaded-Packages=true",
            # As root: the sandbox user can't write here.
            "-o APT::Sandbox::User=root",
            "-o APT::Install-Recommends=false",
            "-o Acquire::Languages=none",
            "-o Acquire::ForceHash=sha256",
            # Otherwise, a repository that can't be read causes only a warning.
            "-o APT::Update::Error-Mode=any",
            *([own] if repositories else []),
        ]
    )
    trials = _TRIALS if any(one.origin is not None for one in repositories) else ""
    return f"""\
set -eu
cd {WORK}
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
# Debian's and Ubuntu's own images have no authorities, and no image those of a site.
authorities=
if [ -s {WORK}/{AUTHORITIES} ]; then
    if [ -s {_CA_BUNDLE} ]; then cat {_CA_BUNDLE} >> {WORK}/{AUTHORITIES}; fi
    authorities='-o Acquire::https::CaInfo={WORK}/{AUTHORITIES}'
fi
apt_get() {{ apt-get {options} $authorities "$@"; }}
apt_cache() {{ apt-cache {options} "$@"; }}
mkdir -p lists/partial cache archives/partial none/partial sources
# Its hooks build modules whenever a package brings headers: apt_preferences(5).
printf 'Package: dkms\\nPin: version *\\nPin-Priority: -1\\n' > preferences
# Only the first round updates: both must see the same state of the repositories.
{trials}if [ ! -e updated ]; then
    apt_get --quiet update > update.log 2>&1 || {{ cat update.log; exit 100; }}
    cat update.log
    # A good signature on another suite's index is only a warning for apt.
    if grep '^W: Conflicting distribution' update.log; then
        echo 'E: The archive serves the signed index of another suite.'
        exit 100
    fi
    : > updated
fi"""


# Sources of the host's own whose key is not the distro's may be another's archive, which must not
# stop a build when it is broken.
_TRIALS = f"""\
for trial in sources/*.trial; do
    if [ ! -e "$trial.tried" ]; then
        rm -rf trial && mkdir -p trial/parts trial/lists/partial && : > "$trial.tried"
        cp "$trial" trial/parts/one.sources
        origin=$(sed -n 's/^# Origin: //p' "$trial")
        if apt_get -o Dir::Etc::SourceParts={WORK}/trial/parts \\
                -o Dir::State::Lists={WORK}/trial/lists --quiet update > trial.log 2>&1 \\
            && cat trial/lists/*Release | grep -qxF "Origin: $origin"
        then : > "$trial.good"
        else
            cat trial.log
            echo "{NOTE}Another's archive is left out: $(sed -n 's/^URIs: //p' "$trial")"
        fi
    fi
    if [ -e "$trial.good" ]; then cp "$trial" "${{trial%.trial}}.sources"; fi
done
"""
# apt prints the listing while it downloads the packages; the indexes are the same. The listing has
# another, empty folder of downloads, because apt leaves out files that it has downloaded already.
# apt compares each file with its sha256, and so does the package store.
_SOLVE = """\
# Debian's archive may have a kernel unsigned days before it has the signed one.
first_of() {
    for name in "$@"; do
        # Of a name that only others mention, it prints nothing and ends with 0.
        if apt_cache show "$name" 2> /dev/null | grep -q .; then echo "$name"; return; fi
    done
    echo "$1"
}
set -- @packages@
apt_get -o Dir::Cache::Archives=/provision/solve/none --quiet=2 --print-uris --yes \\
    install "$@" > uris.txt 2> uris.log &
listing=$!
apt_get --quiet --download-only --yes install "$@"
wait "$listing" || { cat uris.log; exit 1; }
rm -rf packages && mkdir packages
{
    dpkg-query --show --showformat 'installed\\t${Package}\\t${Architecture}\\t${Version}\\n'
    while read -r url file size sum; do
        [ -n "$url" ] || continue
        url=${url#\\'}
        ln "archives/$file" "packages/$file"
        printf 'package\\t%s\\t%s\\t%s\\t%s\\n' "${url%\\'}" "$file" "$size" "$sum"
    done < uris.txt
} > closure"""
_CONFIG = """\
rm -f config
for file in packages/*-headers-*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar -xOf - .@config@ > config 2> /dev/null && break
done
# A base image may bring the headers along.
if [ ! -s config ] && [ -s @config@ ]; then cp @config@ config; fi
if [ ! -s config ]; then echo "no package holds @config@"; exit 1; fi"""


def source_files(distro: Distro, repositories: Iterable[Repository]) -> Mapping[str, bytes]:
    """Return apt's sources and keys of repositories, by path below ``WORK``.

    Each repository's ``id`` is the suite that it stands for.
    """
    data = distro.apt
    files: dict[str, bytes] = {}
    for number, repository in enumerate(repositories):
        lines = [
            "Types: deb",
            f"URIs: {' '.join(repository.urls)}",
            f"Suites: {repository.id}",
            f"Components: {' '.join(repository.components or (data.enabled if data else ()))}",
        ]
        keys = [f"keys/{repository.id}-{name}" for name in repository.keys]
        own = data.keyrings[0] if data else ""
        lines.append(f"Signed-By: {' '.join(f'{WORK}/{key}' for key in keys) or own}")
        if repository.is_snapshot:
            lines.append("Check-Valid-Until: no")
        if repository.origin is not None:
            lines.insert(0, f"# Origin: {repository.origin}")
        kind = "sources" if repository.origin is None else "trial"
        # Numbered, so that apt reads them in this order.
        files[f"sources/{number:02}.{kind}"] = ("\n".join(lines) + "\n").encode()
        files |= {
            f"keys/{repository.id}-{name}": content for name, content in repository.keys.items()
        }
    return files


def _word(spec: str) -> str:
    """Return a word of the script for a package, or for the first that there is of ``a|b``."""
    names = [shlex.quote(name) for name in spec.split("|")]
    return names[0] if len(names) == 1 else f'"$(first_of {" ".join(names)})"'


def _package(record: list[str], installed: set[tuple[str, str]]) -> Package:
    url, file, size, sum_ = record
    name = _FILE.fullmatch(file)
    checksum = _SHA256.fullmatch(sum_)
    try:
        place = _POOL.search(urlsplit(url).path)
    except ValueError as error:
        raise _broken("\t".join(record)) from error
    if not (name and checksum and _NUMBER.fullmatch(size)):
        raise _broken("\t".join(record))
    package, arch = unquote(name["name"]), unquote(name["arch"])
    with refusing(f"The package {file} can't be pinned."):
        pinned = ClosurePackage(
            name=package,
            version=unquote(name["version"]),
            arch=arch,
            sha256=checksum["hex"],
            size=int(size),
            repository=place["component"] if place else "archive",
            location=unquote(place["location"]) if place else file,
            action="upgrade" if (package, arch) in installed else "install",
        )
    return Package(pinned, file, (url,))


def _broken(line: str) -> ProvisionError:
    return ProvisionError(
        "apt's answer can't be read.",
        resolution="The base image may have another apt than its release: name the distro's own"
        " with --base.",
        details=f"line: {line[:200]!r}",
    )
