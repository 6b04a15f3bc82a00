"""What goes: what `uninstall` takes of a host, and garbage collection of store and state."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import KERNEL, make_artifact, make_pin, write
from provision.agent.model import Desired
from provision.agent.removal import (
    UNUSED_DAYS,
    Removed,
    Stock,
    remove_images,
    remove_packages,
    remove_toolchains,
    remove_unneeded,
    uninstall,
    unneeded,
)
from provision.build.image import (
    DIGEST_LABEL,
    TOOLCHAIN_KERNEL_LABEL,
    TOOLCHAIN_LABEL,
    record_built,
)
from provision.build.workspace import default_cache, load_settings
from provision.config import Config, PolicyConfig
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.progress import listening
from provision.store.entries import link_kernel, linked_kernels
from provision.store.layout import Layout, switching
from provision.store.state import DriverState, KernelState, load_state, store_state
from unit.agent.host import dpkg_at_work
from unit.engine.fake_engine import FakeEngine, using

_DRIVER = "var/lib/provision/nvidia"
_OURS = (
    f"{_DRIVER}/0123456789ab/manifest.json",
    f"{_DRIVER}/kernels/.6.1.0-47-amd64.4711",
    f"{_DRIVER}/state.json",
    f"{_DRIVER}/written.json",
    f"{_DRIVER}/serials.json",
    f"{_DRIVER}/state.json.unreadable-1",
    f"{_DRIVER}/.state.json.k3x9",
    f"{_DRIVER}/.current.4711",
    f"{_DRIVER}/.partial-0123456789ab-x1/manifest.json",
    f"{_DRIVER}/.removed-0123456789ab/manifest.json",
    f"{_DRIVER}/.lock",
    "var/lib/provision/.units/written.json",
    "run/provision/switching.lock",
    "var/lib/provision/.provision.toml",
    "var/lib/provision/.hold.json",
    "var/lib/provision/..provision.toml.q7",
    "var/lib/provision/matrix/debian_12.json",
    "run/motd.d/provision",
    "run/provision/status.json",
    "run/oci-decorator/devices/nvidia.json",
    "var/lib/prometheus/node-exporter/provision.prom",
    "etc/kubernetes/node-feature-discovery/features.d/provision",
)
# Texts of files that are read.
_TEXTS = {"state.json": "{}", "written.json": '{"files": {}}', ".provision.toml": ""}


def _write(root: Path, name: str) -> None:
    write(root / name, _TEXTS.get(Path(name).name, name))


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "etc/provision/mok.key",
        "var/lib/provision/mok.key",
        "var/lib/provision/keys/mok.key",
        f"{_DRIVER}/mok.key",
        "var/lib/provision/.admin.key",
        "var/lib/provision/.git/config",
        "var/lib/provision/.units/.backup",
        f"{_DRIVER}/.signing.pem",
        f"{_DRIVER}/state.json.admin-backup",
        f"{_DRIVER}/saved/nvidia.json.0123456789ab",
        "var/lib/provision/.units/provision-boot.service.0123456789ab",
        "var/lib/prometheus/node-exporter/other.prom",
    ],
)
def test_it_takes_what_is_provisions_and_no_foreign_file(tmp_path: Path, foreign: str) -> None:
    root = tmp_path / "root"
    for name in (*_OURS, *([foreign] if foreign else [])):
        _write(root, name)
    # A link is not followed.
    _write(root, "srv/state.json")
    (root / "var/lib/provision/linked").symlink_to(root / "srv")
    (root / "etc/provision").mkdir(parents=True, exist_ok=True)
    (root / "lib/modules").mkdir(parents=True)
    _write(root, "etc/os-release")
    before = sorted(root.rglob("*"))
    planned = uninstall(root, dry_run=True)
    assert sorted(root.rglob("*")) == before
    done = uninstall(root)
    left = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() or p.is_symlink()}
    stays = {"srv/state.json", "etc/os-release", "var/lib/provision/linked", foreign} - {""}
    assert left == stays
    listed = {str(root / name) for name in stays if name.startswith(("var/lib/prov", "etc/prov"))}
    assert set(map(str, done.kept)) == set(map(str, planned.kept)) == listed
    assert (root / "etc/provision").exists() is foreign.startswith("etc/provision")
    assert {root / "run/provision", root / f"{_DRIVER}/state.json"} <= {*planned.paths, *done.paths}
    assert uninstall(root).paths == ()


NEXT, GONE, UNKNOWN = "6.1.0-56-amd64", "6.1.0-9-amd64", "6.1.0-8-amd64"
KERNELS = (KERNEL, NEXT)


def test_some_older_ones_stay_to_go_back_to_what_was_used_last_first() -> None:
    state = DriverState(kernels={KERNEL: KernelState(previous="old")})
    entries = dict.fromkeys(["now", "newer", "new", "old"], KERNEL)
    stock = Stock(entries, {KERNEL: "now"}, "now", state)
    assert set(unneeded(stock, KERNELS, keep=0)) == {"newer", "new", "old"}
    assert set(unneeded(stock, KERNELS, keep=1)) == {"newer", "new"}
    assert set(unneeded(stock, KERNELS, keep=2)) == {"new"}
    assert unneeded(stock, KERNELS, keep=9) == {}


def test_a_kernel_without_a_link_keeps_its_newest() -> None:
    """As 'provision install' leaves it: without the agent there are no links."""
    entries = {"new": NEXT, "newer": KERNEL, "old": KERNEL}
    stock = Stock(entries, {}, current="new")
    assert set(unneeded(stock, KERNELS, keep=0)) == {"old"}


def test_in_doubt_what_other_kernels_use_stays() -> None:
    entries = {"a": KERNEL, "b": NEXT, "c": GONE, "d": None, "e": GONE, "f": UNKNOWN}
    stock = Stock(entries, {KERNEL: "a", GONE: "c"}, "a")
    assert set(unneeded(stock, KERNELS, keep=0)) == {"c", "d", "e", "f"}
    assert set(unneeded(stock, KERNELS, keep=0, is_complete=False)) == {"d", "e"}


_digests = st.sampled_from([f"{n:x}" * 12 for n in range(6)])
_releases = st.sampled_from([KERNEL, NEXT, GONE])


@given(
    st.dictionaries(_digests, st.one_of(st.none(), _releases)),
    st.dictionaries(_releases, _digests),
    st.one_of(st.none(), _digests),
    st.sets(_releases),
    st.integers(0, 3),
)
def test_nothing_goes_that_a_bootable_kernel_uses(
    entries: dict[str, str | None],
    links: dict[str, str],
    current: str | None,
    bootable: set[str],
    keep: int,
) -> None:
    gone = unneeded(Stock(entries, links, current), bootable, keep=keep)
    used = {digest for release, digest in links.items() if release in bootable}
    assert not gone.keys() & (used | {current})
    assert gone.keys() <= entries.keys()
    for release in bootable & links.keys():
        others = [d for d, kernel in entries.items() if kernel == release and d not in used]
        assert len([d for d in others if d not in gone]) >= min(keep, len(others))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A store with an artifact for a kernel that is there, and one for a kernel that is gone."""
    layout = Layout(tmp_path / "host", "demo")
    write(layout.root / f"lib/modules/{KERNEL}/modules.dep", b"")
    state = DriverState()
    for release in (KERNEL, GONE):
        pin = make_pin(kernel=release)
        make_artifact(layout.entry(pin.short_digest), pin=pin)
        link_kernel(layout, release, pin.short_digest)
        state = state.updated(release, KernelState(inputs="i"))
    store_state(layout, state)
    layout.previous.symlink_to(make_pin(kernel=GONE).short_digest)
    return layout


