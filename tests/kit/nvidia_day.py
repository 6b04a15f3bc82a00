"""NVIDIA's servers on a day in November 2026, in their formats; what our pages say to write.

The recipes are the shipped ones; only their addresses lead to the loopback interface. Servers that
have no answer in the set are down.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.cache import REPOSITORY
from kit.files import write
from kit.fileserver import Mirror
from kit.runfile import small_runfile

_ANSWERS = REPOSITORY / "tests/data/releases/2026-11"
_TAGS = "NVIDIA/open-gpu-kernel-modules.git"
# Versions that are listed and have no file.
_ABSENT = {"625.31.04"}
# A GeForce GTX 1050, RTX 3090 and RTX 5090.
PASCAL, AMPERE, BLACKWELL = "1c81", "2204", "2b85"
_LAST_WITH_PASCAL, _LEGACY = 580, {"legacybranch": "580.xx"}
# In a page: a driver's table, and a line with its version and what else a comment offers.
_TABLE = re.compile(r"\[drivers\.([a-z0-9-]+)\]\n((?:[a-z_]+ *=.*\n)+)")
_VERSION = re.compile(r"^version *=.*$", re.MULTILINE)


def of_pages() -> set[tuple[str, str]]:
    """Return each driver and version that a page tells people to write."""
    found = set()
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        for driver, settings in _TABLE.findall(page.read_text()):
            for line in _VERSION.findall(settings):
                found |= {(driver, name) for name in re.findall(r'"([^"]+)"', line)}
    return found


def readme() -> str:
    """Return README's example of a provision.toml, word for word."""
    text = (REPOSITORY / "README.md").read_text()
    found = re.search(r"```toml\n(\[drivers\.nvidia\]\n.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@dataclass(frozen=True, slots=True)
class NvidiaDay:
    """The servers, and a catalogue whose recipes lead to them."""

    catalogue: Path
    servers: Path

    def publish(self, version: str) -> None:
        """Serve a small driver as the file of a version, which has only its sum so far."""
        name = f"NVIDIA-Linux-x86_64-{version}.run"
        file = self.servers / "us.download.nvidia.com/XFree86/Linux-x86_64" / version / name
        is_new = int(version.partition(".")[0]) > _LAST_WITH_PASCAL
        chips = [
            {"devid": f"0x{PASCAL}", "features": [], **(_LEGACY if is_new else {})},
            {"devid": f"0x{AMPERE}", "features": ["kernelopen", "gsp_proprietary_supported"]},
            {"devid": f"0x{BLACKWELL}", "features": ["kernelopen"]},
        ]
        digest = hashlib.sha256(small_runfile(file, version, chips).read_bytes()).hexdigest()
        write(file.with_name(f"{name}.sha256sum"), f"{digest}  {name}\n")

    def close(self) -> None:
        """Let every server be down, except the one with the files."""
        for path in self.servers.iterdir():
            if path.name != "us.download.nvidia.com":
                shutil.rmtree(path)


@contextmanager
def nvidia_day(folder: Path) -> Iterator[NvidiaDay]:
    """Serve the answers from a folder."""
    servers = folder / "servers"
    shutil.copytree(_ANSWERS, servers)
    listed = (servers / "github.com/tags").read_text().split()
    tags = "".join(f"{number:040x}\trefs/tags/{tag}\n" for number, tag in enumerate(listed, 1))
    write(servers / "github.com" / _TAGS / "info/refs", tags)
    write(servers / "github.com" / _TAGS / "HEAD", "ref: refs/heads/main\n")
    for version in set(listed) - _ABSENT:
        name = f"NVIDIA-Linux-x86_64-{version}.run"
        place = servers / "us.download.nvidia.com/XFree86/Linux-x86_64" / version
        write(place / f"{name}.sha256sum", f"{64 * 'a'}  {name}\n")
    with Mirror(servers).serving() as url:
        for driver in ("nvidia", "onload", "v4l2loopback"):
            copy = folder / "catalogue" / driver
            shutil.copytree(REPOSITORY / "driver_images" / driver, copy)
            recipe = (copy / "driver.toml").read_text()
            moved = re.sub(
                rf"https://(?=[a-z.]*nvidia\.com/|github\.com/{_TAGS})", f"{url}/", recipe
            )
            (copy / "driver.toml").write_text(moved)
        yield NvidiaDay(folder / "catalogue", servers)
