"""From a request to a Pin, its context and its image, on real package indexes and a fake engine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import make_artifact
from kit.files import write
from kit.probe import is_root, need
from provision.build.base_image import BaseRequest, base_request, ensure_distro_base
from provision.build.image import (
    DIGEST_LABEL,
    build_image,
    differences,
    module_sums,
    record_built,
    render_context,
)
from provision.build.request import DriverRequest, choose_distro
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings, load_settings, proxies
from provision.distros.archive import Archive
from provision.distros.family import Repository
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, ProvisionError, UnreachableError
from provision.fleet import Selection, plan_cells
from provision.fleet.offers import find_offers
from provision.manifest import MANIFEST
from provision.pin import BasePin
from provision.progress import Event
from provision.store.availability import list_kernels
from unit.build.debian_host import KERNEL, REQUEST
from unit.build.debian_host import engine as engine  # noqa: PLC0414 - a fixture
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.build.made_up_driver import (
    digest,
    packages,
    pin,
)
from unit.build.made_up_driver import index as index  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import FakeEngine, no_engine, using
from unit.fake_archive import BASE_IMAGE, MIRROR, AptEngine, answer, archive_of, samples, stanza
from unit.recipes import recipe


def test_an_address_that_only_apt_reads_is_no_part_of_a_pin() -> None:
    texts = {("bookworm", "main"): packages()}
    mirrors = "mirror+file:/etc/apt/mirrors.list"

    def asked(names: tuple[str, ...]) -> bytes:
        return answer(texts, names).replace(MIRROR.encode(), mirrors.encode())

    suites = [Repository("bookworm", (mirrors,), components=("main",))]
    found = pin(Archive("debian:12", suites, [], asked))
    assert found.digest == pin(archive_of(texts)).digest
    assert mirrors not in str(found.urls)


def test_the_same_wish_gives_the_same_pin_and_context(
    settings: Settings, engine: AptEngine
) -> None:
    one, other = (resolve_pin(using(settings, engine), REQUEST) for _ in range(2))
    assert one == other
    assert one.base == BasePin(image="debian:bookworm", digest=BASE_IMAGE.id)
    assert render_context(settings, one).files == render_context(settings, other).files
    assert BASE_IMAGE.id in render_context(settings, one).dockerfile


def test_kernels_are_listed_with_what_is_known_of_them(
    settings: Settings, engine: AptEngine
) -> None:
    distro, found = list_kernels(
        using(settings, engine), DriverRequest("v4l2loopback", distro="debian:12")
    )
    assert distro.codename == "bookworm"
    (one,) = [offer for offer in found if offer.release == KERNEL]
    assert (one.version, one.known) == ("0.12.7", "works")
    newer = [offer for offer in found if offer.release.startswith("6.12.")]
    assert all((offer.known, offer.version) == ("fails", None) for offer in newer)
    assert all(offer.reason for offer in newer)


def test_a_matrix_chooses_from_what_the_archive_has(settings: Settings, engine: AptEngine) -> None:
    selection = Selection(
        drivers=("nvidia", "v4l2loopback"), distros=("debian:12",), flavours=("all",)
    )
    offers = find_offers(using(settings, engine), selection)
    assert len(engine.asked) == 2, "apt is asked for the kernels, and once for all drivers"
    kernels = offers.kernels["debian:12"]
    assert kernels
    assert KERNEL in kernels
    found = {(offer.driver, offer.flavour): offer for offer in offers.offers}
    assert found["v4l2loopback", "dkms"].versions == ("0.12.7",)
    assert {name for name, _ in found} == {"nvidia", "v4l2loopback"}
    cells = [one.cell for one in plan_cells(selection, offers)]
    assert len(cells) == len(set(cells))
    with pytest.raises(NotFoundError):
        find_offers(using(settings, no_engine), Selection(drivers=("none",)))
    with pytest.raises(NotFoundError, match="debian:1"):
        find_offers(
            using(settings, no_engine), Selection(drivers=("v4l2loopback",), distros=("debian:1",))
        )


def test_kernels_that_can_not_be_listed_have_to_be_named(settings: Settings) -> None:
    named = Selection(
        drivers=("v4l2loopback", "onload"),
        distros=("flatcar:3227.2.4",),
        kernels=("5.15.63-flatcar",),
    )
    offers = find_offers(using(settings, no_engine), named)
    assert offers.kernels == {"flatcar:3227.2.4": None}
    assert all(offer.refusal for offer in offers.offers if offer.driver == "v4l2loopback")
    with pytest.raises(NotFoundError):
        find_offers(using(settings, no_engine), named.model_copy(update={"kernels": ("latest",)}))


def test_a_flavour_that_there_is_not_has_no_kernels(settings: Settings) -> None:
    with pytest.raises(NotFoundError):
        list_kernels(using(settings, no_engine), DriverRequest("v4l2loopback", flavour="none"))


def test_a_base_image_is_named_by_its_digest(settings: Settings) -> None:
    named = f"mine:1@sha256:{'0' * 64}"
    engine = AptEngine(samples(), BASE_IMAGE._replace(id=f"sha256:{'0' * 64}"))
    pin = resolve_pin(using(settings, engine), replace(REQUEST, base=named))
    assert f"{pin.base.image}@{pin.base.digest}" == named


def test_an_image_that_is_there_takes_no_download(
    settings: Settings, engine: AptEngine, events: list[Event]
) -> None:
    resolved = resolve_pin(using(settings, engine), REQUEST)
    with pytest.raises(UnreachableError):
        build_image(using(settings, engine), resolved)
    labels = {DIGEST_LABEL: resolved.digest}
    image_id = f"sha256:{'1' * 64}"
    engine.have(Image(image_id, (resolved.image,), labels=labels))
    record_built(settings.state, image_id, resolved.image)
    assert not build_image(using(settings, engine), resolved).built
    # Whether it was made now or before, it is said what it lacks.
    left_out = {"driver-pod": "no awk", "driver-pod/tool": "tool needs libtool.so.1"}
    folder = settings.state / "artifact"
    make_artifact(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "left_out": left_out}))
    engine.contents[image_id] = folder
    assert build_image(using(settings, engine), resolved).left_out == left_out
    assert all(any(reason in str(event) for event in events) for reason in left_out.values())


def test_a_base_image_is_made_only_where_it_is_nowhere(
    settings: Settings, engine: AptEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(is_root(), "root", "a program that makes a base image gets namespaces of its own")
    calls = tmp_path / "calls"
    program = f'#!/bin/sh\nfor word; do :; done\necho "$word" >>"{calls}"\nexit 1\n'
    write(tmp_path / "bin/debootstrap", program, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert _base(settings, engine, "debian:12").digest == BASE_IMAGE.id
    assert not calls.exists()
    with pytest.raises(ProvisionError):
        _base(settings, FakeEngine(), "debian:12")
    assert calls.read_text() == f"{MIRROR}\n"
    # A name that an admin chose stands for something else.
    with pytest.raises(NotFoundError):
        _base(settings, FakeEngine(), "debian:13")
    assert calls.read_text() == f"{MIRROR}\n"


def _base(settings: Settings, engine: FakeEngine, distro: str) -> BasePin:
    request = base_request(settings, choose_distro(settings, distro))
    return ensure_distro_base(using(settings, engine), request)


def test_the_base_image_that_the_config_names_is_wanted(settings: Settings) -> None:
    def wanted(distro: str | None) -> BaseRequest:
        return base_request(settings, choose_distro(settings, distro))

    assert wanted("debian:13").name == "mine/trixie:1"
    ubuntu = wanted("ubuntu:26.04")
    assert (ubuntu.name, ubuntu.script) == ("ubuntu:resolute", "gutsy")
    assert wanted(None).name == "debian:bookworm"


def test_provision_toml_says_whose_kernels_a_host_runs(settings: Settings) -> None:
    """As on stand-ins of hosts that are not supported; what the caller names goes before."""
    (settings.root / "etc/os-release").write_text("ID=plan9\nVERSION_ID=4\n")
    config = settings.config.model_copy(update={"kernel_distro": "debian:12"})
    chosen = choose_distro(replace(settings, config=config), None)
    assert (chosen.id, chosen.codename) == ("debian", "bookworm")
    named = choose_distro(replace(settings, config=config), "debian:13")
    assert named.codename == "trixie"
    with pytest.raises(NotFoundError, match="plan9:4"):
        choose_distro(settings, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": "Another text"},
        {"vendor": "Someone"},
        {"homepage": "https://elsewhere.example"},
        {"kernels": [{"works": ">=1"}]},
        {"hardware": {"pci": []}},
    ],
)
def test_what_doesnt_reach_the_build_leaves_the_digest(changes: dict[str, object]) -> None:
    assert digest(recipe(**changes)) == digest(recipe())


def test_what_reaches_the_build_changes_the_digest() -> None:
    base = recipe()
    flavours = {name: value.model_dump(mode="json") for name, value in base.flavours.items()}
    other = {**flavours, "plain": {**flavours["plain"], "licences": ["BSD-3-Clause"]}}
    container = {**base.container.model_dump(mode="json"), "log_level": "LOG_DEBUG"}
    changed = [recipe(flavours=other), recipe(container=container), recipe(files=[])]
    digests = {digest(one) for one in [base, *changed]}
    assert len(digests) == 4
    assert digest(recipe(flavours=other), "other") == digest(base, "other")


@pytest.mark.parametrize(
    "more",
    [
        stanza("tool-source", "1.11_1-1"),
        stanza("tool-companion", "0.9_1-1"),
        "\n".join(stanza(f"tool-{part}", f"1.{'1' * 70}-1") for part in ("source", "user")),
    ],
)
def test_a_package_that_a_pin_cant_hold_is_an_error_of_ours(more: str) -> None:
    made = archive_of({("bookworm", "main"): packages(more)})
    with pytest.raises(ProvisionError):
        pin(made)


def test_each_module_that_differs_is_named_with_both_sums() -> None:
    before = {"a.ko": "1" * 64, "b.ko": "2" * 64, "gone.ko": "3" * 64}
    after = {"a.ko": "4" * 64, "b.ko": "2" * 64, "new.ko": "5" * 64}
    assert differences(before, before) == ()
    found = differences(before, after)
    assert [line.partition(":")[0] for line in found] == ["a.ko", "gone.ko", "new.ko"]
    assert "111111111111" in found[0]
    assert "444444444444" in found[0]
    assert "not there" in found[1]


@pytest.mark.parametrize(
    ("manifest", "sums"),
    [
        ({"modules": [{"path": "a.ko", "sha256": "1"}]}, {"a.ko": "1"}),
        ({"modules": [{}]}, {}),
        ({"modules": 1}, {}),
        ({}, {}),
    ],
)
def test_sums_are_those_of_the_manifest(manifest: dict[str, Any], sums: dict[str, str]) -> None:
    assert module_sums(manifest) == sums


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies, which is as before afterwards."""
    for name in (*(f"{kind}_proxy" for kind in ("http", "https", "no", "all")), "HTTPS_PROXY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_proxy_of_provision_toml_replaces_those_of_a_shell(
    tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("HTTPS_PROXY", "http://shell.example:1")
    variables.setenv("all_proxy", "http://shell.example:1")
    path = tmp_path / "etc/provision/provision.toml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    with load_settings(tmp_path).connected():
        assert proxies() == {"HTTPS_PROXY": "http://shell.example:1"}
    path.write_text('[network]\nproxy = "http://p.example:3128"\nno_proxy = [".example", "::1"]\n')
    with load_settings(tmp_path).connected():
        assert proxies() == {
            "http_proxy": "http://p.example:3128",
            "https_proxy": "http://p.example:3128",
            "no_proxy": ".example,::1",
        }
        assert "all_proxy" not in os.environ
    assert proxies() == {"HTTPS_PROXY": "http://shell.example:1"}
    assert "all_proxy" in os.environ
