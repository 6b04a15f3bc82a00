"""What hosts take that have neither Python nor a writable /usr: Fedora CoreOS and Flatcar.

An Ignition configuration: at its first boot, a machine takes the agent tree out of the agent's
image, by digest; that tree then writes everything else by its own commands. Or, without an agent, a
system extension: several kernels' artifacts of a driver, and the unit that loads one.

Sources: https://coreos.github.io/ignition/configuration-v3_3/,
https://www.rfc-editor.org/rfc/rfc2397, systemd-sysext(8), os-release(5) for extension-release
files, and https://uapi-group.org/specifications/specs/extension_image/.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from provision.build.dockerfile import fill_shipped, shell_word
from provision.build.request import DriverRequest
from provision.config import PATH, Config
from provision.documents import load_toml
from provision.errors import ConfigError, Mistake, NotFoundError, UsageError, redact
from provision.export import ArtifactSource, check_driver
from provision.files import copy_output, scratch, templates_dir
from provision.kmod.loader import firmware_names, link_modules, loader_script
from provision.loader_script import Place
from provision.manifest import Manifest
from provision.pin import names_of
from provision.progress import Note, report
from provision.run import LONG_LIMIT_S, find_program, run
from provision.store.activate import modprobe_config, vendor_config
from provision.store.layout import Layout
from provision.store.units import filled

Variant = Literal["fcos", "flatcar"]
# The engines that these distros include.
_ENGINES: Mapping[Variant, tuple[str, ...]] = {
    "fcos": ("docker", "podman"),
    "flatcar": ("docker",),
}
_UNIT = "provision-first-boot.service"
_STAGED = "/opt/provision/first-boot"
_HOOKS = "/etc/containers/oci/hooks.d"
# podman looks for hooks in /usr only, which is read-only here.
_HOOKS_CONF = "/etc/containers/containers.conf.d/49-oci-decorator-hooks.conf"
_FOLDERS = ("/opt/provision", _STAGED, "/etc/provision", "/etc/oci-decorator/oci-decorator.d")
_TRUST = "/etc/provision/trust.d"
# Paths that belong to the system's image.
_SHIPPED = "/usr/"
_BY_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:\[\]-]*@sha256:[0-9a-f]{64}")


class Options(NamedTuple):
    """The options of a configuration."""

    config: Path
    # The agent's image, by digest.
    image: str
    variant: Variant
    # Files that provision.toml names and that come from elsewhere.
    expect: tuple[str, ...] = ()
    # Public keys by file name.
    keys: Mapping[str, str] = {}


def configuration(options: Options) -> dict[str, Any]:
    """Return the configuration; the same options give the same one.

    3.3.0 is the newest version of the format that Ignition 2.14 reads.
    """
    if not _BY_DIGEST.fullmatch(options.image):
        raise UsageError(
            f"'{options.image}' does not name an image by its digest.",
            resolution="Look it up: skopeo inspect --format '{{.Name}}@{{.Digest}}'"
            " docker://registry.example/agent:0.1.0",
        )
    engines = _ENGINES[options.variant]
    check_config(load_toml(options.config, Config), file=options.config, expected=options.expect)
    script = fill_shipped(
        "ignition/first-boot.sh.j2",
        staged=_STAGED,
        image=options.image,
        engines=engines,
        hooks=_HOOKS,
    )
    texts = {
        f"{_STAGED}/agent-tree.sh": (templates_dir() / "agent/agent-tree.sh").read_text(),
        f"{_STAGED}/first-boot.sh": script,
        f"/{PATH}": options.config.read_text(),
        **{f"{_TRUST}/{name}": text for name, text in options.keys.items()},
    }
    if "podman" in engines:
        folders = json.dumps(["/usr/share/containers/oci/hooks.d", _HOOKS])
        texts[_HOOKS_CONF] = f"[engine]\nhooks_dir = {folders}\n"
    unit = fill_shipped(f"ignition/{_UNIT}.j2", staged=_STAGED)
    return {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [{"path": path, "mode": 0o755} for path in _FOLDERS],
            # An existing file is replaced, so that Ignition can run again after a failure.
            "files": [
                {
                    "path": path,
                    "mode": 0o644,
                    "contents": {"source": f"data:,{quote(text, safe='')}"},
                    "overwrite": True,
                }
                for path, text in sorted(texts.items())
            ],
        },
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": unit}]},
    }


def check_config(config: Config, *, file: Path, expected: Collection[str]) -> None:
    """Refuse a provision.toml that can't be given to a machine as it is."""
    if secret := list(_secrets(config.model_dump(mode="json"))):
        raise ConfigError(
            str(file),
            [Mistake(key, "has a password or token in it") for key in secret],
            resolution="Remove it: whoever can read the machine's configuration would have it.",
        )
    missing = [
        Mistake(key, f"'{path}' would not be on the machine")
        for key, path in _named_files(config)
        if path not in expected and not path.startswith(_SHIPPED)
    ]
    if missing:
        raise ConfigError(
            str(file),
            missing,
            resolution="Write it with your own configuration, which merges this one, and name it"
            " here (--expect PATH). This one never contains private keys.",
        )


