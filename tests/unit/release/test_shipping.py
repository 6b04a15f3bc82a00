"""What a release is made of: one version, the same archives, licences, jobs."""

from __future__ import annotations

import os
import re
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kit.cache import REPOSITORY
from provision.errors import ProvisionError
from provision.store.layout import UNITS
from provision.store.units import WATCHERS, UnitFile, enabling_links
from shipping import bundled, contents, release, rpm, source, tree

_EPOCH = 1_700_000_000
_MACHINE = "x86_64"


@pytest.fixture
def checkout(tmp_path: Path) -> source.Source:
    """This checkout as a release sees it, with a stand-in for the program that cargo makes."""
    root = tmp_path / "checkout"
    root.mkdir()
    names = ("hooks", "src", "docs", "driver_images", "templates", "LICENSE", "constraints.txt")
    for name in names:
        (root / name).symlink_to(REPOSITORY / name)
    (root / "build").mkdir()
    (root / "build/oci-decorator").write_bytes(b"\x7fELF")
    files = [
        path.relative_to(REPOSITORY)
        for name in names
        for path in (
            [REPOSITORY / name] if (REPOSITORY / name).is_file() else (REPOSITORY / name).rglob("*")
        )
        if path.is_file() and "target" not in path.parts and "__pycache__" not in path.parts
    ]
    return source.Source(root, "1.2.3", _EPOCH, tuple(sorted(files)))


def test_every_file_of_this_repository_names_one_version() -> None:
    assert source.one_version() == source.versions()["CHANGELOG.md"]


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    for file in source.versions():
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (REPOSITORY / file).read_text()
        copy.write_text(text.replace("version: ", "version: 9") if file.endswith(".yml") else text)
    with pytest.raises(ProvisionError) as caught:
        source.one_version(tmp_path)
    assert "galaxy.yml: 9" in (caught.value.details or "")


_names = st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4}){0,2}", fullmatch=True)


@given(st.dictionaries(_names, st.binary(max_size=40), min_size=1))
def test_the_order_of_files_is_not_in_an_archive(files: dict[str, bytes]) -> None:
    forward = {name: tree.File(content) for name, content in files.items()}
    backward = dict(reversed(forward.items()))
    with TemporaryDirectory() as name:
        folder = Path(name)
        tree.write_tar(forward, folder / "a.tar.gz", _EPOCH)
        tree.write_tar(backward, folder / "b.tar.gz", _EPOCH)
        assert (folder / "a.tar.gz").read_bytes() == (folder / "b.tar.gz").read_bytes()
        assert tree.read_tar(folder / "a.tar.gz") == forward