def test_artifacts_links_and_memories_of_gone_kernels_go(layout: Layout) -> None:
    gone = make_pin(kernel=GONE).short_digest
    other = Layout(layout.root, "other")
    make_artifact(other.entry(gone), pin=make_pin(kernel=GONE))
    planned = remove_unneeded(layout.root, Desired(), dry_run=True)
    assert [(p.driver, p.digest, p.size) for p in planned] == [
        ("demo", gone, None),
        ("other", gone, None),
    ]
    assert layout.entry(gone).is_dir()
    removed, also = remove_unneeded(layout.root, Desired())
    assert (removed.driver, removed.digest, removed.kernel) == ("demo", gone, GONE)
    assert also.driver == "other"
    assert (removed.size or 0) > 0
    assert not layout.entry(gone).exists()
    assert linked_kernels(layout) == {KERNEL: make_pin().short_digest}
    assert list(load_state(layout).kernels) == [KERNEL]
    assert not layout.previous.is_symlink()
    assert remove_unneeded(layout.root, Desired()) == []


@pytest.mark.parametrize(
    "there",
    [
        f"ostree/deploy/x/deploy/aa.0/usr/lib/modules/{GONE}/vmlinuz",
        f"boot/vmlinuz-{GONE}",
    ],
)
def test_what_a_kernel_uses_that_may_boot_again_stays(there: str, layout: Layout) -> None:
    write(layout.root / "run/ostree-booted", b"")
    write(layout.root / there, b"")
    write(layout.root / "ostree/deploy/x/deploy/bb.0/usr/lib/modules/1.0/vmlinuz", b"")
    assert remove_unneeded(layout.root, Desired()) == []
    assert set(linked_kernels(layout)) == {KERNEL, GONE}
    assert set(load_state(layout).kernels) == {KERNEL, GONE}
    assert layout.previous.is_symlink()


