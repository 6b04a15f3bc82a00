"""Which versions of a driver there are."""

from pathlib import Path

from provision.versions import offered_versions, package_of_version
from unit.fake_archive import index_of, stanza
from unit.recipes import recipe

SHA256 = "0" * 64
PACKAGES = {
    ("bookworm", "main"): stanza("tool-source", "1.9-2"),
    ("bookworm-security", "main"): "\n".join(
        [stanza("tool-source", "1.10-0+deb12u1"), stanza("tool-source", "1.9-2+deb12u1")]
    ),
}


def test_packages_offer_their_upstream_versions_once(tmp_path: Path) -> None:
    index = index_of(tmp_path, PACKAGES)
    assert offered_versions(recipe(), "plain", index) == ["1.10", "1.9"]
    assert offered_versions(recipe(), "other", index) == []
    index.close()


def test_the_newest_revision_of_a_version_is_taken(tmp_path: Path) -> None:
    index = index_of(tmp_path, PACKAGES)
    package = package_of_version(index, "tool-source", "1.9")
    assert package is not None
    assert package.version == "1.9-2+deb12u1"
    assert package_of_version(index, "tool-source", "1.8") is None
    index.close()


def test_releases_of_a_vendor_stand_in_the_recipe(tmp_path: Path) -> None:
    index = index_of(tmp_path, {})
    releases = [
        {"version": version, "url": f"https://driver.example/{version}.zip", "sha256": SHA256}
        for version in ("9.0.2.140", "10.0.0", "9.0.10")
    ]
    flavours = {
        "plain": {"licences": ["MIT"], "build": {"command": ["make"], "modules": ["tool.ko"]}}
    }
    offered = recipe(
        source={"kind": "archive", "releases": releases}, flavours=flavours, patches=[]
    )
    assert offered_versions(offered, "plain", index) == ["10.0.0", "9.0.10", "9.0.2.140"]
    index.close()