def test_what_is_written_has_fixed_times_and_permissions(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        tree.write(
            {"a/b": tree.File(b"x", 0o755), "a/c": tree.Link("b"), "d": tree.Folder()},
            tmp_path / "root",
            _EPOCH,
        )
    finally:
        os.umask(old)
    found = sorted((tmp_path / "root").rglob("*"))
    assert [path.name for path in found] == ["a", "b", "c", "d"]
    assert {int(path.lstat().st_mtime) for path in found} == {_EPOCH}
    assert [oct(path.lstat().st_mode & 0o777) for path in found if not path.is_symlink()] == [
        "0o755"
    ] * 3


def _wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_wheels_of_several_pythons_lie_over_each_other(tmp_path: Path) -> None:
    common = {"one/__init__.py": "", "one-1.dist-info/METADATA": "Name: one\n"}
    made = [
        _wheel(
            tmp_path,
            f"one-1-cp{tag}-cp{tag}-linux.whl",
            {**common, f"one/x.{tag}.so": tag, "one-1.dist-info/RECORD": tag},
        )
        for tag in ("311", "313")
    ]
    made.append(_wheel(tmp_path, "Other_One-2-py3-none-any.whl", {"other.py": ""}))
    assert sorted(bundled.merged(made, ["one"])) == [
        "one-1.dist-info/METADATA", "one/__init__.py", "one/x.311.so", "one/x.313.so",
    ]  # fmt: skip
    assert "other.py" in bundled.merged(made)
    with pytest.raises(ProvisionError):
        bundled.merged(made, ["one", "two"])


def test_wheels_that_differ_are_refused(tmp_path: Path) -> None:
    made = [_wheel(tmp_path, f"one-1-cp{tag}-cp{tag}-linux.whl", {"one.py": tag}) for tag in "12"]
    with pytest.raises(ProvisionError):
        bundled.merged(made)


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return [
        _wheel(tmp_path, f"{name.replace('-', '_')}-1-py3-none-any.whl", {f"{name}.py": ""})
        for name in release.DEBIAN_LACKS
    ]


def test_a_package_has_the_program_its_units_and_hooks(
    checkout: source.Source, wheels: list[Path]
) -> None:
    files = contents.provision(checkout, wheels, contents.DEBIAN, projects=release.DEBIAN_LACKS)
    units = {
        name.rpartition("/")[2] for name in files if name.startswith("usr/lib/systemd/system/")
    }
    # A package enables and starts what `provision units install` does.
    written = [
        UnitFile(UNITS / name.rpartition("/")[2], _text(one), 0o644)
        for name, one in files.items()
        if name.startswith("usr/lib/systemd/system/")
    ]
    assert set(contents.ENABLED) == {link.name for link in enabling_links(written)}
    assert set(contents.STARTED) == set(WATCHERS) <= units
    unit = files["usr/lib/systemd/system/provision-boot.service"]
    assert isinstance(unit, tree.File)
    text = unit.content.decode()
    assert "ExecStart=/usr/bin/provision apply --boot" in text
    assert text.startswith("# Part of the package provision; put changes into a drop-in")
    of_hosts = {name: one for name, one in files.items() if not name.startswith("usr/share/")}
    assert not [
        name for name, one in of_hosts.items() if "Written by 'provision" in _text(one)[:99]
    ]
    assert {"etc/kernel/postinst.d/provision", "usr/share/man/man8/provision-apply.8.gz"} <= set(
        files
    )
    assert "usr/lib/udev/rules.d/71-provision-devices.rules" in files
    assert files["usr/lib/provision/bin/python"] == tree.Link("../../../bin/python3")
    assert "usr/lib/provision/lib/site-packages/provision/cli/__init__.py" in files
    assert not [name for name in files if "__pycache__" in name]


def test_what_debian_has_is_depended_on_and_all_else_bundled(
    checkout: source.Source, wheels: list[Path]
) -> None:
    packages = {one.name: one for one in release.debian_packages(checkout, wheels, _MACHINE)}
    depends = {word.split()[0] for word in packages["provision"].relations["Depends"]}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [line.partition(">=")[0] for line in project["dependencies"]]
    for name in needed:
        in_debian = f"python3-{name}" in depends
        assert in_debian != (name in release.DEBIAN_LACKS), name
    minimums = dict(line.split(">=") for line in project["dependencies"])
    for word in packages["provision"].relations["Depends"]:
        if word.startswith("python3-"):
            name, _, version = word.removeprefix("python3-").partition(" (>= ")
            assert minimums[name] == version.rstrip(")"), word


def test_the_specs_lists_have_every_file_once(checkout: source.Source, tmp_path: Path) -> None:
    files = {"usr/bin/a": tree.File(b"", 0o755), "etc/oci-decorator/config.toml": tree.File(b"")}
    path = rpm.archive({"oci-decorator": files}, checkout, tmp_path, "x86_64")
    with tarfile.open(path) as archive:
        listed = archive.extractfile("provision-1.2.3-rpm/oci-decorator.files")
        assert listed is not None
        lines = listed.read().decode().splitlines()
    assert lines == [
        "/usr/bin/a",
        "/usr/share/licenses/oci-decorator/LICENSE",
        "%dir /etc/oci-decorator",
    ]
    assert "@" not in rpm.spec_text().replace("$@", "")


def _text(entry: tree.Entry) -> str:
    return entry.content.decode(errors="replace") if isinstance(entry, tree.File) else ""


def test_every_package_of_development_is_pinned_by_its_sum() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[>=<]", line)[0].lower() for line in wanted}
    text = (REPOSITORY / ".ci/constraints.txt").read_text()
    pinned = re.findall(
        r"(?m)^([a-z0-9.-]+)==\S+(?: ;[^\\\n]*)? \\\n    --hash=sha256:[0-9a-f]{64}", text
    )
    assert names <= set(pinned)
    assert len(pinned) == text.count("==") - text.count(" == ")
    # Neither the index that they came from, nor another.
    assert "://" not in text
    assert "index-url" not in text


def test_nothing_that_is_shipped_has_an_address_of_no_one() -> None:
    """Publishers name their own: make dist HOMEPAGE=… MAINTAINER=…."""
    shipped = ("ansible", "docs", "driver_images", "hooks/src", "release", "src", "templates")
    texts = [
        path
        for folder in shipped
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".svg", ".gz"}
    ]
    assert len(texts) > 300
    assert [path for path in texts if b"example.org" in path.read_bytes()] == []


