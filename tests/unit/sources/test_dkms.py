"""Sources with a dkms.conf: what the recipe says."""

import pytest

from provision.catalogue import Recipe
from provision.errors import ConfigError
from provision.pin import ArchiveSource, GitSource
from provision.sources.candidates import (
    SourceContext,
    candidates,
    components_of,
    pin_sources,
    scripts_of,
    tools_of,
)
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe

DEBIAN = ("debian", "debian:12", "apt")
SHA256 = "0" * 64
COMMIT = "1" * 40
FLAVOUR = {"dkms": {"licences": ["MIT"]}}
DEPENDS = "dkms (>= 3), perl:any | none, libc6-dev | libc-dev, kmod, more-dkms"
PACKAGES = {
    ("bookworm", "main"): "\n".join(
        [
            stanza("tool-dkms", "2.1-3", depends=DEPENDS),
            stanza("tool", "2.1-3"),
            *(stanza(name, "5-1") for name in ("dkms", "kmod", "libc6-dev", "more-dkms", "perl")),
        ]
    )
}


def dkms(**source: object) -> Recipe:
    return recipe(
        source={"kind": "dkms", **source}, flavours=FLAVOUR, kernels=[], patches=[], files=[]
    )


def test_a_package_with_a_dkms_conf_is_a_whole_source() -> None:
    index = archive_of(PACKAGES)
    context = SourceContext("debian 12", DEBIAN, index)
    of = dkms(package="tool-dkms", components=["contrib", "main"], userspace=["tool"])
    [offer] = candidates(of, "dkms", context)
    pinned = pin_sources("made-up", offer, context)
    assert offer.version == "2.1"
    assert [source.text for source in pinned.sources] == ["tool-dkms 2.1-3", "tool 2.1-3"]
    assert components_of(of, DEBIAN) == ("contrib",)
    assert tools_of(offer.variant) == ()
    # Of what the package depends on, neither DKMS nor what every build has.
    assert pinned.needs == ("perl", "libc6-dev")
    assert scripts_of(offer.variant) == ("dkms.bash",)
    assert offer.variant.build.modules == ("dkms-modules/*.ko",)
    assert "{kernel}" in offer.variant.build.command
    standing = of.standing(version="2.1", flavour="dkms", kernel_release="7.0-anything")
    assert standing.known == "untried"


def test_releases_are_files_or_commits() -> None:
    url = "https://driver.example/tool"
    of = dkms(
        packages=["flex"],
        releases=[
            {"version": "1.0", "url": url, "sha256": SHA256},
            {"version": "1.1", "url": url, "sha256": SHA256, "commit": COMMIT},
        ],
    )
    context = SourceContext("rocky 9", ("rocky",))
    newest, older = candidates(of, "dkms", context)
    [commit], [file] = (pin_sources("made-up", one, context).sources for one in (newest, older))
    assert isinstance(commit, GitSource)
    assert isinstance(file, ArchiveSource)
    assert tools_of(newest.variant) == ("ca-certificates", "flex", "git")


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"package": "tool-dkms", "releases": [{"version": "1"}]},
        {"userspace": ["tool"], "releases": [], "package": None},
        {"package": "tool-dkms", "build": {"dkms": {"command": ["make"], "modules": ["a.ko"]}}},
        {"releases": [{"version": "1", "url": "x", "commit": "2"}]},
    ],
)
def test_what_a_recipe_may_not_say(source: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        dkms(**source)
