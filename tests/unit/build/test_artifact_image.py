"""When a build is started, and what becomes of its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from kit.artifact import make_pin
from provision.build.diagnosis import BuildError
from provision.build.image import (
    DIGEST_LABEL,
    KERNEL_STAGE,
    TOOLS_STAGE,
    Built,
    build,
    layers_of,
    remove_layers,
)
from provision.build.provenance import record_built
from provision.engine.docker_api import BuildOptions, Image, Message
from provision.engine.stream import StepRecord
from provision.engine.tar_streams import pack
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.pin import BasePin, Pin
from provision.progress import Note, heard_by
from unit.engine.fake_engine import FakeEngine, recorded

_BASE = Image("sha256:4632e85b82c4" + "0" * 52, ("debian:bookworm",), architecture="amd64")


PIN = make_pin().model_copy(update={"base": BasePin(image="debian:bookworm", digest=_BASE.id)})


def _result(pin: Pin, **labels: str) -> Image:
    final = [m["aux"]["ID"] for m in recorded("built") if "aux" in m][-1]
    return Image(final, labels={DIGEST_LABEL: pin.digest} | labels, size=7)


def _have_built(engine: FakeEngine, state: Path, image: Image) -> None:
    engine.have(image)
    record_built(state, image.id, PIN.image)


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.have(_BASE)
    engine.conversation = recorded("built")
    engine.result = _result(PIN)
    return engine


Build = Callable[..., Built]


@pytest.fixture
def make(engine: FakeEngine, tmp_path: Path) -> Build:
    """Build the image of a Pin, of these options, with the engine."""
    return lambda pin=PIN, **options: build(
        engine, pin, {"Dockerfile": b"FROM scratch\n"}, state=tmp_path, **options
    )


def test_a_new_image_is_named_when_it_is_complete(engine: FakeEngine, make: Build) -> None:
    built = make()
    assert built.built
    assert built.image == PIN.image
    assert built.size == 7
    assert engine.calls[:2] == [f"build {_BASE.id}", f"tag {PIN.image}"]
    assert engine.networks == ["none"]
    assert built.log is not None
    assert "v4l2loopback.ko" in built.log.read_text()


def test_the_layers_that_only_this_driver_needs_are_removed(
    engine: FakeEngine, make: Build
) -> None:
    steps = make().steps
    removed = [call.removeprefix("remove ") for call in engine.calls if "remove" in call]
    # Of the stage "build", the last first; those of the shared stage "toolchain" stay.
    assert removed == [step.layer for step in steps[14:6:-1]]


def test_the_layers_that_all_drivers_share_can_be_removed_too(
    engine: FakeEngine, make: Build
) -> None:
    steps = make().steps
    engine.calls.clear()
    remove_layers(engine, layers_of(steps, stage=KERNEL_STAGE))
    base = next(number for number, step in enumerate(steps) if "FROM" in step.instruction)
    own = [call.removeprefix("remove ") for call in engine.calls]
    assert own == [step.layer for step in steps[5:base:-1]]
    assert own


def test_layers_that_are_gone_count_as_removed_and_those_in_use_do_not(engine: FakeEngine) -> None:
    removing = engine.remove

    def refuse(image_id: str, *, with_parents: bool) -> None:
        removing(image_id, with_parents=with_parents)
        raise ProvisionError(f"The engine does not remove {image_id}.")

    engine.remove = refuse  # type: ignore[method-assign] # as an engine does
    assert remove_layers(engine, ["below", "gone"])
    engine.have(Image("below"))
    assert not remove_layers(engine, ["lowest", "below", "gone"])
    assert [call for call in engine.calls if "lowest" in call] == []


def test_layers_are_separated_by_what_shares_them() -> None:
    words = (
        ("FROM ${BASE_IMAGE} AS tools", "base"),
        ("RUN tools", "1"),
        ("FROM tools AS toolchain", "1"),
        ("RUN headers", "2"),
        ("FROM toolchain AS build", "2"),
        ("RUN make", "3"),
        ("FROM scratch", None),
        ("COPY --from=build /out/ /", "4"),
    )
    steps = [StepRecord(n, text, layer=layer) for n, (text, layer) in enumerate(words)]
    assert layers_of(steps, stage=TOOLS_STAGE) == ["1"]
    assert layers_of(steps, stage=KERNEL_STAGE) == ["2"]
    assert layers_of(steps) == ["3"]


def test_an_image_that_was_built_here_is_not_built_again(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    _have_built(engine, tmp_path, replace(_result(PIN), tags=(PIN.image,)))
    built = make()
    assert not built.built
    assert engine.calls == []


def test_an_image_that_was_built_here_gets_its_name_back(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    _have_built(engine, tmp_path, replace(_result(PIN), tags=("registry/other:name",)))
    assert not make().built
    assert engine.calls == [f"tag {PIN.image}"]


def test_an_image_without_a_name_is_built_again(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    _have_built(engine, tmp_path, _result(PIN))
    assert make().built


def test_an_image_of_that_name_with_another_pin_is_replaced(
    engine: FakeEngine, make: Build
) -> None:
    engine.have(Image("sha256:9", (PIN.image,), labels={DIGEST_LABEL: "sha256:other"}))
    assert make().built
    assert "remove sha256:9 with parents" in engine.calls


_LOST = "unknown parent image ID sha256:5c1b0f"


@pytest.mark.parametrize("said", [_LOST, "No such image: sha256:5c1b0f"])
def test_a_build_that_loses_a_layer_begins_again(
    engine: FakeEngine, make: Build, notes: list[str], said: str
) -> None:
    whole, building = [*engine.conversation], engine.build
    contexts = []

    def lose_once(context: IO[bytes], options: BuildOptions) -> Iterator[Message]:
        contexts.append(context.read())
        context.seek(0)
        engine.conversation = [*whole[:9], {"error": said}] if len(contexts) == 1 else whole
        return building(context, options)

    engine.build = lose_once  # type: ignore[method-assign] # as an engine does
    built = make()
    assert built.built
    assert contexts[0] == contexts[1] != b""
    assert len(contexts) == 2
    assert any("removed meanwhile" in note for note in notes)
    assert built.log is not None
    assert said in built.log.read_text()


def test_a_build_that_loses_layers_again_and_again_says_nothing_of_its_driver(
    engine: FakeEngine, make: Build
) -> None:
    engine.conversation = [*list(engine.conversation)[:9], {"error": _LOST}]
    with pytest.raises(BuildError) as caught:
        make()
    assert caught.value.is_outside
    assert sum("build " in call for call in engine.calls) == 5


def test_rebuild_builds_what_exists(engine: FakeEngine, make: Build) -> None:
    engine.have(replace(_result(PIN), id="sha256:9", tags=(PIN.image, "other:1")))
    assert make(rebuild=True).built
    assert not any("sha256:9" in call for call in engine.calls)


def test_a_failed_step_names_nothing_and_keeps_the_layers(engine: FakeEngine, make: Build) -> None:
    engine.conversation = recorded("does-not-compile")
    engine.result = None
    with pytest.raises(BuildError) as caught:
        make()
    assert engine.calls == [f"build {_BASE.id}"]
    assert caught.value.log is not None
    assert "strlcpy" in caught.value.log.read_text()


def test_an_engine_that_dies_is_not_a_success(engine: FakeEngine, make: Build) -> None:
    engine.conversation = recorded("built")[:-4]
    engine.result = None
    with pytest.raises(ProvisionError):
        make()
    assert engine.calls == [f"build {_BASE.id}"]


def test_a_result_without_its_pin_gets_no_name(engine: FakeEngine, make: Build) -> None:
    engine.result = _result(PIN, **{DIGEST_LABEL: "other"})
    with pytest.raises(ProvisionError):
        make()
    assert not any(call.startswith("tag") for call in engine.calls)


def test_a_missing_base_image_says_how_to_get_one(engine: FakeEngine, make: Build) -> None:
    engine.images.clear()
    engine.conversation = [{"error": "no such host"}]
    with pytest.raises(NotFoundError):
        make()
    assert engine.calls == [f"pull debian@{_BASE.id} None"]


def test_of_two_builds_at_once_one_waits_and_finds_the_others_result(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    name = PIN.digest.removeprefix("sha256:")
    waiting = threading.Event()
    notes: list[str] = []

    def hear(event: object) -> None:
        assert isinstance(event, Note)
        notes.append(event.text)
        waiting.set()

    def second() -> None:
        with heard_by(hear):
            results.append(make())

    results: list[object] = []
    with lock(tmp_path / "locks" / name):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        _have_built(engine, tmp_path, replace(_result(PIN), tags=(PIN.image,)))
    thread.join(10)
    assert "waiting" in notes[0]
    assert engine.calls == []
    assert len(results) == 1


def test_the_same_files_make_the_same_context() -> None:
    one = pack({"b": b"2", "a/c": b"1"}).read()
    assert one == pack({"a/c": b"1", "b": b"2"}).read()
