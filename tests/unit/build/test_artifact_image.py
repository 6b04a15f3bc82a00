"""When a build is started, and what becomes of its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from kit.artifact import make_pin
from kit.files import sha256
from provision.build.dockerfile import RenderedContext
from provision.build.image import (
    DIGEST_LABEL,
    TOOLCHAIN_KERNEL_LABEL,
    TOOLCHAIN_LABEL,
    Built,
    build_context,
    built_here,
    record_built,
    remove_layers,
    remove_toolchain,
)
from provision.build.output import BuildError
from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.docker_api import Image, Message
from provision.errors import InUseError, NotFoundError, ProvisionError
from provision.files import lock
from provision.pin import BasePin, Pin
from provision.progress import listening
from unit.engine.fake_engine import FakeEngine, recorded, using

_BASE = Image("sha256:4632e85b82c4" + "0" * 52, ("debian:bookworm",), architecture="amd64")


PIN = make_pin().model_copy(update={"base": BasePin(image="debian:bookworm", digest=_BASE.id)})
_DOCKERFILE = b"""# for a driver
FROM ${BASE_IMAGE} AS tools
COPY packages/ step.py /provision/
FROM tools AS toolchain
RUN install

FROM toolchain AS build
COPY sources/ /provision/
COPY step.py patches/ /provision/
FROM scratch
COPY --from=build /out /
"""


def _context(patch: bytes = b"", package: bytes = b"gcc") -> RenderedContext:
    files = {"Dockerfile": _DOCKERFILE, "step.py": b"", "patches/a.patch": patch}
    downloads = {"packages/gcc.deb": package, "sources/x": b"source"}
    return RenderedContext(files, {name: sha256(data) for name, data in downloads.items()})


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
    settings = using(Settings(tmp_path, Config(), Catalogue([]), tmp_path), engine)
    store = PackageStore(tmp_path)
    for content in (b"gcc", b"source", b"another gcc"):
        store.add_bytes(content)
    return lambda pin=PIN, context=None, **options: build_context(
        settings, pin, context or _context(), **options
    )


@pytest.fixture
def toolchain(engine: FakeEngine, make: Build) -> Image:
    """The toolchain's image, which another driver's build has made."""
    other = make_pin(version="0").model_copy(update={"base": PIN.base})
    engine.result, ours = _result(other), engine.result
    make(other)
    engine.result = ours
    engine.calls.clear()
    engine.contexts.clear()
    return _toolchain(engine)


def _toolchain(engine: FakeEngine) -> Image:
    (found,) = engine.images_with_label(TOOLCHAIN_LABEL)
    return found


def test_the_engines_steps_are_of_use_for_its_own_architecture_only(
    engine: FakeEngine, make: Build
) -> None:
    """It takes an artifact's first label for an image of its own."""
    make()
    kernel = PIN.kernel.model_copy(update={"architecture": "aarch64"})
    make(PIN.model_copy(update={"kernel": kernel}), rebuild=True)
    assert engine.platforms == [("linux/amd64", True)] * 2 + [("linux/arm64", False)] * 2


def test_a_new_image_is_named_when_it_is_complete(engine: FakeEngine, make: Build) -> None:
    built = make()
    assert built.built
    assert built.image == PIN.image
    assert built.size == 7
    toolchain = _toolchain(engine)
    assert engine.calls[:4] == [
        f"build {_BASE.id}",
        f"tag {toolchain.tags[0]}",
        f"build {toolchain.id}",
        f"tag {PIN.image}",
    ]
    assert built.log is not None
    assert "v4l2loopback.ko" in built.log.read_text()


def test_the_layers_that_only_this_driver_needs_are_removed(
    engine: FakeEngine, make: Build
) -> None:
    steps = make().steps
    removed = [call.removeprefix("remove ") for call in engine.calls if "remove" in call]
    end = next(n for n, step in enumerate(steps) if step.instruction == "FROM scratch")
    own = [step for step in steps[:end] if not step.instruction.startswith("FROM")]
    assert removed == [step.layer for step in reversed(own) if step.layer]
    assert removed


