"""What the Ansible role is to know of the files."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.oci_decorator.drivers.plugins.module_utils import managed_files as role
from hypothesis import given
from hypothesis import strategies as st

from provision.export.ignition.served_folder import (
    DAEMON_JSON,
    PROVISION_TOML,
    docker_with_runtime,
    hook_texts,
    managed_records,
)

_TEXTS = st.dictionaries(
    st.sampled_from(["/etc/a", "/etc/b", DAEMON_JSON, PROVISION_TOML]), st.text(max_size=20)
)


@given(texts=_TEXTS)
def test_each_file_is_in_one_ledger_as_the_role_reads_it(
    texts: dict[str, str],
) -> None:
    found = [json.loads(text) for text in managed_records(texts).values()]
    records = {path: record for part in found for path, record in part.items()}
    assert sum(map(len, found)) == len(records)
    # `oci-decorator configure` finds its entries in Docker's file by itself.
    assert set(records) == set(texts) - {DAEMON_JSON}
    for path, record in records.items():
        assert role.checksum(texts[path]) in role.Record(**record).written
        assert record["original"] is None


def test_the_role_takes_back_what_ignition_wrote(tmp_path: Path) -> None:
    """Below a folder, which stands for the machine."""
    texts = hook_texts(("docker", "podman"), docker_with_runtime(None, is_default=False))
    del texts[DAEMON_JSON]
    moved = {f"{tmp_path}{path}": text for path, text in texts.items()}
    for path, text in moved.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    (kept,) = managed_records(moved).values()
    (tmp_path / "files.json").write_text(kept)
    managed = role.ManagedFiles(str(tmp_path / "files.json"))
    changes = [managed.restore(path) for path in moved]
    assert [change.after for change in changes if change] == [None] * len(moved)
