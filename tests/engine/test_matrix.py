"""`provision matrix` with a real engine, on real kernels, and with a real compiler's refusal."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.fileserver import served
from kit.hosts import DISTRO, NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.process import start, wait_for
from kit.product import BUILD_NETWORK, Provision
from kit.two_part_driver import DUO, DUO_BROKEN, duo_catalogue, repair_duo

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("toolchains_again")]

_LIMIT_S = 300
# Longer than a run may take to stop.
_LONG_BUILD_S = 240
# Drivers on nine kernels, on two processors that are not for them alone.
_NIGHT_S = 4 * 3600
_KERNELS = 8


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with a driver whose newest version fails only on the newer kernel."""
    with duo_catalogue(tmp_path_factory.mktemp("duo")) as folder:
        yield folder


@pytest.fixture(scope="module")
def kernels(provision: Provision) -> list[str]:
    """Two kernels of Debian 12, the newest first."""
    listed = provision.json("drivers", "kernels", SMALL_DRIVER, "--distro", DISTRO)["kernels"]
    releases = [row["release"] for row in listed]
    return [release for release in releases if release in {OLD_KERNEL, NEW_KERNEL}]


def _run(
    provision: Provision, *words: str | Path, timeout_s: float = 1800
) -> tuple[int, dict[str, Any]]:
    """`provision matrix`, which may have cells that failed."""
    done = provision("matrix", "--build", *words, "--json", check=False, timeout_s=timeout_s)
    document: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in document, document
    return done.returncode, document


def _wait_for_cell(state: Path, process: subprocess.Popen[bytes]) -> None:
    def found() -> bool:
        return any(state.glob("cells/*/*/*/[!.]*.json"))

    wait_for("a cell", found, within_s=_LIMIT_S, pause_s=0.05, or_end_of=process)


def _cells(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["driver"], cell["kernel"]): cell for cell in document["cells"]}


@pytest.mark.minutes(3)
def test_a_matrix_is_killed_finished_and_kept(
    engine: Engine, provision: Provision, drivers: Path, kernels: list[str], tmp_path: Path
) -> None:
    state, page = tmp_path / "state", tmp_path / "matrix.html"
    # Other tests may have built the same driver.
    before, named = engine.layers(), set(engine.images())
    which = ("--drivers", f"{DUO},{SMALL_DRIVER}", "--distros", DISTRO)
    words = (*which, "--kernels", ",".join(kernels), "--catalogue", drivers, "--state", state)

    # A run is killed when it has its first result.
    argv: list[str | Path] = [provision.program, "matrix", "--build", *words, *BUILD_NETWORK]
    killed = start(argv, log=tmp_path / "killed.log", env=provision.variables())
    _wait_for_cell(state, killed)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, (tmp_path / "killed.log").read_text()
    done = len(list(state.glob("cells/*/*/*/[!.]*.json")))

    # The next one builds what is left, two cells at once.
    code, document = _run(provision, *words, "--parallel", "2")
    assert code == 1
    total = 2 * len(kernels)
    assert document["built_now"] == total - done
    assert document["troubles"] == []
    assert document["counts"]["not-built"] == 0
    cells = _cells(document)
    failed = cells[DUO, NEW_KERNEL]
    assert (failed["state"], failed["reason"]) == ("failed", "compile")
    assert failed["first_error"]["file"].endswith("call.h")
    assert failed["first_error"]["line"] == 3
    assert any("pci_resize_resource" in line for line in failed["excerpt"])
    assert cells[DUO, OLD_KERNEL]["state"] == "built"
    assert {cells[SMALL_DRIVER, kernel]["state"] for kernel in kernels} == {"built"}
    # No images are left.
    of_duo = {name for name in engine.images() if name.startswith(f"provision/{DUO}:")}
    assert of_duo <= named

    # What has not changed is not built again; the page and the report need no build.
    code, again = _run(provision, *words, "--html", page)
    assert (code, again["built_now"]) == (1, 0)
    # Nor layers.
    assert engine.layers() <= before
    assert "call.h" in page.read_text()
    report = provision.json("matrix", "--state", state)
    assert report["counts"] == again["counts"]

    # A patch changes the Pins of that driver, and of no other.
    repair_duo(drivers)
    code, repaired = _run(provision, *words, "--parallel", "2")
    assert (code, repaired["built_now"]) == (0, len(kernels))
    assert repaired["counts"]["built"] == total
    assert {cell["version"] for cell in repaired["cells"] if cell["driver"] == DUO} == {DUO_BROKEN}


