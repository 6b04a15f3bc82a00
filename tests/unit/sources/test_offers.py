"""Which versions of a driver there are on a distro, and from which of its sources."""

from typing import Any

import pytest

from provision.catalogue import Recipe
from provision.distros.archive import Archive
from provision.errors import ConfigError, NotFoundError
from provision.sources.candidates import (
    SourceContext,
    candidates,
    components_of,
    package_of_version,
    pin_sources,
    unlisted,
)
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe

SHA256 = "0" * 64
PACKAGES = {
    ("bookworm", "main"): stanza("tool-source", "1.9-2"),
    ("bookworm-security", "main"): "\n".join(
        [stanza("tool-source", "1.10-0+deb12u1"), stanza("tool-source", "1.9-2+deb12u1")]
    ),
}
DEBIAN = ("debian", "debian:12", "apt")
ROCKY = ("rocky", "rocky:9", "dnf")
BUILD = {"command": ["make"], "modules": ["tool.ko"]}
PLAIN = {"plain": {"licences": ["MIT"], "build": BUILD}}
DEB = {
    "kind": "deb",
    "distros": ["debian"],
    "build": {"plain": {**BUILD, "package": "tool-source"}},
}


def archive(*versions: str, **more: object) -> dict[str, Any]:
    releases = [
        {"version": version, "url": f"https://driver.example/{version}.zip", "sha256": SHA256}
        for version in versions
    ]
    return {"kind": "archive", "releases": releases, **more}


def several(*sources: dict[str, Any], **changes: object) -> Recipe:
    return recipe(**{"source": list(sources), "flavours": PLAIN, "patches": [], **changes})


def offered(
    of: Recipe, names: tuple[str, ...], index: Archive | None = None
) -> list[tuple[str, str]]:
    found = candidates(of, of.default_flavour, SourceContext("here", names, index))
    return [(offer.variant.label, offer.version) for offer in found]


def test_packages_offer_their_upstream_versions_once() -> None:
    index = archive_of(PACKAGES)
    assert offered(recipe(), DEBIAN, index) == [("deb", "1.10"), ("deb", "1.9")]
    assert candidates(recipe(), "other", SourceContext("debian 12", DEBIAN, index)) == []
    assert offered(recipe(), ROCKY) == []


def test_the_newest_revision_of_a_version_is_taken() -> None:
    index = archive_of(PACKAGES)
    package = package_of_version(index, "tool-source", "1.9")
    assert package is not None
    assert package.version == "1.9-2+deb12u1"
    assert package_of_version(index, "tool-source", "1.8") is None


def test_releases_of_a_vendor_stand_in_the_recipe() -> None:
    found = offered(several(archive("9.0.2.140", "10.0.0", "9.0.10")), ROCKY)
    assert [version for _, version in found] == ["10.0.0", "9.0.10", "9.0.2.140"]


def test_each_distro_has_its_own_source() -> None:
    index = archive_of(PACKAGES)
    of = several(DEB, archive("2.0", "1.10"))
    # Another version than the packages' comes from the other source only if the first is limited.
    assert offered(of, DEBIAN, index) == [("deb", "1.10"), ("deb", "1.9")]
    assert offered(of, ROCKY) == [("archive", "2.0"), ("archive", "1.10")]
    limited = several({**DEB, "versions": "<2"}, archive("2.0", "1.10"))
    assert offered(limited, DEBIAN, index) == [
        ("deb", "1.10"),
        ("deb", "1.9"),
        ("archive", "2.0"),
    ]


@pytest.mark.parametrize(
    ("pattern", "serves"),
    [
        ("debian", True),
        ("deb*", True),
        ("debian:12", True),
        ("debian:1?", True),
        ("apt", True),
        ("debian:13", False),
        ("rocky", False),
    ],
)
def test_distros_are_ids_releases_and_families(pattern: str, *, serves: bool) -> None:
    of = several(archive("1.0", distros=[pattern]))
    assert bool(offered(of, DEBIAN)) is serves


