"""What a removal takes, and what stays: keys and foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.removal import (
    files_left,
    store_parts,
)
from ansible_collections.oci_decorator.drivers.plugins.modules._provision_removal import planned

_STORE = (
    "nvidia/.lock",
    "nvidia/0123456789ab/manifest.json",
    "nvidia/current",
    "nvidia/kernels/6.1.0-47-amd64",
    "nvidia/state.json",
    "nvidia/written.json",
    "nvidia/serials.json",
    "nvidia/state.json.unreadable-1",
    "nvidia/.state.json.k3x9",
    "nvidia/.current.4711",
    "nvidia/.partial-0123456789ab-x1/manifest.json",
    "nvidia/.removed-0123456789ab/manifest.json",
    ".units/written.json",
    ".units/.lock",
    ".lock",
    ".desired.json",
    "..desired.json.q7",
)


def _tree(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def _removed(root: Path, *empty: str) -> list[str]:
    """Remove as the module does; the files that are left."""
    store = root / "var/lib/provision"
    gone = planned([], [str(store)], [str(root / name) for name in empty])
    left = [path for folder in (root / "etc", store) for path in files_left(folder, gone)]
    return sorted(str(path.relative_to(root)) for path in left)


def test_a_store_goes_as_a_whole(tmp_path: Path) -> None:
    store = tmp_path / "var/lib/provision"
    _tree(store, *_STORE)
    assert _removed(tmp_path) == []
    assert planned([], [str(store)], [])[-1] == store
    assert planned([], [str(tmp_path / "nowhere")], [str(tmp_path / "nowhere")]) == []


@pytest.mark.parametrize(
    "foreign",
    [
        "var/lib/provision/mok.key",
        "var/lib/provision/keys/mok.key",
        "var/lib/provision/nvidia/mok.key",
        "var/lib/provision/.admin.key",
        "var/lib/provision/.git/config",
        "var/lib/provision/.units/.backup",
        "var/lib/provision/nvidia/.signing.pem",
        "var/lib/provision/nvidia/state.json.admin-backup",
        "var/lib/provision/nvidia/saved/nvidia.json.0123456789ab",
        "var/lib/provision/.units/provision-boot.service.0123456789ab",
    ],
)
def test_foreign_files_in_a_store_stay(tmp_path: Path, foreign: str) -> None:
    _tree(tmp_path / "var/lib/provision", *_STORE)
    _tree(tmp_path, foreign)
    assert _removed(tmp_path) == [foreign]
    store = tmp_path / "var/lib/provision"
    assert store not in planned([], [str(store)], [])


def test_a_link_in_a_store_is_not_followed(tmp_path: Path) -> None:
    _tree(tmp_path, "srv/current", "srv/data")
    (tmp_path / "var/lib/provision").mkdir(parents=True)
    (tmp_path / "var/lib/provision/linked").symlink_to(tmp_path / "srv")
    ours, foreign = store_parts(tmp_path / "var/lib/provision")
    assert ours == []
    assert foreign == [tmp_path / "var/lib/provision/linked"]


def test_a_signing_key_beside_provision_toml_stays(tmp_path: Path) -> None:
    _tree(tmp_path, "etc/provision/mok.key", "etc/provision/mok.crt")
    assert _removed(tmp_path, "etc/provision") == ["etc/provision/mok.crt", "etc/provision/mok.key"]


def test_folders_that_are_empty_then_go(tmp_path: Path) -> None:
    (tmp_path / "etc/provision").mkdir(parents=True)
    _tree(tmp_path, "opt/provision/provision.tar")
    named = [str(tmp_path / "opt/provision/provision.tar")]
    empty = [str(tmp_path / name) for name in ("etc/provision", "opt/provision", "etc")]
    gone = planned(named, [], empty)
    assert [str(path) for path in gone] == [*named, *empty]
