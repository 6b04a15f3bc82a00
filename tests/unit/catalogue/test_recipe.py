"""What a driver.toml may say, and what each mistake in it is called."""

import json
import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from provision.build.dockerfile import recipe_digest
from provision.catalogue import Recipe, version_matches
from provision.catalogue.source_models import GitRelease
from provision.documents import parse_json
from provision.errors import ConfigError
from provision.manifest import Container, PciMatch
from unit.recipes import RECIPE, recipe, variant

BUILD = {"command": ["make"], "modules": ["tool.ko"]}


def digest(of: Recipe) -> str:
    return recipe_digest(of, variant(of, "plain"))


def mistakes(**changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        recipe(**changes)
    return caught.value.details or ""


TWO_FLAVOURS = {
    name: {"licences": ["MIT"], "package": "tool-source", "build": BUILD}
    for name in ("plain", "second")
}


def test_without_a_mark_it_is_the_first() -> None:
    assert recipe(flavours=TWO_FLAVOURS).default_flavour == "plain"


@pytest.mark.parametrize(
    ("version", "kernel", "known"),
    [
        ("1.10", "6.1.0-47-amd64", "works"),
        ("1.10", "6.12.117+deb13-amd64", "untried"),
        ("2.0", "6.12.117+deb13-amd64", "works"),
        ("2.0", "6.13-rc1-amd64", "untried"),
        ("0.9", "6.1.0-47-amd64", "untried"),
        ("2.0", "custom", "untried"),
        ("2.0", "7.1.3+deb14-amd64", "fails"),
        ("2.5", "7.1.3+deb14-amd64", "works"),
        ("1.10", "4.19.0-1-amd64", "fails"),
        # What fails counts, whatever the order of rows.
        ("2.0", "6.6.0-1-amd64", "fails"),
    ],
)
def test_it_says_what_is_known_of_a_kernel(version: str, kernel: str, known: str) -> None:
    rows = [
        *json.loads(json.dumps(tomllib.loads(RECIPE)["kernels"])),
        {"versions": "<2.5", "fails": ">=7.1", "reason": "strlcpy() is gone"},
        {"versions": ">=2.5", "works": ">=7.1"},
        {"fails": "<5.4", "reason": "its README"},
        {"versions": "==2.0", "fails": ">=6.6,<6.7", "reason": "it crashes"},
    ]
    found = recipe(kernels=rows).standing(version=version, flavour="plain", kernel_release=kernel)
    assert found.known == known
    assert (found.row is None) == (known == "untried")


@pytest.mark.parametrize(("flavour", "known"), [("plain", "works"), ("second", "fails")])
def test_a_row_may_be_about_one_flavour_alone(flavour: str, known: str) -> None:
    rows = [
        {"works": ">=6.1"},
        {"flavours": ["second"], "fails": ">=6.15", "reason": "it uses a GPL-only symbol"},
    ]
    of = recipe(kernels=rows, flavours=TWO_FLAVOURS)
    standing = of.standing(version="2.0", flavour=flavour, kernel_release="6.15.0-1-amd64")
    assert standing.known == known


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"works": ">=6.1", "fails": ">=6.1", "reason": "both"},
        {"fails": ">=6.1"},
        {"works": ">=6.1", "reason": "it works"},
        {"works": ">=6.1", "day": "2026-13"},
        {"kernels": ">=6.1"},
    ],
)
def test_a_row_says_that_it_works_or_why_it_fails(row: dict[str, str]) -> None:
    assert "kernels.0" in mistakes(kernels=[row])


_VERSIONS = [
    "535.261.03",
    "550.1",
    "9.0.2.140",
    "2.0rc1",
    "7.0.20_OSE",
    "6.1.112+",
    "whatever-it-is",
]


@pytest.mark.parametrize(
    ("specifiers", "matching"),
    [
        ("", _VERSIONS),
        ("==535.*", ["535.261.03"]),
        (">=535.261.3", ["535.261.03", "550.1"]),
        (">=9,<10", ["9.0.2.140"]),
        ("<2", []),
        ("<=2", ["2.0rc1"]),
        ("==7.0.*", ["7.0.20_OSE"]),
        # A kernel of Container-Optimized OS.
        (">=6.1.112,<6.2", ["6.1.112+"]),
        ("!=535.*,>=500", ["550.1"]),
    ],
)
def test_versions_are_compared_by_their_numbers(specifiers: str, matching: list[str]) -> None:
    assert [v for v in _VERSIONS if version_matches(v, specifiers)] == matching


