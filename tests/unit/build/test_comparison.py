"""Two builds of one Pin, compared."""

import json
from pathlib import Path

import pytest

from provision.build import image
from provision.build.image import differences, module_sums
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.docker_api import Image
from provision.errors import ProvisionError
from unit.engine.fake_engine import FakeEngine, using


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
        (json.dumps({"modules": [{"path": "a.ko", "sha256": "1"}]}), {"a.ko": "1"}),
        ("{", {}),
        ("{}", {}),
        (None, {}),
    ],
)
def test_sums_are_those_of_the_manifest(
    manifest: str | None, sums: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_arguments: object, **_more: object) -> bytes:
        if manifest is None:
            raise ProvisionError("it has none")
        return manifest.encode()

    monkeypatch.setattr(image, "read_file", read)
    settings = Settings(tmp_path, Config(), Catalogue([]), tmp_path)
    assert module_sums(using(settings, FakeEngine()), Image(id="sha256:1")) == sums
