"""The family of dnf: RHEL and its rebuilds, Oracle Linux, Fedora with its archive, Amazon Linux.

koji keeps every build: ``NAME/VERSION/RELEASE/data/signed/KEY/ARCH/FILE`` is the copy that a key of
the distro has signed, named by the last eight digits of the key's id. The copy beside ``data`` is
not signed, and is not used.

Source: koji's pathinfo (koji/__init__.py, ``build``, ``signed``).

One script serves dnf 4 and dnf 5: both keep what they download below ``cachedir``, in folders named
after their repositories.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from provision.distros import rpm
from provision.distros.distro import Distro, Vault
from provision.distros.family import AUTHORITIES, WORK, Script, SolveRequest, Spec
from provision.explain import fill
from provision.host.kernels import kernel_order

# 6.17.1-300.fc43.x86_64; kernels of variants (6.17.1-300.fc43.x86_64+debug) have other packages.
_KERNEL = re.compile(r"(?P<version>[^-/]+)-(?P<release>[^-/]+)\.(?P<arch>[a-z0-9_]+)")
_CAPABILITY = re.compile(r"^kernel(?:-uek)?-devel-uname-r = (?P<kernel>\S+)$")
# dnf 4 copies exactly the transaction's packages into a folder; dnf 5 has no such option, and its
# cache holds nothing else. Both rounds have the headers, the largest of all packages.
_DOWNLOAD = """\
rm -rf kept && mkdir kept
if [ -s of-headers ] && [ -e "$(cat of-headers)" ]; then mv "$(cat of-headers)" kept/; fi
rm -rf packages origins.txt && mkdir packages && : > origins.txt
for file in kept/*.rpm; do [ ! -e "$file" ] || mv "$file" packages/; done
# Asking it costs a start.
case $(readlink -f "$(command -v dnf)") in
    */dnf-3) edition=4. ;;
    */dnf5) edition=5. ;;
    *) edition=$(dnf --version 2> /dev/null | head -n 1) ;;
esac
case $edition in
    [234].*) run --assumeyes install --downloadonly --destdir=packages @specs@ ;;
    *) run --assumeyes install --downloadonly @specs@
       find cache -name '*.rpm' -exec cp {} packages/ ';' ;;
