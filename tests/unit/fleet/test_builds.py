"""What a run of a matrix builds, records and leaves behind; builds are made up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import make_pin
from kit.memory_registry import ECDSA, MemoryRegistry, new_key, public_pem
from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.image import TOOLCHAIN_KERNEL_LABEL, TOOLCHAIN_LABEL, record_built
from provision.build.output import BuildError, SourceError, StepRecord
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, DriverConfig, TrustConfig
from provision.engine.docker_api import Image
from provision.errors import (
    ExitCode,
    InUseError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    as_error,
)
from provision.files import lock
from provision.fleet import Cell, Column, Planned, Row
from provision.fleet.builds import FleetRegistry, Outcome, RunOptions, build_cells
from provision.fleet.results import Result, read_result, read_results
from provision.pin import PIN_LABEL, Pin
from provision.registry import pin_tag
from provision.registry.find import facts_of, tag_of
from provision.registry.repositories import find_digest
from unit.engine.fake_engine import FakeEngine, using
from unit.registry.trusting_host import connected

# Of a distro without base images.
DISTRO = "flatcar:3227.2.4"
KERNELS = ("6.1.0-50", "6.1.0-47", "6.1.0-40")
LINES = [f"line {number}" for number in range(100)]
LINES[60] = "/source/a.c:7:5: error: no member named 'x'"
ADDRESS = "registry.example/drivers"
KEY = new_key()


def compile_error() -> BuildError:
    step = StepRecord(3, "RUN make")
    step.lines.extend(LINES)
    return BuildError(
        "demo does not compile: 1 error",
        steps=[
            StepRecord(1, "FROM toolchain"),
            StepRecord(2, "RUN unpack", layer="unpacked"),
            step,
        ],
        source_errors=[
            SourceError(file="/source/a.c", line=7, text="no member named 'x'", excerpt=(" 7 | x",))
        ],
        log=Path("/var/cache/provision/logs/demo-1.log"),
        resolution="patch it",
        details="a.c:7: error: no",
    )


def cell(version: str = "2.0", kernel: str = KERNELS[0]) -> Cell:
    return Cell(Row("demo", version, "open"), Column(DISTRO, kernel))


def cells(versions: Iterable[str] = ("2.0", "1.2")) -> list[Planned]:
    return [Planned(cell(version, kernel)) for kernel in KERNELS for version in versions]


@dataclass
class Lab:
    """A matrix whose builds are made up.

    Attributes:
        broken: What a build ends with, by kernel.
        unresolved: What deciding a Pin ends with, by kernel.
        driver: Changes every Pin.
        builds: The words of each build.
    """

    settings: Settings
    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    broken: dict[str, Exception] = field(default_factory=dict)
    unresolved: dict[str, Exception] = field(default_factory=dict)
    driver: str = "demo"
    builds: list[list[str]] = field(default_factory=list)

    def resolve(self, _settings: Settings, cell: Cell) -> Pin:
        if error := self.unresolved.get(cell.column.kernel):
            raise error
        return self.pin(cell)

    def pin(self, cell: Cell) -> Pin:
        return make_pin(driver=self.driver, version=cell.row.version, kernel=cell.column.kernel)

    def build(self, words: Sequence[str], stdin: bytes | None) -> Mapping[str, Any]:
        """Answer as `provision build` does."""
        del stdin
        self.builds.append([*words])
        document = json.loads(Path(words[words.index("--pin") + 1]).read_text())
        kernel = document["kernel"]["release"]
        if error := self.broken.get(kernel):
            return {"error": as_error(error).document()}
        image_id = document["digest"]
        pushed = None
        if "--push" in words:
            pushed = {"reference": words[words.index("--push") + 1], "digest": image_id}
        self.have(Image(image_id, (document["image"],)))
        labels = {TOOLCHAIN_LABEL: "", TOOLCHAIN_KERNEL_LABEL: kernel}
        toolchain = f"provision/toolchain:{kernel}"
        self.have(Image(f"sha256:toolchain-{kernel}", (toolchain,), labels=labels))
        return {
            "image_id": image_id,
            "built": True,
            "size": 7,
            "seconds": {"total": 1.5},
            "pushed": pushed,
            **({"boot": {"kernel": kernel}} if "--trial" in words else {}),
        }

    def have(self, image: Image) -> None:
        self.engine.have(image)
        record_built(self.settings.state, image.id, image.tags[0])

    def run(self, planned: Iterable[Planned] | None = None, **how: Any) -> Outcome:  # noqa: ANN401 - fields of RunOptions
        options = RunOptions(resolve=self.resolve, build=self.build, **how)
        planned = [*cells()] if planned is None else [*planned]
        return build_cells(using(self.settings, self.engine), planned, self.folder, options)

    def place(self, *, signs: bool = True) -> FleetRegistry:
        signer = (lambda data: KEY.sign(data, ECDSA)) if signs else None
        access = connected(self.registry)
        return FleetRegistry(self.settings, ADDRESS, signer, signs, access)

    def have_published(self, pin: Pin, tag: str, *, signs: bool = True, key: Any = KEY) -> str:  # noqa: ANN401 - a key
        """Have another builder's image of a Pin in the registry."""
        labels = {PIN_LABEL: pin.canonical_json(), OPERATOR_LABEL: "2.0"}
        digest = self.registry.have_image(pin, [b"others"], tag, labels=labels)
        self.registry.manifests[pin_tag(pin.digest)] = self.registry.manifests[digest]
        if signs:
            self.registry.sign(digest, facts_of(pin, 1), key)
        return digest

    def states(self) -> list[str]:
        return [result.state for result in read_results(self.folder)[0]]

    def result(self, kernel: str = KERNELS[0], version: str = "2.0") -> Result:
        found = read_result(self.folder, cell(version, kernel))
        assert found is not None
        return found

    @property
    def removed(self) -> set[str]:
        calls = [call.removeprefix("remove ") for call in self.engine.calls if "remove" in call]
        return {call.removesuffix(" with parents") for call in calls}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/fleet.pub").write_bytes(public_pem(KEY))
    config = Config(trust=TrustConfig(keys="/etc/fleet.pub"))
    settings = Settings(root, config, Catalogue([]), tmp_path / "cache")
    return Lab(settings, tmp_path / "matrix")


