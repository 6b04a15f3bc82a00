"""``provision matrix`` from the command line to its table and page; builds are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.build.pin_file import PinFile
from provision.build.workspace import Settings
from provision.cli import matrix
from provision.errors import ProvisionError
from provision.fetch import UnreachableError
from provision.fleet.matrix import cell_builds, runner
from provision.fleet.matrix.cells import Offer, Offers
from provision.fleet.matrix.results import Results, matrix_folder
from unit.cli.outcome import Outcome
from unit.fleet.matrix.test_runner import KERNELS, Lab, compile_error
from unit.recipes import recipe

Call = Callable[..., Outcome]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A host for whose matrix there is a driver in two versions, on three kernels."""
    root = tmp_path / "host"
    root.mkdir()
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lab = Lab(Settings(root, None, None), Results(matrix_folder(root)))  # type: ignore[arg-type] # not read
    offer = Offer("demo", "open", "debian:12", ("2.0", "1.2"), recipe=recipe())
    offers = Offers((offer,), {"debian:12": KERNELS})
    monkeypatch.setattr(matrix, "find_offers", lambda *_given, **_more: offers)
    monkeypatch.setattr(matrix, "ensure_base_images", lambda *_given, **_more: None)
    monkeypatch.setattr(matrix, "open_engine", lambda _settings: lab.engine)
    monkeypatch.setattr("provision.cli.job.open_engine", lambda _settings: lab.engine)
    monkeypatch.setattr(cell_builds, "resolve_pin", lab.resolve)
    monkeypatch.setattr(cell_builds, "build_image", lab.build)
    return lab


def words(lab: Lab, *more: object) -> tuple[object, ...]:
    return ("matrix", "--root", lab.settings.root, *more)


def test_a_matrix_is_a_table_a_document_and_a_page(lab: Lab, call: Call, tmp_path: Path) -> None:
    lab.broken[KERNELS[1]] = compile_error()
    page = tmp_path / "matrix.html"
    done = call(*words(lab, "--drivers", "demo", "--html", page))
    assert done.code == 1
    assert f"debian:12 {KERNELS[0]}" in done.out
    assert "✗ failed" in done.out
    assert f"failed demo 2.0 (open) on debian:12 {KERNELS[1]}: /source/a.c:7: no mem" in done.out
    assert "What to do: patch it" in done.out
    assert "2 built, 1 failed" in done.out
    assert "/source/a.c" in page.read_text()
    document = call(*words(lab, "--drivers", "demo", "--json")).document
    assert document["counts"] == {"built": 2, "failed": 1, "not-supported": 0, "not-built": 0}
    assert (document["built_now"], document["unchanged"], document["left"]) == (0, 3, 0)
    assert document["state"] == str(lab.settings.root / "var/lib/provision/matrix")
    assert [one["state"] for one in document["cells"]] == ["built", "failed", "built"]


def test_what_is_known_is_shown_without_building(
    lab: Lab, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "elsewhere"
    lab.broken[KERNELS[1]] = compile_error()
    call(*words(lab, "--drivers", "demo", "--versions", "all", "--state", state))
    lab.builds.clear()
    monkeypatch.delattr(matrix, "find_offers")
    monkeypatch.delattr(matrix, "open_engine")
    known = call("matrix", "--only-report", "--state", state, "--root", lab.settings.root, "--json")
    assert known.code == 0
    assert len(known.document["cells"]) == 6
    few = ("--drivers", "demo", "--kernels", "latest", "--versions", "1")
    report = call("matrix", "--only-report", "--state", state, *few, "--json").document
    cell = {"driver": "demo", "version": "1.2", "kernel": KERNELS[0], "state": "built"}
    assert cell.items() <= report["cells"][0].items()
    assert len(report["cells"]) == 1
    assert lab.builds == []


def test_a_plan_has_a_pin_for_each_cell_and_names_what_cannot_be_built(
    lab: Lab, call: Call
) -> None:
    lab.unresolved[KERNELS[1]] = ProvisionError("no headers", resolution="wait")
    done = call(*words(lab, "--drivers", "demo", "--plan", "--json"))
    assert (done.code, lab.builds) == (1, [])
    found = [one["kernel"] for one in done.document["cells"]]
    assert found == [kernel for kernel in KERNELS if kernel != KERNELS[1]]
    for one in done.document["cells"]:
        # It is the file that build --pin takes.
        assert PinFile.model_validate_json(json.dumps(one["pin"])).kernel.release == one["kernel"]
    (failed,) = done.document["failed"]
    assert (failed["kernel"], failed["message"]) == (KERNELS[1], "no headers")


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--drivers", "demo", "--plan", "--push"),
        ("--drivers", " ,"),
        ("--drivers", "demo", "--kernels", "5.4"),
        ("--only-report", "--retry", "all", "--keep-images"),
        ("--drivers", "demo", "--html", "/nowhere/at/all.html"),
        ("--drivers", "demo", "--parallel", "0"),
    ],
)
def test_wrong_usage_builds_nothing(
    lab: Lab, call: Call, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Offers(
        tuple(Offer("demo", "open", d, ("1",), recipe=recipe()) for d in ("a:1", "b:1")),
        {"a:1": KERNELS, "b:1": KERNELS},
    )
    monkeypatch.setattr(matrix, "find_offers", lambda *_given, **_more: two)
    done = call(*words(lab, *given))
    assert done.code == 2
    assert lab.builds == []


def test_trouble_with_the_machine_is_shown_and_a_page_is_written(
    lab: Lab, call: Call, tmp_path: Path
) -> None:
    lab.broken[KERNELS[1]] = UnreachableError("no route", resolution="wait", details="tried: x")
    page = tmp_path / "matrix.html"
    done = call(*words(lab, "--drivers", "demo", "--html", page))
    assert done.code == 1
    assert "no route" in done.out
    assert "What to do: wait" in done.out
    assert "1 cells were left out" in done.out
    assert "not built yet" in page.read_text()
    document = call(*words(lab, "--drivers", "demo", "--json")).document
    assert document["troubles"][0]["details"] == "tried: x"


def test_an_interrupted_matrix_writes_its_page(
    lab: Lab, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, _planned: object) -> None:
        del self
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.MatrixRun, "run", interrupt)
    page = tmp_path / "matrix.html"
    done = call(*words(lab, "--drivers", "demo", "--html", page))
    assert done.code == 130
    assert "it continues" in done.err
    assert page.exists()
