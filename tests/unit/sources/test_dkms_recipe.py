"""The driver.toml that a dkms.conf becomes."""

import json
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.dkms_import import BuiltModule, DkmsConf, Draft, Origin, draft_recipe
from provision.catalogue import Recipe
from provision.catalogue.source_models import DkmsSource, GitRelease
from provision.documents import parse_json
from provision.errors import ConfigError, UsageError
from provision.pin import ArchiveSource, GitSource

CONF = DkmsConf("Tool_X", "2.1", (BuiltModule("tool.ko", "tool", "/extra", is_stripped=True),))
PACKAGE = Origin("tool-dkms", package="tool-dkms")


def read(draft: Draft) -> Recipe:
    return parse_json(json.dumps(tomllib.loads(draft.text)), Recipe, name="draft")


def test_a_package_becomes_a_whole_recipe() -> None:
    origin = replace(PACKAGE, component="contrib", packages=("file", "perl"))
    draft = draft_recipe(replace(CONF, licences=("GPL-2.0-only",), pci=(("1234", "abcd"),)), origin)
    recipe = read(draft)
    assert (draft.name, recipe.name) == ("tool_x", "tool_x")
    assert recipe.container.activation_flag == "OCI_TOOL_X"
    [source] = recipe.sources
    assert isinstance(source, DkmsSource)
    assert (source.package, source.components) == ("tool-dkms", ("contrib",))
    assert source.packages == ("file", "perl")
    assert recipe.flavours["dkms"].licences == ("NOASSERTION",)
    [pci] = recipe.hardware.pci
    assert (pci.vendor, pci.devices) == ("1234", ("abcd",))
    unknown = "\n".join(draft.unknown)
    assert "The source says: GPL-2.0-only." in unknown
    assert "none are named by numbers" not in unknown
    assert "container.features" in unknown
    assert "source.packages" not in unknown


def test_releases_are_pinned_where_that_can_be() -> None:
    git = GitSource(url="https://x.example/t.git", commit="1" * 40, sha256="2" * 64)
    [commit] = _source(draft_recipe(CONF, Origin(".", release=git))).releases
    assert isinstance(commit, GitRelease)
    assert commit.source() == git
    file = ArchiveSource(url="https://x.example/t.tar", sha256="3" * 64, strip=0)
    [release] = _source(draft_recipe(CONF, Origin("t", release=file))).releases
    assert release.source() == file
    draft = draft_recipe(CONF, Origin("."))
    [stand_in] = _source(draft).releases
    assert stand_in.sha256 == "0" * 64
    assert "source.releases: where the source can be downloaded" in "\n".join(draft.unknown)


def _source(draft: Draft) -> DkmsSource:
    [source] = read(draft).sources
    assert isinstance(source, DkmsSource)
    return source


def test_what_has_no_effect_is_said() -> None:
    conf = replace(
        CONF, host_scripts={"POST_INSTALL": "./udev.sh"}, depends=("spl",), unset=("ICP_ROOT",)
    )
    draft = draft_recipe(conf, PACKAGE)
    [script, depends] = draft.ignored
    assert script.startswith("POST_INSTALL (./udev.sh) is not run")
    assert depends.startswith("BUILD_DEPENDS names spl:")
    assert "submodules" in depends
    assert any("uses ICP_ROOT, which nothing sets" in line for line in draft.unknown)


def test_a_name_without_letters_is_refused() -> None:
    with pytest.raises(UsageError, match="'___'"):
        draft_recipe(replace(CONF, name="___"), PACKAGE)


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_whatever_the_texts_are_the_recipe_is_read_or_refused(
    name: str, version: str, homepage: str
) -> None:
    origin = Origin("x", homepage=homepage)
    try:
        draft = draft_recipe(replace(CONF, name=name, version=version), origin)
    except (UsageError, ConfigError):
        return
    assert read(draft).homepage == (homepage or "unknown")
