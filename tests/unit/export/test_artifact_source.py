"""Which artifacts are exported, and the objects of a driver pod."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kubernetes_validate
import pytest
import yaml

from kit.artifact import KERNEL, make_artifact, make_pin
from kit.cache import REPOSITORY
from kit.driver_pod import NODES, documents
from kit.memory_registry import MemoryRegistry
from provision.build.request import DriverRequest
from provision.build.workspace import Settings
from provision.catalogue import Catalogue, Recipe
from provision.catalogue.fields import DraDriver
from provision.config import Config, PolicyConfig, RegistryConfig, TrustConfig
from provision.documents import load_toml
from provision.errors import NotFoundError, UsageError
from provision.export import ArtifactSource, Choice, images_of
from provision.export.kubernetes import (
    Document,
    KmmOptions,
    PodOptions,
    daemonset_documents,
    kmm_files,
    operator_documents,
    pod_files,
    pod_of,
    to_yaml,
)
from provision.kmod.loader import write_loader
from provision.manifest import ADMISSION, EXTRAS, MANIFEST, DriverPod, Extra, ForeignRoot, HostNeeds
from provision.registry import HostTag, Reference
from provision.registry.find import TrustOverride
from provision.store.entries import Admission, record_admission
from provision.store.layout import Layout
from unit.engine.fake_engine import no_engine, using
from unit.registry.trusting_host import connected, have

_OTHER = "6.1.0-56-amd64"
_POD = DriverPod(command="demo-driver", parameters="/drivers")
_HOST = HostNeeds(root=ForeignRoot(path="/run/demo/driver", libraries="/usr/lib64", pod=_POD))
_RECIPE = SimpleNamespace(
    default_flavour="open", flavours={"open": None, "closed": None}, host=_HOST, dra=None
)
ANY = Choice(None, None, None)


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def source(tmp_path: Path, registry: MemoryRegistry) -> ArtifactSource:
    (tmp_path / "host/etc").mkdir(parents=True)
    config = Config(
        registry=RegistryConfig(address="registry.example/drivers"),
        trust=TrustConfig(insecure=True),
    )
    entry = SimpleNamespace(recipe=_RECIPE)
    catalogue = cast("Catalogue", SimpleNamespace(entry=lambda _name: entry))
    settings = Settings(tmp_path / "host", config, catalogue, tmp_path / "state")
    return ArtifactSource(
        using(settings, no_engine), TrustOverride(), connected=connected(registry)
    )


def tags(registry: MemoryRegistry, folder: Path, *names: tuple[str, str, str, str]) -> None:
    """Have images under tags of version, flavour, kernel and distro."""
    for name in names:
        have(registry, folder, tag=HostTag(*name).text, signed=False)


def test_all_kernels_of_the_newest_version(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path
) -> None:
    tags(
        registry,
        tmp_path,
        ("1.2", "open", KERNEL, "debian:12"),
        ("1.10", "open", KERNEL, "debian:12"),
        ("1.10", "open", _OTHER, "debian:12"),
        ("2.0", "closed", KERNEL, "debian:12"),
    )
    newest = [(tag.version, tag.kernel) for tag in images(source, ANY)]
    assert newest == [("1.10", KERNEL), ("1.10", _OTHER)]
    old = images(source, ANY._replace(version="1.2"))
    assert [(tag.version, tag.kernel) for tag in old] == [("1.2", KERNEL)]


def images(source: ArtifactSource, choice: Choice) -> list[HostTag]:
    return images_of(source, "demo", source.repository("demo", None), choice)


def test_a_kernel_without_an_image_is_named(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path
) -> None:
    tags(registry, tmp_path, ("1.2", "open", KERNEL, "debian:12"))
    with pytest.raises(NotFoundError) as raised:
        images(source, ANY._replace(kernels=(KERNEL, _OTHER)))
    assert f"provision build demo --kernel {_OTHER}" in str(raised.value.resolution)
    with pytest.raises(NotFoundError):
        images(source, ANY._replace(version="3"))


def test_a_kernel_whose_tag_is_escaped_is_found_and_named_as_nodes_do(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path
) -> None:
    kernel = "6.12.48+deb13-amd64"
    have(registry, tmp_path, make_pin(kernel=kernel), signed=False)
    for named in ((), (kernel,)):
        files = kmm_files(source, "demo", ANY._replace(kernels=named), KmmOptions())
        module: Any = files["module.yaml"][0]
        (mapping,) = module["spec"]["moduleLoader"]["container"]["kernelMappings"]
        assert mapping == {
            "literal": kernel,
            "containerImage": "registry.example/drivers/demo:1.2-open-6.12.48_deb13-amd64.debian12",
        }


def test_one_module_serves_one_distro(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path
) -> None:
    names = [("1.2", "open", KERNEL, distro) for distro in ("debian:12", "ubuntu:24.04")]
    tags(registry, tmp_path, *names)
    with pytest.raises(UsageError):
        images(source, ANY)
    (tag,) = images(source, ANY._replace(distro="ubuntu:24.04"))
    assert tag.distro == "ubuntu24.04"


def test_an_image_of_the_registry_is_looked_into(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path, signed=False)
    image = f"registry.example/drivers/demo:1.2-open-{KERNEL}.debian12"
    for named in (None, image):
        files = kmm_files(source, "demo", ANY, KmmOptions(), image=named)
        assert [*files] == ["module.yaml"]
        assert KERNEL in str(files)
    others = kmm_files(source, "demo", ANY, KmmOptions(regexp="^6"))
    assert "literal" not in str(others)
    with pytest.raises(UsageError):
        kmm_files(source, "other", ANY, KmmOptions(), image=image)
    assert not list((tmp_path / "state").rglob("artifact"))


@pytest.mark.parametrize("extra", ["kmm", "driver-pod"])
def test_an_image_that_was_built_without_it_is_refused_with_the_reason(
    source: ArtifactSource, registry: MemoryRegistry, tmp_path: Path, extra: Extra
) -> None:
    def exported() -> dict[str, list[Document]]:
        if extra == "kmm":
            return kmm_files(source, "demo", ANY, KmmOptions())
        return pod_files(source, "demo", ANY, PodOptions())

    def build(**left_out: str) -> None:
        pin = make_pin()
        folder = tmp_path / f"content-{pin.short_digest}"
        shutil.rmtree(folder, ignore_errors=True)
        manifest = make_artifact(folder, pin=pin).model_copy(update={"left_out": left_out})
        (folder / MANIFEST).write_text(manifest.model_dump_json(by_alias=True))
        have(registry, tmp_path, pin, signed=False)

    build(**{extra: "demod needs libdemo.so.1"})
    with pytest.raises(NotFoundError) as raised:
        exported()
    assert "provision build demo " in str(raised.value.resolution)
    # What another export lacks is no reason.
    build(**{other: "no sh" for other in EXTRAS if other != extra})
    assert exported()


@pytest.mark.parametrize(("versions", "expected"), [(">=1.3", 1), (">=1.2", 0), (None, 0)])
@pytest.mark.parametrize("export", ["kmm", "driver-pod"])
def test_an_export_says_if_the_dra_driver_does_not_start_with_the_version(
    source: ArtifactSource,
    registry: MemoryRegistry,
    tmp_path: Path,
    export: str,
    versions: str | None,
    expected: int,
    notes: list[str],
) -> None:
    have(registry, tmp_path, signed=False)
    dra = versions and DraDriver(pods="*", name="gpu.demo", versions=versions, reason="old")
    entry = SimpleNamespace(recipe=SimpleNamespace(**{**vars(_RECIPE), "dra": dra}))
    catalogue = cast("Catalogue", SimpleNamespace(entry=lambda _name: entry))
    source = source._replace(settings=replace(source.settings, catalogue=catalogue))
    if export == "kmm":
        kmm_files(source, "demo", ANY, KmmOptions())
    else:
        pod_files(source, "demo", ANY, PodOptions())
    assert sum("gpu.demo" in note for note in notes) == expected


def test_the_store_has_what_no_registry_has(source: ArtifactSource, tmp_path: Path) -> None:
    config = source.settings.config.model_copy(update={"policy": PolicyConfig(build="always")})
    source = source._replace(settings=replace(source.settings, config=config))
    layout = Layout(source.settings.root, "demo")
    entry = layout.entry(make_pin().short_digest)
    made = make_artifact(entry)
    layout.current.symlink_to(entry.name)
    # As the agent leaves it for a boot.
    write_loader(entry, {}, root=layout.root)
    assert source.artifact(DriverRequest("demo", kernel=KERNEL), tmp_path / "out") == made
    assert (tmp_path / "out" / made.modules[0].path).is_file()
    # What a host has added is no part of the artifact.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["driver", "lib"]
    with pytest.raises(NotFoundError) as raised:
        source.artifact(DriverRequest("demo", kernel=_OTHER), tmp_path / "other")
    assert f"provision build demo --kernel {_OTHER}" in str(raised.value.resolution)
    assert not (tmp_path / "other").exists()


def test_what_one_command_allowed_is_not_exported_from_the_store(
    source: ArtifactSource, tmp_path: Path
) -> None:
    """No registry has it any more, and other hosts trust what is exported here."""
    policy, trust = PolicyConfig(build="always"), TrustConfig()
    config = source.settings.config.model_copy(update={"policy": policy, "trust": trust})
    source = source._replace(settings=replace(source.settings, config=config))
    layout = Layout(source.settings.root, "demo")
    entry = layout.entry(make_pin().short_digest)
    made = make_artifact(entry)
    layout.current.symlink_to(entry.name)
    record_admission(entry, Admission(image="x", repository="x", once=True))
    request = DriverRequest("demo", kernel=KERNEL)
    with pytest.raises(NotFoundError):
        source.artifact(request, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    allowed = source._replace(trust=TrustOverride(insecure=True))
    assert allowed.artifact(request, tmp_path / "out") == made
    # Who let it into this store is nothing to other hosts.
    assert not (tmp_path / "out" / ADMISSION).exists()


def test_without_a_registry_a_cluster_has_nothing_to_pull(source: ArtifactSource) -> None:
    source = source._replace(settings=replace(source.settings, config=Config()))
    with pytest.raises(UsageError):
        source.repository("demo", None)
    assert str(source.repository("demo", "other.example/x").with_tag("")) == "other.example/x/demo"


_KERNEL = "6.12.48+deb13-amd64"
_REPOSITORY = Reference("registry.example:5000", "drivers/nvidia")
_OPTIONS = PodOptions("drivers", {"gpu": "yes"}, "pull")


@pytest.fixture
def root() -> ForeignRoot:
    """Of NVIDIA's recipe."""
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    return pod_of("nvidia", recipe.host.root)[0]