def _named_files(config: Config) -> Iterator[tuple[str, str]]:
    signing = config.signing
    files = {"key": signing.key, "certificate": signing.certificate, "pin_file": signing.pin_file}
    for name, path in files.items():
        if path is not None and path.startswith("/"):
            yield f"signing.{name}", path
    for name, distro in config.distros.items():
        if distro.archive.keyring is not None:
            yield f"distros.{name}.archive.keyring", distro.archive.keyring
    for number, folder in enumerate(config.catalogue):
        yield f"catalogue.{number}", folder


def _secrets(value: object, *keys: str) -> Iterator[str]:
    if isinstance(value, str) and redact(value) != value:
        yield ".".join(keys)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets(inner, *keys, str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _secrets(inner, *keys, str(number))


_TOP = PurePosixPath("/usr/lib/provision")
_UNITS = "usr/lib/systemd/system"
# The same files give the same bytes: no time, owner, or random table of the machine's.
_SQUASHFS = (
    *("-noappend", "-all-root", "-all-time", "0", "-mkfs-time", "0", "-no-xattrs", "-no-exports"),
    *("-comp", "zstd", "-no-progress", "-quiet"),
)


class Hosts(NamedTuple):
    """The systems that an extension merges with."""

    # ``ID`` of os-release; ``_any``: every system, since the unit checks the kernel.
    id: str = "_any"
    # ``VERSION_ID`` of os-release; None: any.
    version_id: str | None = None


class Artifact(NamedTuple):
    """An unpacked artifact and its manifest."""

    folder: Path
    manifest: Manifest


def need_mksquashfs() -> None:
    """Check that the program that makes the image is installed."""
    if find_program("mksquashfs") is None:
        raise NotFoundError(
            "There is no program mksquashfs, which makes system extensions.",
            resolution="apt-get install squashfs-tools (Fedora, EL: dnf install squashfs-tools)",
        )


def extension_name(driver: str) -> str:
    """Return the name of a driver's extension: its file's, without ``.raw``."""
    return f"provision-{driver}"


def lay_out(tree: Path, artifacts: Sequence[Artifact], hosts: Hosts) -> None:
    """Fill a new folder with the extension's files below /usr."""
    first = artifacts[0].manifest.pin
    driver = first.driver.name
    _check_alike(artifacts)
    top = tree / _TOP.relative_to("/") / driver
    for artifact in artifacts:
        manifest = artifact.manifest
        entry = _TOP / driver / manifest.pin.short_digest
        shutil.copytree(artifact.folder, top / entry.name, symlinks=True)
        link_modules(top / entry.name)
        kernels = _TOP / driver / "kernels" / manifest.pin.kernel.release
        place = tree / kernels.relative_to("/")
        place.mkdir(parents=True)
        vendor_file = _vendor_file(manifest, entry)
        where = Place(str(entry), vendor_file=str(kernels / "vendor.json") if vendor_file else "")
        (place / "load").write_text(loader_script(artifact.folder, manifest, where))
        if vendor_file:
            (place / "vendor.json").write_text(vendor_file)
        for name, path in firmware_names(manifest).items():
            target = tree / "usr/lib/firmware" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact.folder / path, target)
    _units(tree, first.driver.name, first.driver.version)
    # Not the driver's own: a kernel that the extension has nothing for loads the in-tree copies.
    blacklist = modprobe_config(driver, conflicts=artifacts[0].manifest.host.conflicts)
    if blacklist is not None:
        _write(tree / f"usr/lib/modprobe.d/provision-{driver}.conf", blacklist)
    _release(tree, driver, names_of(first.kernel.architecture).systemd, hosts)
    for parent, _folders, names in os.walk(tree):
        Path(parent).chmod(0o755)
        for file in (Path(parent, name) for name in names):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def export_sysext(
    source: ArtifactSource,
    requests: Sequence[DriverRequest | str],
    hosts: Hosts,
    driver: str,
    folder: Path,
) -> tuple[Path, list[Manifest]]:
    """Make the extension of a driver in a new folder; return it, and what it has.

    Artifacts are requested, or are those of the images that are named.
    """
    target = folder / f"{extension_name(driver)}.raw"
    with scratch(source.settings.state, "export") as work:
        artifacts = []
        for number, one in enumerate(requests):
            place = work / str(number)
            if isinstance(one, str):
                artifacts.append(Artifact(place, source.unpack(one, place)))
                check_driver(artifacts[-1].manifest, driver, one)
            else:
                artifacts.append(Artifact(place, source.artifact(one, place)))
        tree, image = work / "tree", work / "extension.squashfs"
        lay_out(tree, artifacts, hosts)
        report(Note(f"Packing {target.name}"))
        # Reproducible; equal files are stored once.
        words: list[str | Path] = ["mksquashfs", tree, image, *_SQUASHFS]
        run(words, why="make the system extension", timeout=LONG_LIMIT_S)
        copy_output(image, target)
    return target, [artifact.manifest for artifact in artifacts]


