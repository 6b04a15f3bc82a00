"""What a system extension and an Ignition configuration hold, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin, write, write_manifest
from provision.errors import ConfigError, UsageError
from provision.export.coreos import Artifact, Hosts, Options, configuration, lay_out
from provision.manifest import DeviceNode, DriverFile, HostNeeds, MinorsFrom
from unit.cli.outcome import Outcome

_OTHER = "6.1.0-56-amd64"
_TOP = "usr/lib/provision/demo"


def artifact(
    folder: Path, *, kernel: str = KERNEL, version: str = "1.2", **changes: object
) -> Artifact:
    manifest = make_artifact(folder, pin=make_pin(kernel=kernel, version=version))
    changed = manifest.model_copy(update=changes)
    write_manifest(folder, changed)
    return Artifact(folder, changed)


def files(tree: Path) -> set[str]:
    return {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() or p.is_symlink()}


def test_several_kernels_lie_side_by_side(tmp_path: Path) -> None:
    both = [artifact(tmp_path / k, kernel=k) for k in (KERNEL, _OTHER)]
    tree = tmp_path / "tree"
    lay_out(tree, both, Hosts("flatcar", "4230.2.1"))
    found = files(tree)
    for one in both:
        pin = one.manifest.pin
        assert f"{_TOP}/{pin.short_digest}/lib/modules/{pin.kernel.release}/demo.ko" in found
        place = tree / _TOP / "kernels" / pin.kernel.release
        vendor = json.loads((place / "vendor.json").read_text())
        assert vendor["root"] == f"/{_TOP}/{pin.short_digest}/driver"
        script = (place / "load").read_text()
        assert f"entry=/{_TOP}/{pin.short_digest}\n" in script
        assert f"kernel={pin.kernel.release}\n" in script
    # Never where the kernel's own modules are: an extension may not change those.
    assert not any(name.startswith(("usr/lib/modules/", "lib/", "etc/")) for name in found)
    release = tree / "usr/lib/extension-release.d/extension-release.provision-demo"
    assert release.read_text() == (
        "ID=flatcar\nVERSION_ID=4230.2.1\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n"
    )
    wanted = tree / "usr/lib/systemd/system/multi-user.target.wants/provision-demo.service"
    assert "kernels/%v/load load" in wanted.read_text()


def test_what_the_driver_needs_of_its_host_is_in_the_extension(tmp_path: Path) -> None:
    firmware = DriverFile(path="/lib/firmware/demo/a.bin", kind="firmware", sha256="0" * 64, size=1)
    write(tmp_path / "one/driver/lib/firmware/demo/a.bin", b"a")
    needs = HostNeeds(conflicts=("nouveau",))
    one = artifact(tmp_path / "one", files=(firmware,), host=needs)
    tree = tmp_path / "tree"
    lay_out(tree, [one], Hosts())
    assert "blacklist nouveau" in (tree / "usr/lib/modprobe.d/provision-demo.conf").read_text()
    assert (tree / "usr/lib/firmware/demo/a.bin").read_bytes() == b"a"


def test_a_manifest_puts_no_commands_into_the_script(tmp_path: Path) -> None:
    demo = make_artifact(tmp_path / "x").modules[0]
    evil = "$(evil)"
    nodes = (
        DeviceNode(name="a", major=f"x; {evil}", minor=1),
        DeviceNode(name="b{minor}", major=1, each=MinorsFrom(files=f"proc/{evil} */i", field=evil)),
    )
    # Manifests with such names are refused when they are read; the script relies on nothing.
    module = demo.model_copy(update={"name": f"demo;{evil}", "depends": (f"drm {evil}",)})
    one = artifact(
        tmp_path / "one",
        modules=(module,),
        host=HostNeeds(optional=(), nodes=nodes),
    )
    lay_out(tmp_path / "tree", [one], Hosts())
    script = (tmp_path / "tree" / _TOP / "kernels" / KERNEL / "load").read_text()
    lines = [line for line in script.splitlines() if "evil" in line]
    assert lines
    for line in lines:
        # Quoted or escaped, each time.
        bare = re.sub(r"'[^']*'", "", line).replace(r"\$\(evil\)", "")
        assert "evil" not in bare, line


@pytest.mark.parametrize(
    ("kernel", "version"),
    [
        (KERNEL, "1.2"),
        (_OTHER, "1.3"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, kernel: str, version: str) -> None:
    both = [artifact(tmp_path / "a"), artifact(tmp_path / "b", kernel=kernel, version=version)]
    with pytest.raises(UsageError):
        lay_out(tmp_path / "tree", both, Hosts())
    assert not (tmp_path / "tree").exists()


Call = Callable[..., Outcome]
_IMAGE = f"registry.example:5000/agent@sha256:{'0' * 64}"
_SIGNING = '[signing]\nkey = "/etc/keys/mok.key"\ncertificate = "/etc/keys/mok.der"\n'
_PKCS11 = '[signing]\nkey = "pkcs11:object=mok"\ncertificate = "/usr/share/mok.der"\n{}'
_FILES = (
    'catalogue = ["/usr/share/more", "/srv/more"]\n'
    '[distros.debian.archive]\nkeyring = "/etc/apt/mine.gpg"\n'
)
_ADDRESS = (
    '[[distros.fedora.repositories]]\nid = "x"\nurls = ["https://m.example/a?token=hunter2"]\n'
)


def _options(folder: Path, text: str = "[drivers.nvidia]\n", **changes: Any) -> Options:  # noqa: ANN401 - fields of several types
    (folder / "provision.toml").write_text(text)
    return Options(
        **{
            "config": folder / "provision.toml",
            "image": _IMAGE,
            "variant": "fcos",
            **changes,
        }
    )


def _files(document: dict[str, Any]) -> dict[str, str]:
    files = document["storage"]["files"]
    return {f["path"]: unquote(f["contents"]["source"].removeprefix("data:,")) for f in files}


def test_a_machine_gets_its_settings_keys_and_the_tree_by_digest(tmp_path: Path) -> None:
    files = _files(configuration(_options(tmp_path, keys={"site.pub": "PEM"})))
    assert files["/etc/provision/provision.toml"] == "[drivers.nvidia]\n"
    assert files["/etc/provision/trust.d/site.pub"] == "PEM"
    assert f"agent-tree.sh '{_IMAGE}'" in files["/opt/provision/first-boot/first-boot.sh"]


@pytest.mark.parametrize(
    ("changes", "engines"),
    [
        ({}, {"docker", "podman"}),
        ({"variant": "flatcar"}, {"docker"}),
    ],
)
def test_engines_are_those_of_the_distro(
    tmp_path: Path, changes: dict[str, Any], engines: set[str]
) -> None:
    files = _files(configuration(_options(tmp_path, **changes)))
    script = files["/opt/provision/first-boot/first-boot.sh"]
    assert {name for name in ("docker", "podman") if f"configure {name}" in script} == engines
    assert any("hooks" in path for path in files) == ("podman" in engines)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "registry.example/agent:1"},
        {"image": "registry.example/a'b@sha256:" + "0" * 64},
    ],
)
def test_what_no_machine_could_follow_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        configuration(_options(tmp_path, **changes))
    assert caught.value.resolution


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        (_SIGNING, (), ["signing.key", "signing.certificate"]),
        (_SIGNING, ("/etc/keys/mok.key",), ["signing.certificate"]),
        (_SIGNING, ("/etc/keys/mok.key", "/etc/keys/mok.der"), []),
        (_PKCS11.format(""), (), []),
        (_PKCS11.format('pin_file = "/etc/pin"\n'), (), ["signing.pin_file"]),
        (_FILES, (), ["distros.debian.archive.keyring", "catalogue.1"]),
        ('[network]\nproxy = "http://me:hunter2@proxy.example:1"\n', (), ["network.proxy"]),
        ('[engine]\nhost = "tcp://me:hunter2@engine.example:1"\n', (), ["engine.host"]),
        (_ADDRESS, (), ["distros.fedora.repositories.0.urls.0"]),
    ],
)
def test_settings_that_need_a_secret_or_a_file_of_elsewhere_are_refused(
    tmp_path: Path, text: str, expected: tuple[str, ...], wrong: list[str]
) -> None:
    options = _options(tmp_path, text, expect=expected)
    if not wrong:
        configuration(options)
        return
    with pytest.raises(ConfigError) as caught:
        configuration(options)
    error = caught.value
    assert [mistake.path for mistake in error.mistakes] == wrong
    assert "hunter2" not in f"{error.message}{error.details}{error.resolution}"


def test_the_command_writes_what_ignition_reads(call: Call, tmp_path: Path) -> None:
    config = _options(tmp_path).config
    words = ("export", "ignition", "--config", config, "--image", _IMAGE)
    printed = json.loads(call(*words).out)
    assert printed["ignition"]["version"] == "3.3.0"
    target = tmp_path / "provision.ign"
    assert call(*words, "--output", target).code == 0
    assert json.loads(target.read_text()) == printed
    assert call(*words, "--json").document["config"] == printed
