"""Kernels that are built for in a tree: which tree, what of it is pinned, what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from kit.files import sha256
from provision.build import trees
from provision.build.base_image import BaseRequest, base_request, ensure_distro_base
from provision.build.context_files import context_files
from provision.build.image import render_context
from provision.build.package_store import PackageStore
from provision.build.request import DriverRequest, choose_tree, developer_image
from provision.build.resolve import pin_document, read_pin, resolve_pin
from provision.build.trees import build_packages, compiler_beside
from provision.build.workspace import Settings, load_settings
from provision.config import TreeConfig
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import lock
from provision.pin import BasePin, DistroPin, Pin
from unit.engine.fake_engine import FakeEngine, using
from unit.fake_archive import BASE_IMAGE, AptEngine, sample, write_apt_sources

_KERNEL = "6.1.192-flatcar"
_TEXTS = {("bookworm", part): sample("bookworm", part) for part in ("main", "contrib")}
_CONFIG = """\
CONFIG_CC_VERSION_TEXT="gcc (Debian 12.2.0-14+deb12u1) 12.2.0"
CONFIG_64BIT=y
CONFIG_MODULES=y
CONFIG_MODVERSIONS=y
"""
_TREES = """\
[[trees]]
kernels = "6.1.192-*"
path = "/srv/linux-6.1.192.tar.xz"
config = "/srv/config-{kernel}"
symvers = "/srv/Module.symvers"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Flatcar host."""
    root = tmp_path / "host"
    for name in ("etc/provision", "srv", "proc/sys/kernel", "boot"):
        (root / name).mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=flatcar\nVERSION_ID=3227.2.4\nBUILD_ID="b1"\n')
    (root / "etc/provision/provision.toml").write_text(_TREES)
    write_apt_sources(root)
    (root / "srv/linux-6.1.192.tar.xz").write_bytes(b"the source")
    (root / f"srv/config-{_KERNEL}").write_text(_CONFIG)
    (root / "srv/Module.symvers").write_text("0x12345678\tprintk\tvmlinux\tEXPORT_SYMBOL\n")
    return root


@pytest.fixture
def settings(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return load_settings(root)


def _resolved(settings: Settings, *, kernel: str = _KERNEL, distro: str | None = None) -> Pin:
    wanted = DriverRequest("v4l2loopback", kernel=kernel, distro=distro)
    return resolve_pin(using(settings, AptEngine(_TEXTS)), wanted)


def _pin(settings: Settings) -> Pin:
    return _resolved(settings)


def test_source_config_and_symvers_are_pinned_by_content(settings: Settings, root: Path) -> None:
    pin = _resolved(settings)
    tree = pin.tree
    assert tree is not None
    assert tree.tree == sha256(b"the source")
    assert tree.config == sha256(_CONFIG.encode())
    assert tree.symvers == sha256((root / "srv/Module.symvers").read_bytes())
    assert tree.toolchain == DistroPin(id="debian", version="12", codename="bookworm")
    assert pin.distro == DistroPin(id="flatcar", version="3227.2.4", codename="flatcar")
    assert pin.compiler is not None
    assert pin.compiler.name == "gcc-12"
    assert pin.headers == ()
    assert {package.name for package in pin.packages} >= {"bc", "flex", "libelf-dev"}
    downloads, store = render_context(settings, pin).downloads, PackageStore(settings.state)
    assert store.path(downloads["kernel/tree.tar"]).read_bytes() == b"the source"
    assert store.path(downloads["kernel/config"]).read_bytes() == _CONFIG.encode()
    files = render_context(settings, pin).files
    assert b"step.py prepare_tree /provision/kernel" in files["Dockerfile"]
    assert b'"cc": "gcc-12"' in files["kernel/tree.json"]


def test_where_the_files_lie_changes_nothing_and_their_content_does(
    settings: Settings, root: Path
) -> None:
    before = _pin(settings)
    (root / "srv/Module.symvers").rename(root / f"boot/symvers-{_KERNEL}")
    packed = gzip.compress((root / f"boot/symvers-{_KERNEL}").read_bytes())
    (root / f"boot/symvers-{_KERNEL}.gz").write_bytes(packed)
    (root / "etc/provision/provision.toml").write_text(
        "\n".join(line for line in _TREES.splitlines() if not line.startswith("symvers"))
    )
    moved = load_settings(root)
    assert _pin(moved) == before
    (root / "srv/linux-6.1.192.tar.xz").write_bytes(b"another source")
    assert _pin(moved).digest != before.digest


def test_the_running_kernels_configuration_is_its_own(settings: Settings, root: Path) -> None:
    before = _pin(settings)
    (root / "proc/config.gz").write_bytes(gzip.compress(_CONFIG.encode()))
    (root / "proc/sys/kernel/osrelease").write_text(f"{_KERNEL}\n")
    text = "\n".join(line for line in _TREES.splitlines() if not line.startswith("config"))
    (root / "etc/provision/provision.toml").write_text(text)
    (root / f"srv/config-{_KERNEL}").unlink()
    assert _pin(load_settings(root)) == before
    (root / "proc/sys/kernel/osrelease").write_text("6.1.191-flatcar\n")
    with pytest.raises(NotFoundError) as caught:
        _pin(load_settings(root))
    assert f"/boot/config-{_KERNEL}" in str(caught.value.details)


def test_modversions_without_symvers_are_refused(settings: Settings, root: Path) -> None:
    text = "\n".join(line for line in _TREES.splitlines() if not line.startswith("symvers"))
    (root / "etc/provision/provision.toml").write_text(text)
    with pytest.raises(NotFoundError):
        _pin(load_settings(root))
    config = root / f"srv/config-{_KERNEL}"
    config.write_text(_CONFIG.replace("CONFIG_MODVERSIONS=y", "# CONFIG_MODVERSIONS is not set"))
    tree = _pin(load_settings(root)).tree
    assert tree is not None
    assert tree.symvers is None
    del settings


@pytest.mark.parametrize("config", [_CONFIG.replace("CONFIG_CC", "CONFIG_CD"), "<html>No</html>"])
def test_a_configuration_that_cannot_be_had_is_refused(
    settings: Settings, root: Path, config: str
) -> None:
    (root / f"srv/config-{_KERNEL}").write_text(config)
    with pytest.raises(ProvisionError):
        _pin(settings)


def test_a_damaged_or_endless_file_is_refused(
    settings: Settings, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(bytes(range(256)) * 4)
    # In its head, in its content, and cut off.
    for packed in (whole[:2] + b"\xff" + whole[3:], whole[:14] + b"\xff" * 9, whole[:-9]):
        (root / "srv/Module.symvers").write_bytes(packed)
        with pytest.raises(ProvisionError):
            _pin(settings)
    monkeypatch.setattr(trees, "_LARGEST", 1 << 20)
    (root / "srv/Module.symvers").write_bytes(gzip.compress(bytes((1 << 20) + 1)))
    with pytest.raises(ProvisionError):
        _pin(settings)


def test_files_that_are_named_have_to_be_there(settings: Settings, root: Path) -> None:
    (root / "srv/Module.symvers").unlink()
    with pytest.raises(NotFoundError):
        _pin(settings)
    (root / "srv/linux-6.1.192.tar.xz").unlink()
    with pytest.raises(NotFoundError):
        _pin(settings)


def test_flatcar_is_built_for_in_its_own_tree(settings: Settings, root: Path) -> None:
    choice = choose_tree(settings, "6.6.74-flatcar", None)
    assert choice is not None
    assert choice.toolchain is None
    assert developer_image(choice.distro) == "flatcar-developer:3227.2.4"
    assert choice.tree == TreeConfig(
        kernels="*",
        kind="prepared",
        path="/usr/lib/modules/{kernel}/build",
        toolchain="image",
    )
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    debian = load_settings(root)
    assert choose_tree(debian, "6.1.0-47-amd64", None) is None
    elsewhere = choose_tree(debian, "6.6.74-flatcar", "flatcar:4081.2.0")
    assert elsewhere is not None
    assert elsewhere.tree is not None
    assert elsewhere.tree.kind == "image"
    assert developer_image(elsewhere.distro) == "flatcar-developer:4081.2.0"
    with pytest.raises(UsageError):
        choose_tree(settings, "6.6.74-flatcar", "flatcar")


def test_debians_packages_are_no_source_in_a_developer_container(settings: Settings) -> None:
    with pytest.raises(NotFoundError):
        _resolved(settings, kernel="6.6.74-flatcar", distro="flatcar:4081.2.0")


def _in_developer(settings: Settings, engine: FakeEngine, *, base: str | None = None) -> Pin:
    wanted = DriverRequest("onload", kernel="6.6.74-flatcar", distro="flatcar:4081.2.0", base=base)
    return resolve_pin(using(settings, engine), wanted)


def test_a_release_that_is_known_is_built_in_the_image_of_its_developer_container(
    settings: Settings,
) -> None:
    """Of 4081.2.0, and not of 4081, which is in the data of the distro."""
    engine = AptEngine(_TEXTS)
    # It is made where it is missing, of what Flatcar has signed.
    with pytest.raises(NotFoundError):
        _in_developer(settings, engine)
    # No registry has it: who gave it that name there is unknown.
    assert not [call for call in engine.calls if call.startswith("pull")]
    engine.have(BASE_IMAGE._replace(tags=("flatcar-developer:4081.2.0", "mine:1")))
    assert _in_developer(settings, engine).base.image == "flatcar-developer:4081.2.0"
    assert _in_developer(settings, engine, base="mine:1").base.image == "mine:1"


@pytest.mark.parametrize("version", ["4081.2.0-1", "latest"])
def test_a_version_that_is_none_goes_into_no_path(settings: Settings, version: str) -> None:
    wanted = _developer(version)
    with pytest.raises(UsageError) as caught:
        ensure_distro_base(using(settings, FakeEngine()), wanted)
    assert "--distro flatcar:4081.2.0" in str(caught.value.resolution)


def _developer(version: str) -> BaseRequest:
    name = f"flatcar-developer:{version}"
    pin = DistroPin(id="flatcar", version=version, codename="flatcar")
    return BaseRequest(pin, "x86_64", reference=name, is_published=False)


def test_a_vendors_kernel_is_built_in_an_image_that_is_named(root: Path) -> None:
    """With ``toolchain = "image"`` on a distro that is not Flatcar."""
    tree = '[[trees]]\nkernels = "*"\nkind = "image"\ntoolchain = "image"\n'
    path = root / "etc/provision/provision.toml"
    path.write_text(tree)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    engine = AptEngine(_TEXTS, BASE_IMAGE._replace(tags=("mine:1", "debian:bookworm")))
    wanted = DriverRequest("onload", kernel="6.6.74-vendor")
    with pytest.raises(NotFoundError) as caught:
        resolve_pin(using(load_settings(root), engine), wanted)
    assert '[distros.debian] base_images = { "12" =' in str(caught.value.resolution)
    by_option = resolve_pin(using(load_settings(root), engine), replace(wanted, base="mine:1"))
    path.write_text(f'{tree}[distros.debian]\nbase_images = {{ "12" = "mine:1" }}\n')
    by_setting = resolve_pin(using(load_settings(root), engine), wanted)
    assert by_option == by_setting
    assert by_setting.base.image == "mine:1"


def test_a_base_image_needs_no_data_of_the_distro(settings: Settings) -> None:
    """Such as an old release of Flatcar, or the distro of a vendor's kernel."""
    for name in ("flatcar", "vendor"):
        distro = DistroPin(id=name, version="3227.2.4", codename=name)
        assert base_request(settings, distro).reference is None
        named = base_request(settings, distro, reference="mine:1")
        assert (named.name, named.can_be_made) == ("mine:1", False)