def test_patches_are_chosen_by_version_and_flavour() -> None:
    (patch,) = recipe().patches
    assert patch.applies_to(version="1.10", flavour="plain", source="deb")
    assert not patch.applies_to(version="2.0", flavour="plain", source="deb")
    assert not patch.applies_to(version="1.10", flavour="other", source="deb")
    of_one = patch.model_copy(update={"sources": ("run",)})
    assert of_one.applies_to(version="1.10", flavour="plain", source="run")
    assert not of_one.applies_to(version="1.10", flavour="plain", source="deb")


def test_devices_are_matched_by_ids_and_classes() -> None:
    any_display = PciMatch(vendor="10de", classes=("0300", "0302"))
    one = PciMatch(vendor="1924", devices=("0a03",))
    assert any_display.matches(vendor="10de", device="20b0", device_class="0302")
    assert not any_display.matches(vendor="10de", device="20b0", device_class="0403")
    assert one.matches(vendor="1924", device="0a03", device_class="0200")
    assert not one.matches(vendor="1924", device="0b03", device_class="0200")


def test_a_driver_for_the_host_alone_has_no_container() -> None:
    given = tomllib.loads(RECIPE)
    del given["container"], given["files"]
    assert parse_json(json.dumps(given), Recipe, name="r").container == Container()
    flag = {"activation_flag": "OCI_X"}
    features = {"driver_feature": ["a"], "features": {"a": {}}}
    for half in (flag, features, {"units": "x*"}):
        with pytest.raises(ConfigError):
            parse_json(json.dumps(given | {"container": half}), Recipe, name="r")
    own = given["source"] | {"features": {"a": {}}}
    with pytest.raises(ConfigError):
        parse_json(json.dumps(given | {"source": own}), Recipe, name="r")


def test_a_tag_or_branch_is_asked_for_its_commit_and_stands_for_no_other() -> None:
    asked = []

    def commit_at(url: str, ref: str) -> tuple[str, str]:
        asked.append((url, ref))
        return "1" * 40, "2" * 64

    url = "git@h.example:f.git"
    source = GitRelease(version="1", url=url, ref="v1").source(commit_at)
    assert (source.url, source.commit, source.sha256) == (url, "1" * 40, "2" * 64)
    assert asked == [(url, "v1")]
    commit, sha256 = {"commit": "1" * 40}, {"sha256": "2" * 64}
    for given in ({}, commit, sha256, {"ref": "v1"} | commit, {"ref": "v1"} | sha256):
        with pytest.raises(ValidationError):
            GitRelease.model_validate({"version": "1", "url": url, **given})


def _with_submodules(*paths: str) -> GitRelease:
    other = {"url": "https://h.example/o", "commit": "3" * 40, "sha256": "4" * 64}
    release = {
        "version": "1",
        "url": "https://h.example/f",
        "commit": "1" * 40,
        "sha256": "0" * 64,
        "submodules": [{**other, "path": path} for path in paths],
    }
    return GitRelease.model_validate_json(json.dumps(release))


def test_submodules_of_a_release_reach_the_pin_in_their_order() -> None:
    source = _with_submodules("lib/b", "lib/a").source()
    assert [module.path for module in source.submodules] == ["lib/b", "lib/a"]
    assert [commit.commit[0] for commit in source.commits] == ["1", "3", "3"]
    assert len({commit.file_name for commit in source.commits}) == 2


@pytest.mark.parametrize("paths", [("../up",), ("/abs",), ("lib", "lib"), ("lib", "lib/inner")])
def test_a_submodule_fills_a_folder_of_its_own_in_the_source(paths: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match=r"submodules|fill the folder"):
        _with_submodules(*paths)


def _flavours(**build: object) -> dict[str, Any]:
    flavour = {"licences": ["MIT"], "package": "tool-source", "build": {**BUILD, **build}}
    return {"flavours": {"plain": flavour}}


