"""Which cells a matrix has, what is kept of them, and what a report says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.output import SourceError
from provision.errors import NotFoundError, UsageError
from provision.fleet import (
    Cell,
    Column,
    Offer,
    Offers,
    Planned,
    Row,
    Selection,
    choose_kernels,
    plan_cells,
)
from provision.fleet.results import (
    Result,
    read_results,
    report_of_cells,
    report_of_results,
    result_of,
    result_path,
    write_result,
)
from unit.recipes import recipe

SCHEMA = Path(__file__).parents[3] / "docs/reference/matrix-cell.schema.json"
DEBIAN, NEXT = "debian:12", "debian:13"
KERNELS = ("6.12.9-amd64", "6.1.0-47-amd64", "6.1.0-40-amd64")
# Its versions 1.* build on 6.1, those from 2 on up to 6.12.
KNOWN = [
    {"versions": "==1.*", "works": ">=6.1,<6.2"},
    {"versions": "==1.*", "fails": ">=6.12", "reason": "strlcpy() is gone"},
    {"versions": ">=2", "works": ">=6.1,<6.13"},
]
MADE_UP = recipe(kernels=KNOWN)


def offer(flavour: str, distro: str, *versions: str, refusal: str | None = None) -> Offer:
    is_default = flavour == MADE_UP.default_flavour
    return Offer("made-up", flavour, distro, versions, is_default, MADE_UP, refusal)


OFFERS = Offers(
    (
        offer("plain", DEBIAN, "2.1", "1.9", "1.8"),
        offer("plain", NEXT, "3.0"),
        offer("other", DEBIAN, "2.1"),
        offer("other", NEXT, refusal="it is not packaged there."),
    ),
    {DEBIAN: KERNELS, NEXT: ("6.13.1-amd64",)},
)


def cell(version: str = "1.9", kernel: str = KERNELS[1], distro: str = DEBIAN) -> Cell:
    return Cell(Row("made-up", version, "plain"), Column(distro, kernel))


def named(planned: list[Planned]) -> list[str]:
    return [f"{p.cell.row.version} {p.cell.column.kernel}" for p in planned]


def test_each_row_is_in_each_column_and_a_kernels_cells_follow_each_other() -> None:
    planned = plan_cells(Selection(drivers=("made-up",), kernels=("latest",)), OFFERS)
    assert named(planned) == [
        "3.0 6.12.9-amd64",
        "2.1 6.12.9-amd64",
        "3.0 6.1.0-47-amd64",
        "2.1 6.1.0-47-amd64",
        "3.0 6.13.1-amd64",
        "2.1 6.13.1-amd64",
    ]


def test_latest_kernels_are_those_of_each_series_so_that_backports_hide_none() -> None:
    kernels = ("6.12.9-amd64", "6.12.8-amd64", "6.1.0-47-amd64", "6.1.0-40-amd64", "6.1.0-9-amd64")
    for name, found in (("latest", (0, 2)), ("latest-2", (0, 1, 2, 3)), ("latest-9", range(5))):
        columns = choose_kernels([name], {DEBIAN: kernels})
        assert columns == [Column(DEBIAN, kernels[number]) for number in found]


def test_the_latest_version_is_what_hosts_with_each_of_the_kernels_install() -> None:
    # As NVIDIA's recipe on Debian: the distro's package comes first, and serves its own series.
    mixed = Offers((offer("plain", DEBIAN, "1.9", "1.8", "2.1", "2.0"),), {DEBIAN: KERNELS})
    for kernel, name, found in (
        ("6.1.0-47-amd64", "latest", ["1.9"]),
        ("6.12.9-amd64", "latest", ["2.1"]),
        ("latest", "latest", ["2.1", "1.9"]),
        ("latest", "latest-2", ["2.1", "2.0", "1.9", "1.8"]),
    ):
        selection = Selection(drivers=("made-up",), kernels=(kernel,), versions=(name,))
        rows = [one.cell.row.version for one in plan_cells(selection, mixed)]
        assert list(dict.fromkeys(rows)) == found, (kernel, name)


def test_what_the_recipe_or_the_distro_lacks_is_not_supported_and_says_why() -> None:
    selection = Selection(
        drivers=("made-up",), kernels=("all",), versions=("all",), flavours=("all",)
    )
    refusals = {str(one.cell): one.refusal for one in plan_cells(selection, OFFERS)}
    assert refusals["made-up 1.9 (plain) on debian:12 6.1.0-47-amd64"] is None
    too_new = refusals["made-up 1.9 (plain) on debian:12 6.12.9-amd64"]
    assert too_new
    assert "strlcpy() is gone" in too_new
    # What nobody has tried is what a matrix is for.
    assert refusals["made-up 3.0 (plain) on debian:13 6.13.1-amd64"] is None
    absent = refusals["made-up 3.0 (plain) on debian:12 6.1.0-47-amd64"]
    assert absent == "debian:12 has no made-up 3.0: it has 2.1, 1.9, 1.8"
    other = refusals["made-up 2.1 (other) on debian:13 6.13.1-amd64"]
    assert other == "it is not packaged there"


def test_forced_cells_are_built_where_there_is_a_source_for_them() -> None:
    selection = Selection(drivers=("made-up",), kernels=("all",), versions=("all",), force=True)
    built = {str(one.cell.column) for one in plan_cells(selection, OFFERS) if not one.refusal}
    assert built == {f"{DEBIAN} {kernel}" for kernel in KERNELS} | {f"{NEXT} 6.13.1-amd64"}


def test_a_driver_without_the_flavour_is_taken_in_its_default_one() -> None:
    more = Offer("small", "only", DEBIAN, ("1",), recipe=MADE_UP)
    no = Offer("small", "only", NEXT, ("1",), recipe=MADE_UP)
    offers = Offers((*OFFERS.offers, more, no), OFFERS.kernels)
    planned = plan_cells(
        Selection(drivers=("all",), flavours=("other",), kernels=("latest",)), offers
    )
    rows = {(one.cell.row.driver, one.cell.row.flavour) for one in planned}
    assert rows == {("made-up", "other"), ("small", "only")}


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (
            Selection.model_construct(
                drivers=("made-up",), kernels=("5.10.*", "6.1.0-47-amd64", "no")
            ),
            ("5.10.*, no",),
        ),
        (Selection(drivers=("made-up",), versions=("7", "1", "8")), ("7, 8", "2.1, 1.9, 1.8")),
        (Selection(drivers=("made-up",), flavours=("none",)), ("none", "(plain)", "(other)")),
    ],
)
def test_what_is_nowhere_is_refused_with_what_there_is(
    selection: Selection, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as raised:
        plan_cells(selection, OFFERS)
    said = f"{raised.value.message} {raised.value.details}"
    assert all(word in said for word in words), said
    assert raised.value.resolution


def test_drivers_that_no_distro_offers_are_not_found() -> None:
    offers = Offers((offer("plain", DEBIAN, refusal="not there"),), {DEBIAN: KERNELS})
    with pytest.raises(NotFoundError):
        plan_cells(Selection(drivers=("made-up",)), offers)


def test_a_kernel_that_no_index_lists_needs_a_single_distro() -> None:
    unlisted = "5.15.200-flatcar"
    assert choose_kernels([unlisted], {"flatcar:1": None}) == [Column("flatcar:1", unlisted)]
    assert choose_kernels([unlisted], {DEBIAN: KERNELS}) == [Column(DEBIAN, unlisted)]
    both = {DEBIAN: KERNELS, "flatcar:1": None}
    assert choose_kernels([unlisted], both) == [Column("flatcar:1", unlisted)]
    for listed, name in (
        ({DEBIAN: KERNELS, NEXT: KERNELS}, unlisted),
        ({"flatcar:1": None}, "latest"),
        ({DEBIAN: KERNELS}, "../../etc"),
    ):
        with pytest.raises(UsageError):
            choose_kernels([name], listed)


@given(
    st.lists(
        st.sampled_from(["all", "latest", "latest-2", "latest-9", "6.1.0-*", *KERNELS]), min_size=1
    )
)
def test_kernels_are_taken_once_and_the_newest_first(wanted: list[str]) -> None:
    found = [column.kernel for column in choose_kernels(wanted, {DEBIAN: KERNELS})]
    assert found == [kernel for kernel in KERNELS if kernel in found]
    assert found


def failed(where: Cell, *, message: str = "it does not compile") -> Result:
    error = SourceError(file="a.c", line=3, text="no member named 'x'", excerpt=(" 3 | x",))
    return result_of(
        where,
        "failed",
        digest="sha256:" + "1" * 64,
        reason="compile",
        phase="build",
        message=message,
        first_error=error,
        errors=1,
    )


@given(
    st.text("abcz019.+~_-", min_size=1, max_size=20).filter(lambda text: text[0] not in ".+~_-"),
    st.text("abcz019._-", min_size=1, max_size=20).filter(lambda text: text[0].isalnum()),
)
def test_every_cell_has_a_file_of_its_own(version: str, flavour: str) -> None:
    kernel = f"6.{'1' if version[0].isdigit() else '2'}"
    path = result_path(Path("/m"), Cell(Row("d", version, flavour), Column("a:1", kernel)))
    assert path.is_relative_to("/m/cells/d/a@1")
    assert ".." not in path.parts
    assert path.name.count("@") == 1


_DAMAGE: list[dict[str, object]] = [
    {"schema": 2},
    {"size": 10**400},
    {"errors": 10**400},
    {"finished": 10**400},
    {"seconds": {"build": float("nan")}},
    {"seconds": {"build": float("inf")}},
    {"seconds": {"build": -1.0}},
    # Another cell's.
    {"version": "9"},
]


@pytest.mark.parametrize("damage", _DAMAGE, ids=str)
def test_what_no_report_can_show_is_named_and_left_out(
    tmp_path: Path, damage: dict[str, object]
) -> None:
    write_result(tmp_path, failed(cell()))
    path = result_path(tmp_path, cell())
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    found, problems = read_results(tmp_path)
    assert (found, len(problems)) == ([], 1)
    assert str(path) in problems[0]


def test_a_result_does_nothing_to_a_terminal() -> None:
    hostile = SourceError(file="a.c", line=7, text="\x1b]0;title\x07no\u202e")
    assert result_of(cell(), "failed", first_error=hostile).cause == "a.c:7: ?]0;title?no?"
    assert result_of(cell(), "failed", message="a\x1bb").cause == "a?b"


def test_a_report_knows_what_was_not_built_yet(tmp_path: Path) -> None:
    write_result(tmp_path, failed(cell()))
    write_result(tmp_path, result_of(cell("1.8"), "built"))
    write_result(tmp_path, result_of(cell("1.6"), "built", is_tried=True))
    report = report_of_cells([cell(), cell("1.8"), cell("1.7"), cell("1.6")], tmp_path)
    counts = {"built": 1, "loads": 1, "failed": 1, "not-supported": 0, "not-built": 1}
    assert report.counts == counts
    document = report.document()
    states = [(one["state"], one.get("is_tried")) for one in document["cells"]]
    assert states == [("failed", False), ("built", False), ("not-built", None), ("built", True)]
    assert document["cells"][0]["first_error"]["line"] == 3


def test_a_report_of_all_results_has_the_newest_first() -> None:
    known = [failed(cell(v, k)) for v in ("1.8", "1.10") for k in reversed(KERNELS)]
    report = report_of_results([*known, failed(cell("3.0", "6.13.1-amd64", NEXT))])
    assert [row.version for row in report.rows] == ["3.0", "1.10", "1.8"]
    kernels = [(column.distro, column.kernel) for column in report.columns]
    assert kernels == [*((DEBIAN, kernel) for kernel in KERNELS), (NEXT, "6.13.1-amd64")]
    with pytest.raises(NotFoundError):
        report_of_results([])


def test_the_schema_in_the_documentation_is_the_codes() -> None:
    assert json.loads(SCHEMA.read_text()) == Result.model_json_schema()
