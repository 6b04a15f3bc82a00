"""provision.toml."""

import json
import re
import traceback
from pathlib import Path

import pytest

from provision.config import PATH, Config, load
from provision.errors import ConfigError

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


def test_the_distro_of_the_kernels_is_one_with_its_version(tmp_path: Path) -> None:
    write(tmp_path, 'kernel_distro = "debian"\n')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert [mistake.path for mistake in caught.value.mistakes] == ["kernel_distro"]