def test_a_source_may_have_a_build_and_files_of_its_own() -> None:
    own = {"plain": {**BUILD, "directory": "kernel", "command": ["make", "own"]}}
    file = {"kind": "binary", "from": "tool", "to": "/usr/bin/tool", "features": ["compute"]}
    of = several(
        archive("1", distros=["rocky"], name="one", build=own, files=[file]),
        archive("1", name="two"),
    )
    one, two = (of.variant(names, "plain", "1") for names in (ROCKY, DEBIAN))
    assert one is not None
    assert two is not None
    assert (one.label, one.build.command, one.files[0].to) == (
        "one",
        ("make", "own"),
        "/usr/bin/tool",
    )
    assert (two.label, two.build.command, two.files) == ("two", ("make",), of.files)


def test_a_flavour_comes_from_the_sources_that_build_it() -> None:
    flavours = {**PLAIN, "other": {"licences": ["MIT"]}}
    other = archive("2", name="b", build={"other": BUILD})
    of = several(archive("1", name="a", distros=["rocky"]), other, flavours=flavours)
    found = {
        flavour: [o.variant.label for o in candidates(of, flavour, SourceContext("", ROCKY))]
        for flavour in ("plain", "other")
    }
    assert found == {"plain": ["a"], "other": ["b"]}


def test_what_is_pinned_is_of_the_source_that_offers_it() -> None:
    of = several(archive("1", name="a", versions="<2"), archive("2", "1", name="b"))
    context = SourceContext("rocky 9", ROCKY)
    pinned = {
        o.version: pin_sources("tool", o, context).sources for o in candidates(of, "plain", context)
    }
    assert [(v, [s.address for s in sources]) for v, sources in pinned.items()] == [
        ("1", ["https://driver.example/1.zip"]),
        ("2", ["https://driver.example/2.zip"]),
    ]


def test_components_are_those_of_the_sources_for_a_distro() -> None:
    of = several({**DEB, "components": ["main", "contrib"]}, archive("1"))
    assert components_of(of, DEBIAN) == ("contrib",)
    assert components_of(of, ROCKY) == ()


@pytest.mark.parametrize(
    ("first", "second", "claimed"),
    [
        ({"distros": ["debian", "rocky"]}, {"distros": ["rocky"]}, "rocky"),
        ({"distros": ["deb*"]}, {"distros": ["debian", "rocky"]}, "debian"),
        ({}, {}, "every distro"),
        ({}, {"distros": ["rocky"]}, "rocky"),
        ({"versions": "<2"}, {"versions": "<2"}, "every distro"),
        # A later source may serve the rest.
        ({"distros": ["debian"]}, {}, None),
        ({"distros": ["debian"]}, {"distros": ["*"]}, None),
        ({"versions": "<2"}, {"versions": ">=2"}, None),
    ],
)
def test_two_sources_for_one_distro_are_refused_by_name(
    first: dict[str, Any], second: dict[str, Any], claimed: str | None
) -> None:
    sources = archive("1", name="one", **first), archive("1", name="two", **second)
    if claimed is None:
        assert len(several(*sources).sources) == 2
        return
    with pytest.raises(ConfigError) as caught:
        several(*sources)
    assert {"'one'", "'two'", claimed} == {
        word for word in ("'one'", "'two'", claimed) if word in str(caught.value.details)
    }


def test_mistakes_of_sources_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        several(
            archive("1", distros=["debian"], build={"third": BUILD}),
            archive("2", build={"plain": {**BUILD, "package": "tool"}}),
            flavours={**PLAIN, "other": {"licences": ["MIT"]}},
            patches=[{"file": "a.patch", "sources": ["run"], "reason": "why"}],
        )
    found = str(caught.value.details)
    for part in ("called 'archive'", "'third'", "build.plain", "flavours.other.build", "a.patch"):
        assert part in found


RUNFILE = {
    "kind": "runfile",
    "url": "https://driver.example/{version}/driver-{arch}-{version}.run",
    "checksums": "https://driver.example/{version}/driver-{arch}.sums",
    "build": {"plain": {**BUILD, "directory": "kernel-open"}},
    "files": [],
}


def published(url: str, sums: str) -> str:
    assert (url, sums) == (
        "https://driver.example/2.0/driver-aarch64-2.0.run",
        "https://driver.example/2.0/driver-aarch64.sums",
    )
    return "a" * 64


