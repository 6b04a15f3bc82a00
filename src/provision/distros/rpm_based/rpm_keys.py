"""The keys that packages and indexes of RPM's families have to be signed with: parts of scripts.

What counts are the distro's keys, or those that provision.toml names: never keys that a base image
or a repository brought along.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from provision.distros.distro import Distro, Release
from provision.distros.family import WORK, Repository

# Exit statuses of the scripts' own.
BAD_SIGNATURE = 41
NO_KEYS = 42
_DB = f"{WORK}/keydb"
# The version of a key in RPM's database: its id's last eight digits, since RPM 6 all of its
# fingerprint. `rpmkeys --list` begins its lines with either.
_KEY = re.compile(r"^(?:gpg-pubkey-)?([0-9A-Fa-f]{8,64})(?![0-9A-Za-z])")
_SHORT = 8


def key_patterns(
    distro: Distro, release: Release, repositories: tuple[Repository, ...]
) -> tuple[str, ...]:
    """Return where the keys lie that packages must be signed with, as patterns in the container."""
    own = release.keys or distro.keys
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
if [ -z "$imported" ]; then echo "no key of the distro: {words}"; exit {NO_KEYS}; fi
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
        *) echo "no name of a package: $file"; exit {BAD_SIGNATURE} ;;
    esac
done
check() {{
    rpmkeys --dbpath {_DB} --define '_pkgverify_level all' --verbose --checksig "$@" 2>&1
}}
wrong() {{
    for file in packages/*.rpm; do
        if ! check "$file" > checked || ! grep -qi 'signature.*: OK$' checked; then cat checked; fi
    done
    exit {BAD_SIGNATURE}
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
