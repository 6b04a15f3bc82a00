"""Versions of a driver, their branches, and what vendors publish of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.fileserver import served
from kit.runfile import manifest, write_runfile
from provision.catalogue import Recipe
from provision.catalogue.fields import Upstream
from provision.distros.archive import Archive
from provision.documents import parse_json
from provision.errors import (
    ConfigError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
    WrongContentError,
)
from provision.sources.candidates import (
    SourceContext,
    candidates,
    package_of_version,
    pin_sources,
    unlisted,
)
from provision.sources.runfile import Listed, parse_manifest, place
from provision.sources.upstream import (
    Answer,
    Branches,
    Release,
    UpstreamResult,
    known_branches,
    nvidia_releases,
)
from provision.sources.vendor_sums import SumRecord, published_sum
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe
from unit.sources.runfiles import (
    CUDA,
    ROWS,
    VERSION,
    contents,
    refused,
    rows_of,
    taken_apart,
)

SHA256 = "0" * 64
PACKAGES = {
    ("bookworm", "main"): stanza("tool-source", "1.9-2"),
    ("bookworm-security", "main"): "\n".join(
        [stanza("tool-source", "1.10-0+deb12u1"), stanza("tool-source", "1.9-2+deb12u1")]
    ),
}
DEBIAN = ("debian", "debian:12", "apt")
ROCKY = ("rocky", "rocky:9", "dnf")
BUILD = {"command": ["make"], "modules": ["tool.ko"]}
PLAIN = {"plain": {"licences": ["MIT"], "build": BUILD}}
DEB = {
    "kind": "deb",
    "distros": ["debian"],
    "build": {"plain": {**BUILD, "package": "tool-source"}},
}


def archive(*versions: str, **more: object) -> dict[str, Any]:
    releases = [
        {"version": version, "url": f"https://driver.example/{version}.zip", "sha256": SHA256}
        for version in versions
    ]
    return {"kind": "archive", "releases": releases, **more}


def several(*sources: dict[str, Any], **changes: object) -> Recipe:
    return recipe(**{"source": list(sources), "flavours": PLAIN, "patches": [], **changes})


def offered(
    of: Recipe, names: tuple[str, ...], index: Archive | None = None
) -> list[tuple[str, str]]:
    found = candidates(of, of.default_flavour, SourceContext("here", names, index))
    return [(variant.label, version) for version, variant in found.items()]


def test_packages_offer_their_upstream_versions_once() -> None:
    index = archive_of(PACKAGES)
    assert offered(recipe(), DEBIAN, index) == [("deb", "1.10"), ("deb", "1.9")]
    assert candidates(recipe(), "other", SourceContext("debian 12", DEBIAN, index)) == {}
    assert offered(recipe(), ROCKY) == []


def test_the_newest_revision_of_a_version_is_taken() -> None:
    index = archive_of(PACKAGES)
    package = package_of_version(index, "tool-source", "1.9")
    assert package is not None
    assert package.version == "1.9-2+deb12u1"
    assert package_of_version(index, "tool-source", "1.8") is None


def test_each_distro_has_its_own_source() -> None:
    index = archive_of(PACKAGES)
    of = several(DEB, archive("1.10", "2.0"))
    # Another version than the packages' comes from the other source only if the first is limited.
    assert offered(of, DEBIAN, index) == [("deb", "1.10"), ("deb", "1.9")]
    assert offered(of, ROCKY) == [("archive", "2.0"), ("archive", "1.10")]
    limited = several({**DEB, "versions": "<2"}, archive("2.0", "1.10"))
    assert offered(limited, DEBIAN, index) == [
        ("deb", "1.10"),
        ("deb", "1.9"),
        ("archive", "2.0"),
    ]


@pytest.mark.parametrize(
    ("pattern", "serves"),
    [
        ("debian", True),
        ("deb*", True),
        ("debian:12", True),
        ("debian:1?", True),
        ("apt", True),
        ("debian:13", False),
        ("rocky", False),
    ],
)
def test_distros_are_ids_releases_and_families(pattern: str, *, serves: bool) -> None:
    of = several(archive("1.0", distros=[pattern]))
    assert bool(offered(of, DEBIAN)) is serves


def test_a_source_may_have_a_build_and_files_of_its_own() -> None:
    own = {"plain": {**BUILD, "directory": "kernel", "command": ["make", "own"]}}
    file = {"kind": "binary", "from": "tool", "to": "/usr/bin/tool", "features": ["compute"]}
    of = several(
        archive("1", distros=["rocky"], name="one", build=own, files=[file]),
        archive("1", name="two"),
    )
    one, two = (of.variant(names, "plain", "1") for names in (ROCKY, DEBIAN))
    assert one is not None
    assert two is not None
    assert (one.label, one.build.command, one.files[0].to) == (
        "one",
        ("make", "own"),
        "/usr/bin/tool",
    )
    assert (two.label, two.build.command, two.files) == ("two", ("make",), of.files)


def test_what_is_pinned_is_of_the_source_that_offers_it() -> None:
    of = several(archive("1", name="a", versions="<2"), archive("2", "1", name="b"))
    context = SourceContext("rocky 9", ROCKY)
    pinned = {
        version: pin_sources("tool", version, variant, context).sources
        for version, variant in candidates(of, "plain", context).items()
    }
    assert [(v, [s.address for s in sources]) for v, sources in pinned.items()] == [
        ("1", ["https://driver.example/1.zip"]),
        ("2", ["https://driver.example/2.zip"]),
    ]


@pytest.mark.parametrize(
    ("first", "second", "claimed"),
    [
        ({"distros": ["debian", "rocky"]}, {"distros": ["rocky"]}, "rocky"),
        ({"distros": ["deb*"]}, {"distros": ["debian", "rocky"]}, "debian"),
        ({}, {}, "every distro"),
        ({}, {"distros": ["rocky"]}, "rocky"),
        ({"versions": "<2"}, {"versions": "<2"}, "every distro"),
        # A later source may serve the rest.
        ({"distros": ["debian"]}, {}, None),
        ({"distros": ["debian"]}, {"distros": ["*"]}, None),
        ({"versions": "<2"}, {"versions": ">=2"}, None),
    ],
)
def test_two_sources_for_one_distro_are_refused_by_name(
    first: dict[str, Any], second: dict[str, Any], claimed: str | None
) -> None:
    sources = archive("1", name="one", **first), archive("1", name="two", **second)
    if claimed is None:
        assert len(several(*sources).sources) == 2
        return
    with pytest.raises(ConfigError) as caught:
        several(*sources)
    assert {"'one'", "'two'", claimed} == {
        word for word in ("'one'", "'two'", claimed) if word in str(caught.value.details)
    }


def test_mistakes_of_sources_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        several(
            archive("1", distros=["debian"], build={"third": BUILD}),
            archive("2", build={"plain": {**BUILD, "package": "tool"}}),
            flavours={**PLAIN, "other": {"licences": ["MIT"]}},
            patches=[{"file": "a.patch", "sources": ["run"], "reason": "why"}],
        )
    found = str(caught.value.details)
    for part in ("called 'archive'", "'third'", "build.plain", "flavours.other.build", "a.patch"):
        assert part in found


RUNFILE = {
    "kind": "runfile",
    "url": "https://driver.example/{version}/driver-{arch}-{version}.run",
    "checksums": "https://driver.example/{version}/driver-{arch}.sums",
    "build": {"plain": {**BUILD, "directory": "kernel-open"}},
    "files": [],
}


def published(url: str, sums: str) -> str:
    assert (url, sums) == (
        "https://driver.example/2.0/driver-aarch64-2.0.run",
        "https://driver.example/2.0/driver-aarch64.sums",
    )
    return "a" * 64


def test_a_runfile_is_pinned_by_the_recipes_sum_or_by_the_vendors() -> None:
    releases = [{"version": "2.0", "sha256": "b" * 64}, {"version": "1.0"}]
    of = several({**RUNFILE, "releases": releases})
    ours = SourceContext("rocky 9", ROCKY)
    offer, _ = candidates(of, "plain", ours).items()
    (source,) = pin_sources("tool", *offer, ours).sources
    assert source.kind == "runfile"
    assert (source.sha256, source.version) == ("b" * 64, "2.0")
    assert source.url == "https://driver.example/2.0/driver-x86_64-2.0.run"
    theirs = SourceContext("rocky 9", ROCKY, architecture="aarch64", published_sum=published)
    with pytest.raises(NotFoundError):
        pin_sources("tool", *offer, theirs)
    of = several({**RUNFILE, "releases": [{"version": "2.0"}]})
    (offer,) = candidates(of, "plain", theirs).items()
    (source,) = pin_sources("tool", *offer, theirs).sources
    assert source.kind == "runfile"
    assert (source.sha256, source.architecture) == ("a" * 64, "aarch64")
    with pytest.raises(NotFoundError):
        pin_sources("tool", *offer, SourceContext("rocky 9", ROCKY, architecture="riscv64"))


def test_a_version_that_is_not_listed_may_be_asked_for() -> None:
    context = SourceContext("rocky 9", ROCKY)
    of = several({**RUNFILE, "distros": ["rocky"]}, archive("1.0"))
    offer = unlisted(of, "plain", "3.0", context)
    assert offer is not None
    assert offer.label == "runfile"
    assert unlisted(of, "plain", "3.0", SourceContext("debian 12", DEBIAN)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"url": None},
        {"checksums": None, "releases": [{"version": "1"}]},
        {"url": None, "releases": [{"version": "1"}]},
        {"url": "ftp://driver.example/{version}"},
        {"url": "https://driver.example/{kernel}"},
        {"leave_out": ["not a type"]},
        {"build": {}},
    ],
)
def test_mistakes_of_a_runfile_are_refused(changes: dict[str, Any]) -> None:
    source = {key: value for key, value in {**RUNFILE, **changes}.items() if value is not None}
    with pytest.raises(ConfigError):
        several(source)


def test_a_source_may_bring_features_of_its_own() -> None:
    file = {"kind": "binary", "from": "tool", "to": "/usr/bin/tool", "features": ["graphics"]}
    features = {"graphics": {"devices": ["dri/card*"]}}
    own = archive("1", distros=["rocky"], name="one", features=features, files=[file])
    of = several(own, archive("1", name="two"))
    one, two = (of.variant(names, "plain", "1") for names in (ROCKY, DEBIAN))
    assert one is not None
    assert two is not None
    assert set(one.container.features) == {*two.container.features, "graphics"}
    with pytest.raises(ConfigError):
        several(archive("1", files=[file]))


def test_what_programs_need_is_known_from_their_packages() -> None:
    """As nvidia-persistenced and its kin declare it in Debian 13."""
    texts = {
        ("trixie", "main"): "\n\n".join(
            [
                stanza("libtirpc3t64", "1.3.6"),
                stanza("libssl3t64", "3.5"),
                stanza("adduser", "3.1"),
                stanza("libc6", "2.41"),
            ]
        ),
        ("trixie", "non-free"): "\n\n".join(
            [
                stanza("tool-source", "1.9-2"),
                stanza(
                    "tool-daemon",
                    "1.9-1",
                    depends="libtool-cfg1 | libtool-any, adduser, libc6 (>= 2.34),"
                    " libtirpc3t64 (>= 1.0.2), libother1",
                ),
                stanza("libtool-cfg1", "1.9-1", depends="libc6, libssl3t64"),
                stanza("libother1", "1.9-1"),
            ]
        ),
    }
    source = {
        **DEB,
        "components": ["non-free"],
        "userspace": ["libtool-cfg1"],
        "companions": ["tool-daemon"],
    }
    of = several(source)
    context = SourceContext("debian 13", ("debian", "debian:13", "apt"), archive_of(texts))
    offer = next(iter(candidates(of, of.default_flavour, context).items()))
    pinned = pin_sources("tool", *offer, context)
    # Neither what it has itself, nor what containers bring, nor more of the vendor's.
    assert pinned.needs == ("libtirpc3t64",)


DATA = Path(__file__).parents[2] / "data/releases"
TODAY = date(2026, 11, 22)
NVIDIA: dict[str, Any] = {
    "sources": [{"kind": "git-tags", "url": "https://vendor.example/driver.git"}],
    "branches": {
        "535": {"maturity": "lts", "end_of_life": "2026-06"},
        "580": {"maturity": "production", "end_of_life": "2028-06-15"},
        "595": {"maturity": "production", "end_of_life": "2027-03"},
        "610": {"maturity": "new-feature", "end_of_life": "2026-08"},
    },
}


def upstream(**changes: object) -> Upstream:
    return parse_json(json.dumps({**NVIDIA, **changes}), Upstream, name="driver.toml")


def branches(*releases: Release, **changes: object) -> Branches:
    recipe = upstream(**changes)
    answer = Answer(url="https://vendor.example", read=0, releases=releases)
    return known_branches(recipe, [UpstreamResult(recipe.sources[0], answer)])


def vendors() -> Branches:
    """What NVIDIA's list and the recipe say together."""
    content = (DATA / "releases.json").read_bytes()
    return branches(*nvidia_releases(content, url="https://x", machine="x86_64"))