def test_cos_is_found_by_its_build(root: Path) -> None:
    (root / "etc/provision/provision.toml").write_text("")
    (root / "etc/os-release").write_text("ID=cos\nVERSION_ID=117\nBUILD_ID=18613.164.68\n")
    choice = choose_tree(load_settings(root), "6.6.74+", None)
    assert choice is not None
    assert (choice.tree, choice.build_id) == (None, "18613.164.68")


def test_a_pin_is_built_from_the_store(settings: Settings, root: Path, tmp_path: Path) -> None:
    pin = _resolved(settings)
    path = tmp_path / "pin.json"
    path.write_text(json.dumps(pin_document(pin)))
    (root / "srv/linux-6.1.192.tar.xz").unlink()
    again = read_pin(settings, path)
    assert again == pin
    assert render_context(settings, again).files == render_context(settings, pin).files
    shared, _own = render_context(settings, again).split()
    store = PackageStore(settings.state)
    # The packages are made up.
    shared = shared._replace(downloads={"kernel/tree.tar": shared.downloads["kernel/tree.tar"]})
    tree = store.path(shared.downloads["kernel/tree.tar"])
    assert context_files(store, again, shared) == {"kernel/tree.tar": tree}
    for damage in (partial(tree.write_bytes, b"another source"), tree.unlink):
        damage()
        with pytest.raises(NotFoundError) as caught:
            context_files(store, again, shared)
        assert str(tree) in str(caught.value.resolution)


