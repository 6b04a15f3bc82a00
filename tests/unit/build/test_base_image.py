"""Which base image a Pin names, and where it comes from."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from kit.files import write
from provision.build import bootstrap
from provision.build.base_image import BaseRequest, ensure_base, find_base
from provision.build.bootstrap import make_apt_base, make_rpm_base
from provision.build.workspace import load_settings
from provision.distros import Distro, Repository, find_distro, release_of
from provision.engine.docker_api import Image
from provision.engine.transfer import push
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import BasePin
from provision.progress import Event
from provision.run import Completed
from unit.engine.fake_engine import FakeEngine

_ID = "sha256:" + "a" * 64
_REGISTRY = "sha256:" + "b" * 64
_DEBIAN = find_distro("debian:12")
_REQUEST = BaseRequest(_DEBIAN, "x86_64")
_LOCAL = Image(_ID, ("debian:bookworm",), architecture="amd64")
_PULLED = dataclasses.replace(_LOCAL, digests=(f"other@sha256:{'c' * 64}", f"debian@{_REGISTRY}"))


@pytest.fixture
def engine() -> FakeEngine:
    """An engine without images, which has Debian's after a pull."""
    engine = FakeEngine()
    engine.result = _LOCAL
    return engine


def test_without_an_engine_nothing_is_said_of_images(tmp_path: Path, events: list[Event]) -> None:
    write(tmp_path / "etc/provision/provision.toml", '[engine]\nhost = "unix:///none.sock"\n')
    with pytest.raises(NotFoundError):
        bootstrap.ensure_distro_base(load_settings(tmp_path), _REQUEST)
    assert events == []


@pytest.mark.parametrize(
    ("there", "reference", "expected"),
    [
        # A digest that is chosen is taken as it is.
        ([], f"my/base:1@{_REGISTRY}", BasePin(image="my/base:1", digest=_REGISTRY)),
        # From a registry by the registry's digest, and by its id if it is from none.
        ([_PULLED], None, BasePin(image="debian:bookworm", digest=_REGISTRY)),
        ([_LOCAL], None, BasePin(image="debian:bookworm", digest=_ID)),
        *(
            ([dataclasses.replace(_LOCAL, tags=(reference,))], reference, UsageError)
            for name in ("Debian:12", "debian 12", "-x", "a\nb")
            for reference in (name, f"{name}@{_REGISTRY}")
        ),
        *(
            ([], f"debian@{digest}", UsageError)
            for digest in ("sha256:abc", "sha256:" + "x" * 64, "md5:" + "b" * 64, "")
        ),
        ([dataclasses.replace(_LOCAL, architecture="arm64")], None, ProvisionError),
    ],
)
def test_a_base_image_is_found_by_name_or_digest(
    engine: FakeEngine,
    there: list[Image],
    reference: str | None,
    expected: BasePin | type[ProvisionError],
) -> None:
    for image in there:
        engine.have(image)
    request = dataclasses.replace(_REQUEST, reference=reference)
    if isinstance(expected, BasePin):
        assert find_base(engine, request) == expected
    else:
        with pytest.raises(expected):
            find_base(engine, request)
    assert engine.calls == []


def test_a_machine_that_no_image_is_for_is_named(engine: FakeEngine) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError):
            find_base(engine, dataclasses.replace(_REQUEST, architecture="armv7l"))
        # Neither where it is there already.
        engine.have(_LOCAL)


def test_an_image_that_is_missing_is_pulled_for_the_architecture(
    engine: FakeEngine, notes: list[str]
) -> None:
    find_base(engine, _REQUEST)
    assert engine.calls == ["pull debian:bookworm linux/amd64"]
    nowhere = FakeEngine()
    nowhere.conversation = [{"error": "no such host"}]
    with pytest.raises(NotFoundError) as caught:
        find_base(nowhere, _REQUEST)
    assert "docker pull debian:bookworm" in (caught.value.resolution or "")
    assert "no such host" in str(notes)


def test_a_pins_base_is_found_by_id_or_digest_or_pulled(engine: FakeEngine) -> None:
    engine.have(_LOCAL)
    assert ensure_base(engine, BasePin(image="moved:1", digest=_ID)) == _LOCAL
    engine.result = Image(_ID, (), (f"debian@{_REGISTRY}",))
    found = ensure_base(engine, BasePin(image="debian:bookworm", digest=_REGISTRY))
    assert found == engine.result
    assert engine.calls == [f"pull debian@{_REGISTRY} None"]


def _names_in(engine: FakeEngine) -> list[str]:
    """The files of the one image that was loaded, which is of the request's architecture."""
    with tarfile.open(fileobj=io.BytesIO(engine.loaded[0])) as archive:
        config = json.load(archive.extractfile("config.json") or io.BytesIO())
        assert (config["architecture"], config["os"]) == ("amd64", "linux")
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            return layer.getnames()