def have_kernel(lab: Lab, kernel: str) -> None:
    modules = lab.settings.root / "lib/modules" / kernel
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_cell_is_built_once_until_its_pin_changes(lab: Lab, jobs: int) -> None:
    assert len(lab.run(jobs=jobs).built) == 6
    assert lab.states() == ["built"] * 6
    assert lab.result().digest == lab.pin(cell()).digest
    assert lab.run(jobs=jobs).built == []
    assert len(lab.builds) == 6
    # Builds at once share the processors.
    assert all(("--jobs" in words) == (jobs > 1) for words in lab.builds)
    lab.driver = "demo-two"
    assert len(lab.run(jobs=jobs).built) == 6


def test_a_failure_is_recorded_with_place_output_and_cure_and_the_others_are_built(
    lab: Lab,
) -> None:
    lab.broken[KERNELS[1]] = compile_error()
    assert lab.run().troubles == {}
    result = lab.result(KERNELS[1])
    assert (result.state, result.reason, result.phase) == ("failed", "compile", "build")
    assert result.cause == "/source/a.c:7: no member named 'x'"
    assert result.excerpt[5] == LINES[60]
    assert len(result.excerpt) == 30
    assert (result.resolution, result.instruction) == ("patch it", "RUN make")
    assert result.log == "/var/cache/provision/logs/demo-1.log"
    assert lab.states().count("built") == 4
    assert "unpacked" in lab.removed, "a gigabyte that no other build uses"
    # The compiler would refuse it again.
    assert lab.run().built == []


def test_a_cell_that_was_only_built_is_tried_when_that_is_asked_for(lab: Lab) -> None:
    lab.run()
    assert not lab.result().is_tried
    refused = ProvisionError("the kernel does not take it", resolution="do")
    refused.reason = "does-not-load"
    lab.broken[KERNELS[1]] = refused
    assert lab.run(is_tried=True).troubles == {}
    assert lab.result().is_tried
    assert (lab.result(KERNELS[1]).state, lab.result(KERNELS[1]).reason) == (
        "failed",
        "does-not-load",
    )
    # Neither what passed nor what the kernel refused is tried again, with a trial or without.
    assert (lab.run(is_tried=True).built, lab.run().built) == ([], [])


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
    assert set(lab.states()) == {"built"}


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
    assert excluded.resolution == "take another"
    assert lab.run().built == [], "the same Pin excludes it again"


def test_what_is_not_supported_is_said_and_not_built_and_a_forced_build_says_more(
    lab: Lab,
) -> None:
    refused = [one._replace(refusal="too new", resolution="force it") for one in cells()]
    lab.run(refused)
    assert lab.builds == []
    assert (lab.result().state, lab.result().resolution) == ("not-supported", "force it")
    lab.run()
    lab.run(refused)
    assert set(lab.states()) == {"built"}