@pytest.mark.parametrize("name", ["Debian:12", "debian:12 ", "-:1", "flatcar:3227 2"])
def test_a_name_that_no_distro_has_is_said(root: Path, name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        choose_tree(load_settings(root), _KERNEL, name)
    assert "debian:12" in str(caught.value.resolution)


def test_one_process_at_a_time_downloads_a_developer_container(settings: Settings) -> None:
    """Its signature is checked under the name that the download has."""
    engine, wanted = FakeEngine(), _developer("4081.2.0")
    found: list[BasePin] = []
    thread = Thread(
        target=lambda: found.append(ensure_distro_base(using(settings, engine), wanted))
    )
    with lock(settings.state / "locks/base"):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        engine.have(BASE_IMAGE._replace(tags=(wanted.name,)))
    thread.join(10)
    assert found == [BasePin(image=wanted.name, digest=BASE_IMAGE.id)]


def test_type_information_takes_a_tool_of_its_own() -> None:
    assert "dwarves" in build_packages("source", {"CONFIG_DEBUG_INFO_BTF": "y"})
    assert "dwarves" not in build_packages("source", {})
    assert "flex" not in build_packages("prepared", {})


def test_clang_is_known_by_the_configuration() -> None:
    clang = {"CONFIG_CC_IS_CLANG": "y", "CONFIG_CC_VERSION_TEXT": '"clang version 17.0.0"'}
    assert compiler_beside(clang).llvm == "1"
    assert compiler_beside(None).llvm is None
