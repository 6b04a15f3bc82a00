"""The kind ``runfile``: NVIDIA's self-extracting files, by address and checksum.

``provision.sources.repack`` takes them apart.
"""

from __future__ import annotations

from provision.catalogue import RunfileRelease, RunfileReleases, Variant
from provision.distros.debian import ArchiveIndex
from provision.documents import refusing
from provision.errors import NotFoundError
from provision.pin import RunfileSource, Source
from provision.sources.kind import Market, Pinned, newest_first

# The architectures that NVIDIA publishes files for.
_ARCHITECTURES = ("x86_64", "aarch64")
_Listed = Variant[RunfileReleases]


class Runfile:
    """Releases that a recipe lists, or that its addresses can be filled in for."""

    @property
    def tools(self) -> tuple[str, ...]:
        """None: the files are taken apart before a build."""
        return ()

    def versions(self, variant: _Listed, _index: ArchiveIndex | None) -> list[str]:
        """Return the listed versions."""
        return newest_first(release.version for release in variant.source.releases)

    def components(self, _source: RunfileReleases) -> tuple[str, ...]:
        """Return no components: the files are in no distro's archive."""
        return ()

    def absence(self, variant: _Listed, _index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions."""
        return (
            f"the recipe lists no release for the source '{variant.label}'; ask for a version by"
            " name (--version)"
        )

    def pin(self, driver: str, variant: _Listed, version: str, market: Market) -> Pinned:
        """Return the file of a version.

        Raises:
            NotFoundError: It has no file for the machine's architecture.
            ProvisionError: The vendor's checksum is not available, or has changed.
        """
        source, architecture = variant.source, market.architecture
        if architecture not in _ARCHITECTURES:
            raise NotFoundError(
                f"There is no .run of '{driver}' {version} for {architecture}.",
                resolution=f"There are files for {', '.join(_ARCHITECTURES)}.",
            )
        release = _release(source, version, architecture)
        filled = {"version": version, "arch": architecture}
        url = _filled(release.url or source.url or "", filled)
        sha256 = release.sha256
        if sha256 is not None and release.architecture != architecture:
            raise NotFoundError(
                f"The recipe of '{driver}' has {version} for {release.architecture} only, and this"
                f" is {architecture}.",
                resolution="Add a release with that architecture's sha256 to its driver.toml.",
            )
        if sha256 is None:
            sums = _filled(release.checksums or source.checksums or "", filled)
            sha256 = market.published_sum(url, sums)
        with refusing(f"The file of '{driver}' {version} can't be pinned."):
            pinned = RunfileSource.model_validate(
                {
                    "url": url,
                    "sha256": sha256,
                    "version": version,
                    "architecture": architecture,
                    "leave_out": source.leave_out,
                }
            )
        return Pinned((pinned,))

    def is_user_space(self, _variant: _Listed, _source: Source) -> bool:
        """Return False: only the modules' source is unpacked; user space is a layer."""
        return False


def _release(source: RunfileReleases, version: str, architecture: str) -> RunfileRelease:
    """Return the recipe's release of a version, preferably for this architecture."""
    same = [release for release in source.releases if release.version == version]
    fitting = [release for release in same if release.architecture == architecture]
    return (fitting or same or [RunfileRelease(version=version)])[0]


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
