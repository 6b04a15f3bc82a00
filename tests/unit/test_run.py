"""The door to other programs, without starting any: what would be started, and how."""

import subprocess
from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.run import find_program, run


class Started:
    """Stands in for ``subprocess.run`` and keeps what it was asked."""

    def __init__(self, *, status: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> None:
        self.answer = (status, stdout, stderr)
        self.argv: list[str] = []
        self.options: dict[str, object] = {}

    def __call__(self, argv: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        self.argv, self.options = argv, options
        return subprocess.CompletedProcess(argv, *self.answer)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin/tool"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    return path


def start(monkeypatch: pytest.MonkeyPatch, started: Started) -> Started:
    monkeypatch.setattr("provision.run.subprocess.run", started)
    return started


def test_programs_are_found_on_the_path_and_among_the_admins(tool: Path) -> None:
    assert find_program("tool") == str(tool)
    assert find_program("no-such-tool") is None


def test_a_missing_program_says_what_it_is_needed_for(tool: Path) -> None:
    assert tool
    with pytest.raises(NotFoundError, match="'gpgv' was not found, which is needed to check it"):
        run(["gpgv"], why="check it")


def test_the_environment_is_small_and_known(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LANG": "de_DE", "http_proxy": "http://p", "SECRET": "x"}.items():
        monkeypatch.setenv(name, value)
    started = start(monkeypatch, Started())
    run(["tool", Path("/a b"), "$x"], why="test it", env={"MORE": "1"})
    assert started.argv == [str(tool), "/a b", "$x"]
    env = started.options["env"]
    assert isinstance(env, dict)
    assert env["PATH"] == f"{tool.parent}:/usr/sbin:/sbin"
    assert (env["LC_ALL"], env["http_proxy"], env["MORE"]) == ("C.UTF-8", "http://p", "1")
    assert not {"LANG", "SECRET"} & set(env)
    assert started.options["stdin"] == subprocess.DEVNULL
    assert "shell" not in started.options


def test_output_is_text_whatever_its_bytes(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool
    start(monkeypatch, Started(stdout=b"a\xffb", stderr=b"e"))
    done = run(["tool"], why="test it", stdin=b"in")
    assert (done.stdout, done.stderr, done.returncode) == ("a\ufffdb", "e", 0)


def test_a_failure_has_the_last_lines_of_what_it_said(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tool
    lines = [f"line {number}" for number in range(30)]
    start(monkeypatch, Started(status=2, stderr="\n".join(lines).encode()))
    with pytest.raises(ProvisionError, match="'tool -x' failed with exit status 2 while") as caught:
        run(["tool", "-x"], why="test it")
    assert (caught.value.details or "").splitlines() == lines[-20:]


def test_a_failure_may_be_asked_for(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool
    start(monkeypatch, Started(status=1))
    assert run(["tool"], why="test it", check=False).returncode == 1


def test_what_takes_too_long_is_an_error(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool

    def slow(argv: list[str], *, timeout: float, **_options: object) -> None:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr("provision.run.subprocess.run", slow)
    with pytest.raises(ProvisionError, match=r"did not finish within 1\.5 s while it had to test"):
        run(["tool"], why="test it", timeout=1.5)