def _check_alike(artifacts: Sequence[Artifact]) -> None:
    pins = [artifact.manifest.pin for artifact in artifacts]
    for what, names in (
        ("drivers", {pin.driver.name for pin in pins}),
        ("versions", {pin.driver.version for pin in pins}),
        ("architectures", {pin.kernel.architecture for pin in pins}),
    ):
        if len(names) > 1:
            raise UsageError(
                f"The artifacts are of several {what}: {', '.join(sorted(names))}.",
                resolution="Make an extension of each: its user space is that of one version.",
            )
    kernels = [pin.kernel.release for pin in pins]
    if twice := sorted({kernel for kernel in kernels if kernels.count(kernel) > 1}):
        raise UsageError(
            f"Two artifacts are for the kernel {twice[0]}.", resolution="Leave one of them out."
        )


def _vendor_file(manifest: Manifest, entry: PurePosixPath) -> str | None:
    text = vendor_config(Layout(Path("/"), manifest.pin.driver.name), manifest)
    if text is None:
        return None
    document = json.loads(text) | {"root": str(entry / "driver")}
    return json.dumps(document, indent=2) + "\n"


def _units(tree: Path, driver: str, version: str) -> None:
    name = f"{extension_name(driver)}.service"
    _write(
        tree / _UNITS / name,
        filled("sysext/provision.service.j2", templates_dir(), driver=driver, version=version),
    )
    # Nothing enables units of a merged extension, so it includes the link that enables one.
    link = tree / _UNITS / "multi-user.target.wants" / name
    link.parent.mkdir()
    link.symlink_to(f"../{name}")


def _release(tree: Path, driver: str, architecture: str, hosts: Hosts) -> None:
    name = f"extension-release.{extension_name(driver)}"
    lines = [f"ID={shell_word(hosts.id)}"]
    lines += [f"VERSION_ID={shell_word(hosts.version_id)}"] if hosts.version_id else []
    # systemd 255 and newer then load the new units by themselves.
    lines += [f"ARCHITECTURE={architecture}", "EXTENSION_RELOAD_MANAGER=1", ""]
    _write(tree / "usr/lib/extension-release.d" / name, "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