def test_ctrl_c_ends_a_long_build_and_keeps_what_is_done(
    engine: Engine, provision: Provision, tmp_path: Path
) -> None:
    sources = {
        "1.0": made_up_source(tmp_path / "files", "1.0"),
        "0.9": made_up_source(tmp_path / "files", "0.9", seconds=_LONG_BUILD_S),
    }
    state = tmp_path / "state"
    with served(tmp_path / "files") as url:
        write_made_up(tmp_path / "drivers", sources, url)
        which = ("--drivers", MADE_UP, "--versions", "all", "--distros", DISTRO)
        where = ("--catalogue", tmp_path / "drivers", "--state", state)
        argv: list[str | Path] = [
            provision.program,
            "matrix",
            "--build",
            *which,
            "--kernels",
            OLD_KERNEL,
            *where,
        ]
        log = tmp_path / "log"
        process = start([*argv, *BUILD_NETWORK], log=log, env=provision.variables())
        _wait_for_cell(state, process)
        wait_for("a build", engine.containers, within_s=_LIMIT_S, or_end_of=process)
        # As Ctrl-C, which shells let what runs in the background ignore.
        process.send_signal(signal.SIGTERM)
        assert process.wait(_LONG_BUILD_S / 2) == 130, log.read_text()
    # The engine ends a build whose client went away.
    engine.wait_until_empty(_LONG_BUILD_S / 2)
    assert "it continues" in log.read_text()
    report = provision.json("matrix", "--state", state)
    assert [(cell["version"], cell["state"]) for cell in report["cells"]] == [("1.0", "built")]


# Each has a turn of the night: a shipped recipe, and some of Debian's packages that compile for the
# kernels of Debian 12.
@pytest.mark.minutes(10)
@pytest.mark.parametrize(
    ("shipped", "packages"),
    [
        pytest.param(shipped, packages, marks=pytest.mark.xdist_group(group), id=group)
        for group, shipped, packages in (
            ("a recipe in a matrix", [SMALL_DRIVER], ()),
            ("packages in a matrix", [], ("acpi-call-dkms", "vpoll-dkms")),
        )
    ],
)
def test_drivers_on_eight_kernels_and_on_debian_13(
    provision: Provision,
    engine: Engine,
    tmp_path: Path,
    shipped: list[str],
    packages: tuple[str, ...],
) -> None:
    names = list(shipped)
    (tmp_path / "drivers").mkdir()
    for package in packages:
        made = provision.json("drivers", "import", package, "--output", tmp_path / "drivers")
        names.append(made["name"])
    state, page = tmp_path / "state", tmp_path / "matrix.html"
    words = ("--drivers", ",".join(names), "--catalogue", tmp_path / "drivers", "--state", state)
    cells: list[dict[str, Any]] = []
    for distro, kernels in ((DISTRO, "latest-2,6.1.0-*"), ("debian:13", "latest")):
        chosen = ("--distros", distro, "--kernels", kernels, "--keep-going", "--parallel", "2")
        _, document = _run(provision, *words, *chosen, timeout_s=_NIGHT_S)
        assert document["troubles"] == []
        assert document["counts"]["not-built"] == 0
        cells += document["cells"]
    report = provision.json("matrix", "--state", state, "--html", page)
    assert {cell["driver"] for cell in report["cells"]} == set(names)
    for cell in cells:
        if cell["reason"] == "compile":
            assert cell["first_error"]
            assert cell["log"]
        elif cell["state"] != "built":
            assert cell["message"]
    built = [cell for cell in cells if cell["state"] == "built"]
    # Every driver was made from a package for this series.
    kernels_of_12 = {cell["kernel"] for cell in cells if cell["distro"] == DISTRO}
    series = {kernel for kernel in kernels_of_12 if kernel.startswith("6.1.0-")}
    assert len(kernels_of_12) >= _KERNELS, kernels_of_12
    for name in names:
        assert series <= {cell["kernel"] for cell in built if cell["driver"] == name}, name
    assert page.stat().st_size > 0
    engine.wait_until_empty()


@pytest.mark.minutes(9)
@pytest.mark.parametrize(
    "flavour",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"nvidia {name} in a matrix"))
        for name in ("open", "proprietary")
    ],
)
def test_each_flavour_of_a_driver_that_takes_minutes_is_in_a_matrix(
    provision: Provision, tmp_path: Path, flavour: str
) -> None:
    words = ("--drivers", "nvidia", "--versions", "latest", "--flavours", flavour)
    chosen = ("--distros", DISTRO, "--kernels", NEW_KERNEL, "--state", tmp_path / "state")
    _, document = _run(provision, *words, *chosen, timeout_s=_NIGHT_S)
    (cell,) = document["cells"]
    assert (cell["flavour"], cell["state"]) == (flavour, "built")
