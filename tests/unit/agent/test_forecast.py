"""Where a plan says that artifacts come from: as an apply would have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.artifact import KERNEL, add, make_artifact, make_pin, write
from kit.host_tree import DRIVER, NEXT
from provision.agent import actions
from provision.agent.actions import Forecast, forecast
from provision.agent.model import Mode, Run
from provision.agent.run import plan_host
from provision.build import resolve
from provision.build.package_store import Closure
from provision.build.request import DriverRequest
from provision.engine import docker_api
from provision.errors import NotFoundError, ProvisionError
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry.find import SearchOptions, TrustOverride
from provision.registry.signatures import UntrustedError
from provision.store.artifact_lookup import DowngradeError, MissingArtifactError
from provision.store.state import Failure, load_state, update_state
from unit.agent.host import NEWEST, OLDER, Host
from unit.cli.outcome import Outcome
from unit.engine.fake_engine import FakeEngine
from unit.fake_solver import closure
from unit.recipes import RECIPE

Call = Callable[..., Outcome]
IMAGE = f"registry.example/{DRIVER}@sha256:1"
REGISTRY = '[registry]\naddress = "registry.example"\n'


class Registry:
    """What a registry has, in place of the real way to ask one.

    Attributes:
        pins: Of its images, by kernel.
        error: Why there is no answer that helps.
        wanted: What was asked for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pins: dict[str, Pin] = {}
        self.error: Exception | None = None
        self.wanted: list[tuple[DriverRequest, TrustOverride]] = []
        monkeypatch.setattr(actions, "look_for", self.look_for)

    def look_for(self, _settings: object, wanted: DriverRequest, lookup: SearchOptions) -> Any:  # noqa: ANN401 - a stand-in for what is found
        self.wanted.append((wanted, lookup.consent))
        if self.error is not None:
            raise self.error
        pin = self.pins.get(wanted.kernel or "")
        if pin is None:
            report(Note(f"registry.example has no {wanted.driver}"))
            return None
        return SimpleNamespace(pin=pin, reference=IMAGE)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(monkeypatch)


