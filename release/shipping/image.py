"""The images of the agent, where a container engine answers: its packages on a Debian."""

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
# Docker's official images of one architecture only, for machines other than this one.
FOREIGN_BASES = {"x86_64": "amd64/debian:13", "aarch64": "arm64v8/debian:13"}
SUFFIX = ".image.tar"
_FILES = ("templates/agent/Dockerfile", "templates/agent/agent.sh")
# It runs in the build.
_TREE = Path(__file__).with_name("agent_tree.py")
_ENGINES = ("docker", "podman")
_VARIABLES = ("DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")


def engine() -> str | None:
    """Return the program of an engine that answers, or None."""
    for name in _ENGINES:
        if find_program(name) and _run(name, "info", check=False).returncode == 0:
            return name
    return None


def make(source: Source, folder: Path, program: str, base: str, machine: str) -> str | None:
    """Build the image from the packages in a folder, and save it there.

    Args:
        source: The checkout.
        folder: The folder of the release.
        program: From ``engine``.
        base: The image of the Debian that it is made on.
        machine: What it is for, as ``uname -m`` prints it.

    Returns:
        Why there is none; None where there is one.

    Raises:
        ProvisionError: The engine could not build it.
    """
    architecture = deb.architecture(machine)
    linux = f"--platform=linux/{architecture}"
    if _run(program, "image", "inspect", base, check=False).returncode != 0:
        pulled = _run(program, "pull", "--quiet", linux, base, check=False, timeout=LONG_LIMIT_S)
        if pulled.returncode != 0:
            return f"'{base}' is not here and can't be pulled"
    started = _run(program, "run", "--rm", "--network=none", linux, base, "true", check=False)
    if started.returncode != 0:
        if machine == platform.machine():
            return f"{program} starts no container: {started.stderr.strip()}"
        return (
            f"this machine can't run programs of {machine}: apt-get install qemu-user-static"
            " has the kernel start them by an emulator"
        )
    tag = f"provision/agent:{source.version}"
    target = folder / f"provision-agent-{source.version}_{architecture}{SUFFIX}"
    with TemporaryDirectory(prefix="agent-") as name:
        for package in ("oci-decorator", "provision"):
            shutil.copy(folder / f"{package}_{source.version}_{architecture}.deb", name)
        for file in _FILES:
            shutil.copy(source.root / file, name)
        shutil.copy(_TREE, name)
        words = ["build", "--quiet", "--network=host", f"--build-arg=BASE={base}", f"--tag={tag}"]
        _run(program, *words, linux, name, timeout=LONG_LIMIT_S)
    try:
        _run(program, "save", "--output", str(target), tag, timeout=LONG_LIMIT_S)
    except ProvisionError:
        target.unlink(missing_ok=True)
        raise
    return None


def _run(program: str, *words: str, check: bool = True, timeout: float = 60.0) -> Completed:
    given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    why = "make the image of the agent"
    return run([program, *words], why=why, check=check, env=given, timeout=timeout)
