"""Rows about registries: a verified pull against skopeo and tar, and a second kernel."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.rows import Group, Row
from bench.scene import Scene
from bench.timing import seconds_of
from kit.agent_host import AgentHost
from kit.artifact import make_pin
from kit.media import image_of, tar_of
from kit.process import run
from kit.registry import serving_registry
from provision.manifest import Container, DriverFile, Manifest
from provision.pin import Pin
from provision.registry import parse_reference
from provision.registry.repositories import Registry

_ROUNDS = 5
_KERNELS = ("6.1.0-47-amd64", "6.1.0-50-amd64")
# A driver of 250 MB: a few large libraries and many small files.
_FILES = {**{f"/usr/lib64/libbig{n}.so.1": 40 << 20 for n in range(6)}} | {
    f"/usr/share/bench/{n}.json": 64 << 10 for n in range(160)
}
_DRIVER = "bench"


@dataclass(frozen=True, slots=True)
class _Image:
    reference: str
    layers: tuple[int, ...]


def _pin(kernel: str) -> Pin:
    return make_pin(driver=_DRIVER, version="1.0", kernel=kernel)


def _content(size: int, seed: int) -> bytes:
    """Bytes that compress to some half, as programs do."""
    block = hashlib.shake_256(str(seed).encode()).digest(2048) + b"\0" * 2048
    # Each block differs, further apart than the compressor looks.
    noise = hashlib.shake_256(b"%d" % seed).digest(size // 2)
    parts = [noise[at : at + 2048] + block[2048:] for at in range(0, len(noise), 2048)]
    return b"".join(parts)[:size].ljust(size, b"\0")


def _modules(kernel: str, files: dict[str, bytes]) -> bytes:
    """The layer with the manifest; it has no modules, whose size is not the point."""
    listed = tuple(
        DriverFile(
            path=path,
            kind="miscellaneous",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            mode="0644",
        )
        for path, data in files.items()
    )
    pin = _pin(kernel)
    manifest = Manifest(
        pin=pin,
        pin_digest=pin.digest,
        licences=("MIT",),
        modules=(),
        files=listed,
        container=Container(activation_flag="OCI_BENCH", driver_feature=("all",), features={}),
    )
    return tar_of(
        {
            "opt/driver/manifest.json": manifest.model_dump_json(by_alias=True).encode(),
            f"opt/lib/modules/{kernel}/modules.dep": b"",
        }
    )


def _have_image(address: str, kernel: str, userspace: bytes, files: dict[str, bytes]) -> _Image:
    image = image_of(_pin(kernel), [userspace, _modules(kernel, files)])
    reference = f"{address}/drivers/{_DRIVER}:1.0-open-{kernel}.debian12"
    name = parse_reference(reference)
    Registry(name).put_image(name.tag or "", image.manifest, image.blobs)
    return _Image(reference, tuple(map(len, image.layers)))


class _Site:
    """A registry with a signed driver for two kernels, and hosts that trust its key."""

    def __init__(self, scene: Scene, folder: Path, address: str) -> None:
        self.scene, self.folder, self.address = scene, folder, address
        files = {path: _content(size, n) for n, (path, size) in enumerate(_FILES.items())}
        self.size = sum(map(len, files.values()))
        userspace = tar_of({f"opt/driver{path}": data for path, data in files.items()})
        self.images = [_have_image(address, kernel, userspace, files) for kernel in _KERNELS]
        (folder / "password").write_text("bench\n")
        words = ("--password-file", folder / "password")
        scene.provision("registry", "key", "--output", folder / "fleet", *words)
        for image in self.images:
            scene.provision(
                "registry", "sign", image.reference, "--key", folder / "fleet.key", *words
            )

    def host(self, name: str) -> AgentHost:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        host = AgentHost.make(self.folder / name, running=_KERNELS[0])
        host.write("etc/provision/trust.d/fleet.pub", (self.folder / "fleet.pub").read_text())
        host.configure(
            f'[registry]\naddress = "{self.address}/drivers"\n'
            '[trust]\nkeys = "/etc/provision/trust.d"\n'
        )
        return host

    def pull(self, host: AgentHost, image: _Image) -> dict[str, Any]:
        return self.scene.provision.json("registry", "pull", image.reference, "--root", host.root)

    def skopeo(self, image: _Image) -> None:
        """What an admin would do by hand, with the result on the disk as well."""
        target = self.folder / "skopeo"
        shutil.rmtree(target, ignore_errors=True)
        (target / "out").mkdir(parents=True)
        source = f"docker://{image.reference}"
        policy = "--insecure-policy"
        run(["skopeo", policy, "copy", "--src-tls-verify=false", source, f"dir:{target}/image"])
        manifest = json.loads((target / "image/manifest.json").read_text())
        for layer in manifest["layers"]:
            blob = target / "image" / layer["digest"].removeprefix("sha256:")
            run(["tar", "-xzf", blob, "-C", target / "out"])
        run(["sync", "-f", target / "out"])


def _registry(scene: Scene) -> list[Row]:
    folder = scene.folder / "registry"
    folder.mkdir()
    scene.say("a registry with an artifact of 250 MB")
    with serving_registry(folder) as address:
        return _rows(_Site(scene, folder, address))


def _rows(site: _Site) -> list[Row]:
    first, second = site.images
    pulled: list[float] = []
    copied: list[float] = []
    for _ in range(_ROUNDS):
        host = site.host("host")
        pulled.append(seconds_of(partial(site.pull, host, first)))
        copied.append(seconds_of(partial(site.skopeo, first)))
    pull, copy = (statistics.median(seconds) for seconds in (pulled, copied))
    received = site.pull(host, second)["received"]
    size = f"{site.size / 1e6:.0f} MB, {first.layers[0] / 1e6:.0f} MB as transferred"
    return [
        Row(
            "pull",
            "provision registry pull, signature and digests verified / skopeo copy and tar x",
            pull / copy,
            1.1,
            "x",
            f"{pull:.2f} s; skopeo and tar {copy:.2f} s; {size}; median of {_ROUNDS}, in turns",
        ),
        Row(
            "pull-second",
            "second kernel of a driver: bytes pulled / the layer with its modules",
            received / second.layers[1],
            1.0,
            "x",
            f"{received} bytes; user space has {second.layers[0]}",
        ),
    ]


GROUPS = (Group(("pull", "pull-second"), _registry),)
