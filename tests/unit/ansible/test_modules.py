"""What modules do to a host's files: run by their own `main`, and the shell scripts by `sh`."""

from __future__ import annotations

import importlib
import json
import locale
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import (
    ManagedFiles,
)

from provision.config import Config, RepositoryConfig
from provision.documents import load_toml

_MODULES = "ansible_collections.oci_decorator.drivers.plugins.modules"


class Run(Protocol):
    """A run of a module; its result, which has `failed` where it failed."""

    def __call__(
        self, name: str, params: Mapping[str, object], *, check: bool = False
    ) -> dict[str, Any]: ...


@pytest.fixture
def module(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    def ran(name: str, params: Mapping[str, object], *, check: bool = False) -> dict[str, Any]:
        with (
            patch_module_args({**params, "_ansible_check_mode": check}),
            pytest.raises(SystemExit),
        ):
            importlib.import_module(f"{_MODULES}.{name}").main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    # Ansible's modules take the user's: what other tests read would be said in another language.
    before = locale.setlocale(locale.LC_ALL)
    yield ran
    locale.setlocale(locale.LC_ALL, before)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class _Files:
    """A set of managed files, as the role has it."""

    def __init__(self, module: Run, record: Path) -> None:
        self._module, self.record = module, record

    def have(
        self,
        texts: Mapping[Path, str],
        more: Mapping[str, object] | None = None,
        *,
        check: bool = False,
    ) -> bool:
        """Have these files and no others; whether anything changed."""
        files = {str(path): {"content": text, "mode": "0640"} for path, text in texts.items()}
        words = {"files": files, "record": str(self.record), **(more or {})}
        return bool(self._module("_provision_managed_files", words, check=check)["changed"])


@pytest.fixture
def files(module: Run, tmp_path: Path) -> _Files:
    return _Files(module, tmp_path / "var/record.json")


def test_managed_files_come_and_go_with_their_folders(files: _Files, tmp_path: Path) -> None:
    path = tmp_path / "etc/ours/a.conf"
    assert files.have({path: "1"}, check=True)
    assert list(tmp_path.iterdir()) == []
    assert files.have({path: "1"})
    assert (path.read_text(), _mode(path)) == ("1", 0o640)
    assert not files.have({path: "1"})
    assert files.have({path: "2"})
    path.chmod(0o777)
    assert files.have({path: "2"})
    assert (path.read_text(), _mode(path)) == ("2", 0o640)
    assert files.have({})
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_managed_files_comes_back(files: _Files, tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("theirs")
    path.chmod(0o600)
    files.have({path: "1"})
    files.have({path: "2"})
    files.have({})
    assert (path.read_text(), _mode(path)) == ("theirs", 0o600)


def test_a_managed_file_that_was_changed_since_stays(files: _Files, tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    files.have({path: "1"})
    path.write_text("changed")
    assert not files.have({})
    assert path.read_text() == "changed"


def test_vendor_files_are_managed_files(files: _Files, tmp_path: Path) -> None:
    documents = {"documents": {"mine": {"version": "1"}}, "documents_folder": str(tmp_path / "d")}
    assert files.have({}, documents)
    assert json.loads((tmp_path / "d/mine.json").read_text()) == {"version": "1"}


@pytest.mark.parametrize("when", range(1, 3))
def test_a_run_that_broke_off_forgets_nothing(files: _Files, tmp_path: Path, when: int) -> None:
    path = tmp_path / "a.conf"
    path.write_text("theirs")
    files.have({path: "1"})
    moves = []

    def move(draft: str, target: str) -> None:
        moves.append(target)
        if len(moves) == when:
            raise KeyboardInterrupt
        os.replace(draft, target)  # noqa: PTH105 - what the module calls takes names

    managed = ManagedFiles(str(files.record))
    change = managed.wish(str(path), "2", 0o644)
    assert change is not None
    with pytest.raises(KeyboardInterrupt):
        managed.make([change], move)
    # Their names have the number of the process, which here is the same again.
    for draft in tmp_path.rglob("*.draft-*"):
        draft.unlink()
    files.have({path: "3"})
    assert path.read_text() == "3"
    files.have({})
    assert path.read_text() == "theirs"


def _mirror(address: str) -> dict[str, Any]:
    return {"distros": {"debian": {"archive": {"mirror": address}}}}


class _Toml:
    """A provision.toml, as the role has it."""

    def __init__(self, module: Run, folder: Path) -> None:
        self._module, self.path = module, folder / "provision/provision.toml"
        self._where = {"path": str(self.path), "record": str(folder / "record.json")}
        self._where["program"] = str(folder / "no-provision-yet")

    def have(self, config: dict[str, Any] | None) -> dict[str, Any]:
        """Have it say this, or give it back."""
        state: dict[str, Any] = {"state": "absent"} if config is None else {"config": config}
        return self._module("provision_config", {**self._where, **state})


@pytest.fixture
def toml(module: Run, tmp_path: Path) -> _Toml:
    return _Toml(module, tmp_path)


def test_only_root_may_read_a_password_of_provision_toml(toml: _Toml) -> None:
    secret = _mirror("https://me:s3cret@mirror.example/debian")
    assert toml.have({"drivers": {}})["changed"]
    assert _mode(toml.path) == 0o644
    result = toml.have(secret)
    assert (result["changed"], _mode(toml.path)) == (True, 0o600)
    assert "s3cret" not in json.dumps(result)
    assert not toml.have(secret)["changed"]
    toml.path.chmod(0o644)
    assert toml.have(secret)["changed"]
    assert _mode(toml.path) == 0o600


# The last one in Latin-1.
@pytest.mark.parametrize("before", [None, b"# mine\n", b"# f\xfcr GPUs\n"])
@pytest.mark.parametrize("edited", [False, True])
def test_provision_toml_is_given_back(toml: _Toml, before: bytes | None, *, edited: bool) -> None:
    toml.path.parent.mkdir()
    if before is not None:
        toml.path.write_bytes(before)
    (toml.path.parent / "mok.key").write_text("key")
    toml.have({"drivers": {"nvidia": {}}})
    toml.have({})
    if edited:
        toml.path.write_text("[drivers.onload]\n")
    # What someone has changed since is someone's.
    assert toml.have(None)["changed"] is not edited
    left = b"[drivers.onload]\n" if edited else before
    assert (toml.path.read_bytes() if toml.path.exists() else None) == left
    assert (toml.path.parent / "mok.key").read_text() == "key"
    assert not toml.have(None)["changed"]


def test_repositories_arrive_as_provision_reads_them(toml: _Toml) -> None:
    repository = {
        "id": "baseos",
        "urls": ["https://mirror.example/rocky/9/BaseOS/"],
        "keys": ["/etc/pki/mirror.asc"],
        "version": "9",
        "signed": True,
    }
    distros = {
        "rocky": {"repositories": [repository], "base_images": {"9": "mirror.example/rocky:9"}},
        "cos": {"archive": {"mirror": "http://m.example", "sha256": {"1/a.tgz": "0" * 64}}},
    }
    drivers = {"nvidia": {"version": 535}, "onload": None}
    toml.have({"distros": distros, "drivers": drivers, "policy": {"keep": "2"}})
    config = load_toml(toml.path, Config)
    expected = RepositoryConfig.model_validate_json(json.dumps(repository))
    assert config.distro("rocky").repositories == (expected,)
    assert config.distro("cos").archive.sha256 == {"1/a.tgz": "0" * 64}
    assert (config.drivers["nvidia"].version, config.policy.keep) == ("535", 2)
    assert set(config.drivers) == {"nvidia", "onload"}


def test_all_mistakes_of_a_configuration_are_named_and_nothing_is_written(toml: _Toml) -> None:
    given = {
        "drivers": {"nvidia": {"verzion": "535"}, "onload": "yes"},
        "policy": {"unload": "always"},
        "colour": "red",
        "distros": {"rocky": {"repositories": [{"id": "b", "urls": [], "gpg": "x"}]}},
    }
    result = toml.have(given)
    assert result["failed"]
    text = "\n".join(result["mistakes"])
    for named in ("colour", "unload", "nvidia: verzion", "drivers.onload", "rocky: ", "gpg"):
        assert named in text
    assert not toml.path.exists()