def test_a_vendor_counts_more_than_the_recipe_and_dates_are_the_recipes() -> None:
    branch = vendors().of("580.1")
    assert (branch.maturity, branch.newest, branch.released) == ("lts", "580.178.04", "2026-08-18")
    assert branch.last_day == date(2028, 6, 15)
    assert branches().of("580.1").maturity == "production"


def test_branches_stand_newest_first_by_number() -> None:
    found = branches(Release(version="1000.1"), Release(version="99.1"))
    assert [b.name for b in found.all] == ["1000", "610", "595", "580", "535", "99"]


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        # What is past its end comes last: it is better than nothing.
        ("lts", ("580", "535")),
        ("production", ("595", "580", "535")),
        ("new-feature", ("595", "580", "610", "535")),
        ("latest", None),
        ("580", None),
    ],
)
def test_a_wish_is_the_branches_of_its_kind(wish: str, names: tuple[str, ...] | None) -> None:
    assert vendors().followed(wish, TODAY) == names


def test_the_default_is_the_newest_where_branches_have_no_kinds() -> None:
    known = branches(Release(version="0.12.7"), branch_parts=2, branches={"0.12": {}})
    assert known.followed("production", TODAY) is None
    assert known.followed("lts", TODAY) == ()


def test_a_branch_lives_through_its_last_day() -> None:
    branch = vendors().of("535.261.03")
    assert branch.last_day == date(2026, 6, 30)
    assert not branch.has_ended(date(2026, 6, 30))
    assert branch.has_ended(date(2026, 7, 1))
    assert not vendors().of("470.1").has_ended(TODAY)


