"""The family of zypper: openSUSE Leap and SUSE Linux Enterprise."""

from __future__ import annotations

import re
import shlex

from provision.distros import rpm
from provision.distros.distro import Distro
from provision.distros.family import AUTHORITIES, WORK, Repository, Script, SolveRequest, Spec
from provision.host.kernels import kernel_order

# zypper has no option for authorities: it trusts those of the image, and those that are added so.
# Source: update-ca-certificates(8) of SUSE.
_TRUST = f"""\
if [ -s {AUTHORITIES} ] && [ -d /etc/pki/trust/anchors ] && [ ! -e trusted ]; then
    cp {AUTHORITIES} /etc/pki/trust/anchors/provision.trust
    update-ca-certificates > trusted 2>&1 || cat trusted
fi"""
# <solvable status="…" name="kernel-default-devel" kind="package" edition="6.4.0-150600.23.17.1" …/>
_SOLVABLE = re.compile(r"<solvable\b[^>]*>")
_ATTRIBUTE = re.compile(r'\b(name|edition)="([^"]*)"')
_DEVEL = re.compile(r"kernel-(?P<flavour>[a-z0-9_]+)-devel")
# The rebuild count, which the kernel's release lacks: 150600.23.17.1.
_REBUILD = re.compile(r"(?<=\.)[0-9]+$")


class Zypper(rpm.RpmFamily):
    """The family of zypper; methods as ``Family`` says."""

    def solve(
        self, request: SolveRequest, specs: tuple[Spec, ...], config: str | None = None
    ) -> Script:
        """Return what downloads the closure of packages."""
        packages = " ".join(shlex.quote(spec.text) for spec in specs)
        repositories, keys = request.repositories, rpm.key_patterns(request)
        origins = rpm.bases(repositories) if repositories else _URLS
        text = "\n".join(
            [
                _prelude(repositories),
                _once(f"{rpm.trusted_keys(keys)}run refresh"),
                _DOWNLOAD.replace("@specs@", packages),
                # While the signatures are checked: both take a processor each.
                rpm.sums(),
                f"{{\n{origins}}} &\nlocating=$!",
                rpm.key_check(keys),
                *([rpm.config_copy(config)] if config else []),
                'wait "$locating"',
                rpm.listing(),
            ]
        )
        return Script(text, rpm.repository_files(repositories))

    def kernels(self, request: SolveRequest) -> Script:
        """Return what lists the kernels whose headers the repositories have."""
        repositories, keys = request.repositories, rpm.trusted_keys(rpm.key_patterns(request))
        query = "run --xmlout search --details --type package 'kernel-*-devel' > closure"
        text = f"{_prelude(repositories)}\n{keys}run refresh\n{query}"
        return Script(text, rpm.repository_files(repositories))

    def parse_kernels(self, _distro: Distro, output: bytes) -> tuple[str, ...]:
        """Return the kernels' releases, the newest first."""
        found = set()
        for element in _SOLVABLE.findall(output.decode(errors="replace")):
            values = dict(_ATTRIBUTE.findall(element))
            match = _DEVEL.fullmatch(values.get("name", ""))
            if match and values.get("edition"):
                version, _, release = values["edition"].rpartition("-")
                bare = _REBUILD.sub("", release).rstrip(".")
                found.add(f"{version}-{bare}-{match['flavour']}")
        return tuple(sorted(found, key=kernel_order, reverse=True))


def _prelude(repositories: tuple[Repository, ...]) -> str:
    options = ["--non-interactive", f"--pkg-cache-dir={WORK}/cache"]
    if repositories:
        options += [f"--reposd-dir={WORK}/repos", f"--cache-dir={WORK}/zypp"]
        options += [f"--pkg-cache-dir={WORK}/cache"]
    words = " ".join(dict.fromkeys(options))
    return f"""\
set -eu
cd {WORK}
{_TRUST}
run() {{ zypper {words} "$@"; }}
mkdir -p /etc/zypp
run addlock {" ".join(rpm.BUILDERS)} > locks.txt"""


def _once(text: str) -> str:
    """Return a part of a script that only the first round runs: both have to see one state."""
    return f"if [ ! -e refreshed ]; then\n{text}\n: > refreshed\nfi"


# zypper's folder of packages has the layout of the repositories, below their aliases. It checks the
# signatures of indexes, and asks nothing of packages: theirs are checked afterwards, one by one.
_DOWNLOAD = r"""
rm -rf packages origins.txt && mkdir packages && : > origins.txt
run --no-gpg-checks --no-refresh install --download-only --no-recommends \
    --auto-agree-with-licenses --capability @specs@
if [ -d cache ]; then
    (cd cache && find . -name '*.rpm' | sort) > cached.txt
    find cache -name '*.rpm' -exec ln -t packages {} +
    sed 's|^[.]/\([^/]*\)/\(.*\)$|located\t\1\t\2|' cached.txt >> origins.txt
fi
"""
_URLS = r"""
run --xmlout repos --uri | tr '\n' ' ' | sed 's|<repo |\n<repo |g' \
    | sed -n 's|^<repo alias="\([^"]*\)".*<url>\([^<]*\)</url>.*$|base\t\1\t\2|p' \
    | sed -e 's|&lt;|<|g' -e 's|&gt;|>|g' -e 's|&quot;|"|g' -e 's|&apos;|\x27|g' -e 's|&amp;|\&|g' \
    >> origins.txt \
    || echo 'the addresses of the packages are not known'
"""