@pytest.fixture(autouse=True)
def engine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an engine, and the driver is in the catalogue: it builds on Linux 6.1."""
    write(host.root / f"drivers/{DRIVER}/driver.toml", recipe_of(NEWEST, OLDER).encode())
    write(host.root / f"drivers/{DRIVER}/patches/fix.patch", b"--- a\n+++ b\n")
    # Which versions this source has does not depend on an archive.
    write(host.root / "etc/os-release", b"ID=rocky\nVERSION_ID=9.6\n")
    configure(host)
    monkeypatch.setattr(docker_api, "connect", lambda _host: FakeEngine())
    # What a build would be made of is decided as an apply decides it, but for the solver.
    monkeypatch.setattr(actions, "resolve_pin", resolve.resolve_pin)
    monkeypatch.setattr(resolve, "solve", lambda _engine, request, _store, **_: closure(request))


def recipe_of(*versions: str) -> str:
    """Return a recipe whose source has these versions."""
    releases = "".join(
        f'[[source.releases]]\nversion = "{one}"\nsha256 = "{64 * "0"}"\n'
        f'url = "https://driver.example/{one}.tar.xz"\n'
        for one in versions
    )
    text = RECIPE.replace('name = "made-up"', f'name = "{DRIVER}"').replace(
        "[[kernels]]",
        '[[kernels]]\nfails = ">=9"\nreason = "strlcpy() is gone"\n\n[[kernels]]',
        1,
    )
    head, _, rest = text.partition("[source]")
    text = f'{head}[source]\nkind = "archive"\n{releases}\n{rest[rest.index("[[kernels]]") :]}'
    return re.sub(r"(?m)^package = .*\n", "", text)


def configure(host: Host, more: str = REGISTRY, driver: str = "") -> None:
    base = f'base_images = {{ "9.6" = "rocky@sha256:{64 * "b"}" }}'
    host.configure(
        f'catalogue = ["/drivers"]\n[distros.rocky]\n{base}\n[drivers.{DRIVER}]\n{driver}\n{more}'
    )


def look(host: Host, **mode: bool) -> dict[str, Forecast]:
    """What is said of each kernel."""
    desired = host.desired()
    how = Mode(**mode)  # type: ignore[arg-type] # all but the kernels are flags
    observed, planned, _ = plan_host(host.root, desired, how)
    return {one.kernel: one for one in forecast(Run(host.root, desired, how), observed, planned)}


def test_each_kernel_has_its_own_source(host: Host, registry: Registry) -> None:
    host.apply()
    registry.wanted.clear()
    host.add_kernel(NEXT)
    registry.pins[NEXT] = make_pin(driver=DRIVER, version=NEWEST, kernel=NEXT)
    found = look(host)
    assert found[KERNEL] == Forecast(DRIVER, KERNEL, "store", NEWEST)
    assert found[NEXT] == Forecast(DRIVER, NEXT, "registry", NEWEST, IMAGE)
    assert str(found[NEXT]) == f"A registry has {NEWEST}: {IMAGE}"
    # What is there is asked of no registry; a version stays for further kernels.
    ((wanted, consent),) = registry.wanted
    assert (wanted.kernel, wanted.prefer, consent.allow_downgrade) == (NEXT, NEWEST, False)


def test_what_no_registry_has_is_built_and_nothing_is_changed(
    host: Host, registry: Registry
) -> None:
    found = look(host)[KERNEL]
    assert (found.source, found.version) == ("build", NEWEST)
    assert str(found) == f"It builds {NEWEST} here: registry.example has no {DRIVER}"
    assert [wanted.kernel for wanted, _ in registry.wanted] == [KERNEL]
    assert host.wanted == []
    assert not host.layout.folder.exists()


@pytest.mark.usefixtures("registry")
def test_without_a_registry_there_is_nothing_to_explain(host: Host) -> None:
    configure(host, "")
    assert str(look(host)[KERNEL]) == f"It builds {NEWEST} here"


def test_an_image_whose_artifact_is_in_the_store_is_not_pulled(
    host: Host, registry: Registry
) -> None:
    pin = registry.pins[KERNEL] = make_pin(driver=DRIVER, version=NEWEST, kernel=KERNEL)

    def fill(path: Path) -> None:
        make_artifact(path, pin=pin)

    add(host.layout, pin.short_digest, fill)
    assert look(host)[KERNEL] == Forecast(DRIVER, KERNEL, "store", NEWEST)


@pytest.mark.parametrize(
    ("error", "code"), [(MissingArtifactError, 3), (DowngradeError, 1), (UntrustedError, 1)]
)
def test_what_can_not_be_had_is_missing_and_the_way_out_is_said(
    host: Host, registry: Registry, call: Call, error: type[ProvisionError], code: int
) -> None:
    registry.error = error("No registry has it", resolution="Push it")
    found = look(host)[KERNEL]
    assert (found.source, found.resolution) == ("missing", "Push it")
    assert str(found) == "It is not available: No registry has it"
    for command in ("plan", "apply"):
        assert call(command, "--root", host.root).code == code


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("lacking", ["engine", "mirror", "version", "flavour", "kernel", "headers"])
def test_what_could_not_be_found_out_is_no_build(
    host: Host, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    match lacking:
        case "engine":
            monkeypatch.setattr(docker_api, "connect", _no_engine)
        case "mirror":
            write(host.root / "etc/os-release", b"ID=debian\nVERSION_ID=12\n")
        case "headers":
            monkeypatch.setattr(resolve, "solve", _no_headers)
        case "kernel":
            host.boot("9.9.0-1-amd64")
        case _:
            configure(host, driver=f'{lacking} = "{"9.9" if lacking == "version" else "opne"}"')
    found = look(host)["9.9.0-1-amd64" if lacking == "kernel" else KERNEL]
    assert (found.source, found.version) == ("missing", None)
    assert found.resolution


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("asked", "kinds", "version", "has_ended"),
    [
        # The default: no new-feature branch, and no branch that has ended.
        (None, {"3": "new-feature", "2": "production ended", "1": "lts"}, "1.2", False),
        ("production", {"3": "new-feature", "2": "lts", "1": "production"}, "2.0", False),
        # An ended one is better than none, and that is said.
        (None, {"3": "new-feature", "2": "production ended", "1": "lts ended"}, "2.0", True),
        ("2", {"3": "production", "2": "production ended"}, "2.0", True),
        # A driver whose branches have no kinds.
        (None, {}, "3.0", False),
        ("latest", {"3": "new-feature", "1": "lts"}, "3.0", False),
        ("lts", {"3": "new-feature", "1": "lts"}, "1.2", False),
    ],
)
def test_a_version_is_of_a_branch_for_production(
    host: Host, asked: str | None, kinds: dict[str, str], version: str, *, has_ended: bool
) -> None:
    branches = [
        f'{name} = {{ maturity = "{kind.split()[0]}"'
        + (', end_of_life = "2020-01" }' if "ended" in kind else " }")
        for name, kind in kinds.items()
    ]
    text = "\n".join([recipe_of("3.0", NEWEST, OLDER), "[upstream.branches]", *branches, ""])
    write(host.root / f"drivers/{DRIVER}/driver.toml", text.encode())
    configure(host, "", f'version = "{asked}"' if asked else "")
    found = look(host)[KERNEL]
    assert (found.source, found.version, found.ended is not None) == ("build", version, has_ended)


def _no_headers(*_given: object, **_more: object) -> Closure:
    raise NotFoundError("The kernel has no headers.", resolution="Boot another.")


@pytest.mark.usefixtures("registry")
def test_tables_that_are_older_than_a_year_are_said(host: Host) -> None:
    tables = '[upstream]\nreviewed = "2020-01"\n[hardware]\nreviewed = "2020-01"\n'
    write(host.root / f"drivers/{DRIVER}/driver.toml", f"{recipe_of(NEWEST)}\n{tables}".encode())
    said = [notice.message for notice in look(host)[KERNEL].old]
    assert [word for word in ("branches", "cards") if any(word in one for one in said)] == [
        "branches",
        "cards",
    ]


def _no_engine(_settings: object) -> FakeEngine:
    raise NotFoundError("No container engine answers.", resolution="Install one.")


def test_an_update_stays_with_what_no_newer_image_replaces(ready: Host, registry: Registry) -> None:
    configure(ready)
    ready.apply()
    registry.pins[KERNEL] = make_pin(driver=DRIVER, version=OLDER, kernel=KERNEL)
    found = look(ready, update=True)[KERNEL]
    assert (found.source, found.version) == ("store", NEWEST)
    assert found.reason == "there is no newer one"


def test_an_older_image_is_missing_unless_it_is_allowed(ready: Host, registry: Registry) -> None:
    configure(ready)
    ready.apply()
    registry.pins[KERNEL] = make_pin(driver=DRIVER, version="1.1", kernel=KERNEL)
    found = look(ready, retry=True)
    # Nothing failed, so there is nothing to try again.
    assert found[KERNEL].source == "store"
    failure = Failure(reason="compile", message="it does not compile", inputs="", time=0)
    failed = load_state(ready.layout).of(KERNEL).model_copy(update={"failure": failure})
    update_state(ready.layout, lambda state: state.updated(KERNEL, failed))
    found = look(ready, retry=True)
    assert found[KERNEL].source == "missing"
    assert "which is older" in str(found[KERNEL])
    found = look(ready, retry=True, allow_downgrade=True)
    assert (found[KERNEL].source, found[KERNEL].version) == ("registry", "1.1")


def test_next_kernels_wait_where_the_policy_says_so(host: Host, registry: Registry) -> None:
    configure(host, "[policy]\nprebuild = false\n")
    host.add_kernel(NEXT)
    found = look(host)
    assert (found[KERNEL].source, found[NEXT].source) == ("build", "missing")
    assert "prebuild = true" in (found[NEXT].resolution or "")
    assert registry.error is None