def daemonset(root: ForeignRoot, tag: str = "590") -> dict[str, Any]:
    images = {_KERNEL: _REPOSITORY.with_tag(tag)}
    made = daemonset_documents("nvidia", root, images, _OPTIONS)
    found: list[dict[str, Any]] = list(yaml.safe_load_all(to_yaml(*made)))
    assert found == made
    return found[-1]


@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_a_daemonset_is_one_that_kubernetes_takes(root: ForeignRoot, version: str) -> None:
    kubernetes_validate.validate(daemonset(root), version, strict=True)


def test_a_daemonset_runs_the_image_as_the_operator_does(root: ForeignRoot) -> None:
    image = "registry.example:5000/drivers/nvidia:590"
    theirs = documents(image, "6.12.48_deb13-amd64", "digest")[1]["spec"]
    spec = daemonset(root)["spec"]
    assert spec["updateStrategy"] == theirs["updateStrategy"]
    pod, their_pod = spec["template"]["spec"], theirs["template"]["spec"]
    for key in ("hostPID", "priorityClassName"):
        assert pod[key] == their_pod[key]
    (container,), (their_container,) = pod["containers"], their_pod["containers"]
    for key in ("image", "command", "args", "securityContext"):
        assert container[key] == their_container[key]
    (mount,) = ({**mount, "name": "run-nvidia"} for mount in container["volumeMounts"])
    assert mount in their_container["volumeMounts"]
    label = "feature.node.kubernetes.io/kernel-version.full"
    assert pod["nodeSelector"][label] == their_pod["nodeSelector"][label]
    assert pod["nodeSelector"]["gpu"] == "yes"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_nvidias_recipe_has_the_nodes_that_operands_need() -> None:
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    nodes = {(node.name, str(node.major), str(node.minor)) for node in recipe.host.nodes}
    assert {*NODES} <= nodes


def test_another_image_is_another_configuration(root: ForeignRoot) -> None:
    def digest(tag: str) -> str:
        (container,) = daemonset(root, tag)["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        assert variable["name"] == "DRIVER_CONFIG_DIGEST"
        return str(variable["value"])

    assert digest("590") == digest("590") != digest("595")


def test_the_operator_takes_the_image_from_our_registry() -> None:
    files = operator_documents("nvidia", _REPOSITORY, "590.48.01", _OPTIONS)
    assert files["driver.yaml"][0]["spec"] == {
        "driverType": "gpu",
        "usePrecompiled": True,
        "repository": "registry.example:5000/drivers",
        "image": "nvidia",
        "version": "590.48.01",
        "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": ["pull"],
        "nodeSelector": {"gpu": "yes"},
    }
    values: Any = files["values.yaml"][0]
    assert values["driver"]["nvidiaDriverCRD"]["enabled"] is True


def test_what_cannot_be_a_pod_is_refused(root: ForeignRoot) -> None:
    for without in (None, root.model_copy(update={"pod": None})):
        with pytest.raises(NotFoundError):
            pod_of("demo", without)
