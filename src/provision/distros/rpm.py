"""What dnf and zypper have in common: RPM's files and words.

A script ends in a listing (``closure``), one record a line, its words separated by tabs:

* ``installed NAME ARCH EPOCH VERSION RELEASE``: a package of the base image.
* ``package NAME EPOCH VERSION RELEASE ARCH SIZE SHA256 FILE``: a downloaded one.
* ``located REPOSITORY LOCATION``: where one came from; the file's name is the location's end, or
  all that is known of it.
* ``url URL``: an address of one.
* ``base REPOSITORY URL``: an address of a repository.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from provision.distros.family import (
    WORK,
    Family,
    Package,
    Repository,
    SolveRequest,
    SolverFailure,
    records,
)
from provision.documents import refusing
from provision.errors import ProvisionError
from provision.explain import fill
from provision.pin import ClosurePackage

# Where packages lie that no repository has: they are asked for by their paths.
ARCHIVED = "archived"
# Their hooks build modules whenever a package brings headers or a source. Fedora has both.
BUILDERS = ("dkms", "akmods")
_FIELDS = {"installed": 6, "package": 9, "located": 3, "url": 2, "base": 3}
_NUMBER = re.compile(r"[0-9]{1,15}")
# The minor release that a kernel of the RHEL family is from: 5.14.0-427.13.1.el9_4.x86_64.
_MINOR = re.compile(r"\.el([0-9]+)_([0-9]+)\b")


def sums() -> str:
    """Return the part of a script that begins to hash and describe packages, for ``listing``."""
    return r"""
