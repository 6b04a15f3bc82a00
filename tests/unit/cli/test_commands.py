"""Each command on fake layers: what it prints, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision.build.artifact_image import Built
from provision.build.dockerfile import RenderedContext
from provision.build.driver_request import BuildSettings, DriverRequest
from provision.build.package_pins import Resolved
from provision.build.templates import Templates
from provision.catalogue import load_entry
from provision.cli import job
from provision.cli.commands import build, install
from provision.cli.commands import resolve as render
from provision.engine.stream import StepRecord
from provision.progress import Note
from unit.cli.outcome import Outcome
from unit.engine.fake_engine import FakeEngine
from unit.kmod.artifact import KERNEL, make_pin

Call = Callable[..., Outcome]
_RECIPE = """
schema = 1
name = "demo"
summary = "A driver for tests"
vendor = "No one"
homepage = "https://example.org"

[[hardware.pci]]
vendor = "1234"

[source]
kind = "deb"

[[kernels]]
kernels = ">=6.1"

[flavours.open]
licences = ["GPL-2.0-only"]
package = "demo-dkms"

[flavours.open.build]
command = ["make"]
modules = ["demo.ko"]

[container]
activation_flag = "OCI_DEMO"
driver_feature = ["compute"]

[container.features.compute]
"""


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    folder = tmp_path / "catalogue"
    (folder / "demo").mkdir(parents=True)
    (folder / "demo/driver.toml").write_text(_RECIPE)
    return folder


@pytest.fixture
def wanted(catalogue: Path, monkeypatch: pytest.MonkeyPatch) -> list[DriverRequest]:
    """Have every driver resolved to ``make_pin()``; gives what was wanted."""
    asked: list[DriverRequest] = []
    resolved = Resolved(
        make_pin(),
        load_entry(catalogue / "demo"),
        Templates("apt", "Dockerfile.apt.j2", {}, {}),
    )

    def resolve(*arguments: object, progress: Callable[[Note], None]) -> Resolved:
        assert isinstance(arguments[-1], DriverRequest)
        asked.append(arguments[-1])
        progress(Note("resolving"))
        return resolved

    monkeypatch.setattr(job, "resolve_pin", resolve)
    return asked


def test_every_shipped_recipe_says_what_was_run_of_it(call: Call, host: Path) -> None:
    drivers = call("drivers", "--root", host, "--json").document["drivers"]
    said = {driver["name"]: driver["proven"] for driver in drivers}
    assert all(said.values()), said


@pytest.mark.usefixtures("engine")
def test_resolve(call: Call, host: Path, wanted: list[DriverRequest]) -> None:
    words = ("resolve", "demo", "--kernel", KERNEL, "--distro", "debian:12", "--root", host)
    outcome = call(*words, "--version", "1.2", "--flavour", "open", "--base", "b", "--json")
    pin = make_pin()
    assert outcome.document["digest"] == pin.digest
    assert outcome.document["image"] == pin.image
    assert outcome.document["compiler"] == {"name": "gcc-12", "version": "12.2.0-14"}
    assert outcome.err == "resolving\n"
    assert wanted == [
        DriverRequest(
            "demo",
            kernel=KERNEL,
            distro="debian:12",
            version="1.2",
            flavour="open",
            base="b",
        )
    ]
    assert pin.image in call(*words).out


@pytest.mark.usefixtures("engine", "wanted")
def test_render(call: Call, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RenderedContext({"Dockerfile": b"FROM scratch\n"})
    monkeypatch.setattr(render, "render_context", lambda _resolved: context)
    output = tmp_path / "out"
    words = ("render", "demo", "--root", host, "--output", output)
    assert "would write" in call(*words, "--dry-run").out
    assert not output.exists()
    assert call(*words, "--json").document["files"] == ["Dockerfile"]
    assert (output / "Dockerfile").read_text() == "FROM scratch\n"
    outcome = call("render", "demo", "--root", host, "--output", host)
    assert outcome.code == 2


@pytest.mark.usefixtures("wanted")
def test_build(call: Call, host: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    how: list[BuildSettings] = []
    pin = make_pin()
    steps = (StepRecord(1, "ARG JOBS=1", 0.5), StepRecord(2, "RUN make", 3.25))
    built = Built(
        pin.image, "sha256:1", 7, built=True, seconds=4.0, steps=steps, log=Path("/log/demo.log")
    )

    def fake(*arguments: object, **_more: object) -> Built:
        assert isinstance(arguments[-1], BuildSettings)
        how.append(arguments[-1])
        return built

    monkeypatch.setattr(build, "build_image", fake)
    engine.conversation = [{"aux": {"Digest": "sha256:9"}}]
    words = (
        "build",
        "demo",
        "--root",
        host,
        "--jobs",
        "3",
        "--network",
        "host",
        "--push",
        "r.example/d:1",
    )
    document = call(*words, "--json").document
    assert how == [BuildSettings(jobs=3)]
    assert document["image"] == pin.image
    assert document["digest"] == pin.digest
    assert document["built"] is True
    assert document["seconds"] == {"engine": 0.75, "modules": 3.25, "total": 4.0}
    assert document["steps"][1]["instruction"] == "RUN make"
    assert document["log"] == "/log/demo.log"
    assert document["pushed"] == {"reference": "r.example/d:1", "digest": "sha256:9"}
    text = call(*words).out
    assert "modules" in text
    assert "r.example/d:1@sha256:9" in text


@pytest.mark.usefixtures("engine", "wanted")
def test_build_says_what_it_would_do(call: Call, host: Path) -> None:
    words = ("build", "demo", "--root", host, "--dry-run")
    assert call(*words, "--json").document["would_build"] is False
    assert call(*words).out.endswith("exists\n")
    assert call(*words, "--rebuild").out.endswith("would be built\n")


@pytest.mark.usefixtures("wanted")
def test_install_of_a_driver_that_the_store_has_needs_no_engine(
    call: Call, host: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Built(make_pin().image, "sha256:1", 7, built=False)
    monkeypatch.setattr(install, "build_image", lambda *_a, **_k: built)
    call("install", "demo", "--root", host)
    current = host / "var/lib/provision/demo/current"
    current.unlink()
    engine.images.clear()
    document = call("install", "demo", "--root", host, "--json").document
    assert [change["kind"] for change in document["changes"]] == ["switch"]
    assert current.is_symlink()


@pytest.mark.parametrize("command", ["status", "plan", "apply", "gc", "doctor", "facts"])
def test_a_root_that_does_not_exist_is_no_ready_host(
    call: Call, tmp_path: Path, command: str
) -> None:
    outcome = call(command, "--root", tmp_path / "typo")
    assert outcome.code == 2
    assert not outcome.out
