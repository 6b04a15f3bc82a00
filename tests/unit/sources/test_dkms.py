"""Sources with a dkms.conf: what the recipe says, and what the evaluated dkms.conf means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.dkms_import import BuiltModule, parse_variables, read_conf
from provision.catalogue import Recipe
from provision.errors import ConfigError, ProvisionError, UsageError
from provision.pin import ArchiveSource, GitSource
from provision.sources.candidates import (
    SourceContext,
    candidates,
    components_of,
    pin_sources,
    scripts_of,
    tools_of,
)
from unit.fake_archive import index_of, stanza
from unit.recipes import recipe

DEBIAN = ("debian", "debian:12", "apt")
SHA256 = "0" * 64
COMMIT = "1" * 40
FLAVOUR = {"dkms": {"licences": ["MIT"]}}
PACKAGES = {("bookworm", "main"): stanza("tool-dkms", "2.1-3") + "\n" + stanza("tool", "2.1-3")}


def dkms(**source: object) -> Recipe:
    return recipe(
        source={"kind": "dkms", **source}, flavours=FLAVOUR, kernels=[], patches=[], files=[]
    )


def test_a_package_with_a_dkms_conf_is_a_whole_source() -> None:
    index = index_of(PACKAGES)
    context = SourceContext("debian 12", DEBIAN, index)
    of = dkms(package="tool-dkms", components=["contrib", "main"], userspace=["tool"])
    [offer] = candidates(of, "dkms", context)
    pinned = pin_sources("made-up", offer, context)
    assert offer.version == "2.1"
    assert [source.text for source in pinned.sources] == ["tool-dkms 2.1-3", "tool 2.1-3"]
    assert components_of(of, DEBIAN) == ("contrib",)
    assert tools_of(offer.variant) == ()
    assert scripts_of(offer.variant) == ("dkms.bash",)
    assert offer.variant.build.modules == ("dkms-modules/*.ko",)
    assert "{kernel}" in offer.variant.build.command
    assert of.standing(version="2.1", kernel_release="7.0-anything").known == "untried"


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
    ("source", "complaint"),
    [
        ({}, "give either 'package' or 'releases'"),
        ({"package": "tool-dkms", "releases": [{"version": "1"}]}, "releases.0.url: missing"),
        ({"userspace": ["tool"], "releases": [], "package": None}, "either 'package'"),
        (
            {"package": "tool-dkms", "build": {"dkms": {"command": ["make"], "modules": ["a.ko"]}}},
            "leave 'build' out",
        ),
        ({"releases": [{"version": "1", "url": "x", "commit": "2"}]}, "commit"),
    ],
)
def test_what_a_recipe_may_not_say(source: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dkms(**source)
    assert complaint in (caught.value.details or "")


def printed(*variables: tuple[str, int, str]) -> bytes:
    """What dkms.bash prints."""
    records = [*((n, str(i), v) for n, i, v in variables), (".", "0", "")]
    return b"".join(part.encode() + b"\0" for record in records for part in record)


NAMED = (("PACKAGE_NAME", 0, "tool"), ("PACKAGE_VERSION", 0, "2.1+git"))
ONE = (*NAMED, ("DEST_MODULE_LOCATION", 0, "/extra"))


def test_defaults_are_those_of_dkms() -> None:
    conf = read_conf(parse_variables(printed(*ONE)))
    assert (conf.name, conf.version) == ("tool", "2.1+git")
    assert conf.modules == (BuiltModule("tool.ko", "tool", "/extra", is_stripped=True),)
    assert conf.depends == ()


def test_all_that_matters_is_read() -> None:
    conf = read_conf(
        parse_variables(
            printed(
                *NAMED,
                ("BUILT_MODULE_NAME", 0, "one"),
                ("BUILT_MODULE_LOCATION", 0, "./drivers/net/"),
                ("BUILT_MODULE_NAME", 1, "two"),
                ("DEST_MODULE_NAME", 1, "second"),
                ("DEST_MODULE_LOCATION", 0, "/kernel/net"),
                ("DEST_MODULE_LOCATION", 1, "/updates\r"),
                ("STRIP", 0, "no"),
                ("STRIP", 1, "yes"),
                ("POST_INSTALL", 0, "./udev.sh\n  --quiet\n"),
                ("BUILD_EXCLUSIVE_KERNEL", 0, "^[56]"),
                ("BUILD_EXCLUSIVE_KERNEL_MIN", 1, "6.2"),
                ("BUILD_EXCLUSIVE_CONFIG", 0, "CONFIG_NET !CONFIG_RT"),
                ("BUILD_DEPENDS", 0, "spl tool"),
            )
        )
    )
    assert conf.modules == (
        BuiltModule("drivers/net/one.ko", "one", "/kernel/net", is_stripped=False),
        BuiltModule("two.ko", "second", "/updates", is_stripped=True),
    )
    assert conf.exclusive == {
        "KERNEL": "^[56]",
        "KERNEL_MIN[1]": "6.2",
        "CONFIG": "CONFIG_NET !CONFIG_RT",
    }
    assert conf.depends == ("spl",)
    assert conf.host_scripts == {"POST_INSTALL": "./udev.sh --quiet"}


def test_all_mistakes_are_named_together() -> None:
    variables = printed(
        ("PACKAGE_VERSION", 0, "#MODULE_VERSION#"),
        ("BUILT_MODULE_NAME", 0, "a/one.ko"),
        ("BUILT_MODULE_NAME", 1, "two"),
        ("BUILT_MODULE_NAME", 2, "two"),
        ("DEST_MODULE_LOCATION", 3, "/extra"),
    )
    with pytest.raises(UsageError) as caught:
        read_conf(parse_variables(variables))
    details = caught.value.details or ""
    for part in (
        "PACKAGE_NAME is not set",
        "'#MODULE_VERSION#', which is a template",
        "BUILT_MODULE_NAME[0] is 'a/one.ko'",
        "BUILT_MODULE_NAME[3] is not set",
        "DEST_MODULE_LOCATION[2] is not set",
        "two modules are called two",
    ):
        assert part in details
    with pytest.raises(UsageError) as caught:
        read_conf(parse_variables(printed(*NAMED)))


def test_a_driver_has_no_million_modules() -> None:
    variables = printed(*NAMED, ("BUILT_MODULE_NAME", 999999, "one"))
    with pytest.raises(UsageError) as caught:
        read_conf(parse_variables(variables))
    assert caught.value.details is None


@pytest.mark.parametrize(
    "data",
    [b"", b"PACKAGE_NAME\00\0tool\0", printed(*ONE)[:-1], printed(*ONE) + b"more", b".\0000\0"],
)
def test_output_without_its_end_is_refused(data: bytes) -> None:
    with pytest.raises(ProvisionError):
        parse_variables(data)


def test_output_has_a_limit() -> None:
    with pytest.raises(ProvisionError):
        parse_variables(b"x" * (1048576 + 1))


TEXT = st.characters(codec="utf-8", exclude_characters="\0\r")
NAMES = st.text(TEXT, min_size=1)
VALUES = st.text(TEXT)


@given(st.dictionaries(st.tuples(NAMES.filter(lambda n: n != "."), st.integers(0, 999999)), VALUES))
def test_no_value_is_taken_for_a_variable(variables: dict[tuple[str, int], str]) -> None:
    data = printed(*((name, index, value) for (name, index), value in variables.items()))
    assert parse_variables(data) == variables
