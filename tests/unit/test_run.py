"""The one place that starts programs, without starting any: what would be started, and how."""

import logging
import signal
import subprocess
from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError, redact
from provision.run import LIMIT_S, find_program, run

_PID = 4711


class Started:
    """Stands in for ``subprocess.Popen`` and keeps what it was asked."""

    pid = _PID
    stdin = stdout = stderr = None

    def __init__(
        self,
        *,
        status: int = 0,
        stdout: bytes = b"",
        stderr: bytes = b"",
        slow: bool = False,
        stuck: bool = False,
    ) -> None:
        self.returncode = status
        self.output = (stdout, stderr)
        self.slow, self.stuck = slow, stuck
        self.argv: list[str] = []
        self.options: dict[str, object] = {}
        self.read: bytes | None = None
        self.limits: list[float] = []

    def __call__(self, argv: list[str], **options: object) -> "Started":
        self.argv, self.options = argv, options
        return self

    def communicate(self, stdin: bytes | None, *, timeout: float) -> tuple[bytes, bytes]:
        self.read = stdin
        self.limits.append(timeout)
        if self.slow:
            raise subprocess.TimeoutExpired(self.argv, timeout)
        return self.output

    def wait(self, timeout: float) -> int:
        self.limits.append(timeout)
        if self.stuck:
            raise subprocess.TimeoutExpired(self.argv, timeout)
        return self.returncode


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin/tool"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    return path


def start(monkeypatch: pytest.MonkeyPatch, started: Started) -> Started:
    monkeypatch.setattr("provision.run.subprocess.Popen", started)
    return started


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process groups that were killed, and by which signal."""
    groups: list[tuple[int, int]] = []
    monkeypatch.setattr("provision.run.os.killpg", lambda *words: groups.append(words))
    return groups


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
    # In a session of its own it has no terminal to ask on.
    assert started.options["start_new_session"] is True
    assert "shell" not in started.options


def test_output_is_text_whatever_its_bytes(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool
    started = start(monkeypatch, Started(stdout=b"a\xffb", stderr=b"e"))
    done = run(["tool"], why="test it", stdin=b"in")
    assert (done.stdout, done.stderr, done.returncode) == ("a\ufffdb", "e", 0)
    assert (started.read, started.options["stdin"]) == (b"in", subprocess.PIPE)


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


def test_every_program_has_a_limit(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool
    started = start(monkeypatch, Started())
    run(["tool"], why="test it")
    run(["tool"], why="test it", timeout=2.5)
    assert started.limits == [LIMIT_S, 2.5]


def test_what_takes_too_long_is_killed_with_all_that_it_started(
    tool: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    assert tool
    start(monkeypatch, Started(slow=True))
    with pytest.raises(ProvisionError, match=r"did not finish within 1\.5 s while it had to test"):
        run(["tool"], why="test it", timeout=1.5)
    assert killed == [(_PID, signal.SIGKILL)]


def test_what_can_not_be_killed_is_left_behind(
    tool: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    assert tool
    started = start(monkeypatch, Started(slow=True, stuck=True))
    with pytest.raises(ProvisionError, match="can't be killed") as caught:
        run(["tool"], why="test it", timeout=1.5)
    assert "dmesg" in (caught.value.resolution or "")
    assert (len(killed), len(started.limits)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pkcs11:token=t?pin-value=47%2011&x=y", "pkcs11:token=t?pin-value=***&x=y"),
        ("'pkcs11:token=t?pin-value=S3CR'ET;\"PIN'", "'pkcs11:token=t?pin-value=***'"),
        ("pkcs11:token=t?pin%2dvalue%3DS3CRET x", "pkcs11:token=t?pin%2dvalue%3D*** x"),
        ("'pkcs11:object=o?PIN-VALUE=4711'", "'pkcs11:object=o?PIN-VALUE=***'"),
        ("https://me:s3:cret@host/debian x", "https://me:***@host/debian x"),
        ("https://me:s3@cret@host/debian", "https://me:***@host/debian"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("provision/lab:1.2@sha256:00", "provision/lab:1.2@sha256:00"),
        (
            "GET https://m.example/a?token=abc&arch=x86_64",
            "GET https://m.example/a?token=***&arch=x86_64",
        ),
        ("https://m.example/a?X-Amz-Signature=abc.", "https://m.example/a?X-Amz-Signature=***"),
        ("'https://m.example/a?b=1&sig=a%3D'", "'https://m.example/a?b=1&sig=***'"),
        ("https://u.example/SUSE/?0123456789abcdef_-Z=", "https://u.example/SUSE/?***"),
        ("'https://u.example/SUSE/?0123456789abcdef': 403", "'https://u.example/SUSE/?***': 403"),
        ("https://ghp_hush@git.example/a", "https://***@git.example/a"),
        ("ssh://root@builder.example", "ssh://root@builder.example"),
        (
            "https://m.example/?repo=baseos-9&arch=x86_64",
            "https://m.example/?repo=baseos-9&arch=x86_64",
        ),
        ("https://m.example/a?keyboard=de", "https://m.example/a?keyboard=de"),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_neither_error_nor_log_has_a_secret_of_the_command_line(
    tool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert tool
    start(monkeypatch, Started(status=1, stderr=b"can't open https://me:hush@host/"))
    with (
        caplog.at_level(logging.DEBUG, logger="provision"),
        pytest.raises(ProvisionError) as caught,
    ):
        run(["tool", "https://me:hush@host/"], why="test it")
    assert "hush" not in f"{caught.value} {caught.value.details} {caplog.text}"
    assert "https://me:***@host/" in caplog.text
