"""The Pin's digest: stable, and sensitive to every single input."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provision.pin import (
    ArchiveSource,
    BasePin,
    ClosurePackage,
    DistroPin,
    DriverPin,
    FilePin,
    GitSource,
    GitSubmodule,
    KernelPin,
    PackagePin,
    PackageSource,
    Pin,
    TreePin,
)

Json = Any
Path = tuple[str | int, ...]


def text(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(pattern, fullmatch=True)


SHA256 = text(r"[0-9a-f]{64}")
COMMIT = text(r"[0-9a-f]{40}")
NAME = text(r"[a-z0-9][a-z0-9._-]{0,9}")
PACKAGE = text(r"[a-z0-9][a-z0-9+.-]{1,9}")
PACKAGE_VERSION = text(r"[0-9][A-Za-z0-9.+:~-]{0,9}")
URL = text(r"https://[a-z]{1,5}\.example/[a-z]{0,5}")
PACKAGE_PIN = st.builds(PackagePin, name=PACKAGE, version=PACKAGE_VERSION)
SOURCE = (
    st.builds(PackageSource, name=PACKAGE, version=PACKAGE_VERSION, sha256=SHA256)
    | st.builds(ArchiveSource, url=URL, sha256=SHA256, strip=st.integers(0, 3))
    | st.builds(
        GitSource,
        url=URL,
        commit=COMMIT,
        sha256=SHA256,
        submodules=st.lists(
            st.builds(
                GitSubmodule, url=URL, commit=COMMIT, sha256=SHA256, path=text(r"[a-z]{1,5}/[a-z]")
            ),
            max_size=2,
        ).map(tuple),
    )
)
DRIVER_PIN = st.builds(
    DriverPin, name=NAME, version=text(r"[0-9][A-Za-z0-9.+~_-]{0,9}"), flavour=NAME
)
KERNEL_PIN = st.builds(
    KernelPin,
    release=text(r"[0-9][A-Za-z0-9._+~-]{0,9}"),
    architecture=st.sampled_from(["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"]),
)
DISTRO_PIN = st.builds(DistroPin, id=NAME, version=text(r"[0-9]{1,2}"), codename=NAME)
BASE_PIN = st.builds(
    BasePin,
    image=text(r"[a-z]{1,5}:[a-z]{1,5}"),
    digest=SHA256.map(lambda digest: f"sha256:{digest}"),
)
CLOSURE_PACKAGE = st.builds(
    ClosurePackage,
    name=text(r"[A-Za-z0-9][A-Za-z0-9+._-]{1,9}"),
    version=text(r"([0-9]:)?[0-9A-Za-z][A-Za-z0-9.+~^_-]{0,9}"),
    arch=st.sampled_from(["x86_64", "noarch", "amd64"]),
    sha256=SHA256,
    size=st.integers(0, 1 << 40),
    repository=text(r"[A-Za-z0-9][A-Za-z0-9:+._/@ -]{0,9}"),
    location=text(r"[a-zA-Z0-9]{1,5}(/[A-Za-z0-9][A-Za-z0-9+~^:%@=,._-]{0,9}){0,3}"),
    action=st.sampled_from(["install", "upgrade"]),
)
TREE_PIN = st.builds(
    TreePin,
    kind=st.sampled_from(["source", "prepared", "image"]),
    tree=SHA256,
    config=SHA256,
    symvers=SHA256,
    compiler=SHA256,
    toolchain=DISTRO_PIN,
    llvm=text(r"-[1-9][0-9]"),
)
FILE_PIN = st.builds(FilePin, name=text(r"[a-z]{1,9}\.patch"), sha256=SHA256)


def some(strategy: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=3).map(tuple)


PINS = st.builds(
    Pin,
    driver=DRIVER_PIN,
    kernel=KERNEL_PIN,
    distro=DISTRO_PIN,
    base=BASE_PIN,
    compiler=PACKAGE_PIN,
    headers=some(PACKAGE_PIN, least=1),
    packages=some(PACKAGE_PIN),
    closure=some(CLOSURE_PACKAGE),
    sources=some(SOURCE, least=1),
    patches=some(FILE_PIN),
    recipe=SHA256,
    format=st.integers(1, 9),
    tree=st.none() | TREE_PIN,
)


def leaves(value: Json, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each value that is no table or list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from leaves(inner, (*path, position))
    else:
        yield path


def lists(value: Json, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each list that isn't empty."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from lists(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield path


def reach(value: Json, path: Path) -> Json:
    for key in path:
        value = value[key]
    return value


def changed(key: str | int, value: str | int) -> str | int:
    """Return another valid value for a key."""
    if isinstance(value, int):
        return value + 1
    if key == "architecture":
        return "aarch64" if value == "x86_64" else "x86_64"
    if key == "action":
        return "upgrade" if value == "install" else "install"
    if value.endswith(".patch"):
        return f"0{value}"
    # The last character of every other text of a Pin may be a digit.
    last = "1" if value[-1] == "0" else "0"
    return value[:-1] + last if len(value) > 1 else value + last


def parse(data: Json) -> Pin:
    return Pin.model_validate_json(json.dumps(data))


@given(PINS)
def test_the_digest_is_that_of_the_content_not_of_its_order(pin: Pin) -> None:
    data = json.loads(pin.model_dump_json(by_alias=True))
    backwards = dict(reversed(list(data.items())))
    backwards["driver"] = dict(reversed(list(data["driver"].items())))
    again = parse(backwards)
    assert again == pin
    assert again.canonical_json() == pin.canonical_json()
    assert again.digest == pin.digest


@given(PINS, st.data())
def test_every_single_value_changes_the_digest(pin: Pin, data: st.DataObject) -> None:
    original = json.loads(pin.canonical_json())
    # What says which kind of thing it is has one value only.
    fixed = {"schema", "kind", "signing_key"}
    open_to_change = [p for p in leaves(original) if p[-1] not in fixed]
    path = data.draw(st.sampled_from(open_to_change))
    new = changed(path[-1], reach(original, path))
    reach(original, path[:-1])[path[-1]] = new
    assert parse(original).digest != pin.digest


@given(PINS, st.data())
def test_every_list_counts_with_its_length_and_order(pin: Pin, data: st.DataObject) -> None:
    original = json.loads(pin.canonical_json())
    path = data.draw(st.sampled_from(list(lists(original))))
    items = reach(original, path)
    reach(original, path[:-1])[path[-1]] = items[1:]
    assert parse(original).digest != pin.digest
    if items != items[::-1]:
        reach(original, path[:-1])[path[-1]] = items[::-1]
        assert parse(original).digest != pin.digest


def test_a_pin_has_no_other_fields_than_those_that_the_mutations_reach() -> None:
    package = closure_package("Packages/g/gcc-12.2.0-14.x86_64.rpm")
    more = {"closure": (package,), "tree": TreePin(kind="image")}
    whole = example().model_copy(update=more)
    generated = set(json.loads(whole.canonical_json()))
    fields = {name: field for name, field in Pin.model_fields.items() if not field.exclude}
    assert generated == {field.alias or name for name, field in fields.items()}


def closure_package(location: str) -> ClosurePackage:
    return ClosurePackage(
        name="gcc",
        version="12.2.0-14",
        arch="x86_64",
        sha256="5" * 64,
        size=1,
        repository="baseos",
        location=location,
    )


def example() -> Pin:
    package = PackagePin(name="gcc-12", version="12.2.0-14")
    return Pin(
        driver=DriverPin(name="nvidia", version="535.261.03+x~1", flavour="open"),
        kernel=KernelPin(release="6.12.117+deb13-amd64", architecture="x86_64"),
        distro=DistroPin(id="debian", version="13", codename="trixie"),
        base=BasePin(image="debian:trixie", digest="sha256:" + "0" * 64),
        compiler=package,
        headers=(package,),
        packages=(),
        sources=(),
        recipe="1" * 64,
        format=1,
    )


def test_a_pin_without_a_closure_says_nothing_of_one() -> None:
    assert "closure" not in json.loads(example().model_dump_json(by_alias=True))


@pytest.mark.parametrize("location", ["../a.rpm", "a/../b.rpm", "/a.rpm", "a//b.rpm", "a b.rpm"])
def test_a_location_stays_below_its_repository(location: str) -> None:
    with pytest.raises(ValidationError):
        closure_package(location)


def test_the_digest_is_written_down() -> None:
    """A change of this value is a change of every image's name: say so in the changelog."""
    digest = "2460fa844bc808e0cb0b59f245292225f2f2e8621f031a6567e5190298cc72df"
    assert example().digest == f"sha256:{digest}"