@pytest.mark.parametrize(
    ("version", "today", "name"),
    [
        ("535.1", TODAY, "580"),
        ("610.1", TODAY, None),
        ("595.1", TODAY, None),
        # None of the same kind is newer; what is fit for production will do.
        ("550.1", TODAY, "595"),
        ("535.1", date(2030, 1, 1), None),
    ],
)
def test_the_successor_lives_and_is_newer_and_of_the_same_kind(
    version: str, today: date, name: str | None
) -> None:
    known = vendors()
    found = known.successor(known.of(version), today)
    assert (found.name if found else None) == name


def test_branches_may_have_more_parts() -> None:
    found = branches(Release(version="0.12.7"), branch_parts=2, branches={"0.12": {}})
    assert found.of("0.12.7").name == "0.12"
    assert found.of("0.12").name == "0.12"
    assert found.of("0.15.1").name == "0.15"


def test_files_that_the_list_names_and_that_are_missing_are_named_together(tmp_path: Path) -> None:
    files = contents()
    del files[CUDA], files["nvidia-smi"]
    error = refused(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path)
    assert str(error.details).splitlines() == [CUDA, "nvidia-smi"]


def test_unknown_types_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    run = write_runfile(
        tmp_path / "a.run",
        VERSION,
        {
            **contents(
                "new.thing 0644 NEW_THING MODULE:gpgpu", "other 0644 OTHER_THING MODULE:powerd"
            ),
            "new.thing": b"x",
        },
    )
    error = refused(run, tmp_path)
    # What no feature wants may be of any type.
    assert error.details == "NEW_THING, such as new.thing"
    assert rows_of(taken_apart(run, tmp_path, leave_out=("NEW_THING",)))


