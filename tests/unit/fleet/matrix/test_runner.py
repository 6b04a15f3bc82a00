"""What a run of a matrix builds, remembers and leaves behind; builds are made up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit.artifact import make_pin
from provision.build.diagnosis import BuildError, SourceError
from provision.build.image import DIGEST_LABEL, TOOLCHAIN_KERNEL_LABEL, TOOLCHAIN_LABEL, Built
from provision.build.provenance import record_built
from provision.build.request import BuildSettings, DriverRequest
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, DriverConfig
from provision.engine.docker_api import Engine, EngineError, EngineLostError, Image
from provision.engine.stream import StepRecord
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.files import lock
from provision.fleet.matrix import results, runner
from provision.fleet.matrix.cells import Cell, Column, Planned, Row
from provision.fleet.matrix.results import Outcome, Result, Results
from provision.fleet.matrix.runner import MatrixRun, RunOptions
from provision.progress import Event, Note, Output, Tally, heard_by, report
from unit.engine.fake_engine import FakeEngine, using
from unit.killing import KILLER

KERNELS = ("6.1.0-50-amd64", "6.1.0-47-amd64", "6.1.0-40-amd64")
LINES = [f"line {number}" for number in range(100)]
LINES[60] = "/source/a.c:7:5: error: no member named 'x'"


def steps(*, whole: bool = True) -> tuple[StepRecord, ...]:
    """What a build did: a stage of its own, the artifact."""
    names = ["FROM toolchain AS build", "RUN make"]
    names += ["FROM scratch", "COPY x"] if whole else []
    records = [
        StepRecord(number, name, layer=name.replace(" ", "-"))
        for number, name in enumerate(names, start=1)
    ]
    if not whole:
        records[-1].layer = None
        records[-1].lines = deque(LINES)
        records.insert(1, StepRecord(9, "RUN unpack", layer="RUN-unpack"))
    return tuple(records)


def compile_error() -> BuildError:
    return BuildError(
        "demo does not compile: 1 error",
        steps=steps(whole=False),
        source_errors=[SourceError("/source/a.c", 7, "no member named 'x'", (" 7 | x",))],
        log=Path("/var/cache/provision/logs/demo-1.log"),
        resolution="patch it",
        details="a.c:7: error: no",
    )


@dataclass
class Lab:
    """A matrix whose builds are made up.

    Attributes:
        results: What is kept.
        engine: Has the images.
        broken: What is raised instead of building, by kernel or version.
        unresolved: What is raised instead of a Pin.
        flavour: Changes every Pin.
        builds: What was built.
        hold: Called in each build.
        events: What was said.
    """

    settings: Settings
    results: Results
    engine: FakeEngine = field(default_factory=FakeEngine)
    broken: dict[str, Exception] = field(default_factory=dict)
    unresolved: dict[str, Exception] = field(default_factory=dict)
    driver: str = "demo"
    builds: list[str] = field(default_factory=list)
    hold: Callable[[str], None] = lambda _name: None
    events: list[Event] = field(default_factory=list)
    wanted: list[DriverRequest] = field(default_factory=list)

    def resolve(
        self,
        settings: Settings,
        wanted: DriverRequest,
        **_more: object,
    ) -> Resolved:
        assert settings.engine() is self.engine
        self.wanted.append(wanted)
        assert wanted.kernel
        assert wanted.version
        if error := self.unresolved.get(wanted.kernel):
            raise error
        pin = make_pin(driver=self.driver, version=wanted.version, kernel=wanted.kernel)
        return cast("Resolved", SimpleNamespace(pin=pin, urls={}))

    def build(
        self,
        _settings: object,
        resolved: Resolved,
        how: BuildSettings,
    ) -> Built:
        pin = resolved.pin
        name = f"{pin.driver.version} {pin.kernel.release}"
        self.builds.append(name)
        self.hold(name)
        report(Output(f"CC {name}"))
        self.have_toolchain(pin.kernel.release)
        for key in (pin.kernel.release, pin.driver.version):
            if error := self.broken.get(key):
                raise error
        was_there = self.engine.image(pin.image) is not None and not how.rebuild
        image = Image(f"sha256:{pin.short_digest}", (pin.image,), labels={DIGEST_LABEL: pin.digest})
        self.engine.have(image)
        record_built(self.settings.state, image.id, pin.image)
        return Built(pin.image, image.id, 7, not was_there, 1.5, () if was_there else steps())

    def have_toolchain(self, kernel: str) -> None:
        labels = {TOOLCHAIN_LABEL: "", TOOLCHAIN_KERNEL_LABEL: kernel}
        image = Image(
            f"sha256:toolchain-{kernel}", (f"provision/toolchain:{kernel}",), labels=labels
        )
        self.engine.have(image)
        record_built(self.settings.state, image.id, image.tags[0])

    def run(self, planned: Iterable[Planned] | None = None, **how: object) -> Outcome:
        with heard_by(self.events.append):
            return self.start(**how).run(list(planned if planned is not None else cells()))

    def start(self, **how: object) -> MatrixRun:
        return MatrixRun(
            using(self.settings, self.engine),
            self.results,
            replace(RunOptions(), **how),  # type: ignore[arg-type] # members of RunOptions
        )

    def states(self) -> dict[str, str]:
        found = list(self.results.load()[0])
        return {f"{r.version} {r.kernel}": r.state for r in found}

    def result(self, kernel: str = KERNELS[0], version: str = "2.0") -> Result:
        found = self.results.read(cell(version, kernel))
        assert found is not None
        return found

    @property
    def removed(self) -> list[str]:
        calls = [call.removeprefix("remove ") for call in self.engine.calls if "remove" in call]
        return [call.removesuffix(" with parents") for call in calls]


def cell(version: str, kernel: str) -> Cell:
    return Cell(Row("demo", version, "open"), Column("debian:12", kernel))


def cells(versions: Iterable[str] = ("2.0", "1.2")) -> list[Planned]:
    return [Planned(cell(version, kernel)) for kernel in KERNELS for version in versions]


def everything() -> list[str]:
    return [f"{one.cell.row.version} {one.cell.column.kernel}" for one in cells()]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (tmp_path / "host").mkdir()
    settings = Settings(tmp_path / "host", Config(), Catalogue([]), tmp_path / "cache")
    lab = Lab(settings, Results(tmp_path / "matrix"))
    monkeypatch.setattr(runner, "resolve_pin", lab.resolve)
    monkeypatch.setattr(runner, "build_image", lab.build)
    return lab


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_cell_is_built_once_and_not_again(lab: Lab, jobs: int) -> None:
    done = lab.run(jobs=jobs)
    assert sorted(lab.builds) == sorted(everything())
    assert len(done.built) == 6
    assert set(lab.states().values()) == {"built"}
    again = lab.run(jobs=jobs)
    assert len(lab.builds) == 6
    assert (len(again.built), len(again.unchanged)) == (0, 6)
    assert lab.result().digest == make_pin(version="2.0", kernel=KERNELS[0]).digest
    assert {"export", "total"} <= lab.result().seconds.keys()


def test_a_changed_pin_is_built_again(lab: Lab) -> None:
    lab.run()
    lab.driver = "demo-two"
    assert len(lab.run().built) == 6


def test_a_failure_is_kept_with_place_output_and_cure_and_the_others_are_built(lab: Lab) -> None:
    lab.broken[KERNELS[1]] = compile_error()
    done = lab.run()
    assert done.troubles == []
    result = lab.result(KERNELS[1])
    assert (result.state, result.reason, result.phase) == ("failed", "compile", "build")
    assert result.cause == "/source/a.c:7: no member named 'x'"
    assert result.excerpt[5] == LINES[60]
    assert len(result.excerpt) == 30
    assert (result.resolution, result.instruction) == ("patch it", "RUN make")
    assert result.log == "/var/cache/provision/logs/demo-1.log"
    assert list(lab.states().values()).count("built") == 4
    notes = [event.text for event in lab.events if isinstance(event, Note)]
    assert any(KERNELS[1] in note and "no member named" in note for note in notes)


def test_what_a_compiler_refused_is_not_tried_again_unless_asked_for(lab: Lab) -> None:
    lab.broken[KERNELS[1]] = compile_error()
    lab.run()
    lab.builds.clear()
    lab.run()
    assert lab.builds == []
    lab.broken.clear()
    lab.run(retry="failed")
    assert lab.builds == [f"2.0 {KERNELS[1]}", f"1.2 {KERNELS[1]}"]
    assert set(lab.states().values()) == {"built"}
    lab.run(retry="all")
    assert len(lab.builds) == 8


def test_another_failure_is_tried_again(lab: Lab) -> None:
    lab.broken[KERNELS[1]] = BuildError("a patch does not apply", resolution="do", details="x")
    lab.unresolved[KERNELS[2]] = NotFoundError("no headers", resolution="wait")
    lab.run()
    assert (lab.result(KERNELS[1]).reason, lab.result(KERNELS[1]).phase) == ("build", "build")
    missing = lab.result(KERNELS[2])
    assert (missing.reason, missing.phase, missing.digest) == ("missing", "resolve", None)
    lab.broken.clear()
    lab.unresolved.clear()
    assert len(lab.run().built) == 4
    assert set(lab.states().values()) == {"built"}


def test_a_kernel_that_the_driver_itself_excludes_is_not_supported(lab: Lab) -> None:
    lab.broken[KERNELS[1]] = BuildError(
        "its dkms.conf excludes this kernel",
        exit_code=ExitCode.NOT_FOUND,
        resolution="take another",
        details="x",
    )
    assert len(lab.run().built) == 6
    excluded = lab.result(KERNELS[1])
    assert (excluded.state, excluded.reason) == ("not-supported", None)
    assert excluded.message == "its dkms.conf excludes this kernel"
    assert excluded.resolution == "take another"
    # The same Pin excludes it again.
    assert lab.run().built == []
    assert len(lab.builds) == 6


def test_what_is_not_supported_is_said_and_not_built(lab: Lab) -> None:
    planned = [replace(one, refusal="too new", resolution="force it") for one in cells()]
    lab.run(planned)
    assert lab.builds == []
    assert lab.result().state == "not-supported"
    assert (lab.result().message, lab.result().resolution) == ("too new", "force it")
    lab.run(cells(), force=True)
    assert set(lab.states().values()) == {"built"}
    # Nothing is refused that the plan of the cells has let through.
    assert all(wanted.force for wanted in lab.wanted)


@pytest.mark.parametrize(
    "error",
    [
        EngineLostError("the engine went away", resolution="start it"),
        EngineError("the new image is gone"),
        UnreachableError("no route", resolution="wait"),
        BuildError("disk full", is_outside=True, resolution="room", details="x"),
        ProvisionError("could not build", details="write: No space left on device"),
        OSError(28, "No space left on device", "/var/cache"),
    ],
)
def test_what_is_wrong_with_the_machine_is_no_result_and_ends_the_run(
    lab: Lab, error: Exception
) -> None:
    lab.broken[KERNELS[1]] = error
    done = lab.run()
    assert len(done.troubles) == 1
    assert done.troubles[0][1].message
    assert len(done.left) == 3
    assert len(lab.states()) == 2
    lab.broken.clear()
    assert len(lab.run().built) == 4
    lab.broken[KERNELS[1]] = error
    lab.results.path(cell("2.0", KERNELS[1])).unlink()
    going = lab.run(keep_going=True)
    assert (len(going.troubles), len(going.unchanged), going.left) == (1, 5, [])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_defect_in_one_cell_ends_the_run_and_is_not_a_success(lab: Lab, jobs: int) -> None:
    lab.broken[KERNELS[1]] = ValueError("not foreseen")
    with pytest.raises(ValueError, match="not foreseen"):
        lab.run(jobs=jobs)
    assert not any(name.endswith(KERNELS[1]) for name in lab.states())


def test_two_runs_that_build_all_again_build_each_cell_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run()
    first, second = lab.start(retry="all"), lab.start(retry="all")
    lab.builds.clear()
    later = time.time() + 2
    monkeypatch.setattr(results, "time", SimpleNamespace(time=lambda: later))
    assert len(first.run(cells()).built) == len(cells())
    done = second.run(cells())
    assert (done.built, len(done.unchanged)) == ([], len(cells()))
    assert len(lab.builds) == len(cells())


def test_an_engine_that_does_not_answer_is_no_result(lab: Lab) -> None:
    def gone() -> Engine:
        raise NotFoundError("No container engine answers.")

    run = MatrixRun(using(lab.settings, gone), lab.results, RunOptions())
    assert len(run.run(cells()).troubles) == 1
    assert lab.states() == {}


def test_images_go_when_nothing_needs_them_and_toolchains_after_the_last_cell(lab: Lab) -> None:
    lab.run(cells(["2.0", "1.2"]))
    removed = []
    for kernel in KERNELS:
        pins = [make_pin(version=version, kernel=kernel) for version in ("2.0", "1.2")]
        removed += [f"sha256:{pin.short_digest}" for pin in pins]
        removed.append(f"provision/toolchain:{kernel}")
    assert lab.removed == removed
    assert all(result.image is None for result in lab.results.load()[0])


def test_a_toolchain_that_another_build_uses_or_of_a_kernel_of_this_host_stays(lab: Lab) -> None:
    modules = lab.settings.root / "lib/modules" / KERNELS[0]
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()
    with lock(lab.settings.state / f"locks/toolchains-{KERNELS[1]}", shared=True):
        lab.run(cells(["2.0"]))
    assert [one for one in lab.removed if "toolchain" in one] == [
        f"provision/toolchain:{KERNELS[2]}"
    ]


def test_what_was_forced_is_not_taken_back_by_a_plain_run(lab: Lab) -> None:
    lab.broken["2.0"] = compile_error()
    lab.run(cells(["2.0"])[:1], force=True)
    assert lab.result().forced
    refused = [replace(one, refusal="too new") for one in cells(["2.0"])[:1]]
    lab.run(refused)
    assert (lab.result().state, lab.result().forced) == ("failed", True)
    # A plain result says nothing against what the recipe says by now.
    lab.broken.clear()
    lab.run(cells(["2.0"])[:1], retry="all")
    assert not lab.result().forced
    lab.run(refused)
    assert lab.result().state == "not-supported"


def test_the_layers_of_a_failed_build_go_too(lab: Lab) -> None:
    lab.broken["2.0"] = compile_error()
    lab.run(cells(["2.0"])[:1])
    assert lab.removed == ["RUN-unpack", f"provision/toolchain:{KERNELS[0]}"]
    lab.engine.calls.clear()
    lab.run(cells(["2.0"])[:1], retry="failed", keep_images=True)
    assert lab.removed == []


def test_images_that_were_there_or_that_this_host_needs_stay(lab: Lab) -> None:
    config = Config(drivers={"demo": DriverConfig()})
    lab.settings = replace(lab.settings, config=config)
    modules = lab.settings.root / "lib/modules" / KERNELS[1]
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()
    pin = make_pin(version="2.0", kernel=KERNELS[0])
    lab.engine.have(Image("sha256:mine", (pin.image,), labels={DIGEST_LABEL: pin.digest}))
    lab.run(cells(["2.0"]))
    removed = [one for one in lab.removed if "toolchain" not in one]
    assert removed == [f"sha256:{make_pin(version='2.0', kernel=KERNELS[2]).short_digest}"]
    assert lab.result(KERNELS[1]).image is not None


def test_images_that_are_to_be_kept_are_made_where_they_are_missing(lab: Lab) -> None:
    lab.run(cells(["2.0"]))
    lab.engine.images.clear()
    lab.builds.clear()
    lab.run(cells(["2.0"]), keep_images=True)
    assert len(lab.builds) == 3
    assert lab.result().image == make_pin(version="2.0", kernel=KERNELS[0]).image
    lab.run(cells(["2.0"]), keep_images=True)
    assert len(lab.builds) == 3


def test_two_matrices_at_once_build_each_cell_once(lab: Lab) -> None:
    together = threading.Barrier(2, timeout=10)
    first = threading.local()

    def meet(_name: str) -> None:
        # Both have begun when the first cell of either is built.
        if not getattr(first, "met", False):
            first.met = True
            together.wait()

    lab.hold = meet
    done: list[Outcome] = []
    runs = [threading.Thread(target=lambda: done.append(lab.run(jobs=1))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert sorted(lab.builds) == sorted(everything())
    assert sum(len(one.built) for one in done) == 6
    assert sum(len(one.unchanged) for one in done) == 6


def test_ctrl_c_stops_the_builds_and_keeps_what_is_done(lab: Lab) -> None:
    stopped = threading.Event()

    def long(name: str) -> None:
        if name == everything()[2]:
            os.kill(os.getpid(), signal.SIGINT)
            try:
                for _ in range(1000):
                    report(Output("CC"))
                    time.sleep(0.01)
            except BaseException:
                stopped.set()
                raise

    lab.hold = long
    # Whoever started the tests may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lab.run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.is_set()
    assert len(lab.states()) == 2
    lab.hold = lambda _name: None
    assert len(lab.run().built) == 4


class InThisThread:
    def __init__(
        self, target: Callable[..., None], args: tuple[object, ...], *, daemon: bool
    ) -> None:
        del daemon
        self.start = partial(target, *args)


@pytest.mark.tier(2)
def test_a_run_may_be_killed_at_every_operation(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
    # In this thread, as a kill ends all of them.
    monkeypatch.setattr(threading, "Thread", InThisThread)
    lab.broken[KERNELS[1]] = compile_error()
    with KILLER.at(None):
        lab.start().run(cells())
    count = KILLER.count
    assert count > 12
    for number in range(count):
        lab.results = Results(lab.results.folder.with_name(f"killed-{number}"))
        with KILLER.at(number):
            lab.start().run(cells())
        found, problems = lab.results.load()
        assert problems == []
        assert all(result.is_final for result in found)
        before = len(lab.builds)
        lab.run()
        assert len(lab.states()) == 6
        assert len(lab.builds) - before == 6 - len(found)
        drafts = [p for p in lab.results.folder.rglob(".*") if p.is_file()]
        assert drafts == []


def test_progress_says_how_far_it_is(lab: Lab) -> None:
    lab.broken[KERNELS[2]] = compile_error()
    lab.run()
    tallies = [event for event in lab.events if isinstance(event, Tally)]
    assert tallies[0].running == (str(cell("2.0", KERNELS[0])),)
    assert (tallies[-1].total, tallies[-1].running) == (6, ())
    assert tallies[-1].done == {"built": 4, "failed": 2}


def test_the_result_of_a_newer_provision_ends_the_run_before_anything_is_built(lab: Lab) -> None:
    lab.run(cells()[-1:])
    path = lab.results.path(cells()[-1].cell)
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    lab.builds.clear()
    with pytest.raises(ProvisionError):
        lab.run()
    assert lab.builds == []


@pytest.mark.parametrize(("jobs", "compilers"), [(1, None), (3, 2), (16, 1)])
def test_builds_share_the_processors(
    jobs: int, compilers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    assert RunOptions(jobs=jobs).compilers == compilers