def test_in_doubt_links_and_memories_stay_too(layout: Layout, notes: list[str]) -> None:
    write(layout.root / "boot/flatcar/vmlinuz-a", b"no kernel")
    assert remove_unneeded(layout.root, Desired()) == []
    assert set(linked_kernels(layout)) == {KERNEL, GONE}
    assert any("may be more kernels" in note for note in notes)


def test_a_kernel_that_is_being_unpacked_counts(layout: Layout) -> None:
    (layout.root / f"lib/modules/{GONE}").mkdir()
    with dpkg_at_work(layout.root):
        assert remove_unneeded(layout.root, Desired()) == []
    assert len(remove_unneeded(layout.root, Desired())) == 1


@pytest.mark.parametrize(
    ("announced", "running", "outcome"),
    [
        (KERNEL, KERNEL, "stays"),
        # Another reboot came first, into a kernel that is still older than the one to come.
        ("6.1.0-1-amd64", "6.1.0-2-amd64", "stays"),
        # The host has moved past it.
        ("6.1.0-1-amd64", KERNEL, "goes"),
        # An older kernel is prepared, to go back to it.
        (NEXT, NEXT, "stays"),
        (None, KERNEL, "goes"),
    ],
)
def test_a_kernel_that_was_announced_is_waited_for(
    announced: str | None,
    running: str,
    outcome: str,
    layout: Layout,
) -> None:
    stays = outcome == "stays"
    write(layout.root / "proc/sys/kernel/osrelease", f"{running}\n".encode())
    state = load_state(layout)
    store_state(layout, state.updated(GONE, KernelState(announced=announced)))
    digest = make_pin(kernel=GONE).short_digest
    assert (digest in [one.digest for one in remove_unneeded(layout.root, Desired())]) != stays
    assert (GONE in linked_kernels(layout)) == stays
    # When it is there it counts by being there, and goes when it does.
    if stays:
        write(layout.root / f"lib/modules/{GONE}/modules.dep", b"")
        assert digest not in [one.digest for one in remove_unneeded(layout.root, Desired())]
        (layout.root / f"lib/modules/{GONE}/modules.dep").unlink()
        assert digest in [one.digest for one in remove_unneeded(layout.root, Desired())]


def test_of_a_driver_that_a_newer_provision_knows_nothing_goes(
    layout: Layout, notes: list[str]
) -> None:
    text = layout.state.read_text().replace('"schema": 1', '"schema": 2')
    layout.state.write_text(text)
    assert remove_unneeded(layout.root, Desired()) == []
    assert layout.state.read_text() == text
    assert set(linked_kernels(layout)) == {KERNEL, GONE}
    assert any("newer provision" in note for note in notes)


def test_a_root_without_kernels_loses_nothing(layout: Layout) -> None:
    (layout.root / f"lib/modules/{KERNEL}/modules.dep").unlink()
    with pytest.raises(NotFoundError):
        remove_unneeded(layout.root, Desired())


class _Engine(FakeEngine):
    def images_with_label(self, label: str) -> list[Image]:
        return [image for image in self.images.values() if label in image.labels]

    def remove(self, image_id: str, *, with_parents: bool) -> None:
        if image_id == "sha256:used":
            raise ProvisionError("no", details="a container uses it")
        super().remove(image_id, with_parents=with_parents)


