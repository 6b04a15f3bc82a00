"""The command ignition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unit.cli.outcome import Outcome
from unit.export.ignition.archives import write_bundle, write_hook, write_python, write_toml

Call = Callable[..., Outcome]


def _words(folder: Path) -> list[object]:
    return [
        *("export", "ignition", "--config", write_toml(folder), "--url", "http://files.example"),
        *("--python", write_python(folder), "--hook", write_hook(folder)),
        *("--bundle", write_bundle(folder), "--output", folder / "out"),
    ]


def test_a_dry_run_checks_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    words = _words(tmp_path)
    assert "would write" in call(*words, "--dry-run").out
    document = call(*words, "--dry-run", "--json").document
    assert (document["dry_run"], document["changed"], document["files"]) == (True, False, [])
    # Only the archive says it, and there may be none yet.
    assert document["environment"] is None
    assert not (tmp_path / "out").exists()


def test_the_written_files_are_listed(call: Call, tmp_path: Path) -> None:
    words = _words(tmp_path)
    outcome = call(*words, "--variant", "flatcar", "--json")
    assert outcome.code == 0
    document = outcome.document
    assert (document["variant"], document["python"]) == ("flatcar", "3.11")
    assert (document["machine"], document["changed"]) == ("x86_64", True)
    assert document["config"]["url"] == "http://files.example/config.ign"
    assert [file["name"].split("-")[0] for file in document["files"]] == [
        "python",
        "provision",
        "oci",
    ]
    assert "variant: flatcar" in (tmp_path / "out/provision.bu").read_text()
    again = call(*words, "--variant", "flatcar")
    assert "Serve them at http://files.example." in again.out
    assert call(*words, "--variant", "flatcar", "--json").document["changed"] is False


def test_mistakes_name_file_and_key(call: Call, tmp_path: Path) -> None:
    words = _words(tmp_path)
    write_toml(tmp_path, '[signing]\nkey = "/etc/mok.key"\ncertificate = "/etc/mok.der"\n')
    outcome = call(*words, "--json")
    assert outcome.code == 2
    error = outcome.document["error"]
    assert error["file"] == str(tmp_path / "provision.toml")
    assert [mistake["path"] for mistake in error["mistakes"]] == [
        "signing.key",
        "signing.certificate",
    ]
    accepted = call(*words, "--expect", "/etc/mok.key", "--expect", "/etc/mok.der")
    assert accepted.code == 0
