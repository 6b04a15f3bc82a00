"""Made-up drivers as their upstreams publish them: source tarballs, and recipes that name them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit.fileserver import served

# What all recipes begin with.
_RECIPE = """\
schema = 1
name = "{name}"
summary = "A driver that exists only in tests"
vendor = "Example"
homepage = "https://example.org"

[source]
kind = "{kind}"
{releases}
[[kernels]]
works = ">=6.1"

[flavours.only]
licences = ["GPL-2.0-only"]
[flavours.only.build]
"""
_RELEASE = """\
[[source.releases]]
version = "{version}"
url = "{url}/{file}"
sha256 = "{sha256}"
"""

_DEMO = """\
schema = 1
name = "demo"
summary = "A driver for tests"
vendor = "No one"
homepage = "https://example.org"

{source}
[[kernels]]
{kernels}

[flavours.open]
licences = ["GPL-2.0-only"]
{flavour}
[flavours.open.build]
command = ["make"]
modules = ["demo.ko"]
{build}
[container]
activation_flag = "OCI_DEMO"
driver_feature = ["compute"]
[container.features.compute]
{more}"""


def demo_recipe(
    source: str,
    *,
    kernels: str = 'works = ">=6.1"',
    flavour: str = "",
    build: str = "",
    more: str = "",
) -> str:
    """The driver.toml of a driver `demo` from this source; with more keys, and more tables."""
    return _DEMO.format(source=source, kernels=kernels, flavour=flavour, build=build, more=more)


def write_tarball(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """Pack texts as `folder/name.tar.gz`, each as `name/FILE`, executable; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(f"{name}/{file}")
            info.size = len(content)
            info.mode = 0o755
            archive.addfile(info, io.BytesIO(content))
    return path


def releases_of(tarballs: Mapping[str, Path], url: str) -> str:
    """The part of a recipe that names the tarballs of versions, which are served at `url`."""
    return "\n".join(
        _RELEASE.format(
            version=version,
            url=url,
            file=path.name,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for version, path in tarballs.items()
    )


@contextmanager
def published(
    folder: Path,
    name: str,
    versions: Mapping[str, Mapping[str, str]],
    build: str,
    host: str = "127.0.0.1",
) -> Iterator[Path]:
    """A catalogue below `folder` with a driver, the texts of whose versions are served meanwhile.

    `build` begins with the keys of its build; `host` is this machine's loopback address, as the one
    that downloads has to name it.
    """
    tarballs = {
        version: write_tarball(folder / "files", f"{name}-{version}", files)
        for version, files in versions.items()
    }
    with served(folder / "files") as url:
        releases = releases_of(tarballs, url.replace("127.0.0.1", host))
        write_recipe(folder / "drivers", name, releases, build)
        yield folder / "drivers"


def write_recipe(
    catalogue: Path, name: str, releases: str, rest: str, *, kind: str = "archive"
) -> Path:
    """Write a driver's recipe into a catalogue; `rest` begins with the keys of its build."""
    recipe = catalogue / name / "driver.toml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(_RECIPE.format(name=name, kind=kind, releases=releases) + rest)
    return recipe
