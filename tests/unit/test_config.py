"""provision.toml, and what a document's author reads about each kind of mistake."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from provision.catalogue.recipe import Recipe
from provision.config import PATH, Config, load
from provision.documents import EXAMPLES, Frozen, how_to_correct, parse_json
from provision.errors import ConfigError
from provision.fleet import Fleet

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "templates/config/provision.toml"
SCHEMA = REPOSITORY / "docs/reference/provision-toml.schema.json"


def write(root: Path, text: str) -> None:
    path = root / PATH
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_a_host_says_which_drivers_it_should_have(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
[drivers.nvidia]
version = "535"
flavour = "open"
[drivers.nvidia.options]
nvidia = { NVreg_DeviceFileMode = 432, NVreg_EnableMSI = true, NVreg_Names = "a;b" }
[drivers.v4l2loopback]

[registry]
address = "registry.example:5000/drivers/debian"
push = true

[signing]
key = "pkcs11:token=mok;object=key"
certificate = "/etc/mok.der"
""",
    )
    config = load(tmp_path)
    assert list(config.drivers) == ["nvidia", "v4l2loopback"]
    assert config.drivers["nvidia"].options["nvidia"] == {
        "NVreg_DeviceFileMode": "432",
        "NVreg_EnableMSI": "Y",
        "NVreg_Names": "a;b",
    }
    assert config.drivers["v4l2loopback"].version == "auto"
    assert config.policy.unload == "idle"
    assert config.registry.push


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('kernel_distro = "debian"', "kernel_distro"),
        ('[drivers."No Name"]', "drivers.No Name.[key]"),
        ('[drivers.x]\nversion = "1 2"', "drivers.x.version"),
        ('[drivers.x.options]\nm = { "a b" = 1 }', "drivers.x.options.m.a b.[key]"),
        ('[drivers.x.options]\nm = { a = "b c" }', "drivers.x.options.m.a"),
        ('[registry]\naddress = "http://x"', "registry.address"),
        ('[registry]\naddress = "drivers/nvidia"', "registry.address"),
        ('[registry]\naddress = "a.b"\nmirrors = ["localhost/d"]', "registry.mirrors.0"),
        ("[registry]\npush = true", "registry"),
        ("[registry]\nallow_unsigned = true", "registry.allow_unsigned"),
        ('[registry]\nmirrors = ["m.example"]', "registry"),
        ('[trust]\nkeys = "/k"\ninsecure = true', "trust"),
        ('[trust]\nkeys = "k"', "trust.keys"),
        ('[trust]\nnot_before = "yesterday"', "trust.not_before"),
        ("[trust.drivers.x]\nkeys = 1", "trust.drivers.x.keys"),
        ('[policy]\nbuild = "maybe"', "policy.build"),
        ('[policy]\nunload = "force"', "policy.unload"),
        ("[policy]\nkeep = -1", "policy.keep"),
        ('[engine]\nhost = "tcp://h:port"', "engine.host"),
        ('[engine]\nhost = "tcp://h:99999"', "engine.host"),
        ('[engine]\nhost = "docker.sock"', "engine.host"),
        ('[distros.debian.base_images]\n12 = "Debian:12"', "distros.debian.base_images.12"),
        ('[distros.debian.base_images]\n12 = "d@sha256:0"', "distros.debian.base_images.12"),
        ('[signing]\nkey = "/etc/mok.key"', "signing"),
        ('[signing]\nkey = "mok.key"\ncertificate = "/c"', "signing.key"),
        ('[signing]\nkey = "pkcs11:object=o?pin-source=%7Ccat"\ncertificate = "/c"', "signing"),
        ('[metrics]\ntextfile = "provision.prom"', "metrics.textfile"),
        ('[cdi]\ngenerate = "yes"', "cdi.generate"),
        ('[network]\nproxy = "p.example:3128"', "network.proxy"),
        ('[network]\nproxy = "ftp://p.example"', "network.proxy"),
        ('[network]\nno_proxy = ["x"]', "network"),
        (
            '[[distros.rocky.repositories]]\nid = "own"\nurls = ["https://m/"]\n' * 2,
            "distros.rocky",
        ),
        *(
            (f'[[trees]]\nkernels = "*"\n{lines}', "trees.0")
            for lines in (
                "",
                'path = "/a"\nurl = "https://e.org/a"\nsha256 = "' + "0" * 64 + '"',
                'url = "https://e.org/a"',
                'kind = "image"\npath = "/a"',
                'kind = "image"',
                'path = "a"',
                'path = "/a"\ntoolchain = "debian"',
            )
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(text: str, path: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert any(mistake.path.startswith(path) for mistake in caught.value.mistakes), caught.value


@pytest.mark.parametrize(
    "address",
    [
        "pkcs11:token=t;object=o?pin-value=hunter2",
        "pkcs11:object=o?module-name=p11&PIN-Value=hunter2",
        "pkcs11:object=o;pin-value=hunter2",
        "pkcs11:object=o?pin%2Dvalue=hunter2",
    ],
)
def test_a_pin_in_the_keys_address_is_refused_and_not_repeated(
    address: str, tmp_path: Path
) -> None:
    write(tmp_path, f'[signing]\nkey = "{address}"\ncertificate = "/c"\n')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    (mistake,) = caught.value.mistakes
    assert mistake.path == "signing.key"
    assert "pin_file" in mistake.message
    # Nor in the error that it came from, which a report of a defect would show.
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_the_example_that_is_shipped_has_the_defaults(tmp_path: Path) -> None:
    write(tmp_path, EXAMPLE.read_text())
    assert load(tmp_path) == Config()


def test_the_example_names_every_key(tmp_path: Path) -> None:
    # A line of it that begins with '#' and no blank is a setting that someone may want.
    write(tmp_path, re.sub(r"^#(?=\S)", "", EXAMPLE.read_text(), flags=re.MULTILINE))
    config = load(tmp_path)
    for table in (config, *(getattr(config, name) for name in ("policy", "registry", "signing"))):
        assert table.model_fields_set == set(type(table).model_fields)
    for table in (config.engine, config.metrics, *config.drivers.values()):
        assert table.model_fields_set == set(type(table).model_fields)
    for distro in config.distros.values():
        assert distro.archive.model_fields_set == set(type(distro.archive).model_fields)
        assert distro.base_images


def test_the_reference_names_every_key() -> None:
    text = (REPOSITORY / "docs/reference/provision-toml.md").read_text()
    schema = json.loads(SCHEMA.read_text())
    tables = [schema, *schema["$defs"].values()]
    for name in {name for table in tables for name in table.get("properties", {})}:
        # A key in a table of the reference, or a table of the file.
        assert f"`{name}`" in text or f"## `[{name}" in text, name


class Limits(Frozen):
    jobs: int = Field(default=1, ge=1, le=8)
    share: float = Field(default=0.5, gt=0, lt=1)
    names: tuple[Annotated[str, Field(min_length=1, max_length=3)], ...] = Field(
        default=("a",), min_length=1, max_length=2
    )
    commit: Annotated[str, Field(pattern="^[0-9a-f]+$")] = "0"
    flag: bool = False
    mode: Literal["now", "later"] = "now"


class Document(Frozen):
    described_in: ClassVar[str | None] = "docs/reference/document.md"

    limits: Limits | None = None
    each: dict[str, Limits] = Field(default_factory=dict)


def said(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, Document, name="f")
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ('{"jobs": "many"}', "jobs"),
        ('{"jobs": 1.5}', "jobs"),
        ('{"jobs": 9}', "jobs"),
        ('{"share": 0}', "share"),
        ('{"names": "x"}', "names"),
        ('{"names": []}', "names"),
        ('{"names": ["long"]}', "names.0"),
        ('{"names": [1]}', "names.0"),
        ('{"commit": "HEAD"}', "commit"),
        ('{"flag": "yes"}', "flag"),
        ('{"mode": "then"}', "mode"),
        ('{"job": 1}', "job"),
        ("1", ""),
    ],
)
def test_a_mistake_has_the_place_where_it_is_and_no_value(value: str, place: str) -> None:
    for text, table in (
        (f'{{"limits": {value}}}', "limits"),
        (f'{{"each": {{"a": {value}}}}}', "each.a"),
    ):
        (mistake,) = said(text)
        found, _, reason = mistake.partition(": ")
        assert found == f"{table}.{place}".strip(".")
        assert reason
        assert "many" not in reason
        assert "HEAD" not in reason
        assert "^[" not in reason
    (broken,) = said("{")
    assert "JSON" in broken