@given(PINS)
def test_the_image_reference_is_a_valid_one(pin: Pin) -> None:
    name, _, tag = pin.image.partition(":")
    assert name == f"provision/{pin.driver.name}"
    assert len(tag) <= 128
    assert set(tag) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert tag.endswith(f"-{pin.short_digest}")


def test_what_a_tag_cannot_hold_is_replaced() -> None:
    pin = example()
    assert pin.image == (f"provision/nvidia:535.261.03_x_1-6.12.117_deb13-amd64-{pin.short_digest}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kernel", "release"), "6.1.0-47-amd64; rm -rf /"),
        (("kernel", "release"), "../6.1"),
        (("driver", "version"), "1.0\n"),
        (("driver", "name"), "a/b"),
        (("base", "image"), "debian:12 AS x"),
        (("base", "digest"), "latest"),
        (("compiler", "version"), "12 -o APT::x=y"),
        (("compiler", "name"), "--allow-downgrades"),
        (("recipe",), "short"),
        (("unknown",), 1),
    ],
)
def test_values_that_could_do_harm_in_a_dockerfile_are_refused(path: Path, value: Json) -> None:
    data = json.loads(example().canonical_json())
    reach(data, path[:-1])[path[-1]] = value
    with pytest.raises(ValidationError):
        parse(data)


@pytest.mark.parametrize("url", ['https://h/"x', "https://h/$(x)", "https://h/`x`", "ftp://h/x"])
def test_addresses_hold_nothing_that_a_shell_would_read(url: str) -> None:
    with pytest.raises(ValidationError):
        ArchiveSource(url=url, sha256="0" * 64)


def test_a_git_source_without_submodules_is_written_as_before_they_were_known() -> None:
    source = GitSource(url="https://h.example/f", commit="1" * 40, sha256="0" * 64)
    assert set(source.model_dump()) == {"kind", "url", "commit", "sha256"}