def test_images_go_whose_artifact_is_not_in_the_store(layout: Layout, notes: list[str]) -> None:
    engine = _Engine()
    settings = replace(using(load_settings(layout.root), engine), state=layout.root / "cache")
    here, gone = make_pin(), make_pin(kernel=GONE)

    def have(name: str, digest: str, *tags: str) -> None:
        engine.images[name] = Image(f"sha256:{name}", tags, labels={DIGEST_LABEL: digest})

    have("here", here.digest, here.image)
    have("gone", gone.digest, gone.image)
    have("named", "sha256:" + "1" * 64, "provision/x:1", "mine:1")
    have("theirs", "sha256:" + "2" * 64, "registry.example/x:1")
    have("used", "sha256:" + "3" * 64, "provision/used:1")
    have("replaced", here.digest)
    record_built(settings.state, "sha256:replaced", here.image)
    have("theirs-too", here.digest)
    removed = [Removed("demo", gone.short_digest, GONE, "it is gone")]
    planned = remove_images(settings, removed, dry_run=True)
    assert planned == [gone.image, "provision/used:1", "sha256:replaced"]
    assert engine.calls == []
    assert remove_images(settings, removed) == [gone.image, "sha256:replaced"]
    assert [note for note in notes if "provision/used:1" in note]
    assert engine.calls == [f"remove sha256:{name} with parents" for name in ("gone", "replaced")]


def test_toolchains_go_that_no_bootable_kernel_needs_or_that_are_old(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = FakeEngine()
    settings = using(load_settings(layout.root), engine)
    assert remove_toolchains(settings) == []

    def have(name: str, kernel: str, days: int, *, is_ours: bool = True) -> None:
        labels = {TOOLCHAIN_LABEL: name, TOOLCHAIN_KERNEL_LABEL: kernel}
        image = Image(f"sha256:{name}", (f"provision/toolchain:{name}",), labels=labels)
        engine.have(image)
        if is_ours:
            record_built(default_cache(), image.id, image.tags[0])
            _aged(default_cache() / "built" / image.id, days)

    have("used", KERNEL, 29)
    have("old", KERNEL, 31)
    have("gone", GONE, 0)
    have("theirs", GONE, 99, is_ours=False)
    expected = ["provision/toolchain:old", "provision/toolchain:gone"]
    assert remove_toolchains(settings, dry_run=True) == expected
    assert engine.calls == []
    assert remove_toolchains(settings) == expected
    assert engine.calls == [f"remove {name} with parents" for name in expected]
    # Before an uninstallation, no kernel needs any.
    every = remove_toolchains(settings, is_everything=True, dry_run=True)
    assert every == [f"provision/toolchain:{name}" for name in ("used", "old", "gone")]
    # In doubt about what may boot.
    write(layout.root / "boot/flatcar/vmlinuz-a", b"no kernel")
    assert remove_toolchains(settings, dry_run=True) == ["provision/toolchain:old"]
    # Without an engine, there is nothing to do.
    write(layout.root / "etc/provision/provision.toml", b'[engine]\nhost = "unix:///none"\n')
    assert remove_toolchains(load_settings(layout.root)) == []


def test_it_decides_when_who_switches_is_done(tmp_path: Path) -> None:
    """An artifact that is switched to meanwhile is in use by then."""
    layout = Layout(tmp_path, "demo")
    write(tmp_path / f"lib/modules/{KERNEL}/modules.dep", b"")
    for digest in ("a" * 12, "b" * 12):
        make_artifact(layout.entry(digest), pin=make_pin())
    link_kernel(layout, KERNEL, "a" * 12)
    waits = Event()

    def collect() -> None:
        with listening(lambda _: waits.set()):
            remove_unneeded(tmp_path, Desired(Config(policy=PolicyConfig(keep=0))))

    thread = Thread(target=collect)
    with switching(tmp_path):
        thread.start()
        assert waits.wait(60)
        link_kernel(layout, KERNEL, "b" * 12)
    thread.join(60)
    assert layout.entry("b" * 12).is_dir()
    assert not layout.entry("a" * 12).exists()


def _aged(path: Path, days: float) -> Path:
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_old_logs_go(tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    old, young = UNUSED_DAYS + 1, UNUSED_DAYS - 1
    gone = _aged(write(state / "logs/demo-1.log", "x"), old)
    recent = _aged(write(state / "logs/demo-3.log", "x"), young)
    other = _aged(write(state / "logs/notes.txt", "x"), old)
    expected = [("demo-1.log", 1)]
    assert remove_packages(root, state=state, dry_run=True) == expected
    assert gone.exists()
    assert remove_packages(root, state=state) == expected
    assert not gone.exists()
    assert all(path.exists() for path in (recent, other))


def test_old_locks_go_unless_a_process_holds_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    gone, held, young = (
        _aged(write(state / "locks" / name, "x"), days)
        for name, days in (("a", UNUSED_DAYS + 1), ("b", UNUSED_DAYS + 1), ("c", 1))
    )
    with lock(held):
        assert remove_packages(tmp_path, state=state) == [("a", 1)]
    assert [path.exists() for path in (gone, held, young)] == [False, True, True]