esac
# No repository has these, so dnf copies none of them.
if [ -d @archived@ ]; then
    cp @archived@/*.rpm packages/
    cat @archived@/origins >> origins.txt
fi
"""
# The index, still in the cache, says which repository has a package and where in there.
_ORIGINS = r"""
ls packages > files.txt
tab=$(printf '\t')
query() {
    [ -s files.txt ] || return 0
    sed 's/[.]rpm$//' files.txt | xargs dnf --quiet --cacheonly @options@ repoquery "$@"
}
locate() {
    # Each query costs a start of dnf, so this one asks for the package's name as well.
    query --qf 'located\t%{repoid}\t%{location}\t%{name}-%{version}-%{release}.%{arch}.rpm\n' \
        > located.txt || echo 'where the packages are from is not known'
    # Newer ones of dnf 4 (seen with 4.23) print the tag itself: they know name and address.
    if grep -qF '%{location}' located.txt; then
        query --location | sed 's|^|url\t|' >> origins.txt
    fi
    sed -e "s|$tab%{location}$tab|$tab|" -e t -e "s|$tab[^$tab]*$||" located.txt >> origins.txt
}
locate &
locating=$!
"""
# For repositories that name no authority of their own: the machine's and the image's.
_TRUST = f"""\
authorities=
if [ -s {AUTHORITIES} ]; then
    if [ ! -e trusted ] && [ -s /etc/pki/tls/certs/ca-bundle.crt ]; then
        cat /etc/pki/tls/certs/ca-bundle.crt >> {AUTHORITIES}
    fi
    : > trusted
    authorities=--setopt=sslcacert={WORK}/{AUTHORITIES}
fi"""
# Where mirrors change from run to run, dnf says which one it would take.
_URLS = r"""
query --location | sed 's|^|url\t|' >> origins.txt \
    || echo 'the addresses of the packages are not known'
"""


def archive_of_headers(distro: Distro) -> Vault | None:
    """Return the archive of signed packages of headers that a distro has, or None."""
    return next((archive for archive in distro.archives if archive.headers is not None), None)


def keys_script(request: SolveRequest) -> Script:
    """Return what lists the keys of a distro in its base image, for ``header_addresses``."""
    text = f"set -eu\ncd {WORK}\n{rpm.key_listing(rpm.own_keys(request))}"
    return Script(text)


def header_addresses(
    archive: Vault, kernel: str, keys: Iterable[str], *, mirror: str | None = None
) -> tuple[str, ...]:
    """Return where the package with a kernel's headers may be, by the key that signed it."""
    match = _KERNEL.fullmatch(kernel)
    if match is None or archive.headers is None:
        return ()
    place = (mirror or archive.url).rstrip("/")
    values = match.groupdict()
    return tuple(f"{place}/{fill(archive.headers, {**values, 'key': key})}" for key in keys)


def archived_files(url: str, content: bytes) -> tuple[Spec, Mapping[str, bytes]]:
    """Return what to ask a solver for instead of a package that no repository has.

    Returns:
        The spec, and files that belong to the script, by path below ``WORK``.
    """
    folder, _, name = urlsplit(url).path.rpartition("/")
    base = url[: len(url) - len(urlsplit(url).path)]
    origin = f"located\tarchive\t{folder.lstrip('/')}/{name}\nbase\tarchive\t{base}\n"
    spec = Spec(f"{WORK}/{rpm.ARCHIVED}/{name}")
    return spec, {
        f"{rpm.ARCHIVED}/{name}": content,
        f"{rpm.ARCHIVED}/origins": origin.encode(),
    }


class Dnf(rpm.RpmFamily):
    """The family of dnf; methods as ``Family`` says."""

    def solve(
        self, request: SolveRequest, specs: tuple[Spec, ...], config: str | None = None
    ) -> Script:
        """Return what downloads the closure of packages."""
        packages = " ".join(shlex.quote(spec.text) for spec in specs)
        text = "\n".join(
            [
                _prelude(request),
                _DOWNLOAD.replace("@specs@", packages).replace("@archived@", rpm.ARCHIVED),
                # While the signatures are checked: both take a processor each.
                rpm.sums(),
                _ORIGINS.replace("@options@", _words(request)),
                rpm.key_check(_keys(request, specs)),
                *([rpm.config_copy(config)] if config else []),
                'wait "$locating"',
                rpm.bases(request.repositories) if request.repositories else _URLS,
                rpm.listing(),
            ]
        )
        return Script(text, rpm.repository_files(request.repositories))

    def kernels(self, request: SolveRequest) -> Script:
        """Return what lists the kernels whose headers the repositories have."""
        query = (
            "run --quiet repoquery --provides --whatprovides kernel-devel-uname-r"
            " --whatprovides kernel-uek-devel-uname-r"
        )
        text = f"{_prelude(request)}\n{query} > closure"
        return Script(text, rpm.repository_files(request.repositories))

    def parse_kernels(self, _distro: Distro, output: bytes) -> tuple[str, ...]:
        """Return the kernels' releases, the newest first."""
        found = {
            match["kernel"]
            for line in output.decode(errors="replace").splitlines()
            if (match := _CAPABILITY.match(line.strip()))
        }
        return tuple(sorted(found, key=kernel_order, reverse=True))


def _keys(request: SolveRequest, specs: tuple[Spec, ...]) -> tuple[str, ...]:
    """Return where the keys of packages lie; what the distro's archive has, it has signed."""
    named = rpm.key_patterns(request)
    is_archived = any(spec.text.startswith(f"{WORK}/{rpm.ARCHIVED}/") for spec in specs)
    own = rpm.own_keys(request) if is_archived else ()
    return tuple(dict.fromkeys((*named, *own)))


def _words(request: SolveRequest) -> str:
    options = [
        f"--setopt=cachedir={WORK}/cache",
        # The same setting of dnf 5 for root; dnf 4 says in a line that it has none.
        f"--setopt=system_cachedir={WORK}/cache",
        "--setopt=keepcache=True",
        "--setopt=install_weak_deps=False",
        *(f"--exclude={name}" for name in rpm.BUILDERS),
        *request.distro.options,
    ]
    if request.repositories:
        options += [f"--setopt=reposdir={WORK}/repos"]
    return " ".join(shlex.quote(option) for option in options)


def _prelude(request: SolveRequest) -> str:
    return f"""\
set -eu
cd {WORK}
{_TRUST}
run() {{ dnf {_words(request)} $authorities "$@"; }}"""
