"""The two halves as a user has them: the `provision` command and the built `oci-decorator`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.cache import BASES, REPOSITORY, cache_dir, cached, key_of
from kit.engine import Engine
from kit.process import CommandFailedError, Completed, run

DECORATOR = REPOSITORY / "build/oci-decorator"
RUNTIME = REPOSITORY / "build/oci-decorator-runtime"
# What of a checkout the wheel is made from: pyproject.toml, setup.py.
SOURCE = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "constraints.txt",
    "src",
    "docs",
    "driver_images",
    "templates",
)

# What most tests build for, and the image of its containers.
DISTRO = "debian:12"
IMAGE = "debian:bookworm"

# A private engine has no bridge: without this, containers that download reach no archive.
BUILD_NETWORK = ("--network", "host")
_DOWNLOADING = ("build", "matrix", "resolve")
_ASKING = {("drivers", name) for name in ("kernels", "versions")}

# `--json` documents are read where they are tested; what is in them is each command's business.
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Provision:
    """The command line of `provision`, for one engine."""

    # The engine; None: whatever the environment says.
    docker_host: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        """The script that pip made beside the Python that runs this."""
        return Path(sys.executable).parent / "provision"

    def variables(self) -> dict[str, str]:
        """What is added to the environment of a call; archive indexes lie in our cache."""
        engine = {"DOCKER_HOST": self.docker_host} if self.docker_host else {}
        return {"XDG_CACHE_HOME": str(cache_dir()), **engine, **self.environment}

    def __call__(
        self, *words: str | Path, check: bool = True, timeout_s: float = 1800
    ) -> Completed:
        """Run `provision WORDS`, with the network that what it downloads with needs."""
        downloads = words[0] in _DOWNLOADING or words[:2] in _ASKING
        network = BUILD_NETWORK if downloads and "--network" not in words else ()
        argv = [self.program, *words, *network]
        return run(argv, env=self.variables(), check=check, timeout_s=timeout_s)

    def build(self, *words: str | Path) -> Document:
        return self.json("build", *words)

    def json(self, *words: str | Path, status: int = 0) -> Document:
        """Run `provision WORDS --json`, to this status; the one document on its standard output."""
        done = self(*words, "--json", check=False)
        if done.returncode != status:
            raise failure_of(done)
        document: Document = json.loads(done.stdout)
        return document

    def failure(self, *words: str | Path) -> tuple[int, Document]:
        """Run `provision WORDS --json`, which has to fail; exit status and the error."""
        done = self(*words, "--json", check=False)
        if done.returncode == 0:
            raise AssertionError(f"should have failed, but said: {done.stdout}")
        error: Document = json.loads(done.stdout)["error"]
        return done.returncode, error


def failure_of(done: Completed) -> CommandFailedError:
    """A command that failed, with its error as people read it, also from `--json`."""
    try:
        said = error_text(json.loads(done.stdout)["error"])
    except (LookupError, TypeError, ValueError):
        said = ""
    return CommandFailedError(done, said)


def error_text(error: Document) -> str:
    """An error of a document, as the command prints it without `--json`."""
    lines = [error["message"], error.get("details")]
    if error.get("resolution"):
        lines.append(f"What to do: {error['resolution']}")
    return "\n".join(line for line in lines if line)


def driver_modules(folder: Path) -> list[Path]:
    """The modules of a driver in an artifact, by name: without what is there only for KMM."""
    found = (path for path in folder.rglob("*.ko") if not path.is_symlink())
    return sorted(path for path in found if not path.stem.endswith("_needs"))


def copy_source(folder: Path) -> Path:
    """Copy what the wheel is made from, because setuptools builds beside what it reads."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCE:
        part = REPOSITORY / name
        if part.is_dir():
            shutil.copytree(part, folder / name, ignore=left_out)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(part, folder)
    return folder


def make_wheel(folder: Path) -> Path:
    source = copy_source(folder / "source")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source])
    (made,) = folder.glob("*.whl")
    return made


def have_base(
    provision: Provision, distro: str, *, root: Path = Path("/"), machine: str = ""
) -> Document:
    """The document about a base image: `image`, `digest`, `made`; or `error`, with `exit_code`."""
    argv: list[str | Path] = [sys.executable, "-m", "kit.base_image", distro, root, machine]
    done = run(
        argv, env={**provision.variables(), "PYTHONPATH": str(REPOSITORY / "tests")}, timeout_s=1800
    )
    document: Document = json.loads(done.stdout)
    return document


def base_archive(engine: Engine, distro: str, *, machine: str = "x86_64") -> Path:
    """A `docker save` archive of the base image of `distro` (such as `debian:12`), from the cache.

    Where it is missing, the image is made in `engine` as builds do: pulled or debootstrapped.
    """

    def make(draft: Path) -> None:
        base = have_base(Provision(engine.host), distro, machine=machine)
        engine.docker("save", "--output", draft, base["image"])

    key = key_of(*BASES)
    return cached(f"base-{distro.replace(':', '-')}-{machine}-{key}.tar", make)


def load_base(engine: Engine) -> None:
    archive = base_archive(engine, DISTRO)
    if IMAGE not in engine.images():
        engine.docker("load", "--quiet", "--input", archive)


def write_runtime_config(
    path: Path, config_dir: Path, *, root: Path | None = None, runtime: str = "runc"
) -> Path:
    """Write the shim's own config.toml; `runtime` is the low-level one."""
    lines = [f'config-dir = "{config_dir}"', f'runtimes = ["{runtime}"]', 'log-level = "info"']
    if root is not None:
        lines.append(f'root = "{root}"')
    path.write_text("\n".join([*lines, ""]))
    return path
