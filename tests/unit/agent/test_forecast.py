"""What a plan says of builds: as an apply would have them. Stores and registries: `unit/cli`."""

from __future__ import annotations

import re

import pytest

from kit.artifact import KERNEL
from kit.host_tree import DRIVER, HostTree
from provision.agent.desired import load_desired
from provision.agent.model import Mode, Run
from provision.agent.prepare import Forecast, forecast
from provision.agent.run import plan_host
from provision.build import session
from provision.engine import docker_api
from provision.errors import NotFoundError
from unit.engine.fake_engine import FakeEngine
from unit.fake_solver import closure
from unit.recipes import RECIPE

NEWEST, OLDER = "2.0", "1.2"


@pytest.fixture
def host(host_tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """A host with an engine, and the driver in its catalogue, which builds on Linux 6.1."""
    describe(host_tree, recipe_of(NEWEST, OLDER))
    host_tree.write(f"drivers/{DRIVER}/patches/fix.patch", "--- a\n+++ b\n")
    # Which versions this source has does not depend on an archive.
    host_tree.write("etc/os-release", "ID=rocky\nVERSION_ID=9.6\n")
    configure(host_tree)
    monkeypatch.setattr(docker_api, "connect", lambda _host: FakeEngine())
    monkeypatch.setattr(session, "solve", lambda _engine, request, _store, **_: closure(request))
    return host_tree


def describe(host: HostTree, text: str) -> None:
    host.write(f"drivers/{DRIVER}/driver.toml", text)


def recipe_of(*versions: str) -> str:
    """Return a recipe whose source has these versions."""
    releases = "".join(
        f'[[source.releases]]\nversion = "{one}"\nsha256 = "{64 * "0"}"\n'
        f'url = "https://driver.example/{one}.tar.xz"\n'
        for one in versions
    )
    head, _, rest = RECIPE.replace('"made-up"', f'"{DRIVER}"').partition("[source]")
    fails = '[[kernels]]\nfails = ">=9"\nreason = "strlcpy() is gone"\n\n'
    kernels = re.sub(r"(?m)^package = .*\n", "", rest[rest.index("[[kernels]]") :])
    return f'{head}[source]\nkind = "archive"\n{releases}\n{fails}{kernels}'


def configure(host: HostTree, driver: str = "", more: str = "") -> None:
    base = f'base_images = {{ "9.6" = "rocky@sha256:{64 * "b"}" }}'
    host.configure(
        f'catalogue = ["/drivers"]\n[distros.rocky]\n{base}\n[drivers.{DRIVER}]\n{driver}\n{more}'
    )


def look(host: HostTree) -> Forecast:
    """What is said of the running kernel."""
    desired, mode = load_desired(host.root), Mode()
    observed, planned, _ = plan_host(host.root, desired, mode)
    found = forecast(Run(host.root, desired, mode), observed, planned)
    return next(one for one in found if one.kernel == observed.kernels.running)


@pytest.mark.parametrize("has_registry", [False, True])
def test_what_no_registry_has_is_built_and_nothing_is_changed(
    host: HostTree, *, has_registry: bool
) -> None:
    folder = '[registry]\nfolders = ["/none"]\n[trust]\ninsecure = true\n'
    configure(host, more=folder if has_registry else "")
    found = look(host)
    assert (found.source, found.version, found.kernel) == ("build", NEWEST, KERNEL)
    # Why it is not pulled is worth a word only where something is asked.
    assert (found.reason is not None) is has_registry
    assert not host.store().exists()


@pytest.mark.parametrize("lacking", ["engine", "mirror", "version", "flavour", "kernel", "headers"])
def test_what_could_not_be_found_out_is_no_build(
    host: HostTree, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def missing(*_given: object, **_more: object) -> None:
        raise NotFoundError(f"There is no {lacking}.", resolution="Have one.")

    match lacking:
        case "engine":
            monkeypatch.setattr(docker_api, "connect", missing)
        case "mirror":
            host.write("etc/os-release", "ID=debian\nVERSION_ID=12\n")
        case "headers":
            monkeypatch.setattr(session, "solve", missing)
        case "kernel":
            host.boot("9.9.0-1-amd64")
        case _:
            configure(host, f'{lacking} = "{"9.9" if lacking == "version" else "opne"}"')
    found = look(host)
    assert (found.source, found.version) == ("missing", None)
    assert found.resolution


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
    host: HostTree, asked: str | None, kinds: dict[str, str], version: str, *, has_ended: bool
) -> None:
    branches = [
        f'{name} = {{ maturity = "{kind.split()[0]}"'
        + (', end_of_life = "2020-01" }' if "ended" in kind else " }")
        for name, kind in kinds.items()
    ]
    # Its tables are older than a year, which is said of each.
    tables = ['[upstream]\nreviewed = "2020-01"\n[hardware]\nreviewed = "2020-01"']
    text = [recipe_of("3.0", NEWEST, OLDER), *tables, "[upstream.branches]", *branches, ""]
    describe(host, "\n".join(text))
    configure(host, f'version = "{asked}"' if asked else "")
    found = look(host)
    assert (found.source, found.version, found.ended is not None) == ("build", version, has_ended)
    assert len(found.old) == 2
