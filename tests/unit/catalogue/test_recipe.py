"""What a driver.toml may say, and what each mistake in it is called."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from provision.build.resolve import recipe_digest
from provision.catalogue import ArchiveRelease, GitRelease, PciMatch, Recipe, version_matches
from provision.errors import ConfigError
from unit.recipes import recipe, variant

BUILD = {"command": ["make"], "modules": ["tool.ko"]}


def digest(of: Recipe) -> str:
    return recipe_digest(of, variant(of, "plain"))


def mistakes(**changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        recipe(**changes)
    return caught.value.details or ""


def test_the_marked_flavour_is_the_default() -> None:
    assert recipe().default_flavour == "plain"


def test_without_a_mark_it_is_the_first() -> None:
    flavours = {
        name: {"licences": ["MIT"], "package": "tool-source", "build": BUILD}
        for name in ("plain", "second")
    }
    assert recipe(flavours=flavours).default_flavour == "plain"


def test_it_knows_the_kernels_it_builds_on() -> None:
    asked = [
        ("1.10", "6.1.0-47-amd64"),
        ("1.10", "6.12.117+deb13-amd64"),
        ("2.0", "6.12.117+deb13-amd64"),
        ("2.0", "6.13-rc1-amd64"),
        ("0.9", "6.1.0-47-amd64"),
        ("2.0", "custom"),
    ]
    assert [a for a in asked if recipe().builds_on(version=a[0], kernel_release=a[1])] == [
        ("1.10", "6.1.0-47-amd64"),
        ("2.0", "6.12.117+deb13-amd64"),
    ]


@pytest.mark.parametrize(
    ("specifiers", "matching"),
    [
        ("", ["535.261.03", "550.1", "9.0.2.140", "2.0rc1", "whatever-it-is"]),
        ("==535.*", ["535.261.03"]),
        (">=535.261.3", ["535.261.03", "550.1"]),
        (">=9,<10", ["9.0.2.140"]),
        ("<2", []),
        ("<=2", ["2.0rc1"]),
    ],
)
def test_versions_are_compared_by_their_numbers(specifiers: str, matching: list[str]) -> None:
    versions = ["535.261.03", "550.1", "9.0.2.140", "2.0rc1", "whatever-it-is"]
    assert [v for v in versions if version_matches(v, specifiers)] == matching


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


def test_releases_are_what_a_pin_takes() -> None:
    archive = ArchiveRelease(version="1", url="https://h.example/f", sha256="0" * 64, strip=2)
    assert (archive.source().kind, archive.source().strip) == ("archive", 2)
    git = GitRelease(version="1", url="https://h.example/f", commit="1" * 40, sha256="0" * 64)
    assert (git.source().kind, git.source().commit) == ("git", "1" * 40)


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


def test_an_unknown_placeholder_is_named() -> None:
    flavours = {
        "plain": {
            "licences": ["MIT"],
            "package": "tool-source",
            "build": {**BUILD, "command": ["make", "{kernal}"]},
        }
    }
    found = mistakes(flavours=flavours)
    assert "flavours.plain.build.command.1: unknown placeholder '{kernal}'; there are" in found


@pytest.mark.parametrize(
    ("key", "value"),
    [("directory", "{jobs}"), ("archive", "{jobs}.tar"), ("modules", ["{jobs}.ko", "{kernal}.ko"])],
)
def test_nothing_but_the_command_depends_on_the_number_of_jobs(key: str, value: object) -> None:
    flavours = {
        "plain": {"licences": ["MIT"], "package": "tool-source", "build": {**BUILD, key: value}}
    }
    found = mistakes(flavours=flavours)
    assert "unknown placeholder '{jobs}'; there are arch, kernel, kernel_build," in found


@pytest.mark.parametrize("directory", ["/abs", "../up", "a/../b", "a//b"])
def test_paths_stay_inside_the_source(directory: str) -> None:
    flavours = {
        "plain": {
            "licences": ["MIT"],
            "package": "tool-source",
            "build": {**BUILD, "directory": directory},
        }
    }
    assert "flavours.plain.build.directory" in mistakes(flavours=flavours)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("from", "../../etc/shadow"),
        ("from", "/etc/shadow"),
        ("from", ""),
        ("to", "usr/lib64/libtool.so"),
        ("to", "/usr/../etc/"),
        ("to", "//usr/lib64/"),
        ("to", ""),
        ("links", ["../libtool.so"]),
        ("links", [""]),
    ],
)
def test_files_come_from_the_source_and_go_to_an_absolute_path(key: str, value: object) -> None:
    file = {"kind": "library", "from": "lib/*.so", "to": "/usr/lib64/", "links": ["libtool.so"]}
    assert recipe(files=[file]).files[0].to == "/usr/lib64/"
    assert f"files.0.{key}" in mistakes(files=[{**file, key: value}])


@pytest.mark.parametrize(
    "device", ["", "/dev/tool", "../mem", "tool/../mem", "tool\x1b[0m", "tool/"]
)
def test_devices_lie_below_dev(device: str) -> None:
    container = {
        "activation_flag": "OCI_MADE_UP",
        "driver_feature": ["compute"],
        "features": {"compute": {"devices": ["dri/card*", "tool[0-9]*", device]}},
    }
    assert "container.features: 'compute' names the device" in mistakes(container=container)


@pytest.mark.parametrize("pattern", ["(", "(a{99999999999})", "(" * 3000 + ")" * 3000, "none"])
def test_patterns_without_sense_are_named(pattern: str) -> None:
    source = {"kind": "git-tags", "url": "https://tool.example/tool.git", "pattern": pattern}
    assert "upstream.sources.0" in mistakes(upstream={"sources": [source]})


def test_specifiers_without_sense_are_named() -> None:
    found = mistakes(kernels=[{"kernels": "6.1 or newer"}])
    assert found.startswith("kernels.0.kernels: '6.1 or newer' is no version specifier")


def test_several_mistakes_are_named_together() -> None:
    found = mistakes(schema=2, name="UPPER", kernels=[], colour="blue").splitlines()
    assert {line.partition(":")[0] for line in found} == {"schema", "name", "kernels", "colour"}


def test_mistakes_between_tables_are_named() -> None:
    flavours = {
        name: {"default": True, "licences": ["MIT"], "build": BUILD} for name in ("plain", "second")
    }
    container = {
        "activation_flag": "OCI_MADE_UP",
        "driver_feature": ["video"],
        "features": {"compute": {}},
    }
    patches = [{"file": "a.patch", "flavours": ["third"], "reason": "why"}]
    found = mistakes(flavours=flavours, container=container, patches=patches)
    for part in (
        "more than one flavour is marked as default",
        "flavours.plain.package must be given exactly when source.kind is 'deb'",
        "patch a.patch names the unknown flavour 'third'",
        "container.driver_feature names the feature 'video', which container.features lacks",
    ):
        assert part in found


@pytest.mark.parametrize("file", ["../fix.patch", "fix.diff", "a/b.patch", ".patch"])
def test_patches_are_plain_names(file: str) -> None:
    assert "patches.0.file" in mistakes(patches=[{"file": file, "reason": "why"}])


@pytest.mark.parametrize("units", ["tool", "/etc/tool*", "../tool*", "", "tool *", "*"])
def test_units_are_a_pattern_of_names_below_dev(units: str) -> None:
    container = recipe().container.model_dump(mode="json") | {"units": units}
    assert mistakes(container=container).startswith("container.units")


def test_units_are_in_the_digest_only_where_they_are_said() -> None:
    plain = recipe().container.model_dump(mode="json", exclude_none=True)
    assert "units" not in plain
    with_units = recipe(container=plain | {"units": "tool[0-9]*"})
    assert with_units.container.units == "tool[0-9]*"
    assert digest(with_units) != digest(recipe())


def test_a_source_is_of_a_known_kind() -> None:
    assert mistakes(source={"kind": "svn"}).startswith("source.kind: must be ")


def test_what_a_recipe_says_of_the_host_is_in_the_pin_only_if_it_says_something() -> None:
    plain = digest(recipe())
    assert digest(recipe(host={"conflicts": ["nouveau"]})) != plain
    assert digest(recipe(host={})) == plain


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h.example/f", "begins with http:// or https://"),
        ("h.example/f", "'h.example/f' is no address"),
        ("https://h.example/a b", "no blanks"),
        ("https://h.example/$(id)", "no address"),
        ("https:///f", "names no host"),
        ("https://h.example:99999/f", "Port out of range"),
        ("https://h.example:0/f", "names no host"),
        ("https://[1::/f", "is no address"),
        ("https://me:secret@/f", "https://me:***@/f"),
    ],
)
def test_a_wrong_address_is_named_with_its_key(url: str, said: str) -> None:
    release = {"version": "1", "url": url, "sha256": "0" * 64}
    flavour = {"licences": ["MIT"], "build": BUILD}
    found = mistakes(source={"kind": "archive", "releases": [release]}, flavours={"a": flavour})
    assert "source.releases.0.url: " in found
    assert said in found
    assert "secret" not in found


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


def test_the_folder_of_the_source_may_be_named_in_a_command_only() -> None:
    command = {**BUILD, "command": ["make", "M={source}"]}
    flavour = {"licences": ["MIT"], "package": "tool", "build": command}
    both = {"plain": flavour, "other": flavour}
    assert variant(recipe(flavours=both)).build.command[1] == "M={source}"
    flavour["build"] = {**BUILD, "directory": "{source}"}
    assert "unknown placeholder '{source}'" in mistakes(flavours=both)
