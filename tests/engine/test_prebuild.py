"""`provision matrix --push` with a real registry: builders at once, and layers that are shared."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.process import start, wait_for
from kit.product import Provision
from kit.registry import serving_registry

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("toolchains_again")]

_KERNELS = (OLD_KERNEL, NEW_KERNEL)


class Site:
    """A registry, a fleet.toml, and a key of its own."""

    def __init__(self, provision: Provision, folder: Path, address: str) -> None:
        self.provision = provision
        self.folder = folder
        self.address = address
        self.log = folder / "log"
        password = folder / "password"
        password.write_text("fleet\n")
        provision("registry", "key", "--output", folder / "fleet", "--password-file", password)
        self.key = ("--key", folder / "fleet.key", "--password-file", password)
        self.fleet = folder / "fleet.toml"
        self.fleet.write_text(
            f'registry = "{address}/drivers"\ndistros = ["{DISTRO}"]\n'
            f"kernels = {json.dumps(_KERNELS)}\n"
            f'[[builds]]\ndrivers = ["{SMALL_DRIVER}"]\n'
        )

    def words(self, name: str, *more: str | Path) -> list[str | Path]:
        """The command of a builder with this folder of results."""
        how = ("--network", "host", "--state", self.folder / name)
        words = ("--push", *self.key, *how, *more, "--json")
        return [self.provision.program, "matrix", self.fleet, *words]

    def tags(self) -> list[str]:
        url = f"http://{self.address}/v2/drivers/{SMALL_DRIVER}/tags/list"
        return list(requests.get(url, timeout=30).json().get("tags") or [])

    def layers(self, tag: str) -> list[dict[str, Any]]:
        url = f"http://{self.address}/v2/drivers/{SMALL_DRIVER}/manifests/{tag}"
        kinds = (
            "application/vnd.docker.distribution.manifest.v2+json,"
            "application/vnd.oci.image.manifest.v1+json"
        )
        answer = requests.get(url, headers={"Accept": kinds}, timeout=30)
        return list(answer.json()["layers"])


@pytest.fixture(scope="module")
def site(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("fleet")
    with serving_registry(folder) as address:
        yield Site(provision, folder, address)


def _hosts_tags(site: Site) -> list[str]:
    others = ("sha256-", "pin-")
    return [tag for tag in site.tags() if not tag.startswith(others)]


def test_two_builders_at_once_leave_one_signed_image_of_each_cell(
    site: Site, engine: Engine
) -> None:
    before = set(engine.images())
    env = site.provision.variables()

    # A builder that is killed while it builds holds up nobody.
    killed = start(site.words("killed"), log=site.folder / "killed.log", env=env)
    wait_for("a run", (site.folder / "killed/lock").exists, within_s=300, or_end_of=killed)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, (site.folder / "killed.log").read_text()
    assert _hosts_tags(site) == []

    names = ("one", "two")
    logs = {name: site.folder / f"{name}.json" for name in names}
    builders = [start(site.words(name), log=logs[name], env=env) for name in names]
    wait_for("a run", (site.folder / "one/lock").exists, within_s=300, or_end_of=builders[0])
    # Those of one machine share a folder by --parallel.
    status, error = site.provision.failure(*site.words("one")[1:-1])
    assert (status, error["reason"]) == (4, "failed"), error
    assert [builder.wait() for builder in builders] == [0, 0], [
        p.read_text() for p in logs.values()
    ]
    counts = [_document(path)["counts"] for path in logs.values()]
    assert all({*count} <= {"pushed", "present"} for count in counts), counts
    assert len(_hosts_tags(site)) == len(_KERNELS)
    tags = site.tags()
    assert sum(tag.startswith("pin-") for tag in tags) == len(_KERNELS)
    assert sum(tag.endswith(".sig") for tag in tags) == len(_KERNELS)
    assert set(engine.images()) <= before, "nothing is left in the engine"

    # What is there is not built again.
    words = ("--push", *site.key, "--state", site.folder / "three")
    again = site.provision.json("matrix", site.fleet, *words)
    assert again["counts"] == {"present": len(_KERNELS)}
    assert site.provision.json("matrix", site.fleet, "--missing")["cells"] == []


def test_a_pin_of_the_list_is_built_and_pushed_by_itself(site: Site, tmp_path: Path) -> None:
    """As a job of a cluster or a CI does it, with what one machine has planned."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(site.fleet.read_text().replace("/drivers", "/planned", 1))
    plan = site.provision.json("matrix", fleet, "--missing")
    assert (len(plan["cells"]), plan["failed"]) == (len(_KERNELS), [])
    cell = plan["cells"][0]
    pin = tmp_path / "pin.json"
    pin.write_text(json.dumps(cell["pin"]))
    key = ("--key", site.folder / "fleet.key", "--password-file", site.folder / "password")
    site.provision.build("--pin", pin, "--sign", "--push", cell["reference"], *key)
    left = site.provision.json("matrix", fleet, "--missing")["cells"]
    assert [one["id"] for one in left] == [one["id"] for one in plan["cells"][1:]]


def _document(log: Path) -> dict[str, Any]:
    """The JSON at the end of what a builder printed."""
    text = log.read_text()
    document: dict[str, Any] = json.loads(text[text.index("{\n") :])
    return document


# Of what the builders have pushed.
def test_user_space_is_one_layer_for_all_kernels(site: Site) -> None:
    layers = [site.layers(tag) for tag in sorted(_hosts_tags(site))]
    assert [len(of_image) for of_image in layers] == [3, 3], "user space, a shell, modules"
    userspace, shell = ({of_image[at]["digest"] for of_image in layers} for at in (0, 1))
    assert len(userspace) == len(shell) == 1, "the registry keeps them once"
    assert len({of_image[2]["digest"] for of_image in layers}) == len(_KERNELS)
    # It was uploaded once, too: each upload ends with a PUT that names the digest.
    log = site.log.read_text().replace("%3A", ":")
    puts = [line for line in log.splitlines() if "PUT" in line and "blobs/uploads" in line]
    of_userspace = [
        line for line in puts if userspace.copy().pop() in line and "status=201" in line
    ]
    assert len(of_userspace) <= 1, of_userspace