_PACKAGES, _SOURCES = ["packages/gcc.deb", "step.py"], ["patches/a.patch", "sources/x", "step.py"]


def test_a_toolchain_is_installed_once_and_each_build_sends_only_its_sources(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    """A second driver, version or patch: no package is read, and the base image is not needed."""
    make()
    assert engine.contexts == [["Dockerfile", *_PACKAGES], ["Dockerfile", *_SOURCES]]
    engine.images.pop(_BASE.id)
    PackageStore(tmp_path).path(sha256(b"gcc")).unlink()
    other = make_pin(version="9").model_copy(update={"base": PIN.base})
    engine.result = _result(other)
    make(other, _context(b"a patch"))
    assert engine.contexts[2:] == [["Dockerfile", *_SOURCES]]


@pytest.mark.parametrize(
    "other", [_context(package=b"another gcc"), make_pin(kernel="6.1.0-9-arm64")]
)
def test_other_packages_are_another_toolchain(
    engine: FakeEngine, make: Build, other: RenderedContext | Pin
) -> None:
    make()
    if isinstance(other, Pin):
        arm = other.kernel.model_copy(update={"architecture": "aarch64"})
        pin = other.model_copy(update={"base": PIN.base, "kernel": arm})
        engine.result = _result(pin)
        make(pin)
    else:
        make(context=other, rebuild=True)
    assert len(engine.images_with_label(TOOLCHAIN_LABEL)) == 2


def test_a_toolchain_that_only_says_that_it_was_built_here_is_not_used(
    engine: FakeEngine, make: Build, toolchain: Image
) -> None:
    engine.images.pop(toolchain.id)
    engine.have(toolchain._replace(id="sha256:theirs"))
    make()
    assert engine.calls[0] == f"build {_BASE.id}"
    assert "build sha256:theirs" not in engine.calls


def _meanwhile(make: Build, held: Path, act: Callable[[], object]) -> Built:
    """Build while another process holds a lock, which does something before it lets go."""
    results: list[Built] = []
    waiting = threading.Event()

    def build() -> None:
        with listening(lambda _event: waiting.set()):
            results.append(make())

    thread = threading.Thread(target=build)
    with lock(held):
        thread.start()
        assert waiting.wait(10)
        act()
    thread.join(10)
    (built,) = results
    return built


def test_a_build_waits_for_the_toolchain_that_another_is_installing(
    engine: FakeEngine, make: Build, toolchain: Image, tmp_path: Path
) -> None:
    (held,) = (tmp_path / "locks").glob("toolchain-*")
    for name in (toolchain.id, *toolchain.tags):
        engine.images.pop(name)
    assert _meanwhile(make, held, lambda: engine.have(toolchain)).built
    assert engine.calls[0] == f"build {toolchain.id}"


def test_a_toolchain_that_a_build_uses_is_not_removed(
    engine: FakeEngine, make: Build, toolchain: Image, tmp_path: Path
) -> None:
    refused, building = [], engine.build

    def look(context: IO[bytes], **options: Any) -> Iterator[Message]:  # noqa: ANN401 - a build's
        with pytest.raises(InUseError):
            remove_toolchain(engine, toolchain, tmp_path)
        refused.append(toolchain)
        return building(context, **options)

    engine.build = look  # type: ignore[method-assign] # as an engine does
    make()
    assert refused
    remove_toolchain(engine, toolchain, tmp_path)
    assert engine.calls[-1] == f"remove {toolchain.tags[0]} with parents"
    label = f"{TOOLCHAIN_KERNEL_LABEL}={PIN.kernel.release}"
    assert built_here(engine, label, tmp_path) == [toolchain]


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


@pytest.mark.parametrize(
    ("tags", "is_built", "calls"),
    [
        ((PIN.image,), False, []),
        # It gets its name back.
        (("registry/other:name",), False, [f"tag {PIN.image}"]),
        ((), True, None),
    ],
)
def test_an_image_that_was_built_here_is_not_built_again(
    engine: FakeEngine,
    make: Build,
    tmp_path: Path,
    tags: tuple[str, ...],
    calls: list[str] | None,
    *,
    is_built: bool,
) -> None:
    _have_built(engine, tmp_path, _result(PIN)._replace(tags=tags))
    assert make().built is is_built
    assert calls in (None, engine.calls)


def test_an_image_that_had_the_name_stays_for_who_reads_it(engine: FakeEngine, make: Build) -> None:
    engine.have(Image("sha256:9", (PIN.image,), labels={DIGEST_LABEL: "sha256:other"}))
    assert make().built
    assert not any("remove sha256:9" in call for call in engine.calls)


_LOST = "unknown parent image ID sha256:5c1b0f"


@pytest.mark.parametrize("said", [_LOST, "No such image: sha256:5c1b0f"])
def test_a_build_that_loses_a_layer_begins_again(
    engine: FakeEngine, make: Build, toolchain: Image, notes: list[str], said: str
) -> None:
    del toolchain  # is there
    whole, building = [*engine.conversation], engine.build
    contexts = []

    def lose_once(context: IO[bytes], **options: Any) -> Iterator[Message]:  # noqa: ANN401 - a build's
        contexts.append(context.read())
        context.seek(0)
        engine.conversation = [*whole[:9], {"error": said}] if len(contexts) == 1 else whole
        return building(context, **options)

    engine.build = lose_once  # type: ignore[method-assign] # as an engine does
    built = make()
    assert built.built
    assert contexts[0] == contexts[1] != b""
    assert len(contexts) == 2
    assert any("removed meanwhile" in note for note in notes)
    assert built.log is not None
    assert said in built.log.read_text()


def test_a_build_that_loses_layers_again_and_again_says_nothing_of_its_driver(
    engine: FakeEngine, make: Build, toolchain: Image
) -> None:
    engine.conversation = [*list(engine.conversation)[:9], {"error": _LOST}]
    with pytest.raises(BuildError) as caught:
        make()
    assert caught.value.is_outside
    assert engine.calls == [f"build {toolchain.id}"] * 5


def test_rebuild_builds_what_exists(engine: FakeEngine, make: Build) -> None:
    engine.have(_result(PIN)._replace(id="sha256:9", tags=(PIN.image, "other:1")))
    assert make(rebuild=True).built
    assert not any("sha256:9" in call for call in engine.calls)


@pytest.mark.parametrize(
    ("said", "error", "logged"),
    [
        (recorded("does-not-compile"), BuildError, "strlcpy"),
        # The engine dies.
        (recorded("built")[:-4], ProvisionError, ""),
    ],
)
def test_a_build_that_fails_names_nothing_and_keeps_the_layers(
    engine: FakeEngine,
    make: Build,
    toolchain: Image,
    said: list[Message],
    error: type[ProvisionError],
    logged: str,
) -> None:
    engine.conversation, engine.result = said, None
    with pytest.raises(error) as caught:
        make()
    assert engine.calls == [f"build {toolchain.id}"]
    if isinstance(caught.value, BuildError) and caught.value.log:
        assert logged in caught.value.log.read_text()
    else:
        assert not logged


def test_a_missing_base_image_says_how_to_get_one(engine: FakeEngine, make: Build) -> None:
    engine.images.clear()
    engine.conversation = [{"error": "no such host"}]
    with pytest.raises(NotFoundError):
        make()
    assert engine.calls == [f"pull debian@{_BASE.id} None"]


def test_of_two_builds_at_once_one_waits_and_finds_the_others_result(
    engine: FakeEngine, make: Build, tmp_path: Path
) -> None:
    held = tmp_path / "locks" / PIN.digest.removeprefix("sha256:")
    image = _result(PIN)._replace(tags=(PIN.image,))
    assert not _meanwhile(make, held, lambda: _have_built(engine, tmp_path, image)).built
    assert engine.calls == []
