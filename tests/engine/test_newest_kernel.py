"""A kernel that is newer than all that a recipe knows: Debian's newest, from its backports.

The recipes are as before anyone had tried them there. Sources are real, the made-up driver's aside.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.files import TRIXIE
from kit.fileserver import served
from kit.hosts import SMALL_DRIVER
from kit.made_up import MADE_UP, MADE_UP_VERSION, made_up_source, write_made_up
from kit.product import Provision, base_archive

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_PLAIN = re.compile(r"[0-9.]+\+deb13-amd64")
_KNOWN = re.compile(r"(?m)^\[\[kernels\]\]\n(?:[^\n\[].*\n)*\n?")


@dataclass(frozen=True, slots=True)
class _Lab:
    host: AgentHost
    kernel: str
    catalogue: Path

    @property
    def here(self) -> tuple[str | Path, ...]:
        """The options of every command."""
        return ("--root", self.host.root, "--catalogue", self.catalogue)


@pytest.fixture(scope="module")
def lab(
    engine: Engine, provision: Provision, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Lab]:
    """A host of Debian 13 that boots the kernel, and recipes that say nothing of kernels."""
    engine.docker("load", "--quiet", "--input", base_archive(engine, "debian:13"))
    folder = tmp_path_factory.mktemp("newest")
    source = made_up_source(folder / "www", MADE_UP_VERSION)
    with served(folder / "www") as url:
        write_made_up(folder / "drivers", {MADE_UP_VERSION: source}, url)
        shutil.copytree(
            REPOSITORY / "driver_images" / SMALL_DRIVER, folder / "drivers/v4l2loopback"
        )
        for recipe in (folder / "drivers").glob("*/driver.toml"):
            text, found = _KNOWN.subn("", recipe.read_text())
            assert found
            recipe.write_text(text)
        host = AgentHost.make(folder / "host", running="6.12.0-amd64", os_release=TRIXIE)
        host.configure("backports = true\n")
        asked = ("drivers", "kernels", SMALL_DRIVER, "--distro", "debian:13", "--root", host.root)
        rows = provision.json(*asked)["kernels"]
        kernel = next(row["release"] for row in rows if _PLAIN.fullmatch(row["release"]))
        # The kernels of backports are those after the release's own.
        assert not kernel.startswith("6.12.")
        host.add_kernel(kernel)
        host.boot(kernel)
        yield _Lab(host, kernel, folder / "drivers")


def _known(provision: Provision, lab: _Lab, driver: str) -> str:
    rows = provision.json("drivers", "kernels", driver, "--distro", "debian:13", *lab.here)
    (known,) = (row["known"] for row in rows["kernels"] if row["release"] == lab.kernel)
    assert isinstance(known, str)
    return known


def test_what_nobody_has_tried_is_built(provision: Provision, engine: Engine, lab: _Lab) -> None:
    assert _known(provision, lab, MADE_UP) == "untried"
    built = provision.build(MADE_UP, *lab.here)
    copied = engine.copy_out(built["image"], "/opt/driver/manifest.json", lab.host.root / "built")
    (module,) = json.loads(copied.read_text())["modules"]
    assert module["vermagic"].split()[0] == lab.kernel


def test_what_does_not_compile_is_refused_with_file_and_line(
    provision: Provision, lab: _Lab
) -> None:
    """Debian 13's v4l2loopback calls a function that has another argument since Linux 6.18."""
    assert _known(provision, lab, SMALL_DRIVER) == "untried"
    status, error = provision.failure("build", SMALL_DRIVER, *lab.here)
    assert status == 1
    assert re.search(r"v4l2loopback\.c:[0-9]+: error: ", error["details"])