_WORD = re.compile(r"[A-Za-z0-9.-]+")
_OPERATORS = {"AND", "OR", "WITH"}
# What leaves this repository without the rest of it.
_SHIPPED = (
    "hooks/LICENSE",
    "ansible/ansible_collections/oci_decorator/drivers/LICENSE",
)


@pytest.fixture(scope="module")
def rights() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((REPOSITORY / "REUSE.toml").read_text())[
        "annotations"
    ]
    return found


def _paths(annotation: dict[str, Any]) -> list[str]:
    path = annotation["path"]
    return [path] if isinstance(path, str) else path


def test_every_file_is_covered_by_the_first_annotation(rights: list[dict[str, Any]]) -> None:
    assert _paths(rights[0]) == ["**"]
    assert rights[0]["SPDX-License-Identifier"] == "Apache-2.0"
    assert all(one["SPDX-FileCopyrightText"] for one in rights)


def test_the_text_of_every_licence_is_here(rights: list[dict[str, Any]]) -> None:
    named = {
        word
        for one in rights
        for word in _WORD.findall(one["SPDX-License-Identifier"])
        if word not in _OPERATORS
    }
    assert {path.stem for path in (REPOSITORY / "LICENSES").iterdir()} == named
    assert all((REPOSITORY / "LICENSES" / f"{name}.txt").read_text().strip() for name in named)


def test_a_patch_has_the_licence_of_what_it_changes(rights: list[dict[str, Any]]) -> None:
    patches = sorted((REPOSITORY / "driver_images").glob("*/patches/*.patch"))
    assert patches
    for patch in patches:
        name = str(patch.relative_to(REPOSITORY))
        licences = [
            one["SPDX-License-Identifier"]
            for one in rights[1:]
            if any(fnmatchcase(name, path.replace("**", "*")) for path in _paths(one))
        ]
        assert len(licences) == 1, name
        recipe = tomllib.loads((patch.parents[1] / "driver.toml").read_text())
        known = {
            word
            for one in recipe["flavours"].values()
            for text in one["licences"]
            for word in _WORD.findall(text)
        }
        assert set(_WORD.findall(licences[0])) <= known | _OPERATORS, name


@pytest.mark.parametrize("name", _SHIPPED)
def test_what_is_shipped_brings_its_licence(name: str) -> None:
    assert (REPOSITORY / name).read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


_WORKFLOWS = sorted((Path(__file__).parents[3] / ".github/workflows").glob("*.yml"))
# What runs code that was downloaded for it: tests, tools, the build.
_FOREIGN = re.compile(r"\bmake (?!dist-sign\b)|\.ci/|\bpip\b|\bcargo\b|\bcurl\b")


def _jobs() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    read = [(path, yaml.safe_load(path.read_text())) for path in _WORKFLOWS]
    return [
        (f"{path.name}: {name}", job, job.get("permissions", workflow["permissions"]))
        for path, workflow in read
        for name, job in workflow["jobs"].items()
    ]


@pytest.mark.parametrize(("name", "job", "permissions"), _jobs(), ids=lambda one: str(one)[:40])
def test_a_job_that_may_publish_runs_nothing_that_was_downloaded(
    name: str, job: dict[str, Any], permissions: dict[str, str]
) -> None:
    is_trusted = "write" in permissions.values() or "secrets." in str(job)
    ran = [step["run"] for step in job["steps"] if "run" in step]
    assert ran
    found = [text for text in ran if _FOREIGN.search(text)]
    assert not is_trusted or not found, name


def test_a_release_is_signed_by_a_job_of_its_own() -> None:
    trusted = [name for name, job, _ in _jobs() if "secrets." in str(job)]
    assert trusted == ["release.yml: draft"]


def test_actions_are_named_by_digest_and_a_runner_of_ours_gets_no_pull_request() -> None:
    for name, job, _ in _jobs():
        used = [step["uses"] for step in job.get("steps", ()) if "uses" in step]
        assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == [], name
        if "self-hosted" in job["runs-on"]:
            assert job["if"].startswith("github.event_name == 'push' && "), name
