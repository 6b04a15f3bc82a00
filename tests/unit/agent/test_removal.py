"""What `uninstall` takes and leaves of a store, and of what other programs read."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.agent.removal import uninstall

_DRIVER = "var/lib/provision/nvidia"
_OURS = (
    f"{_DRIVER}/0123456789ab/manifest.json",
    f"{_DRIVER}/kernels/.6.1.0-47-amd64.4711",
    f"{_DRIVER}/state.json",
    f"{_DRIVER}/written.json",
    f"{_DRIVER}/serials.json",
    f"{_DRIVER}/state.json.unreadable-1",
    f"{_DRIVER}/.state.json.k3x9",
    f"{_DRIVER}/.current.4711",
    f"{_DRIVER}/.partial-0123456789ab-x1/manifest.json",
    f"{_DRIVER}/.removed-0123456789ab/manifest.json",
    f"{_DRIVER}/.lock",
    "var/lib/provision/.units/written.json",
    "run/provision/switching.lock",
    "var/lib/provision/.provision.toml",
    "var/lib/provision/.hold.json",
    "var/lib/provision/..provision.toml.q7",
    "var/lib/provision/matrix/debian_12.json",
    "run/motd.d/provision",
    "run/provision/status.json",
    "run/oci-decorator/devices/nvidia.json",
    "var/lib/prometheus/node-exporter/provision.prom",
    "etc/kubernetes/node-feature-discovery/features.d/provision",
)
# Texts of files that are read.
_TEXTS = {"state.json": "{}", "written.json": '{"files": {}}', ".provision.toml": ""}


def _write(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXTS.get(path.name, name))


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "etc/provision/mok.key",
        "var/lib/provision/mok.key",
        "var/lib/provision/keys/mok.key",
        f"{_DRIVER}/mok.key",
        "var/lib/provision/.admin.key",
        "var/lib/provision/.git/config",
        "var/lib/provision/.units/.backup",
        f"{_DRIVER}/.signing.pem",
        f"{_DRIVER}/state.json.admin-backup",
        f"{_DRIVER}/saved/nvidia.json.0123456789ab",
        "var/lib/provision/.units/provision-boot.service.0123456789ab",
        "var/lib/prometheus/node-exporter/other.prom",
    ],
)
def test_it_takes_what_is_provisions_and_no_foreign_file(tmp_path: Path, foreign: str) -> None:
    root = tmp_path / "root"
    for name in (*_OURS, *([foreign] if foreign else [])):
        _write(root, name)
    # A link is not followed.
    _write(root, "srv/state.json")
    (root / "var/lib/provision/linked").symlink_to(root / "srv")
    (root / "etc/provision").mkdir(parents=True, exist_ok=True)
    (root / "lib/modules").mkdir(parents=True)
    _write(root, "etc/os-release")
    before = sorted(root.rglob("*"))
    planned = uninstall(root, dry_run=True)
    assert sorted(root.rglob("*")) == before
    done = uninstall(root)
    left = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() or p.is_symlink()}
    stays = {"srv/state.json", "etc/os-release", "var/lib/provision/linked", foreign} - {""}
    assert left == stays
    listed = {str(root / name) for name in stays if name.startswith(("var/lib/prov", "etc/prov"))}
    assert set(map(str, done.kept)) == set(map(str, planned.kept)) == listed
    assert (root / "etc/provision").exists() is foreign.startswith("etc/provision")
    assert {root / "run/provision", root / f"{_DRIVER}/state.json"} <= {*planned.paths, *done.paths}
    assert uninstall(root).paths == ()