def test_lines_without_sense_are_named_together(tmp_path: Path) -> None:
    rows = ("libx.so 9999 CUDA_LIB", "one 0755", "l 0000 CUDA_SYMLINK", "../x 0755 CUDA_LIB")
    run = write_runfile(tmp_path / "a.run", VERSION, contents(*rows))
    lines = str(refused(run, tmp_path).details).splitlines()
    numbers = [int(line.partition(":")[0].removeprefix("line ")) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(rows)))


@pytest.mark.parametrize("text", ["one line", manifest("1.0", ROWS)])
def test_a_list_of_another_version_is_refused(text: str, tmp_path: Path) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, contents(text=text))
    refused(run, tmp_path)


@given(st.integers(0, len(ROWS)), st.text())
def test_any_list_is_read_or_refused(at: int, text: str) -> None:
    assert _placed(ROWS)
    with suppress(ProvisionError):
        _placed((*ROWS[:at], *text.splitlines(), *ROWS[at:]))


def _placed(rows: Sequence[str]) -> object:
    listed = parse_manifest(manifest(VERSION, rows), version=VERSION)
    return place(listed, version=VERSION, said={})


_WORDS = st.sampled_from(["a", "b/c", "../d", "/", "x/", "INHERIT_PATH_DEPTH:1", "COMPAT32"])