(
    : > headers.txt
    set -- packages/*.rpm
    [ -e "$1" ] || exit 0
    rpm -qp --nosignature "$@" > headers.txt \
        --qf 'package\t%{NAME}\t%{EPOCH}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\n'
    stat --format %s "$@" > sizes.txt
    sha256sum "$@" | sed 's|  packages/|\t|' > sums.txt
) &
hashing=$!
"""


def listing() -> str:
    """Return the part of a script that describes the downloaded packages; after ``sums``."""
    return r"""
wait "$hashing"
{
    rpm -qa --qf 'installed\t%{NAME}\t%{ARCH}\t%{EPOCH}\t%{VERSION}\t%{RELEASE}\n'
    if [ -s headers.txt ]; then paste headers.txt sizes.txt sums.txt; fi
    # From a mirror's index, which no one signs: a line's end in it makes no package.
    grep -E "^(located|url|base)$(printf '\t')" origins.txt || :
} > closure
"""


def config_copy(config: str) -> str:
    """Return the part of a script that copies a file out of the downloaded packages.

    Whichever of the three ways the base image has, the fastest first: only the last one is
    everywhere.
    """
    path = shlex.quote(config)
    return f"""\
rm -rf config unpacked
# Each look into a package costs a start of rpm: those that are called like a kernel come first.
for file in packages/kernel*.rpm packages/*.rpm; do
    [ -e "$file" ] && rpm -qpl --nosignature "$file" | grep -qxF {path} || continue
    echo "$file" > of-headers
    if command -v rpm2archive > /dev/null && command -v tar > /dev/null; then
        # tar stops at the file, which is among the first; cpio would read all of the headers.
        rpm2archive - < "$file" 2> archive.log | tar -xzO --occurrence=1 -f - .{path} > config \\
            || cat archive.log
    elif command -v rpm2cpio > /dev/null && command -v cpio > /dev/null; then
        rpm2cpio "$file" | cpio --quiet -i --to-stdout .{path} > config
    else
        mkdir unpacked
        rpm --install --root {WORK}/unpacked --nodeps --noscripts --notriggers --nosignature "$file"
        cp unpacked{path} config
        rm -rf unpacked
    fi
    break
done
# A base image may bring the headers along.
if [ ! -s config ] && [ -s {path} ]; then cp {path} config; fi
if [ ! -s config ]; then echo "no package holds {config}"; exit 1; fi
"""


def repository_files(
    repositories: tuple[Repository, ...], folder: str = WORK
) -> Mapping[str, bytes]:
    """Return the ``.repo`` files and keys of repositories, by path below a folder.

    dnf and zypper read the same format.

    Args:
        folder: Where these files lie for the program that reads them.
    """
    files: dict[str, bytes] = {}
    for repository in repositories:
        lines = [f"[{repository.id}]", f"name={repository.id}", "enabled=1"]
        lines.append("baseurl=" + "\n        ".join(repository.urls))
        # One that can't be read is an error, and not one repository less.
        lines.append("skip_if_unavailable=0")
        keys = [f"keys/{repository.id}-{name}" for name in repository.keys]
        signed = repository.is_signed
        lines += [f"gpgcheck={int(bool(keys) or signed)}", f"repo_gpgcheck={int(signed)}"]
        if keys:
            lines.append("gpgkey=" + "\n       ".join(f"file://{folder}/{key}" for key in keys))
        files[f"repos/{repository.id}.repo"] = ("\n".join(lines) + "\n").encode()
        files |= {
            f"keys/{repository.id}-{name}": content for name, content in repository.keys.items()
        }
    return files


def bases(repositories: tuple[Repository, ...]) -> str:
    """Return the part of a script that says where repositories are."""
    words = " ".join(
        shlex.quote(f"base\t{repository.id}\t{url}")
        for repository in repositories
        for url in repository.urls
    )
    return f"printf '%s\\n' {words} >> origins.txt\n"


def _version(epoch: str, version: str, release: str) -> str:
    edition = f"{version}-{release}"
    return edition if epoch in {"(none)", "0"} else f"{epoch}:{edition}"


class _Origins(NamedTuple):
    """What a listing says besides the packages; places and addresses by the file's name."""

    installed: frozenset[str]
    places: Mapping[str, tuple[str, str]]
    urls: Mapping[str, list[str]]
    bases: Mapping[str, list[str]]

    @classmethod
    def of(cls, listed: Mapping[str, list[list[str]]]) -> Self:
        urls: dict[str, list[str]] = {}
        for (url,) in listed["url"]:
            urls.setdefault(_file_name(url), []).append(url)
        bases: dict[str, list[str]] = {}
        for repository, url in listed["base"]:
            bases.setdefault(repository, []).append(url.rstrip("/"))
        return cls(
            installed=frozenset(f"{words[0]}.{words[1]}" for words in listed["installed"]),
            places={
                file: (name, _location(place, urls.get(file, ()), bases.get(name, ())))
                for name, place in listed["located"]
                for file in [_file_name(place)]
            },
            urls=urls,
            bases=bases,
        )

    def addresses(self, file: str) -> tuple[str, ...]:
        """Return where a file is: under the addresses of its repository, and its own."""
        repository, location = self.places.get(file, ("", file))
        known = [f"{base}/{location}" for base in self.bases.get(repository, [])]
        return tuple(dict.fromkeys([*known, *self.urls.get(file, [])]))


def _location(place: str, urls: Iterable[str], bases: Iterable[str]) -> str:
    """Return where a file is in its repository; without a folder, that of its address is taken."""
    if "/" in place:
        return place
    starts = [f"{base}/" for base in bases]
    below = (url.removeprefix(start) for url in urls for start in starts if url.startswith(start))
    return next(below, place)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _package(words: list[str], origins: _Origins) -> Package:
    name, epoch, version, release, arch, size, sha256, file = words
    if not _NUMBER.fullmatch(size):
        raise _no_listing("\t".join(["package", *words]))
    repository, location = origins.places.get(file, ("unknown", file))
    # Kernels and their headers are installed beside those of other versions.
    beside = name.startswith("kernel")
    with refusing(f"The package '{file}' can't be pinned."):
        pinned = ClosurePackage(
            name=name,
            version=_version(epoch, version, release),
            arch=arch,
            sha256=sha256,
            size=int(size),
            repository=repository,
            location=location.removeprefix("./"),
            action="upgrade" if f"{name}.{arch}" in origins.installed and not beside else "install",
        )
    return Package(pinned=pinned, file=file, urls=origins.addresses(file))


def _no_listing(line: str) -> ProvisionError:
    return ProvisionError(
        "The solving container wrote a list of packages that can't be understood.",
        resolution="This is a defect: please report it with the line below.",
        details=line,
    )


_DB = f"{WORK}/keydb"
# The version of a key in RPM's database: its id's last eight digits, since RPM 6 all of its
# fingerprint. `rpmkeys --list` begins its lines with either.
_KEY = re.compile(r"^(?:gpg-pubkey-)?([0-9A-Fa-f]{8,64})(?![0-9A-Za-z])")
_SHORT = 8


def own_keys(request: SolveRequest) -> tuple[str, ...]:
    """Return where a distro's own keys lie, as patterns in the container."""
    return request.release.keys or request.distro.keys


def key_patterns(request: SolveRequest) -> tuple[str, ...]:
    """Return where the keys lie that packages must be signed with, as patterns in the container."""
    own, repositories = own_keys(request), request.repositories
    if not repositories:
        return own
    given = any(repository.keys for repository in repositories)
    foreign = any(not repository.keys for repository in repositories)
    return ((f"{WORK}/keys/*",) if given else ()) + (own if foreign else ())


def key_import(patterns: Iterable[str]) -> str:
    """Return the part of a script that reads keys into a database of their own.

    Each by itself: one that is damaged, or of a kind that this rpm does not know, takes no other
    with it.
    """
    words = " ".join(patterns)
    return f"""\
# Once for both rounds, as long as the same keys count.
imported='' seen=''
if [ "$(cat {_DB}.of 2> /dev/null)" = {shlex.quote(words)} ]; then imported=yes
else
rm -rf {_DB} && mkdir {_DB}
for key in {words}; do
    [ -f "$key" ] || continue
    # Distros have the same key under many names.
    file=$(readlink -f "$key")
    case " $seen " in *" $file "*) continue ;; esac
    seen="$seen $file"
    if rpmkeys --dbpath {_DB} --import "$key"; then
        imported=yes
    else
        echo "a key that rpm can't read, and that does not count: $key"
    fi
done
fi
if [ -z "$imported" ]; then echo "no key of the distro: {words}"; exit 1; fi
printf %s {shlex.quote(words)} > {_DB}.of
"""


def key_check(patterns: Iterable[str]) -> str:
    """Return the part of a script that checks the signature of every downloaded package."""
    return f"""\
{key_import(patterns)}\
# Names come from a mirror's index, and the loop below passes over those that begin with a dot.
for file in packages/* packages/.[!.]* packages/..?*; do
    [ -e "$file" ] || continue
    case ${{file#packages/}} in
        [A-Za-z0-9]*.rpm) ;;
        *) echo "no name of a package: $file"; exit 1 ;;
    esac
done
check() {{
    rpmkeys --dbpath {_DB} --define '_pkgverify_level all' --verbose --checksig "$@" 2>&1
}}
wrong() {{
    for file in packages/*.rpm; do
        if ! check "$file" > checked || ! grep -qi 'signature.*: OK$' checked; then cat checked; fi
    done
    echo 'A package is not signed with a trusted key.'
    exit 1
}}
set -- packages/*.rpm
if [ -e "$1" ]; then
    # All at once: each start of rpm reads the keys again. Of each package there is a line with its
    # name, and one with a good signature below it.
    check "$@" > checked || wrong
    count=0 signed=yes
    while read -r line; do
        case $line in
            packages/*.rpm:)
                [ "$signed" = yes ] || wrong
                count=$((count + 1)) signed=no ;;
            *[Ss]ignature*': OK') signed=yes ;;
        esac
    done < checked
    [ "$signed" = yes ] || wrong
    [ "$count" -eq $# ] || wrong
fi
"""


def trusted_keys(patterns: Iterable[str]) -> str:
    """Return the part of a script that has zypper believe the signatures of these keys only.

    It asks RPM's own database, which in a base image has the keys of its maker.
    """
    words = " ".join(patterns)
    return f"""\
{key_import(patterns)}\
# Mostly it has these and no others: each change of it would cost a start of rpm.
described() {{
    rpm "$@" -qa 'gpg-pubkey*' --qf '%{{VERSION}}-%{{RELEASE}}\n%{{DESCRIPTION}}\n' | sort
}}
wanted=$(described --dbpath {_DB})
case $wanted in *'BEGIN PGP PUBLIC KEY'*) known=$(described) ;; *) known='' ;; esac
if [ "$known" != "$wanted" ] || [ -z "$known" ]; then
    for key in $(rpm -qa 'gpg-pubkey*'); do rpm --erase --allmatches "$key"; done
    for key in {words}; do
        if [ -f "$key" ]; then rpm --import "$key" || echo "a key that rpm can't read: $key"; fi
    done
fi
"""


def key_listing(patterns: Iterable[str]) -> str:
    """Return the part of a script that says which keys there are, for ``parse_keys``."""
    return f"""\
{key_import(patterns)}\
{{
    rpm --dbpath {_DB} -qa 'gpg-pubkey*' --qf '%{{VERSION}}\\n'
    rpmkeys --dbpath {_DB} --list 2> /dev/null || :
}} > closure
"""


def parse_keys(output: bytes) -> tuple[str, ...]:
    """Return the last eight digits of the ids of the keys that a script listed, each once."""
    found = map(_KEY.match, output.decode(errors="replace").splitlines())
    return tuple(dict.fromkeys(match[1][-_SHORT:].lower() for match in found if match))


class RpmFamily(Family):
    """What dnf and zypper have in common: listings, and archives of superseded packages."""

    def parse(self, output: bytes) -> tuple[Package, ...]:
        """Return the closure that a script wrote, in the order of names."""
        listed = records(output, _FIELDS, _no_listing)
        origins = _Origins.of(listed)
        found = [_package(words, origins) for words in listed["package"]]
        return tuple(sorted(found, key=lambda p: (p.pinned.name, p.pinned.arch, p.pinned.version)))

    def installed(self, output: bytes) -> Mapping[str, str]:
        """Return the versions of the base image's own packages by name."""
        installed = records(output, _FIELDS, _no_listing)["installed"]
        return {
            name: _version(epoch, version, release)
            for name, _arch, epoch, version, release in installed
        }

    def superseded(self, failure: SolverFailure) -> str:
        """Return how to get at headers that the repositories have dropped."""
        distro, release = failure.request.distro, failure.request.release
        minor = _MINOR.search(failure.request.kernel)
        own = failure.full_version or release.version
        full = f"{minor[1]}.{minor[2]}" if minor else own
        major = _NUMBER.match(full)
        values = {
            "version": full,
            "major": major[0] if major else full,
            "arch": failure.request.architecture,
        }
        parts = []
        for archive in distro.archives:
            tables = ", ".join(
                f'{{ id = "vault{number}", urls = ["{fill(url, values)}"] }}'
                for number, url in enumerate(archive.repositories, start=1)
            )
            setting = (
                " In /etc/provision/provision.toml:"
                f" [distros.{distro.id}] repositories = [{tables}]."
                if tables
                else ""
            )
            hint = f" {archive.hint}" if archive.hint else ""
            parts.append(f"{archive.name}, {archive.url}.{hint}{setting}")
        if repository := failure.request.query.repository:
            parts.insert(0, f"They are in {repository}: enable it in the base image, or name it.")
        return (
            "Boot a kernel that is packaged ('provision drivers kernels DRIVER --distro"
            f" {distro.id}:{release.version}' lists them), or use one that is kept: "
        ) + (" ".join(parts) or "name a mirror that still has it in provision.toml.")