@pytest.fixture
def debootstrap(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for debootstrap; gives its arguments."""
    arguments: list[str] = []

    def run(
        argv: Sequence[str | Path],
        *,
        why: str,
        on_line: Callable[[str], None],
        env: Mapping[str, str],
    ) -> None:
        assert why
        if "HOME" in env:
            netrc = Path(env["HOME"], ".netrc")
            assert netrc.stat().st_mode & 0o777 == 0o600
            arguments.append(f"netrc: {netrc.read_text().strip()}")
        on_line("I: Retrieving InRelease")
        arguments.extend(str(argument) for argument in argv)
        mirror = next(n for n, word in enumerate(argv) if str(word).startswith("http"))
        tree = Path(argv[mirror - 1])
        (tree / "var/cache/apt/archives").mkdir(parents=True)
        (tree / "var/cache/apt/archives/some.deb").write_bytes(b"x")
        (tree / "etc").mkdir()
        (tree / "etc/os-release").write_text("ID=debian\n")
        (tree / "etc/hostname").write_text("this-machine\n")

    monkeypatch.setattr(bootstrap, "stream", run)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return arguments


def test_a_mirrors_password_is_in_no_argument(
    debootstrap: list[str], engine: FakeEngine, tmp_path: Path
) -> None:
    """Every user can read the arguments of programs, and the image would keep the address."""
    mirror = "https://me:p%40ss@m.example:8443/debian"
    make_apt_base(engine, _REQUEST, mirror, state=tmp_path)
    said, *argv = debootstrap
    assert said == "netrc: machine m.example login me password p@ss"
    assert argv[-1] == "https://m.example:8443/debian"
    assert not [word for word in argv if "p%40ss" in word or "p@ss" in word]
    assert not list(tmp_path.rglob(".netrc"))
    with pytest.raises(UsageError) as caught:
        make_apt_base(FakeEngine(), _REQUEST, "http://me:a%20b@m.example/debian", state=tmp_path)
    assert "a%20b" not in caught.value.message


def test_a_base_image_is_made_from_the_archive_and_tidy(
    debootstrap: list[str], engine: FakeEngine, tmp_path: Path
) -> None:
    pin = make_apt_base(engine, _REQUEST, "http://mirror/debian", Path("/keys.gpg"), state=tmp_path)
    assert pin == BasePin(image="debian:bookworm", digest=_ID)
    assert debootstrap[0] == "debootstrap"
    assert "--keyring=/keys.gpg" in debootstrap
    assert debootstrap[-1] == "http://mirror/debian"
    assert not Path(debootstrap[-2]).parent.exists()
    names = _names_in(engine)
    assert "./etc/os-release" in names
    assert "./etc/hostname" not in names
    assert "./var/cache/apt/archives" in names
    assert "./var/cache/apt/archives/some.deb" not in names


@pytest.mark.parametrize(
    ("script", "mirror", "word"),
    [
        # A release that debootstrap does not know is made by another one's script.
        ("gutsy", "http://mirror/ubuntu", "/usr/share/debootstrap/scripts/gutsy"),
        # Certificates have to be in the image.
        (None, "https://mirror/debian", "--include=ca-certificates"),
    ],
)
def test_what_a_release_or_mirror_needs_is_said_to_debootstrap(
    debootstrap: list[str],
    engine: FakeEngine,
    tmp_path: Path,
    script: str | None,
    mirror: str,
    word: str,
) -> None:
    request = dataclasses.replace(_REQUEST, script=script)
    make_apt_base(engine, request, mirror, state=tmp_path)
    assert word in debootstrap
    assert mirror in debootstrap


def test_a_failure_leaves_no_tree_behind(
    debootstrap: list[str], engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise ProvisionError("import failed")

    monkeypatch.setattr(engine, "load", fail)
    with pytest.raises(ProvisionError):
        make_apt_base(engine, _REQUEST, "http://mirror/debian", state=tmp_path)
    assert not Path(debootstrap[-2]).parent.exists()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand in for dnf, zypper and rpm; gives their arguments, and HOME as the first."""
    calls: list[list[str]] = []

    def stream(
        argv: Sequence[str | Path],
        *,
        why: str,
        on_line: Callable[[str], None],
        env: dict[str, str],
    ) -> None:
        assert why
        on_line("Installing")
        macros = Path(env["HOME"], ".rpmmacros").read_text()
        assert macros == "%_dbpath /provision-rpmdb\n"
        # Scriptlets run in a tree that does not have the caller's folder.
        assert env["TMPDIR"] == ""
        calls.append([str(word) for word in argv])
        tree = next(folder for folder in Path(env["HOME"]).parent.glob("root"))
        (tree / "var/cache/dnf").mkdir(parents=True, exist_ok=True)
        (tree / "var/cache/dnf/some.rpm").write_bytes(b"x")
        (tree / "provision-rpmdb").mkdir(exist_ok=True)
        # As dnf does with the folders that it is given.
        (tree / tree.parent.relative_to("/") / "cache/metadata").mkdir(parents=True, exist_ok=True)
        calls.extend([path.name, path.read_text()] for path in tree.parent.glob("repos/*"))

    def run(argv: Sequence[str | Path], *, why: str) -> Completed:
        assert why
        words = [str(word) for word in argv]
        calls.append(words)
        Path(words[4], words[6]).rmdir()
        return Completed(tuple(words), 0, "", "")

    monkeypatch.setattr(bootstrap, "stream", stream)
    monkeypatch.setattr(bootstrap, "run", run)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return calls


_OWN = Repository("own", ("https://me:pw@m.example/os",), {"k.asc": b"KEY"}, is_signed=True)


def _data(name: str) -> Distro:
    return release_of(find_distro(name))[0]


def test_a_base_image_is_made_by_dnf_with_the_keys_that_are_named(
    installed: list[list[str]], engine: FakeEngine, tmp_path: Path, notes: list[str]
) -> None:
    engine.result = Image(_ID, ("rocky:9",), architecture="amd64")
    request = BaseRequest(find_distro("rocky:9"), "x86_64", "rocky:9")
    pin = make_rpm_base(engine, request, _data("rocky:9"), "9", (_OWN,), state=tmp_path)
    assert pin == BasePin(image="rocky:9", digest=_ID)
    dnf, (name, repository), database = installed
    assert dnf[0] == "dnf"
    assert dnf[-1] == "xz"
    assert {"--releasever=9", "--assumeyes", "system-release"} <= set(dnf)
    assert name == "own.repo"
    folder = tmp_path / "scratch/base"
    assert f"gpgkey=file://{folder}/keys/own-k.asc" in repository
    assert "gpgcheck=1" in repository
    assert f"--setopt=reposdir={folder}/repos" in dnf
    # Its own rpm keeps the database, wherever and however it does.
    script = database[2]
    assert script.index("--exportdb") < script.index("chroot") < script.index("--importdb")
    assert not folder.exists()
    names = _names_in(engine)
    assert "./etc/yum.repos.d" in names
    assert "./var/cache/dnf/some.rpm" not in names
    assert "./provision-rpmdb" not in names
    above = tmp_path.relative_to("/").parts
    assert f"./{'/'.join(above[:1])}" in names
    assert f"./{'/'.join(above[:2])}" not in names
    assert "dnf from https://" in str(notes)


def test_a_base_image_is_made_by_zypper_that_believes_no_key_but_those(
    installed: list[list[str]], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.result = Image(_ID, ("leap:15.6",), architecture="amd64")
    request = BaseRequest(find_distro("opensuse-leap:15.6"), "x86_64", "leap:15.6")
    make_rpm_base(engine, request, _data("opensuse-leap:15.6"), "15.6", (_OWN,), state=tmp_path)
    programs = [words for words in installed if words[0] in {"rpm", "zypper"}]
    keys, refresh, install = programs
    assert keys[-2:] == ["--import", f"{tmp_path}/scratch/base/keys/own-k.asc"]
    assert refresh[-1] == "refresh"
    assert "--no-refresh" in install
    for words in programs:
        assert not {"--gpg-auto-import-keys", "--no-gpg-checks"} & set(words)
    assert "distribution-release" in install


def test_this_machines_own_repositories_make_a_base_image_of_its_distro(
    installed: list[list[str]], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.result = Image(_ID, ("rocky:9",), architecture="amd64")
    request = BaseRequest(find_distro("rocky:9"), "x86_64", "rocky:9")
    own = Path("/etc/yum.repos.d")
    make_rpm_base(engine, request, _data("rocky:9"), "9.6", own, state=tmp_path / "state")
    assert "--setopt=reposdir=/etc/yum.repos.d" in installed[0]
    assert "--releasever=9.6" in installed[0]


def test_a_push_gives_the_registrys_digest(engine: FakeEngine) -> None:
    engine.have(_LOCAL)
    engine.conversation = [{"status": "Pushed"}, {"aux": {"Digest": _REGISTRY}}]
    pushed = push(engine, _ID, "registry.example:5000/demo:1")
    assert pushed.digest == _REGISTRY
    assert engine.calls == ["tag registry.example:5000/demo:1", "push registry.example:5000/demo:1"]


def test_a_refused_push_says_where_to_log_in(engine: FakeEngine) -> None:
    engine.have(_LOCAL)
    engine.conversation = [{"error": "unauthorized"}]
    with pytest.raises(ProvisionError) as caught:
        push(engine, _ID, "registry.example:5000/demo:1")
    assert "docker login registry.example:5000" in (caught.value.resolution or "")
