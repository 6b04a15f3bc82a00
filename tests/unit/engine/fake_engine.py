"""An engine in memory: images are folders, builds are conversations recorded from Docker."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from kit.artifact import make_artifact
from provision.build.image import DIGEST_LABEL, TOOLCHAIN_LABEL, record_built
from provision.build.workspace import EngineConnection, Settings
from provision.engine.docker_api import Engine, Image, Message
from provision.errors import ProvisionError
from provision.pin import PIN_LABEL, Pin

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> list[Message]:
    """Return what a real engine said during a build."""
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


class FakeEngine(Engine):
    """Holds images by every name that they have."""

    def __init__(self) -> None:
        self.host = "unix:///fake.sock"
        self.images: dict[str, Image] = {}
        # What an image's ``/opt`` is made from, by the image's id.
        self.contents: dict[str, Path] = {}
        # What a build or pull says, and leaves behind at its end.
        self.conversation: Iterable[Message] = ()
        self.result: Image | None = None
        self.calls: list[str] = []
        # The files and arguments of each build, and the archives that were loaded.
        self.contexts: list[list[str]] = []
        self.build_args: list[Mapping[str, str]] = []
        # For what, and whether with what the engine has.
        self.platforms: list[tuple[str | None, bool]] = []
        self.loaded: list[bytes] = []

    def close(self) -> None:
        pass

    def architecture(self) -> str:
        return "amd64"

    def have(self, image: Image, content: Path | None = None) -> None:
        for name in (image.id, *image.tags, *image.digests):
            self.images[name] = image
        if content is not None:
            self.contents[image.id] = content

    def have_built(self, pin: Pin, content: Path, state: Path) -> None:
        """Have the image of a Pin, which was built here, with an artifact in a new folder."""
        make_artifact(content, pin=pin)
        labels = {DIGEST_LABEL: pin.digest, PIN_LABEL: pin.canonical_json()}
        image = Image(f"sha256:{pin.short_digest}", (pin.image,), labels=labels)
        self.have(image, content)
        record_built(state, image.id, pin.image)

    def image(self, reference: str) -> Image | None:
        return self.images.get(reference)

    def images_with_label(self, label: str) -> list[Image]:
        key, given, value = label.partition("=")
        named = {i.id: i for i in self.images.values() if key in i.labels}.values()
        return [image for image in named if not given or image.labels[key] == value]

    def build(
        self,
        context: IO[bytes],
        *,
        build_args: Mapping[str, str],
        platform: str | None = None,
        cache: bool = True,
    ) -> Iterator[Message]:
        self.platforms.append((platform, cache))
        self.calls.append(f"build {build_args.get('BASE_IMAGE')}")
        self.build_args.append(build_args)
        with tarfile.open(fileobj=context) as archive:
            self.contexts.append(archive.getnames())
            dockerfile = archive.extractfile("Dockerfile")
            assert dockerfile is not None
            text = dockerfile.read().decode()
        if f"LABEL {TOOLCHAIN_LABEL}=" in text:
            yield from self._make_toolchain(text)
            return
        yield from self.conversation
        if self.result is not None:
            self.have(self.result)

    def _make_toolchain(self, dockerfile: str) -> Iterator[Message]:
        words = dockerfile.splitlines()[-1].removeprefix("LABEL ").split()
        labels = dict(word.split("=") for word in words)
        made = Image(f"sha256:toolchain-{labels[TOOLCHAIN_LABEL][:12]}", labels=labels)
        yield {"stream": "Step 1/1 : FROM ${BASE_IMAGE} AS tools\n"}
        self.have(made)
        yield {"aux": {"ID": made.id}}
        yield {"stream": "Successfully built 0123456789ab\n"}

    def tag(self, image_id: str, reference: str) -> None:
        self.calls.append(f"tag {reference}")
        old = self.images[image_id]
        self.have(
            Image(old.id, (*old.tags, reference), old.digests, old.labels, old.size),
        )

    def remove(self, image_id: str, *, with_parents: bool) -> None:
        self.calls.append(f"remove {image_id}{' with parents' if with_parents else ''}")

    def pull(self, reference: str, *, platform: str | None = None) -> Iterator[Message]:
        self.calls.append(f"pull {reference} {platform}")
        yield from self.conversation
        if self.result is not None:
            self.have(self.result)

    def load(self, archive: IO[bytes]) -> None:
        self.loaded.append(archive.read())
        if self.result is not None:
            self.have(self.result)

    @contextmanager
    def archive(self, image_id: str, path: str, *, owner: str) -> Iterator[Iterator[bytes]]:
        del owner
        folder = self.contents.get(image_id)
        source = folder and folder / path.removeprefix("/opt").lstrip("/")
        if source is None or not source.exists():
            raise ProvisionError(f"The engine could not read '{path}'.", details="not found")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(source, arcname=Path(path).name)
        data = buffer.getvalue()
        yield (data[at : at + 1000] for at in range(0, len(data), 1000))


def using(settings: Settings, engine: Engine | Callable[[], Engine]) -> Settings:
    """Return settings of a host with another engine, or with what connects to it."""

    def connect(_host: str | None) -> Engine:
        return engine() if callable(engine) else engine

    return replace(settings, connection=EngineConnection(connect))


def no_engine() -> Engine:
    """Stand for the engine of a test that needs none."""
    raise AssertionError("the engine was asked for")
