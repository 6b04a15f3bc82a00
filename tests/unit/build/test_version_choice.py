"""Which version, flavour and source a request gets, and what an error says if there is none."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.request import VersionRequest
from provision.config import Untried
from provision.distros.archive import Archive
from provision.errors import NotFoundError, UsageError
from unit.build.made_up_driver import (
    SOURCES,
    Options,
    packages,
    pin,
    pin_for_rocky,
    refused,
    several,
)
from unit.build.made_up_driver import index as index  # noqa: PLC0414 - a fixture
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe


def offering(*versions: str) -> Archive:
    """Return an archive that has these versions too."""
    names = ("tool-source", "tool-user")
    more = [stanza(name, f"{version}-1") for version in versions for name in names]
    return archive_of({("bookworm", "main"): packages(*more)})


def crashes(versions: str) -> list[dict[str, str]]:
    return [{"versions": versions, "fails": ">=6.1", "reason": "it crashes"}]


def test_the_newest_version_that_fits_the_kernel_is_taken() -> None:
    index = offering("3.0")
    kernels = [
        {"versions": "==1.*", "works": ">=6.1,<6.2"},
        {"versions": ">=2", "fails": "<6.5", "reason": "it needs folios"},
    ]
    assert pin(index, of=recipe(kernels=kernels)).driver.version == "1.10"
    # What nobody has tried comes after what works, and is taken where nothing is known to.
    assert pin(index, of=recipe(kernels=kernels[:1])).driver.version == "1.10"
    assert pin(index, of=recipe(kernels=[])).driver.version == "3.0"
    assert pin(index).driver.version == "3.0"


def test_a_branch_stands_for_its_newest_version_that_fits() -> None:
    index = offering("3.1", "3.10", "3.2")
    assert pin(index, version="3").driver.version == "3.10"
    assert pin(index, version="1").driver.version == "1.10"
    # 3.1 is a version, and no branch with 3.10 in it.
    assert pin(index, version="3.1").driver.version == "3.1"
    of = recipe(kernels=crashes("==3.10"))
    assert pin(index, of=of, version="3").driver.version == "3.2"
    refused(index, version="4")


def test_a_version_stays_as_long_as_it_fits_what_is_asked() -> None:
    index = offering("3.1", "3.2")
    assert pin(index, prefer="3.1").driver.version == "3.1"
    assert pin(index, version="3", prefer="3.1").driver.version == "3.1"
    assert pin(index, version="1", prefer="3.1").driver.version == "1.10"
    assert pin(index, prefer="2.9").driver.version == "3.2"
    of = recipe(kernels=crashes("==3.1"))
    assert pin(index, of=of, prefer="3.1").driver.version == "3.2"


def test_a_kind_of_branch_stands_for_the_first_of_its_branches_that_is_offered() -> None:
    index = offering("3.1", "3.2", "4.1", "40.1")

    def version(*branches: str, prefer: str = "") -> str:
        found = pin(index, version="lts", branches=branches, prefer=prefer)
        return found.driver.version

    assert version("5", "3", "4") == "3.2"
    assert version("4") == "4.1"
    assert version("3.1") == "3.1"
    # What was chosen stays as long as its branch is accepted.
    assert version("4", "3", prefer="3.1") == "3.1"
    assert version("4", prefer="3.1") == "4.1"
    of = recipe(kernels=crashes(">=4"))
    found = pin(index, of=of, version="lts", branches=("4", "3"))
    assert found.driver.version == "3.2"


_NO_SOURCE = {"tool-source": "renamed"}
_NOTHING = dict.fromkeys(("tool-source", "tool-other-source", "tool-user"), "renamed")


@pytest.mark.parametrize(
    ("wanted", "renamed", "named"),
    [
        # What there is, or what it may have been meant to be.
        (Options(version="1.1"), {}, {"1.10", "1.9"}),
        (Options(version="lts", branches=("5", "6")), {}, {"5, 6", "1.10"}),
        (Options(version="lts", branches=()), {}, {"1.10"}),
        (Options(version="tls"), {}, {"'lts'"}),
        (Options(flavour="plane"), {}, {"'plain'", "other"}),
        (Options(), _NO_SOURCE, {"tool-source", "--flavour", "other"}),
        (Options(), _NOTHING, set()),
        # The user space, in the version of the modules.
        (Options(version="1.9"), {}, {"1.9", "tool-user: 2.0, 1.10"}),
        (Options(of=recipe(source={"kind": "deb", "userspace": ["x-user"]})), {}, {"x-user"}),
        (Options(of=recipe(source={"kind": "deb", "companions": ["x-other"]})), {}, {"x-other"}),
        (Options(architecture="i686"), {}, set()),
        (Options(architecture="armv7l"), {}, set()),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    wanted: Options, renamed: dict[str, str], named: set[str]
) -> None:
    text = packages()
    for before, after in renamed.items():
        text = text.replace(f"Package: {before}\n", f"Package: {after}\n")
    error = refused(archive_of({("bookworm", "main"): text}), **wanted)
    said = f"{error.message} {error.resolution} {error.details}"
    assert {name for name in named if name not in said} == set()


NEWER = "6.12.117+deb12-amd64"
FAILING = {"versions": "==1.*", "fails": ">=6.12", "reason": "strlcpy() is gone", "by": "Jo"}


def test_what_is_known_to_fail_is_refused_with_its_reason(index: Archive) -> None:
    error = refused(index, kernel=NEWER, of=recipe(kernels=[FAILING]))
    assert "strlcpy() is gone" in error.message
    found = pin(index, kernel=NEWER, of=recipe(kernels=[FAILING]), force=True)
    assert found.kernel.release == NEWER


@pytest.mark.parametrize(("known", "nearest"), [("<2", "1.10"), (">=2", "2.0"), ("!=1.10", "2.0")])
def test_the_nearest_version_that_works_is_named(known: str, nearest: str) -> None:
    index = offering("2.0", "3.0")
    rows = [{"versions": known, "works": ">=6.1"}, *crashes("==1.9")]
    error = refused(index, version="1.9", of=recipe(kernels=rows))
    assert f"--version {nearest}," in (error.resolution or "")


def test_what_nobody_tried_is_built_unless_the_policy_refuses_it(
    index: Archive, notes: list[str]
) -> None:
    assert pin(index, kernel=NEWER).driver.version == "1.10"
    assert "untried" in " ".join(notes)
    refused(index, kernel=NEWER, untried="refuse")
    assert pin(index, untried="refuse").driver.version == "1.10"
    assert pin(index, kernel=NEWER, untried="refuse", force=True).driver.version == "1.10"


def test_what_works_is_preferred_within_a_branch_and_a_living_branch_always() -> None:
    index = offering("4.1", "4.2", "3.1")

    def taken(rows: list[dict[str, str]], ended: str = "", untried: Untried = "build") -> str:
        found = pin(
            index,
            version="production",
            branches=("4", "3"),
            ended=frozenset({ended}),
            of=recipe(kernels=rows),
            untried=untried,
        )
        return found.driver.version

    known = {"versions": "<=4.1", "works": ">=6.1"}
    third = {"versions": "==3.*", "works": ">=6.1"}
    (fails,) = crashes("==4.*")
    assert taken([]) == "4.2"
    assert taken([known]) == "4.1"
    # The newer branch is untried, and the older one works.
    assert taken([third]) == "4.2"
    assert taken([third], ended="3") == "4.2"
    assert taken([third], untried="refuse") == "3.1"
    with pytest.raises(NotFoundError):
        taken([third], ended="3", untried="refuse")
    # An ended one is better than none.
    assert taken([third, fails], ended="3") == "3.1"


def test_a_choice_says_what_it_passed_over_and_why(notes: list[str]) -> None:
    rows = [{"versions": "==4.1", "works": ">=6.1", "by": "Jo"}]
    of = recipe(kernels=rows)
    assert pin(offering("4.1", "4.2"), of=of, version="4").driver.version == "4.1"
    (reason,) = notes
    assert "4.2" in reason
    assert "Jo" in reason


@pytest.mark.parametrize("kernel", ["no kernel", ""])
def test_what_is_no_kernel_is_wrong_usage(kernel: str, index: Archive) -> None:
    with pytest.raises(UsageError):
        pin(index, kernel=kernel)


def test_each_distro_has_the_source_that_serves_it(index: Archive) -> None:
    ours, theirs = pin(index, of=several()), pin_for_rocky("1.10")
    assert [source.kind for source in ours.sources] == ["deb", "deb"]
    (run,) = theirs.sources
    assert run.kind == "runfile"
    assert run.address == "https://driver.example/1.10/driver-x86_64.run"
    sums = "https://driver.example/1.10/sums"
    assert run.sha256 == hashlib.sha256(f"{run.address} {sums}".encode()).hexdigest()
    assert ours.recipe != theirs.recipe


def test_the_first_source_goes_before_newer_versions_of_others(index: Archive) -> None:
    kernels = [{"works": ">=6.1,<6.13"}]
    assert pin(index, of=several(kernels=kernels)).driver.version == "1.10"
    # A branch that the first does not serve is the other's.
    assert pin_for_rocky(of=several(kernels=kernels)).driver.version == "2.0"


def test_a_version_that_nothing_lists_is_taken_from_the_source_that_serves_any() -> None:
    assert pin_for_rocky("2.5.1").driver.version == "2.5.1"
    with pytest.raises(NotFoundError):
        pin_for_rocky("3")


def test_a_distro_that_no_source_serves_gets_the_list_of_served_ones() -> None:
    with pytest.raises(NotFoundError):
        pin_for_rocky(of=several(source=[SOURCES[0]]))


_PARTS = st.lists(st.integers(0, 999).map(str), min_size=1, max_size=4)


@given(_PARTS, _PARTS)
def test_a_branch_is_whole_parts_of_a_version(version: list[str], branch: list[str]) -> None:
    request = VersionRequest(".".join(branch))
    assert request.accepts(".".join(version)) == (version[: len(branch)] == branch)
