"""What a document's author reads about each kind of mistake."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from provision.catalogue.recipe import Recipe
from provision.config import Config
from provision.documents import Frozen, how_to_correct, parse_json
from provision.errors import ConfigError
from provision.fleet.fleet_file import Fleet


class Archive(Frozen):
    kind: Literal["archive"]
    url: str


class Git(Frozen):
    kind: Literal["git"]
    repository: str


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

    source: tuple[Annotated[Archive | Git, Field(discriminator="kind")], ...] = ()
    limits: Limits | None = None
    each: dict[str, Limits] = Field(default_factory=dict)


def said(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, Document, name="f")
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"jobs": "many"}', "jobs: must be a whole number"),
        ('{"jobs": 1.5}', "jobs: must be a whole number"),
        ('{"jobs": 0}', "jobs: must be at least 1"),
        ('{"jobs": 9}', "jobs: must be at most 8"),
        ('{"share": 0}', "share: must be greater than 0.0"),
        ('{"share": 1}', "share: must be less than 1.0"),
        ('{"share": "x"}', "share: must be a number"),
        ('{"names": "x"}', "names: must be a list"),
        ('{"names": []}', "names: must not be empty"),
        ('{"names": ["a", "b", "c"]}', "names: must have at most 2 items"),
        ('{"names": [""]}', "names.0: must not be empty"),
        ('{"names": ["long"]}', "names.0: must have at most 3 characters"),
        ('{"names": [1]}', "names.0: must be text in quotes"),
        ('{"commit": "HEAD"}', "commit: must match the pattern ^[0-9a-f]+$"),
        ('{"flag": "yes"}', "flag: must be true or false"),
        ('{"mode": "then"}', "mode: must be 'now' or 'later'"),
        ('{"job": 1}', "job: unknown key; did you mean 'jobs'?"),
        ('{"x": 1}', "x: unknown key; known here: commit, flag, jobs, mode, names, share"),
    ],
)
def test_each_kind_has_words_of_its_own(value: str, expected: str) -> None:
    assert said(f'{{"limits": {value}}}') == [f"limits.{expected}"]
    assert said(f'{{"each": {{"one": {value}}}}}') == [f"each.one.{expected}"]


def test_what_is_no_table_is_said() -> None:
    assert said('{"limits": 1}') == ["limits: must be a table"]
    assert said('{"each": []}') == ["each: must be a table"]
    (broken,) = said("{")
    assert broken.startswith("not valid JSON: ")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{"kind": "archive", "url": 1}', "source.0.url: must be text in quotes"),
        ('{"kind": "archive"}', "source.0.url: missing"),
        ('{"url": "x"}', "source.0.kind: missing"),
        ('{"kind": "svn"}', "source.0.kind: must be 'archive', 'git'"),
        ('{"kind": "git", "repository": "x", "repo": 1}', "source.0.repo: unknown key;"),
        (
            '{"kind": "git", "repository": "x", "zzz": 1}',
            "source.0.zzz: unknown key; known here: kind, repository",
        ),
    ],
)
def test_the_members_of_a_union_are_no_keys(source: str, expected: str) -> None:
    (mistake,) = said(f'{{"source": [{source}]}}')
    assert mistake.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"source": {"kind": "archive", "releases": {}}}', "source.releases: must be a list"),
        ('{"source": {"kind": "archiv"}}', "source.kind: must be "),
        ('{"flavours": {"open": {"build": {"comand": []}}}}', "comand: unknown key; did you mean"),
    ],
)
def test_a_real_recipes_sources_have_the_keys_of_their_file(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, Recipe, name="driver.toml")
    assert expected in "\n".join(map(str, caught.value.mistakes))


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
        assert "Input should" not in mistake.message
        assert "<" not in mistake.path


def test_files_that_people_write_say_where_their_keys_are_described() -> None:
    for model in (Recipe, Config, Fleet):
        advice = how_to_correct(Path("/etc/x.toml"), model)
        assert advice is not None
        assert advice.endswith("${EDITOR:-vi} /etc/x.toml")
        assert model.described_in is not None
        assert (Path(__file__).parents[2] / model.described_in).is_file()
    assert how_to_correct(Path("x"), Limits) is None
