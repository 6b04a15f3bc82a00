"""The CDI specifications that we write, held to a program of those who wrote the format."""

from __future__ import annotations

import pytest

from kit.cache import REPOSITORY
from kit.go_modules import go_programs
from kit.probe import is_root, need
from kit.process import run


@pytest.mark.nightly
@pytest.mark.minutes(2)
def test_cdi_accepts_every_specification_of_the_corpus() -> None:
    """The schema, and the reader that Docker, podman and containerd have compiled in."""
    need(is_root(), "root", "run as root: the corpus has device nodes")
    validator = go_programs("cdi", "example.org/cdi") / "cdi"
    words = ("hooks/build.sh", "cargo", "test", "--locked", "--test", "it", "corpus")
    run(words, cwd=REPOSITORY, env={"CDI_VALIDATOR": str(validator)})
