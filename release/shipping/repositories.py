"""Signed repositories for apt and dnf: one folder, which any web server can serve.

``apt-ftparchive``, ``createrepo_c``, ``rpmsign`` and ``gpg`` do the work. Unlike the packages, what
they write has the time of the day: a signature that is older than its key is worth nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from provision.errors import UsageError
from provision.run import LONG_LIMIT_S, find_program, run

_SUITE, _COMPONENT = "stable", "main"
_KEY, _SOURCES, _REPO = "provision.asc", "provision.sources", "provision.repo"
_ARCHITECTURES = ("amd64", "arm64")
# What dnf calls a machine, and the packages that serve every machine.
_MACHINES = ("x86_64", "aarch64")


def make(packages: Iterable[Path], folder: Path, *, key: str, url: str) -> None:
    """Write both repositories, and the files by which hosts find and trust them.

    Args:
        packages: Packages of Debian and RPM distros; other files are left out. Those of earlier
            releases may be among them: hosts can go back to them.
        folder: The folder, which is empty.
        key: The key that signs, as ``gpg --local-user`` takes it.
        url: Address of the folder, as hosts see it.

    Raises:
        UsageError: gpg has no such key.
        NotFoundError: A program is missing.
        ProvisionError: A program failed.
    """
    public = public_key(key)
    found = [*packages]
    _apt([path for path in found if path.suffix == ".deb"], folder / "apt", key)
    _rpm([path for path in found if path.suffix == ".rpm"], folder / "rpm", key)
    (folder / _KEY).write_text(public)
    (folder / _SOURCES).write_text(_sources(url, public))
    (folder / _REPO).write_text(_repo(url))


def public_key(key: str) -> str:
    """Return the key by which hosts check what a key of gpg's signs.

    Raises:
        UsageError: gpg has no such key.
    """
    public = _gpg("--armor", "--export-options", "export-minimal", "--export", key)
    if not public:
        raise UsageError(
            f"gpg knows no key '{key}'.",
            resolution="Name a key that this lists: gpg --list-secret-keys",
        )
    return public


def sign(file: Path, *, key: str) -> None:
    """Write the detached signature of a file beside it, as ``FILE.asc``."""
    target = file.with_name(f"{file.name}.asc")
    _gpg("--local-user", key, "--armor", "--detach-sign", "--output", target, file)


def _gpg(*words: str | Path) -> str:
    argv = ["gpg", "--batch", "--yes", "--digest-algo", "SHA512", *words]
    return run(argv, why="sign the release", env=_keyring()).stdout


def _keyring() -> dict[str, str]:
    return {name: os.environ[name] for name in ("GNUPGHOME",) if name in os.environ}


def _apt(packages: Iterable[Path], folder: Path, key: str) -> None:
    pool = folder / "pool"
    pool.mkdir(parents=True)
    for path in packages:
        shutil.copyfile(path, pool / path.name)
    suite = folder / "dists" / _SUITE
    for architecture in _ARCHITECTURES:
        binary = suite / _COMPONENT / f"binary-{architecture}"
        binary.mkdir(parents=True)
        # Includes the packages for every architecture.
        listed = _ftparchive(folder, "--arch", architecture, "packages", "pool")
        (binary / "Packages").write_text(listed)
        run(["xz", "--keep", binary / "Packages"], why="compress the index of packages")
    about = {
        "Origin": "provision",
        "Label": "provision",
        "Suite": _SUITE,
        "Codename": _SUITE,
        "Components": _COMPONENT,
        "Architectures": " ".join(_ARCHITECTURES),
    }
    options = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in about.items()]
    release = suite / "Release"
    # Not in the folder itself, which would then list the file that is being written.
    release.write_text(_ftparchive(folder, *options, "release", suite))
    _gpg("--local-user", key, "--clear-sign", "--output", suite / "InRelease", release)
    _gpg(
        *("--local-user", key, "--armor", "--detach-sign"),
        *("--output", suite / "Release.gpg", release),
    )


def _ftparchive(folder: Path, *words: str | Path) -> str:
    # Names in an index are relative to where it runs.
    argv = ["env", f"--chdir={folder}", "apt-ftparchive", "-q", *words]
    return run(argv, why="write an apt repository", timeout=LONG_LIMIT_S).stdout


def _rpm(packages: Iterable[Path], folder: Path, key: str) -> None:
    found = [*packages]
    for machine in _MACHINES:
        place = folder / machine
        place.mkdir(parents=True)
        for path in found:
            if path.stem.endswith((f".{machine}", ".noarch")):
                shutil.copyfile(path, place / path.name)
        if files := sorted(place.glob("*.rpm")):
            run(
                [
                    *("rpmsign", "--addsign", "--define", f"_gpg_name {key}"),
                    # Debian's rpm looks for gpg2.
                    *("--define", f"__gpg {find_program('gpg')}"),
                    *files,
                ],
                why="sign RPM packages",
                env=_keyring(),
                timeout=LONG_LIMIT_S,
            )
        run(
            ["createrepo_c", "--quiet", place],
            why="write a dnf repository",
            timeout=LONG_LIMIT_S,
        )
        sign(place / "repodata/repomd.xml", key=key)


def _sources(url: str, public: str) -> str:
    """Return apt's source, with the key in it: hosts need one file.

    Source: sources.list(5), ``Signed-By``.
    """
    block = "".join(f" {line.strip() or '.'}\n" for line in public.strip().splitlines())
    return _lines(
        {
            "Types": "deb",
            "URIs": f"{url}/apt",
            "Suites": _SUITE,
            "Components": _COMPONENT,
            "Signed-By": f"\n{block}".rstrip("\n"),
        },
        ": ",
    )


def _repo(url: str) -> str:
    """Return dnf's repository. Source: dnf.conf(5)."""
    values = {
        "name": "provision and oci-decorator",
        "baseurl": f"{url}/rpm/$basearch",
        "gpgkey": f"{url}/{_KEY}",
        "gpgcheck": "1",
        "repo_gpgcheck": "1",
    }
    return "[provision]\n" + _lines(values, "=")


def _lines(values: Mapping[str, str], between: str) -> str:
    return "".join(f"{name}{between}{value}\n" for name, value in values.items())
