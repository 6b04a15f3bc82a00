"""What a document's author reads about each kind of mistake."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from provision.catalogue.recipe import Recipe
from provision.config import Config
from provision.documents import EXAMPLES, Frozen, how_to_correct, parse_json
from provision.errors import ConfigError
from provision.fleet import Fleet


class Limits(Frozen):
    jobs: int = Field(default=1, ge=1, le=8)
    share: float = Field(default=0.5, gt=0, lt=1)
    names: tuple[Annotated[str, Field(min_length=1, max_length=3)], ...] = Field(
        default=("a",), min_length=1, max_length=2
    )
    commit: Annotated[str, Field(pattern="^[0-9a-f]+$")] = "0"
    flag: bool = False
    mode: Literal["now", "later"] = "now"


class Document(Frozen):
    described_in: ClassVar[str | None] = "docs/reference/document.md"

    limits: Limits | None = None
    each: dict[str, Limits] = Field(default_factory=dict)


def said(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, Document, name="f")
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ('{"jobs": "many"}', "jobs"),
        ('{"jobs": 1.5}', "jobs"),
        ('{"jobs": 9}', "jobs"),
        ('{"share": 0}', "share"),
        ('{"names": "x"}', "names"),
        ('{"names": []}', "names"),
        ('{"names": ["long"]}', "names.0"),
        ('{"names": [1]}', "names.0"),
        ('{"commit": "HEAD"}', "commit"),
        ('{"flag": "yes"}', "flag"),
        ('{"mode": "then"}', "mode"),
        ('{"job": 1}', "job"),
        ("1", ""),
    ],
)
def test_a_mistake_has_the_place_where_it_is_and_no_value(value: str, place: str) -> None:
    for text, table in (
        (f'{{"limits": {value}}}', "limits"),
        (f'{{"each": {{"a": {value}}}}}', "each.a"),
    ):
        (mistake,) = said(text)
        found, _, reason = mistake.partition(": ")
        assert found == f"{table}.{place}".strip(".")
        assert reason
        assert "many" not in reason
        assert "HEAD" not in reason
        assert "^[" not in reason
    (broken,) = said("{")
    assert "JSON" in broken


@pytest.mark.parametrize(
    ("key", "names"),
    [("job", {"jobs"}), ("x", {"commit", "flag", "jobs", "mode", "names", "share"})],
)
def test_of_an_unknown_key_the_meant_one_is_said_or_all(key: str, names: set[str]) -> None:
    (mistake,) = said(f'{{"limits": {{"{key}": 1}}}}')
    assert {name for name in Limits.model_fields if name in mistake.partition(": ")[2]} == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"source": {"kind": "archive", "releases": {}}}', "source.releases: "),
        ('{"source": {"kind": "archiv"}}', "source.kind: "),
        ('{"flavours": {"open": {"build": {"comand": []}}}}', "comand: unknown key; did you mean"),
    ],
)
def test_a_real_recipes_sources_have_the_keys_of_their_file(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, Recipe, name="driver.toml")
    assert expected in "\n".join(map(str, caught.value.mistakes))


@pytest.mark.parametrize("model", [Config, Recipe, Fleet])
def test_what_people_have_to_spell_has_an_example(model: type[Frozen]) -> None:
    assert _patterns(model.model_json_schema()) <= EXAMPLES.keys()


def _patterns(schema: object) -> set[str]:
    inside: Iterable[object] = ()
    match schema:
        case {"pattern": str(pattern)}:
            return {pattern}
        case dict():
            inside = schema.values()
        case list():
            inside = schema
    return {pattern for one in inside for pattern in _patterns(one)}


_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                [
                    "source",
                    "kind",
                    "url",
                    "drivers",
                    "registry",
                    "builds",
                    "policy",
                    "flavours",
                    "x",
                ]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["source", "drivers", "builds", "policy", "x"]), _DATA))
@pytest.mark.parametrize("model", [Recipe, Config, Fleet])
def test_any_mistake_is_named_by_keys_of_the_document(
    model: type[Frozen], data: dict[str, object]
) -> None:
    with suppress(ConfigError):
        parse_json(json.dumps(data), model, name="f")
        return
    with pytest.raises(ConfigError) as caught:
        parse_json(json.dumps(data), model, name="f")
    assert caught.value.mistakes
    for mistake in caught.value.mistakes:
        assert mistake.message
        assert "<" not in mistake.path


def test_files_that_people_write_say_where_their_keys_are_described() -> None:
    for model in (Recipe, Config, Fleet):
        advice = how_to_correct(Path("/etc/x.toml"), model)
        assert advice is not None
        assert advice.endswith("${EDITOR:-vi} /etc/x.toml")
        assert model.described_in is not None
        assert (Path(__file__).parents[2] / model.described_in).is_file()
    assert how_to_correct(Path("x"), Limits) is None