def _file(**members: object) -> dict[str, Any]:
    file = {"kind": "library", "from": "lib/*.so", "to": "/usr/lib64/", "links": ["libtool.so"]}
    return {"files": [{**file, **members}]}


def _container(**members: object) -> dict[str, Any]:
    features = {"compute": {"devices": ["dri/card*", "tool[0-9]*"]}}
    container = {"activation_flag": "OCI_MADE_UP", "driver_feature": ["compute"]}
    return {"container": {**container, "features": features, **members}}


def _device(name: str) -> dict[str, Any]:
    return _container(features={"compute": {"devices": ["dri/card*", name]}})


def _upstream(pattern: str) -> dict[str, Any]:
    url = "https://tool.example/tool.git"
    return {"upstream": {"sources": [{"kind": "git-tags", "url": url, "pattern": pattern}]}}


def _patch(file: str) -> dict[str, Any]:
    return {"patches": [{"file": file, "reason": "why"}]}


def _release(url: str, kind: str = "archive", **more: str) -> dict[str, Any]:
    release = {"version": "1", "url": url, "sha256": "0" * 64, **more}
    flavours = {"a": {"licences": ["MIT"], "build": BUILD}}
    return {"source": {"kind": kind, "releases": [release]}, "flavours": flavours}


def _commit(url: str = "https://h.example/f", **more: str) -> dict[str, Any]:
    return _release(url, "git", **{"commit": "1" * 40, **more})


_BUILD = "flavours.plain.build"
_URL = "source.releases.0.url: "


