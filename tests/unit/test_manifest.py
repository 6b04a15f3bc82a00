"""Manifests: names of modules, which modprobe, scripts and Kubernetes are given."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kit.artifact import make_artifact
from provision.documents import parse_json
from provision.errors import ConfigError
from provision.manifest import DeviceNode, Manifest, MinorsFrom

# Names that are nearly right, and whatever else there is.
_TEXTS = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab_-. \n\0;$('é", max_size=8),
    st.from_regex(r"[a-z_]{60,70}", fullmatch=True),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A manifest as it lies in an artifact."""
    folder = tmp_path_factory.mktemp("artifact")
    make_artifact(folder)
    return (folder / "driver/manifest.json").read_text()


def with_module(written: str, **changes: object) -> str:
    document = json.loads(written)
    document["modules"][0] |= changes
    return json.dumps(document)


@given(name=_TEXTS)
def test_no_other_name_gets_past_reading(written: str, name: str) -> None:
    is_good = re.fullmatch(r"[A-Za-z0-9_]{1,64}", name) is not None
    for key, value in {"name": name, "depends": [name]}.items():
        text = with_module(written, **{key: value})
        if is_good:
            parse_json(text, Manifest, name="manifest.json")
            continue
        with pytest.raises(ConfigError) as caught:
            parse_json(text, Manifest, name="/store/demo/manifest.json")
        assert "/store/demo/manifest.json" in str(caught.value)
        (mistake,) = caught.value.mistakes
        assert mistake.path.startswith(f"modules.0.{key}")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "a", "major": 1}, "either 'minor' or 'each'"),
        (
            {"name": "a", "major": 1, "each": MinorsFrom(files="proc/x", field="F")},
            "must hold '{minor}'",
        ),
        ({"name": "a{minor}", "major": 1, "minor": 2}, "must hold '{minor}'"),
        ({"name": "../a", "major": 1, "minor": 2}, "should match pattern"),
        ({"name": "a", "major": 1, "minor": 2, "mode": "999"}, "should match pattern"),
    ],
)
def test_a_rule_that_makes_no_sense_is_a_mistake(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        DeviceNode.model_validate(fields)