@pytest.mark.parametrize(
    "error",
    [
        ProvisionError("the new image is gone", is_outside=True),
        UnreachableError("no route", resolution="wait"),
        InUseError("another build holds it"),
        BuildError("disk full", is_outside=True, resolution="room", details="x"),
        ProvisionError("could not build", details="write: No space left on device"),
        OSError(28, "No space left on device", "/var/cache"),
        ValueError("not foreseen"),
    ],
)
def test_what_is_wrong_with_the_machine_is_no_result_and_ends_the_run(
    lab: Lab, error: Exception
) -> None:
    lab.broken[KERNELS[1]] = error
    done = lab.run()
    assert [one["message"] for one in done.troubles.values()]
    assert len(lab.states()) == 2
    going = lab.run(keep_going=True)
    assert (len(going.troubles), len(lab.states())) == (2, 4)
    lab.broken.clear()
    assert len(lab.run().built) == 2


def test_a_process_that_ends_without_a_result_is_no_success(lab: Lab) -> None:
    options = RunOptions(resolve=lab.resolve, words=("--no-such-option",))
    done = build_cells(using(lab.settings, lab.engine), cells()[:1], lab.folder, options)
    assert list(done.troubles) == [cell()]
    assert lab.states() == []


def test_one_run_at_a_time_writes_to_a_folder(lab: Lab) -> None:
    with lock(lab.folder / "lock"), pytest.raises(InUseError):
        lab.run()
    assert lab.builds == []


def test_images_go_when_nothing_needs_them_and_toolchains_after_the_last_cell(lab: Lab) -> None:
    lab.run()
    images = {lab.pin(one.cell).digest for one in cells()}
    assert lab.removed == images | {f"provision/toolchain:{kernel}" for kernel in KERNELS}


def test_what_this_host_or_another_build_needs_stays(lab: Lab) -> None:
    config = Config(drivers={"demo": DriverConfig()})
    lab.settings = replace(lab.settings, config=config)
    have_kernel(lab, KERNELS[0])
    with lock(lab.settings.state / f"locks/toolchains-{KERNELS[1]}", shared=True):
        lab.run(cells(["2.0"]))
    assert lab.removed == {
        *(lab.pin(cell(kernel=kernel)).digest for kernel in KERNELS[1:]),
        f"provision/toolchain:{KERNELS[2]}",
    }


def test_what_the_registry_lacks_is_built_and_pushed_although_it_was_built_here(lab: Lab) -> None:
    lab.run()
    lab.engine.calls.clear()
    pin = lab.pin(cell())
    lab.have_published(pin, tag_of(pin).text)
    place = lab.place()
    # The registry names a cell by its distro; the Pins here are of Debian.
    theirs = Planned(Cell(cell().row, Column("debian:12", KERNELS[0])))
    done = lab.run([theirs, *cells()[1:]], registry=place)
    assert done.present == [theirs.cell]
    assert set(done.pushed) == {one.cell for one in cells()[1:]}
    assert len(lab.builds) == 6 + 5
    # An engine removes nothing by a name that it doesn't have.
    pushed = {lab.pin(one.cell).digest for one in cells()[1:]}
    assert lab.removed == pushed | {f"provision/toolchain:{kernel}" for kernel in KERNELS}


def test_a_refused_source_pushes_nothing_and_is_not_tried_again(lab: Lab) -> None:
    lab.broken[KERNELS[0]] = compile_error()
    for _ in range(2):
        assert lab.run(cells()[:1], registry=lab.place()).pushed == {}
    assert len(lab.builds) == 1


DEBIAN = Cell(Row("demo", "2.0", "open"), Column("debian:12", KERNELS[0]))


@pytest.mark.parametrize("signs", [True, False])
def test_a_build_of_the_same_pin_that_another_builder_pushed_gets_the_name(
    lab: Lab, *, signs: bool
) -> None:
    pin, place = lab.pin(DEBIAN), lab.place(signs=signs)
    theirs = lab.have_published(pin, "by-hand", signs=signs)
    assert not place.has(DEBIAN)
    assert place.has_other_build(DEBIAN, pin)
    assert find_digest(lab.registry.client(f"{ADDRESS}/demo:x"), tag_of(pin).text) == theirs


@pytest.mark.parametrize("signs", [True, False])
def test_a_build_that_a_stranger_signed_or_nobody_is_none(lab: Lab, *, signs: bool) -> None:
    pin, place = lab.pin(DEBIAN), lab.place()
    lab.have_published(pin, "by-hand", signs=signs, key=new_key())
    assert not place.has_other_build(DEBIAN, pin)
    if not signs:
        # One without a signature counts as missing, under its own name too.
        lab.have_published(pin, tag_of(pin).text, signs=False)
        assert not place.has(DEBIAN)