def test_what_the_mistakes_are_made_of_has_none() -> None:
    command = _flavours(command=["make", "-j{jobs}", "M={source}"])
    for right in (
        _flavours(),
        command,
        _file(),
        _container(units="tool[0-9]*"),
        _patch("fix.patch"),
    ):
        assert recipe(**right)
    for right in (_release("https://h.example/f"), _commit()):
        assert recipe(**_upstream(r"v(.*)"), **right, patches=[])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (_flavours(command=["make", "{kernal}"]), f"{_BUILD}.command.1: unknown placeholder"),
        # The number of jobs differs between builds: nothing but the command depends on it.
        (_flavours(directory="{jobs}"), "unknown placeholder '{jobs}'; there are arch, kernel,"),
        (_flavours(archive="{jobs}.tar"), "unknown placeholder '{jobs}'"),
        (_flavours(modules=["{jobs}.ko"]), "unknown placeholder '{jobs}'"),
        (_flavours(directory="{source}"), "unknown placeholder '{source}'"),
        *[(_flavours(directory=d), f"{_BUILD}.directory") for d in ("/abs", "../up", "a//b")],
        *[(_file(**{"from": f}), "files.0.from") for f in ("../../etc/shadow", "/etc/shadow", "")],
        *[(_file(to=to), "files.0.to") for to in ("usr/lib64/x", "/usr/../etc/", "//usr/", "")],
        *[(_file(links=[link]), "files.0.links") for link in ("../libtool.so", "")],
        *[
            (_device(name), "container.features: 'compute' names the device")
            for name in ("", "/dev/tool", "../mem", "tool/../mem", "tool\x1b[0m", "tool/")
        ],
        *[
            (_container(units=units), "container.units")
            for units in ("tool", "/etc/tool*", "../tool*", "", "tool *", "*")
        ],
        *[
            (_upstream(pattern), "upstream.sources.0")
            for pattern in ("(", "(a{99999999999})", "(" * 3000 + ")" * 3000, "none")
        ],
        *[(_patch(f), "patches.0.file") for f in ("../fix.patch", "a.diff", "a/b.patch", ".patch")],
        ({"kernels": [{"works": "6.1 or newer"}]}, "kernels.0.works: '6.1 or newer' is no"),
        ({"source": {"kind": "svn"}}, "source.kind: "),
        (_release("ftp://h.example/f"), f"{_URL}'ftp://h.example/f' is not a valid URL"),
        (_release("h.example/f"), f"{_URL}'h.example/f' is not a valid URL"),
        (_release("https://h.example/a b"), "no blanks"),
        (_release("https://h.example/$(id)"), "not a valid URL"),
        (_release("https:///f"), f"{_URL}'https:///f' names no host"),
        (_release("https://h.example:99999/f"), "Port out of range"),
        (_release("https://h.example:0/f"), "names no host"),
        (_release("https://[1::/f"), "not a valid URL"),
        (_release("https://me:secret@/f"), "https://me:***@/f"),
        *[
            (_commit(url), _URL)
            for url in (
                *("host.example:x", "../x", "/srv/$(id)"),
                *("ext::sh -c id", "ssh://-oProxyCommand=id/x"),
            )
        ],
        (_commit(ref="--upload-pack=id"), "source.releases.0.ref: "),
        (_commit(commit="main"), "source.releases.0.commit: "),
        *[
            ({"upstream": {"branches": {"535": {"end_of_life": day}}}}, "535.end_of_life")
            for day in ("2026-13", "June")
        ],
        ({"upstream": {"branches": {"r535": {}}}}, "upstream.branches.r535"),
        ({"upstream": {"sources": [{"kind": "rss", "url": "https://x"}]}}, "upstream.sources.0"),
        (
            {"upstream": {"sources": [{"kind": "git-tags", "url": "file:///etc/passwd"}]}},
            "upstream.sources.0.url",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(changes: dict[str, Any], said: str) -> None:
    found = mistakes(**changes)
    assert said in found
    assert "secret" not in found


def test_mistakes_between_tables_are_named() -> None:
    flavours = {
        name: {"default": True, "licences": ["MIT"], "build": BUILD} for name in ("plain", "second")
    }
    container = _container(driver_feature=["video"])
    patches = [{"file": "a.patch", "flavours": ["third"], "reason": "why"}]
    kernels = [{"flavours": ["third"], "works": ">=6.1"}]
    found = mistakes(flavours=flavours, kernels=kernels, patches=patches, **container)
    for part in (
        "more than one flavour is marked as default",
        "flavours.plain.package must be given exactly when source.kind is 'deb'",
        "kernels names the unknown flavour 'third'",
        "patch a.patch names the unknown flavour 'third'",
        "container.driver_feature names the feature 'video', which container.features lacks",
    ):
        assert part in found


def test_units_are_in_the_digest_only_where_they_are_said() -> None:
    plain = recipe().container.model_dump(mode="json", exclude_none=True)
    assert "units" not in plain
    with_units = recipe(container=plain | {"units": "tool[0-9]*"})
    assert with_units.container.units == "tool[0-9]*"
    assert digest(with_units) != digest(recipe())


def test_what_a_recipe_says_of_the_host_is_in_the_pin_only_if_it_says_something() -> None:
    plain = digest(recipe())
    assert digest(recipe(host={"conflicts": ["nouveau"]})) != plain
    assert digest(recipe(host={})) == plain


@pytest.mark.parametrize(
    ("kind", "release", "key"),
    [
        ("archive", {"url": "https://me:hush@h.example/f"}, "releases.0.url"),
        ("archive", {"url": "https://h.example/f?token=hush"}, "releases.0.url"),
        ("git", {"url": "https://hush@h.example/f.git", "commit": "1" * 40}, "releases.0.url"),
        (
            "git",
            {
                "url": "https://h.example/f.git",
                "commit": "1" * 40,
                "submodules": [
                    {
                        "url": "https://me:hush@h.example/g.git",
                        "commit": "1" * 40,
                        "sha256": "0" * 64,
                        "path": "g",
                    }
                ],
            },
            "releases.0.submodules.0",
        ),
        ("runfile", {"url": "https://me:hush@h.example/{version}.run"}, "releases.0.url"),
        ("dkms", {"url": "https://me:hush@h.example/f"}, "releases.0.url"),
    ],
)
def test_a_password_in_an_address_would_be_in_every_label(
    kind: str, release: dict[str, Any], key: str
) -> None:
    flavour: dict[str, Any] = {"licences": ["MIT"]}
    if kind != "dkms":
        flavour["build"] = {**BUILD, "directory": "kernel"}
    given = {"version": "1", "sha256": "0" * 64, **release}
    found = mistakes(source={"kind": kind, "releases": [given]}, flavours={"a": flavour})
    assert f"source.{key}: " in found
    assert "holds a password or token" in found
    assert "hush" not in found
