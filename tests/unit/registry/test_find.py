"""Which image a host takes: by version, by name, by the tag of a Pin, and from which mirror."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit.artifact import KERNEL, make_pin, write
from kit.memory_registry import (
    MemoryRegistry,
    copy_to_layout,
    digest_of,
)
from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.request import DriverRequest, VersionRequest
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.catalogue.fields import BranchFacts, Hardware, Upstream
from provision.catalogue.recipe import Standing
from provision.config import RegistryConfig
from provision.engine.docker_api import Engine
from provision.errors import (
    DeniedError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UntrustedError,
)
from provision.registry import Reference, pin_tag
from provision.registry.find import (
    ArtifactImage,
    ArtifactQuery,
    MissingArtifactError,
    TrustOverride,
    examine,
    find_in_registries,
    find_pin_in_registries,
    tag_of,
)
from provision.registry.publish import (
    PinTagConflictError,
    set_operator_tags,
    set_pin_tag,
)
from provision.registry.repositories import writable_layout
from provision.registry.signatures import signature_tag
from provision.store.availability import look_for
from provision.store.layout import Layout
from provision.store.obtain import obtain
from unit.engine.fake_engine import using
from unit.registry.trusting_host import (
    ADDRESS,
    DEFAULT,
    SERIAL,
    SOUGHT,
    configured,
    connected,
    found,
    have,
)
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture


def look(
    host: Settings,
    registry: MemoryRegistry,
    version: str | None = None,
    trust: TrustOverride = DEFAULT,
) -> ArtifactImage | None:
    """What a host takes that wants the driver."""
    wanted = DriverRequest("demo", kernel=KERNEL, version=version)
    return look_for(host, wanted, trust, connected=connected(registry))


# Which image


def test_the_newest_version_is_taken_or_one_of_a_branch(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    for version in ("1.9", "1.10", "2.0~rc1"):
        have(registry, tmp_path, make_pin(version=version))
    # Of others, or none at all.
    for tag in ("latest", "9-open-6.1.0-1-amd64.debian12", f"_-open-{KERNEL}.debian12"):
        registry.have_manifest({}, tag)

    def taken(wanted: str | None, prefer: str | None = None) -> str:
        sought = SOUGHT._replace(version=VersionRequest(wanted, prefer=prefer))
        return found(settings, registry, sought).pin.driver.version

    assert taken(None) == "2.0~rc1"
    assert taken("1") == "1.10"
    assert taken("1.9") == "1.9"
    assert taken(None, "1.9") == "1.9"
    assert taken("1", "1.8") == "1.10"
    with pytest.raises(AssertionError):
        taken("3")


def test_a_name_that_is_known_needs_no_list(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    registry.asked.clear()
    found(settings, registry, SOUGHT._replace(version=VersionRequest("1.2")))
    # Manifest, signatures, payload and configuration.
    assert [one.split()[0] for one in registry.asked] == ["manifest", "manifest", "fetch", "config"]


@pytest.mark.parametrize(
    "sought",
    [
        SOUGHT._replace(kernel="6.1.0-1-amd64"),
        SOUGHT._replace(flavour="closed"),
        SOUGHT._replace(distro="debian:13"),
        SOUGHT._replace(version=VersionRequest("1.3")),
    ],
)
def test_a_tag_that_leads_to_another_image_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, sought: ArtifactQuery
) -> None:
    """Everything is signed, and only the name lies: who may push can do that."""
    tag = sought.tag(sought.version.name or "1.2").text
    have(registry, tmp_path, tag=tag)
    for trust in (DEFAULT, TrustOverride(insecure=True)):
        with pytest.raises(UntrustedError):
            found(settings, registry, sought, trust)
    with pytest.raises(UntrustedError):
        examine(settings, registry.client(f"{ADDRESS}/demo:{tag}"), {}, DEFAULT)


def test_a_name_of_ones_own_may_be_any_for_the_right_machine(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, tag="tested")
    client = registry.client(f"{ADDRESS}/demo:tested")
    assert examine(settings, client, {}, DEFAULT).pin == pin
    kernel = pin.kernel.model_copy(update={"architecture": "aarch64"})
    have(registry, tmp_path, pin.model_copy(update={"kernel": kernel}), tag="tested")
    for trust in (DEFAULT, TrustOverride(insecure=True)):
        with pytest.raises(UntrustedError):
            examine(settings, client, {}, trust)


# Several registries


def test_mirrors_are_asked_first_and_stand_in(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, notes: list[str]
) -> None:
    have(registry, tmp_path)
    mirrors = ("mirror.example/drivers", "other.example/drivers")
    trusted = found(with_mirrors(settings, *mirrors), registry)
    assert trusted.reference.registry == "registry.example"
    assert [note.split(" ", 1)[0] for note in notes] == list(mirrors)


def with_mirrors(settings: Settings, *mirrors: str) -> Settings:
    registry = RegistryConfig(address=ADDRESS, mirrors=mirrors)
    return replace(settings, config=settings.config.model_copy(update={"registry": registry}))


@pytest.mark.parametrize("error", [DeniedError, UnreachableError, ProvisionError])
def test_a_mirror_in_trouble_does_not_keep_hosts_from_the_registry(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, error: type[ProvisionError]
) -> None:
    have(registry, tmp_path)
    registry.hooks.append(failing(error, "m.example"))
    trusted = found(with_mirrors(settings, "m.example/d"), registry)
    assert trusted.reference.registry == "registry.example"


def test_a_mirror_that_lags_behind_does_not_keep_hosts_from_the_registry(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    registries: list[str] = []

    def accept(trusted: ArtifactImage) -> None:
        registries.append(trusted.reference.registry)
        if len(registries) == 1:
            raise UntrustedError("older")

    registry.hosts.add("m.example")
    host = with_mirrors(settings, "m.example/d")
    assert find_in_registries(host, SOUGHT, DEFAULT, accept=accept, connected=connected(registry))
    assert registries == ["m.example", "registry.example"]


def failing(error: type[ProvisionError], host: str) -> Callable[[str, str], None]:
    def hook(asked: str, _what: str) -> None:
        if asked == host:
            raise error("trouble")

    return hook


@pytest.mark.parametrize("error", [DeniedError, UnreachableError])
def test_a_registry_that_does_not_answer_is_built_for_or_named(
    settings: Settings, registry: MemoryRegistry, error: type[ProvisionError]
) -> None:
    """Many registries deny access to what is not there."""
    registry.hooks.append(failing(error, "registry.example"))
    assert look(with_recipe(settings, "fallback"), registry) is None
    with pytest.raises(error):
        look(with_recipe(settings, "never"), registry)


_BRANCHES = {"1": BranchFacts(maturity="lts"), "2": BranchFacts(maturity="production")}


def with_recipe(
    settings: Settings,
    build: str,
    branches: dict[str, BranchFacts] = _BRANCHES,
    fails: Sequence[str] = (),
) -> Settings:
    recipe = SimpleNamespace(
        hardware=Hardware(),
        flavours={"open": None},
        default_flavour="open",
        sources=(),
        upstream=Upstream(branches=branches),
        name="demo",
        kernels=(),
        standing=lambda version, **_: Standing("fails" if version in fails else "untried"),
        refuse_unknown=lambda _flavour, _version: None,
    )
    catalogue = SimpleNamespace(entry=lambda _name: SimpleNamespace(recipe=recipe))
    policy = settings.config.policy.model_copy(update={"build": build})
    config = settings.config.model_copy(update={"policy": policy, "kernel_distro": "debian:12"})
    return replace(settings, config=config, catalogue=cast("Catalogue", catalogue))


@pytest.mark.parametrize(
    ("build", "missing", "there", "unsigned"),
    [
        ("never", MissingArtifactError, "taken", UntrustedError),
        # Nothing is built in place of what was put there.
        ("fallback", None, "taken", UntrustedError),
        ("always", None, None, None),
    ],
)
def test_the_policy_says_whether_a_host_builds(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
    build: str,
    missing: object,
    there: object,
    unsigned: object,
) -> None:
    host = with_recipe(settings, build)

    def outcome() -> object:
        try:
            return look(host, registry) and "taken"
        except ProvisionError as error:
            return type(error)

    assert outcome() == missing
    have(registry, tmp_path)
    assert outcome() == there
    registry.manifests.pop(signature_tag(digest_of(registry.manifests[tag_of(make_pin()).text])))
    assert outcome() == unsigned


def test_a_version_that_fails_on_the_kernel_is_passed_over(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    never, fallback = (with_recipe(settings, b, fails=["2.4"]) for b in ("never", "fallback"))
    have(registry, tmp_path, make_pin(version="2.4"))
    # A host that builds may build another.
    assert look(fallback, registry) is None
    with pytest.raises(NotFoundError):
        look(never, registry)
    have(registry, tmp_path, make_pin(version="2.3"))
    assert (taken(never, registry), taken(fallback, registry)) == ("2.3", "2.3")


def taken(host: Settings, registry: MemoryRegistry, version: str | None = None) -> str | None:
    try:
        found = look(host, registry, version)
    except NotFoundError:
        return None
    return found.pin.driver.version if found else None


def test_of_what_is_published_a_living_branch_comes_first_and_an_ended_one_last(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    branches = {
        "1": BranchFacts(maturity="production", end_of_life="2020-01"),
        "2": BranchFacts(maturity="production"),
        "3": BranchFacts(maturity="new-feature"),
    }
    host = with_recipe(settings, "never", branches)
    published = []
    # Nobody knew 4 when the recipe was written; 3 is of no kind that is meant.
    for version, automatic, production in (
        ("3.1", None, None),
        ("1.9", "1.9", "1.9"),
        ("4.0", "4.0", "1.9"),
        ("2.4", "2.4", "2.4"),
    ):
        published.append(version)
        have(registry, tmp_path, make_pin(version=version))
        found = taken(host, registry, "auto"), taken(host, registry, "production")
        assert found == (automatic, production), published


def test_an_old_image_is_refused_before_it_is_chosen(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    host = with_recipe(settings, "never")
    serials = {f"debian:12 {KERNEL} x86_64 open 1.3": SERIAL + 1}
    write(Layout(settings.root, "demo").serials, json.dumps(serials).encode())
    have(registry, tmp_path)
    with pytest.raises(UntrustedError):
        look(host, registry)
    assert look(host, registry, trust=TrustOverride(allow_downgrade=True))


def test_a_pin_leads_to_its_image_whatever_that_is_called(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    trusted = find_pin_in_registries(settings, pin, DEFAULT, connected=connected(registry))
    assert trusted is not None
    assert trusted.pin == pin
    assert (
        find_pin_in_registries(
            settings, make_pin(version="9"), DEFAULT, connected=connected(registry)
        )
        is None
    )


def test_the_tag_of_a_pin_that_leads_to_another_image_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin, other = make_pin(), make_pin(version="9")
    have(registry, tmp_path, other, tag=pin_tag(pin.digest))
    with pytest.raises(UntrustedError):
        find_pin_in_registries(settings, pin, DEFAULT, connected=connected(registry))


def test_the_tag_of_a_pin_is_never_moved(registry: MemoryRegistry, tmp_path: Path) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag="first")
    have(registry, tmp_path, make_pin(version="9"), tag="second")
    client = registry.client(f"{ADDRESS}/demo:again")
    first, second = client.manifest("first"), client.manifest("second")
    tag = set_pin_tag(client, pin, first.digest)
    assert set_pin_tag(client, pin, first.digest) == tag == pin_tag(pin.digest)
    with pytest.raises(PinTagConflictError):
        set_pin_tag(client, pin, second.digest)
    assert client.manifest(tag).digest == first.digest
    # Another may set it at the same time.
    del registry.manifests[tag]
    registry.after.append(lambda _tag: registry.manifests.update({tag: second.data}))
    with pytest.raises(PinTagConflictError):
        set_pin_tag(client, pin, first.digest)


def test_the_tag_of_a_branch_leads_to_its_newest_version(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    client = registry.client(f"{ADDRESS}/demo:x")
    end = f"-{make_pin().kernel.release}-debian12"
    for version in ("5.9", "5.10", "5.2"):
        pin = make_pin(version=version)
        have(registry, tmp_path, pin, tag=version)
        labels = {OPERATOR_LABEL: version}
        set_operator_tags(client, pin, labels, client.manifest(version).digest)
    for tag, version in {"5.9": "5.9", "5.2": "5.2", "5": "5.10"}.items():
        assert client.manifest(f"{tag}{end}").digest == client.manifest(version).digest


def test_what_would_be_built_is_pulled_by_its_pin(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    copy_to_layout(registry, writable_layout(settings.root / "images/demo", Reference("", "demo")))
    host = configured(tmp_path, registry=RegistryConfig(folders=("/images",)))

    def no_engine() -> Engine:
        raise NotFoundError("no engine")

    done = obtain(using(host, no_engine), pin)
    assert (done.origin, done.entry.name) == ("registry", pin.short_digest)
    assert obtain(using(host, no_engine), pin).origin == "store"
