"""What the module asks of the program, and what it makes of the answers."""

from __future__ import annotations

import json

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.runtimes import (
    leaves_default,
    with_default,
)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('{"default-runtime": "oci-decorator"}', "{}", True),
        ('{"default-runtime": "oci-decorator"}', None, True),
        ('{"default-runtime": "oci-decorator"}', '{"default-runtime": "kata"}', False),
        ('{"default-runtime": "kata"}', "{}", False),
        (None, None, False),
        ('{"default-runtime": "oci-decorator"} // x', "{}", False),
        ("[]", "{}", False),
    ],
)
def test_a_removed_default_is_noticed(
    before: str | None, after: str | None, *, expected: bool
) -> None:
    assert leaves_default({"before": before, "after": after}, "oci-decorator") is expected


def test_another_default_changes_nothing_else() -> None:
    text = '{"debug": true, "default-runtime": "oci-decorator"}'
    assert json.loads(with_default(text, "runc")) == {"debug": True, "default-runtime": "runc"}