@pytest.mark.parametrize(
    ("key", "names"),
    [("job", {"jobs"}), ("x", {"commit", "flag", "jobs", "mode", "names", "share"})],
)
def test_of_an_unknown_key_the_meant_one_is_said_or_all(key: str, names: set[str]) -> None:
    (mistake,) = said(f'{{"limits": {{"{key}": 1}}}}')
    assert {name for name in Limits.model_fields if name in mistake.partition(": ")[2]} == names


@pytest.mark.parametrize("model", [Config, Recipe, Fleet])
def test_what_people_have_to_spell_has_an_example(model: type[Frozen]) -> None:
    assert _patterns(model.model_json_schema()) <= EXAMPLES.keys()


def _patterns(schema: object) -> set[str]:
    inside: Iterable[object] = ()
    match schema:
        case {"pattern": str(pattern)}:
            return {pattern}
        case dict():
            inside = schema.values()
        case list():
            inside = schema
    return {pattern for one in inside for pattern in _patterns(one)}


def test_files_that_people_write_say_where_their_keys_are_described() -> None:
    for model in (Recipe, Config, Fleet):
        advice = how_to_correct(Path("/etc/x.toml"), model)
        assert advice is not None
        assert advice.endswith("${EDITOR:-vi} /etc/x.toml")
        assert model.described_in is not None
        assert (Path(__file__).parents[2] / model.described_in).is_file()
    assert how_to_correct(Path("x"), Limits) is None