_TYPES = st.sampled_from(["CUDA_LIB", "CUDA_SYMLINK", "FIRMWARE", "UTILITY_BINARY", "CUDA_ICD"])


@given(st.lists(st.tuples(_WORDS, st.sampled_from(["0000", "0755"]), _TYPES, st.lists(_WORDS))))
def test_every_file_goes_below_a_known_folder(
    rows: list[tuple[str, str, str, list[str]]],
) -> None:
    lines = [" ".join([name, mode, kind, *rest, "MODULE:gpgpu"]) for name, mode, kind, rest in rows]
    for line in lines:
        try:
            listed: list[Listed] = parse_manifest(manifest(VERSION, [line]), version=VERSION)
        except ProvisionError:
            continue
        for one in place(listed, version=VERSION, said={}):
            assert one.path.startswith(("/usr/", "/etc/OpenCL/", "/lib/firmware/nvidia/"))
            assert ".." not in one.path


NAME = "NVIDIA-Linux-x86_64-580.159.03.run"
SUM = "32c85d99b0f640c9501f61b39ddad208fd0288d015c4fbc5fd0435c07783fa77"


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and its address."""
    with served(tmp_path) as url:
        yield tmp_path, url


@pytest.mark.parametrize(
    "text",
    [
        f"{SUM}  {NAME}\n",
        f"{SUM} *{NAME}\n",
        f"{SUM.upper()}  ./{NAME}\n",
        f"-----BEGIN PGP SIGNED MESSAGE-----\n\n{'0' * 64}  other.run\n{SUM}  {NAME}\n",
    ],
)
def test_the_sum_of_a_file_is_read(vendor: tuple[Path, str], text: str) -> None:
    folder, url = vendor
    (folder / f"{NAME}.sha256sum").write_text(text)
    assert published_sum(f"{url}/{NAME}", f"{url}/{NAME}.sha256sum") == SUM


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # None is there, or it is of another file.
        (None, NotFoundError),
        (f"{SUM}\n", ProvisionError),
        # Two of one file, and none at all.
        (f"{SUM}  {NAME}\n{'0' * 64}  {NAME}\n", ProvisionError),
        ("", ProvisionError),
        ("<html>Not here</html>", ProvisionError),
        ("0123  short", ProvisionError),
    ],
)
def test_a_file_without_one_published_sum_is_refused(
    vendor: tuple[Path, str], text: str | None, error: type[ProvisionError]
) -> None:
    folder, url = vendor
    if text is not None:
        (folder / "sums").write_text(text)
    with pytest.raises(error):
        published_sum(f"{url}/{NAME}", f"{url}/sums")


def test_plain_http_vouches_for_nothing() -> None:
    with pytest.raises(UsageError):
        published_sum("https://vendor.example/a", "http://vendor.example/a.sha256")


FILE = "https://driver.example/1.0/driver-1.0.run"
SUMS = f"{FILE}.sha256sum"
ONE, OTHER = "a" * 64, "b" * 64


class Vendor:
    """Says one sum of every file."""

    def __init__(self, says: str) -> None:
        self.says: str | Exception = says
        self.asked: list[tuple[str, str]] = []

    def ask(self, url: str, sums: str) -> str:
        self.asked.append((url, sums))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Record:
    """What is kept in a folder."""

    def __init__(self, folder: Path, vendor: Vendor) -> None:
        self.file = folder / ".known-sums.json"
        self.folder, self.vendor = folder, vendor

    def sum_of(self, url: str = FILE, *, again: bool = False) -> str:
        record = SumRecord(self.folder, again, self.vendor.ask)
        return record.sum_of(url, SUMS)

    def entry(self) -> dict[str, str]:
        entry: dict[str, str] = json.loads(self.file.read_text())["sums"][FILE]
        return entry


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path, Vendor(ONE))


def test_what_was_first_said_counts_without_asking_again(record: Record) -> None:
    assert record.sum_of() == ONE
    record.vendor.says = OTHER
    assert record.sum_of() == ONE
    assert record.vendor.asked == [(FILE, SUMS)]
    assert (record.entry()["sha256"], record.entry()["said_by"]) == (ONE, SUMS)


def test_another_answer_later_is_an_error_that_says_who_said_what_and_when(record: Record) -> None:
    record.sum_of()
    first, before = record.entry()["first"], record.file.read_bytes()
    assert record.sum_of(again=True) == ONE
    record.vendor.says = OTHER
    with pytest.raises(WrongContentError) as caught:
        record.sum_of(again=True)
    old, new = str(caught.value.details).splitlines()
    assert old == f"{first}: {SUMS} said {ONE}"
    assert new.endswith(f"{SUMS} says {OTHER}")
    assert record.file.read_bytes() == before


@pytest.mark.parametrize("error", [UnreachableError("no network"), NotFoundError("gone")])
def test_where_the_vendor_is_silent_what_is_known_counts(
    error: ProvisionError, record: Record, notes: list[str]
) -> None:
    record.sum_of()
    record.vendor.says = error
    assert record.sum_of(again=True) == ONE
    assert notes
    with pytest.raises(type(error)):
        record.sum_of(f"{FILE}x")


def test_what_is_no_sum_is_not_kept(record: Record) -> None:
    record.vendor.says = ProvisionError("it holds no sha256")
    with pytest.raises(ProvisionError):
        record.sum_of()
    assert not record.file.exists()


def test_a_damaged_record_is_not_overwritten(record: Record) -> None:
    record.file.write_text("{")
    with pytest.raises(ProvisionError) as caught:
        record.sum_of()
    assert f"mv {record.file}" in str(caught.value.resolution)
    assert record.vendor.asked == []
