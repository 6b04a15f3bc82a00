"""Modules and Secrets for KMM, against what its resource definition and its webhook take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kit.artifact import KERNEL, make_artifact
from kit.kmm import kmm_node
from provision.errors import ProvisionError, UsageError
from provision.export.kubernetes import (
    KmmOptions,
    module_document,
    to_yaml,
)
from provision.manifest import DriverFile, HostNeeds, Manifest, Module
from provision.registry import parse_reference

_RECORDED = Path(__file__).parents[2] / "data/kubernetes/kmm-module.json"
_REPOSITORY = parse_reference("registry.example:5000/drivers/demo")
_OTHER = "6.1.0-56-amd64"
_PLAIN = KmmOptions()


def strict(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema as an API server applies it with strict validation: unknown fields are errors."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def check(document: dict[str, Any], *, is_newest: bool = False) -> None:
    """Validate a Module by its definition, as its YAML is read: that of 2.6.0, or the newest."""
    read = yaml.safe_load(to_yaml(document))
    assert read == document
    schema = strict(json.loads(_RECORDED.read_text())["schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    if not is_newest:
        # All that 2.6.0 lacks of it.
        del schema["properties"]["spec"]["properties"]["dra"]
    jsonschema.validate(read, schema)
    container = read["spec"]["moduleLoader"]["container"]
    modprobe = container["modprobe"]
    # The rules of KMM's webhook that its definition does not have.
    order = modprobe.get("modulesLoadingOrder")
    assert order is None or (len(order) > 1 and order[0] == modprobe["moduleName"])
    for mapping in container["kernelMappings"]:
        assert ("literal" in mapping) != ("regexp" in mapping)
        assert ":" in mapping["containerImage"].rpartition("/")[2]
        for file in mapping.get("sign", {}).get("filesToSign", []):
            assert file.startswith(f"{modprobe['dirName']}/")
    names = read["metadata"]["name"] + read["metadata"]["namespace"]
    assert "version" not in container or len(names) <= 40


def exported(
    manifest: Manifest, *kernels: str, options: KmmOptions = _PLAIN, **parameters: tuple[str, ...]
) -> dict[str, Any]:
    """A Module that was checked."""
    found: dict[str, Any] = module_document(manifest, _REPOSITORY, kernels, options, parameters)
    check(found)
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return make_artifact(tmp_path)


def several(manifest: Manifest, *conflicts: str) -> Manifest:
    """The same with modules that need each other, of which one may refuse to load."""
    demo = manifest.modules[0]
    names = {"demo_peer": ("demo",), "demo_drm": ("demo_modeset",), "demo_modeset": ("demo",)}
    others = [
        Module(**{**demo.model_dump(), "name": name, "depends": depends})
        for name, depends in names.items()
    ]
    needs = HostNeeds(optional=("demo_peer",), conflicts=conflicts)
    return manifest.model_copy(update={"modules": (*others, demo), "host": needs})


def container_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["moduleLoader"]["container"]
    return found


def test_a_dra_driver_runs_where_the_modules_are(manifest: Manifest) -> None:
    options = KmmOptions(dra="registry.example/dra:1", dra_driver="gpu.example.com")
    document: Any = module_document(manifest, _REPOSITORY, (KERNEL,), options)
    check(document, is_newest=True)
    assert document["spec"]["dra"] == {
        "driverName": "gpu.example.com",
        "container": {"image": "registry.example/dra:1"},
    }
    with pytest.raises(jsonschema.ValidationError):
        check(document)


def test_kernels_by_name(manifest: Manifest) -> None:
    document = exported(manifest, KERNEL, _OTHER)
    assert container_of(document)["kernelMappings"] == [
        {
            "literal": kernel,
            "containerImage": f"{_REPOSITORY.registry}/drivers/demo:1.2-open-{kernel}.debian12",
        }
        for kernel in (KERNEL, _OTHER)
    ]
    assert container_of(document)["modprobe"] == {"moduleName": "demo", "dirName": "/opt"}
    assert document["spec"]["selector"] == {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }


def test_kernels_by_an_expression(manifest: Manifest) -> None:
    document = exported(manifest, options=KmmOptions(regexp=r"^6\.1\.0-[0-9]+-amd64$"))
    assert (
        kmm_node(document, _OTHER).image
        == f"{_REPOSITORY.registry}/drivers/demo:1.2-open-{_OTHER}.debian12"
    )


def test_modules_are_loaded_in_their_order(manifest: Manifest) -> None:
    changed = several(manifest, "nouveau")
    document = exported(changed, KERNEL)
    assert container_of(document)["inTreeModulesToRemove"] == ["nouveau"]
    modprobe = container_of(document)["modprobe"]
    # The first is loaded last, and unloaded first.
    assert modprobe["modulesLoadingOrder"] == ["demo_drm", "demo_modeset", "demo"]
    node = kmm_node(document, KERNEL)
    assert node.softdep == "softdep demo_drm pre: demo_modeset\nsoftdep demo_modeset pre: demo\n"


def test_firmware_goes_where_the_host_looks(manifest: Manifest) -> None:
    file = DriverFile(path="/lib/firmware/demo/a.bin", kind="firmware", sha256="0" * 64, size=1)
    changed = manifest.model_copy(update={"files": (*manifest.files, file)})
    document = exported(changed, KERNEL)
    assert container_of(document)["modprobe"]["firmwarePath"] == "/opt/driver/lib/firmware"
    assert (
        "cp -R /opt/driver/lib/firmware/* /tmp/opt/driver/lib/firmware;"
        in kmm_node(document, KERNEL).init
    )


def test_everything_that_can_be_asked_for(manifest: Manifest) -> None:
    options = KmmOptions(
        namespace="drivers",
        selector={"feature.node.kubernetes.io/pci-10de.present": "true"},
        pull_secret="pull",  # noqa: S106 - the name of a secret
        sign_key="key",
        sign_certificate="certificate",
        ordered_upgrade=True,
        regexp="^7",
    )
    document = exported(manifest, KERNEL, options=options, demo=("depth=2",))
    container = container_of(document)
    assert (container["version"], container["modprobe"]["parameters"]) == ("1.2", ["depth=2"])
    for mapping in container["kernelMappings"]:
        assert mapping["containerImage"] == f"{mapping['sign']['unsignedImage']}.signed"


def test_parameters_that_kmm_would_not_pass_are_refused(manifest: Manifest) -> None:
    with pytest.raises(UsageError):
        module_document(manifest, _REPOSITORY, (KERNEL,), KmmOptions(), {"other": ("a=1",)})


def test_without_a_kernel_or_a_module_there_is_nothing_to_export(manifest: Manifest) -> None:
    with pytest.raises(UsageError):
        module_document(manifest, _REPOSITORY, (), KmmOptions())
    none = manifest.model_copy(update={"host": HostNeeds(optional=("demo",))})
    with pytest.raises(ProvisionError):
        module_document(none, _REPOSITORY, (KERNEL,), KmmOptions())