def test_a_runfile_is_pinned_by_the_recipes_sum_or_by_the_vendors() -> None:
    releases = [{"version": "2.0", "sha256": "b" * 64}, {"version": "1.0"}]
    of = several({**RUNFILE, "releases": releases})
    ours = SourceContext("rocky 9", ROCKY)
    offer, _ = candidates(of, "plain", ours)
    (source,) = pin_sources("tool", offer, ours).sources
    assert source.kind == "runfile"
    assert (source.sha256, source.version) == ("b" * 64, "2.0")
    assert source.url == "https://driver.example/2.0/driver-x86_64-2.0.run"
    theirs = SourceContext("rocky 9", ROCKY, architecture="aarch64", published_sum=published)
    with pytest.raises(NotFoundError):
        pin_sources("tool", offer, theirs)
    of = several({**RUNFILE, "releases": [{"version": "2.0"}]})
    (offer,) = candidates(of, "plain", theirs)
    (source,) = pin_sources("tool", offer, theirs).sources
    assert source.kind == "runfile"
    assert (source.sha256, source.architecture) == ("a" * 64, "aarch64")
    with pytest.raises(NotFoundError):
        pin_sources("tool", offer, SourceContext("rocky 9", ROCKY, architecture="riscv64"))


def test_a_version_that_is_not_listed_may_be_asked_for() -> None:
    context = SourceContext("rocky 9", ROCKY)
    of = several({**RUNFILE, "distros": ["rocky"]}, archive("1.0"))
    offer = unlisted(of, "plain", "3.0", context)
    assert offer is not None
    assert (offer.variant.label, offer.version) == ("runfile", "3.0")
    assert unlisted(of, "plain", "3.0", SourceContext("debian 12", DEBIAN)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"url": None},
        {"checksums": None, "releases": [{"version": "1"}]},
        {"url": None, "releases": [{"version": "1"}]},
        {"url": "ftp://driver.example/{version}"},
        {"url": "https://driver.example/{kernel}"},
        {"leave_out": ["not a type"]},
        {"build": {}},
    ],
)
def test_mistakes_of_a_runfile_are_refused(changes: dict[str, Any]) -> None:
    source = {key: value for key, value in {**RUNFILE, **changes}.items() if value is not None}
    with pytest.raises(ConfigError):
        several(source)


def test_a_source_may_bring_features_of_its_own() -> None:
    file = {"kind": "binary", "from": "tool", "to": "/usr/bin/tool", "features": ["graphics"]}
    features = {"graphics": {"devices": ["dri/card*"]}}
    own = archive("1", distros=["rocky"], name="one", features=features, files=[file])
    of = several(own, archive("1", name="two"))
    one, two = (of.variant(names, "plain", "1") for names in (ROCKY, DEBIAN))
    assert one is not None
    assert two is not None
    assert set(one.container.features) == {*two.container.features, "graphics"}
    with pytest.raises(ConfigError):
        several(archive("1", files=[file]))


def test_what_programs_need_is_known_from_their_packages() -> None:
    """As nvidia-persistenced and its kin declare it in Debian 13."""
    texts = {
        ("trixie", "main"): "\n\n".join(
            [
                stanza("libtirpc3t64", "1.3.6"),
                stanza("libssl3t64", "3.5"),
                stanza("adduser", "3.1"),
                stanza("libc6", "2.41"),
            ]
        ),
        ("trixie", "non-free"): "\n\n".join(
            [
                stanza("tool-source", "1.9-2"),
                stanza(
                    "tool-daemon",
                    "1.9-1",
                    depends="libtool-cfg1 | libtool-any, adduser, libc6 (>= 2.34),"
                    " libtirpc3t64 (>= 1.0.2), libother1",
                ),
                stanza("libtool-cfg1", "1.9-1", depends="libc6, libssl3t64"),
                stanza("libother1", "1.9-1"),
            ]
        ),
    }
    source = {
        **DEB,
        "components": ["non-free"],
        "userspace": ["libtool-cfg1"],
        "companions": ["tool-daemon"],
    }
    of = several(source)
    context = SourceContext("debian 13", ("debian", "debian:13", "apt"), archive_of(texts))
    pinned = pin_sources("tool", candidates(of, of.default_flavour, context)[0], context)
    # Neither what it has itself, nor what containers bring, nor more of the vendor's.
    assert pinned.needs == ("libtirpc3t64",)
