"""Two builds of one Pin, compared."""

from typing import Any

import pytest

from provision.build.image import differences, module_sums


def test_equal_modules_are_no_difference() -> None:
    assert differences({"a.ko": "1" * 64}, {"a.ko": "1" * 64}) == ()


def test_each_module_that_differs_is_named_with_both_sums() -> None:
    before = {"a.ko": "1" * 64, "b.ko": "2" * 64, "gone.ko": "3" * 64}
    after = {"a.ko": "4" * 64, "b.ko": "2" * 64, "new.ko": "5" * 64}
    found = differences(before, after)
    assert [line.partition(":")[0] for line in found] == ["a.ko", "gone.ko", "new.ko"]
    assert "111111111111" in found[0]
    assert "444444444444" in found[0]
    assert "not there" in found[1]


@pytest.mark.parametrize(
    ("manifest", "sums"),
    [
        ({"modules": [{"path": "a.ko", "sha256": "1"}]}, {"a.ko": "1"}),
        ({"modules": [{}]}, {}),
        ({"modules": 1}, {}),
        ({}, {}),
    ],
)
def test_sums_are_those_of_the_manifest(manifest: dict[str, Any], sums: dict[str, str]) -> None:
    assert module_sums(manifest) == sums
