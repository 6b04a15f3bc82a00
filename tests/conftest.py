"""An engine a process, and what of the tests is run, in which order (`kit.schedule`)."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.remote import Producer

from kit.cache import shared_file, shared_folder
from kit.engine import Engine
from kit.kernels import kernels, replaced
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR, DISTRO, RUNTIME, Provision, load_base, make_wheel
from kit.registry import free_port
from kit.schedule import (
    LONGEST_AT_NIGHT,
    NIGHT,
    Scheduling,
    minutes_of,
    name_of,
    put_in_order,
    record,
    recorded_seconds,
    scope_in,
    scope_of,
    tier_of,
    time_left_for,
)
from kit.toolchains import load_toolchains

# As every command of ours begins: what a test calls in this process is not told by a shell's umask.
os.umask(0o022)
# A slow machine is no failure of a property; and each run tries other cases than the one before.
# No database: the checkout may be another user's.
hypothesis.settings.register_profile("each run", deadline=None, max_examples=40, database=None)
hypothesis.settings.load_profile("each run")

# The first stage of a life that failed.
_FAILED_STAGE = pytest.StashKey[str]()
# How long each scope takes.
_MINUTES = pytest.StashKey[dict[str, float]]()
# Whether there was time for a scope, when its first test came.
_BEGUN = pytest.StashKey[dict[str, bool]]()
_NO_TIME = "no time is left for it"
# What builds for packaged kernels.
_ON_KERNELS = ("tests/engine/", "tests/hosts/", "tests/vm/", "tests/vagrant/")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for a tier, for a run that has only so much time, and for one that is shown."""
    group = parser.getgroup("time")
    tiers = range(1, NIGHT + 1)
    say = "only tests of that tier; may be repeated"
    group.addoption("--tier", type=int, choices=tiers, action="append", help=say)
    limit = "of 1970: what ends by then, by lot"
    group.addoption("--end-by", type=float, metavar="SECONDS", help=limit)
    group = parser.getgroup("recording")
    group.addoption("--record", type=Path, metavar="FILE", help="note what a host's life shows")


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist say in which group a test is."""
    if config.option.dist != "no":
        config.option.dist = "loadgroup"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Take ours, whatever `--dist` says."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what other options have left, take the tier, and put it in order."""
    if wanted := config.option.tier:
        config.hook.pytest_deselected(items=[i for i in items if tier_of(i) not in wanted])
        items[:] = [item for item in items if tier_of(item) in wanted]
    nights = minutes_of(item for item in items if tier_of(item) == NIGHT)
    if long := [scope for scope, minutes in nights.items() if minutes > LONGEST_AT_NIGHT]:
        raise pytest.UsageError(f"longer than CI has at night, split it: {', '.join(long)}")
    minutes = config.stash[_MINUTES] = minutes_of(items, recorded_seconds())
    put_in_order(items, minutes, config.option.end_by)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out stages after one that failed, and begin nothing that would not end in time."""
    if item.parent is not None and (failed := item.parent.stash.get(_FAILED_STAGE, None)):
        pytest.skip(f"the stage before failed: {failed}")
    end = item.config.option.end_by
    if not end:
        return
    # Once for all tests of a scope: a host's life is not cut after it has begun.
    begun, scope = item.config.stash.setdefault(_BEGUN, {}), scope_of(item)
    if not begun.setdefault(scope, time_left_for(item.config.stash[_MINUTES][scope], end)):
        pytest.skip(_NO_TIME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember the first stage that failed."""
    report = yield
    if report.failed and item.parent is not None and item.get_closest_marker("stages"):
        item.parent.stash[_FAILED_STAGE] = item.name
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where kernels are not those that are pinned; remember how long real programs took."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    if terminalreporter.config.option.end_by:
        scopes = {scope_in(one.nodeid) for one in reports if one.when == "call"}
        terminalreporter.write_line(f"had their turn: {', '.join(sorted(scopes))}")
    reports = [report for report in reports if report.nodeid.startswith(_ON_KERNELS)]
    if not reports:
        return
    seconds: dict[str, float] = {}
    for report in reports:
        name = name_of(report.nodeid)
        seconds[name] = seconds.get(name, 0) + report.duration
    passed = {name_of(report.nodeid) for report in reports if report.when == "call"}
    failed = {name_of(report.nodeid) for report in reports if not report.passed}
    record({name: round(took, 1) for name, took in seconds.items() if name in passed - failed})
    if said := replaced():
        terminalreporter.write_line(said, yellow=True)


@pytest.fixture(scope="session")
def shim_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that OCI_DECORATOR_CONFIG names in both engines; `host` writes it."""
    return tmp_path_factory.mktemp("shim") / "config.toml"


@pytest.fixture(scope="session")
def engine(shim_config: Path) -> Iterator[Engine]:
    """A private Docker engine with the base image of DISTRO and our runtime.

    It builds for hosts and guests too: what one test has built, another needn't.
    """
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("dockerd", "containerd", "docker", "runc", "debootstrap")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    runtimes = {"oci-decorator": RUNTIME}
    with Engine(runtimes=runtimes, environment=environment, port=free_port()) as engine:
        load_base(engine)
        load_toolchains(engine)
        yield engine


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provision as it is now: a checkout may change while hosts are looked at."""
    return shared_file(tmp_path_factory, "wheel", make_wheel)


@pytest.fixture(scope="session")
def first_small_build(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `provision build` says about the small driver on OLD_KERNEL.

    One process builds it; the others load its image from ``archive``, as a test that removes it
    from an engine does afterwards.
    """
    with shared_folder(tmp_path_factory, "small-build") as shared:
        said, archive = shared / "said.json", shared / "image.tar"
        if said.exists():
            engine.docker("load", "--quiet", "--input", archive)
        else:
            built = _build_small(engine)
            engine.docker("save", "--output", archive, built["image"])
            said.write_text(json.dumps(built))
    built_there: dict[str, Any] = json.loads(said.read_text())
    return built_there | {"archive": str(archive)}


@pytest.fixture
def small_build(engine: Engine, first_small_build: dict[str, Any]) -> dict[str, Any]:
    """The same as of now: the archive's index may change in a run, and the Pin with it."""
    built = _build_small(engine)
    if built["built"]:
        engine.docker("save", "--output", first_small_build["archive"], built["image"])
    return first_small_build | built


def _build_small(engine: Engine) -> dict[str, Any]:
    target = ("v4l2loopback", "--kernel", kernels()[0], "--distro", DISTRO)
    return Provision(engine.host).build(*target)
