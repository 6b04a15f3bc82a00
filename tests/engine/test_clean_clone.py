"""README's commands in a fresh clone, word for word."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cache import REPOSITORY, cache_dir
from kit.files import remove_tree
from kit.pages import blocks
from kit.probe import is_root, need, need_programs
from kit.process import run

# With an empty cache, and NVIDIA's driver, `.ci/run` runs the demo each time.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(3)]

# What a make, a pytest and a virtual environment around us would hand down to the clone's own.
_FOREIGN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV", "DOCKER_HOST")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The last commit of this repository, cloned."""
    need(is_root(), "root", "run as root")
    need_programs("git", "make")
    folder = tmp_path_factory.mktemp("clean") / "clone"
    run(["git", "clone", "--quiet", f"file://{REPOSITORY}", folder])
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache as the first run on a machine finds it; it gets an engine's layers."""
    folder = tmp_path / "cache"
    folder.mkdir()
    yield folder
    remove_tree(folder)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)


def test_make_demo_does_the_main_job_without_an_earlier_run(clone: Path, fresh_cache: Path) -> None:
    """What an earlier demo solved and downloaded hid that a first one could not resolve."""
    # A base image takes debootstrap half a minute.
    for archive in cache_dir().glob("base-debian-*.tar"):
        shutil.copyfile(archive, fresh_cache / archive.name)
    settings = {"DEMO_DRIVER": "v4l2loopback", "PROVISION_TEST_CACHE": str(fresh_cache)}
    done = run(["make", "demo"], cwd=clone, env=settings, timeout_s=1800)
    for step in range(1, 8):
        assert f"{step}. " in done.stdout
    assert "/usr/bin/v4l2loopback-ctl" in done.stdout
    assert not run(["git", "status", "--porcelain"], cwd=clone).stdout


def test_the_tutorials_first_step_installs_both_programs(clone: Path, tmp_path: Path) -> None:
    """Word for word, but for apt-get, and with folders of a test in the place of the host's."""
    page = (REPOSITORY / "docs/tutorials/nvidia-docker-debian.md").read_text()
    _, step = next(block for block in blocks(page) if "make build" in block[1])
    lines = [line for line in step.splitlines() if not line.startswith("apt-get ")]
    assert len(lines) == 6
    script = "\n".join(lines).replace("/usr/local/", f"{tmp_path}/local/")
    for name in ("oci-decorator-runtime", "oci-decorator"):
        script = script.replace(f" /usr/bin/{name}", f" {tmp_path}/bin/{name}")
    for folder in ("local/lib", "local/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    run(["sh", "-euc", script], cwd=clone, timeout_s=1800)
    assert run([tmp_path / "local/bin/provision", "--version"]).stdout.startswith("provision ")
    drivers = run([tmp_path / "local/bin/provision", "drivers"], cwd=tmp_path).stdout
    assert "nvidia" in drivers
    for name in ("oci-decorator", "oci-decorator-runtime"):
        assert (tmp_path / "bin" / name).samefile(tmp_path / "bin/oci-decorator")
    assert run([tmp_path / "bin/oci-decorator", "--version"]).stdout.startswith("oci-decorator ")


def test_make_clean_leaves_the_clone_as_git_made_it(clone: Path) -> None:
    run(["make", "build"], cwd=clone)
    assert (clone / "build/oci-decorator").exists()
    run(["make", "clean"], cwd=clone)
    assert not run(["git", "status", "--porcelain", "--ignored"], cwd=clone).stdout
