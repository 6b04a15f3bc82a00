"""What a build says, recorded from a real engine."""

from __future__ import annotations

from pathlib import Path

from kit.artifact import make_pin
from provision.build.image import Built
from provision.build.output import BuildStream, build_error, source_errors, transfer
from provision.progress import Event, Output, Transfer
from unit.engine.fake_engine import recorded


def _read(name: str) -> tuple[BuildStream, list[Event]]:
    """Feed a recording, with a clock that goes a second further at each look."""
    time = iter(range(1000))
    stream = BuildStream(clock=lambda: float(next(time)))
    events = [event for message in recorded(name) for event in stream.feed(message)]
    stream.finish()
    return stream, events


def test_an_unfinished_build_has_no_image() -> None:
    stream = BuildStream()
    for message in recorded("built")[:-4]:
        stream.feed(message)
    assert stream.image_id is None


def test_output_is_only_that_of_programs() -> None:
    _stream, events = _read("built")
    lines = [event.text for event in events if isinstance(event, Output)]
    assert any("v4l2loopback.ko" in line for line in lines)
    assert not any("--->" in line or "intermediate container" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    stream = BuildStream()
    stream.feed({"stream": "Step 1/1 : RUN yes | tr -d '\\n'"})
    pieces = [event for _ in range(100) for event in stream.feed({"stream": "y" * 8192})]
    assert len(pieces) > 1
    assert all(isinstance(piece, Output) and len(piece.text) < 100_000 for piece in pieces)


def test_output_does_nothing_to_a_terminal() -> None:
    stream = BuildStream()
    for text in (
        "Step 1/1 : RUN make\n",
        "\x1b]0;title\x07a.c:1: \x1b[31merror\x1b[0m: \u202eno\n",
    ):
        stream.feed({"stream": text})
    stream.finish()
    assert list(stream.steps[0].lines) == ["?]0;title?a.c:1: error: ?no"]


def test_a_last_line_without_its_end_is_kept_apart_from_the_engines_own() -> None:
    stream = BuildStream()
    for text in ("Step 1/1 : RUN printf x", "\n", "x", "Removing intermediate container 1\n"):
        stream.feed({"stream": text})
    stream.finish()
    assert list(stream.steps[0].lines) == ["x"]


def test_podmans_words_are_understood() -> None:
    stream, _events = _read("built-by-podman")
    assert stream.image_id is not None
    assert stream.image_id.startswith("sha256:0ab4b8aedd75")
    instructions = [step.instruction for step in stream.steps]
    assert instructions[0].startswith("FROM sha256:4632e85b82c4")
    assert instructions[-1].startswith("LABEL")
    assert stream.steps[1].cached
    assert stream.steps[1].layer == "7ab0ad0023d"
    assert {"modules", "collect", "export"} <= set(
        Built("i", "sha256:1", 1, built=True, seconds=99.0, steps=tuple(stream.steps)).phases()
    )


def test_a_pulls_progress_is_a_transfer() -> None:
    message = {
        "status": "Downloading",
        "id": "0123",
        "progressDetail": {"current": 5, "total": 10},
    }
    assert transfer(message) == [Transfer("Downloading 0123", 5, 10)]
    assert transfer({"status": "Waiting", "progressDetail": {}}) == []


def test_a_compilers_error_names_line_kernel_driver_and_what_to_do() -> None:
    stream, _events = _read("does-not-compile")
    pin = make_pin(driver="v4l2loopback", version="0.12.7", kernel="6.12.117+deb12-amd64")
    error = build_error(pin, stream, Path("/var/log/all.log"))
    (source,) = error.source_errors
    assert source.file.endswith("v4l2loopback.c")
    assert source.line == 717
    assert "strlcpy" in source.text
    assert "v4l2loopback 0.12.7" in error.message
    assert "6.12.117+deb12-amd64" in error.message
    assert "line 717" in error.message
    details = error.details or ""
    assert '717 |         strlcpy(cap->driver, "v4l2 loopback"' in details
    assert "Step 13/18" in details
    assert "/var/log/all.log" in details
    assert "--version" in (error.resolution or "")
    assert stream.exit_status == 2


def test_an_unresolved_symbol_is_a_source_error() -> None:
    line = 'ERROR: modpost: "rcu_read_unlock_strict" [/source/nvidia.ko] undefined!'
    (error,) = source_errors([line])
    assert error.file == "/source/nvidia.ko"
    assert error.line is None
    assert "rcu_read_unlock_strict" in str(error)


def test_time_is_summed_up_by_part() -> None:
    stream, _events = _read("built")
    built = Built("i", "sha256:1", 1, built=True, seconds=20.0, steps=tuple(stream.steps))
    assert built.phases() == {
        "engine": 12.0,
        "packages": 2.0,
        "sources": 1.0,
        "modules": 1.0,
        "collect": 1.0,
        "export": 3.0,
        "total": 20.0,
    }
    assert Built("i", "sha256:1", 1, built=False).phases() == {}
