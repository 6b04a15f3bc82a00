"""The image of the agent, where a container engine answers: its packages on a Debian."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.errors import ProvisionError
from provision.run import LONG_LIMIT_S, Completed, find_program, run
from shipping import deb
from shipping.source import Source

BASE = "debian:13"
# The base image of the day is in it, so that no sum of it is in SHA256SUMS.
SUFFIX = ".image.tar"
_FILES = ("templates/agent/Dockerfile", "templates/agent/agent.sh")
_ENGINES = ("docker", "podman")
_VARIABLES = ("DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")


def engine() -> str | None:
    """Return the program of an engine that answers, or None."""
    for name in _ENGINES:
        if find_program(name) and _run(name, "info", check=False).returncode == 0:
            return name
    return None


def make(source: Source, folder: Path, program: str, base: str) -> Path | None:
    """Build the image from the packages in a folder, and save it there; None: there is no base.

    Args:
        source: The checkout.
        folder: The folder of the release.
        program: From ``engine``.
        base: The image of the Debian that it is made on.

    Raises:
        ProvisionError: The engine could not build it.
    """
    if _run(program, "image", "inspect", base, check=False).returncode != 0:
        pulled = _run(program, "pull", "--quiet", base, check=False, timeout=LONG_LIMIT_S)
        if pulled.returncode != 0:
            return None
    tag = f"provision/agent:{source.version}"
    target = folder / f"provision-agent-{source.version}{SUFFIX}"
    with TemporaryDirectory(prefix="agent-") as name:
        for package in ("oci-decorator", "provision"):
            architecture = deb.architecture(platform.machine())
            shutil.copy(folder / f"{package}_{source.version}_{architecture}.deb", name)
        for file in _FILES:
            shutil.copy(source.root / file, name)
        words = ["build", "--quiet", "--network=host", f"--build-arg=BASE={base}", f"--tag={tag}"]
        _run(program, *words, name, timeout=LONG_LIMIT_S)
    try:
        _run(program, "save", "--output", str(target), tag, timeout=LONG_LIMIT_S)
    except ProvisionError:
        target.unlink(missing_ok=True)
        raise
    return target


def _run(program: str, *words: str, check: bool = True, timeout: float = 60.0) -> Completed:
    given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    why = "make the image of the agent"
    return run([program, *words], why=why, check=check, env=given, timeout=timeout)
