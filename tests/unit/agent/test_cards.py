"""Cards of a host: a driver that is loaded works if it drives them, and their kinds are inputs."""

from __future__ import annotations

import pytest

from kit.artifact import KERNEL, write
from kit.host_tree import DRIVER
from provision.agent.desired import read_inputs
from provision.manifest import PciMatch
from unit.agent.host import Host
from unit.recipes import RECIPE

CARD, OTHER = (f"sys/bus/pci/devices/0000:0{number}:00.0" for number in (1, 2))
GENERATION = """
[[hardware.cards]]
name = "Old"
devices = ["0001-00ff"]
flavours = ["open"]
"""


@pytest.fixture(autouse=True)
def recipe(host: Host) -> None:
    text = RECIPE.replace('name = "made-up"', f'name = "{DRIVER}"')
    text = text.replace("[flavours.other", "[flavours.open")
    text = text.replace("\n[source]", f"{GENERATION}\n[source]", 1)
    write(host.root / f"drivers/{DRIVER}/driver.toml", text.encode())
    write(host.root / f"drivers/{DRIVER}/patches/fix.patch", b"--- a\n+++ b\n")
    host.configure(f'catalogue = ["/drivers"]\n[drivers.{DRIVER}]\n')


def bind(host: Host, driver: str, module: str | None, *, where: str = CARD) -> None:
    """Bind the card to a driver, which belongs to a module, or to the kernel's image."""
    folder = host.root / "sys/bus/pci/drivers" / driver
    folder.mkdir(parents=True, exist_ok=True)
    (host.root / where / "driver").unlink(missing_ok=True)
    (host.root / where / "driver").symlink_to(f"../../drivers/{driver}")
    if module is not None and not (folder / "module").is_symlink():
        (folder / "module").symlink_to(f"../../../../module/{module}")


@pytest.mark.parametrize(
    ("driver", "module", "is_ready"),
    [
        (None, None, False),
        # Its name need not be that of its module.
        ("demo-pci", "demo", True),
        ("nouveau", "nouveau", False),
        ("simple-framebuffer", None, False),
        # A virtual machine has it.
        ("vfio-pci", "vfio_pci", True),
    ],
)
def test_a_driver_that_drives_no_card_is_not_ready(
    host: Host, driver: str | None, module: str | None, *, is_ready: bool
) -> None:
    host.plug_in("0001")
    if driver is not None:
        bind(host, driver, module)
    status = host.apply().status
    (found,) = status.drivers
    assert found.loaded == "yes"
    assert (status.is_ready, found.is_ready) == (is_ready, is_ready)
    (artifact,) = [one for one in found.kernels if one.release == KERNEL]
    assert (artifact.state == "ready") == is_ready
    assert ("0000:01:00.0" in (artifact.reason or "")) == (not is_ready)
    assert bool(status.exit_code) == (not is_ready)


def test_a_card_that_the_driver_does_not_list_is_said_to_be_one(host: Host) -> None:
    host.drives = (PciMatch(vendor="1234", devices=("0002",)),)
    host.plug_in("0001", "0002")
    (found,) = host.apply().status.drivers
    assert not found.is_ready
    reasons = [artifact.reason or "" for artifact in found.kernels if artifact.release == KERNEL]
    # By its name, and once more among those that the list lacks.
    assert reasons[0].count("0000:01:00.0") == 2
    assert reasons[0].count("0000:02:00.0") == 1
    # The kernel has the last word.
    bind(host, "demo-pci", "demo")
    bind(host, "demo-pci", "demo", where=OTHER)
    assert host.apply().status.is_ready


@pytest.mark.parametrize(
    ("flavour", "devices", "is_ready"),
    [
        # Somebody has decided that one card gets no driver.
        ("plain", ("0001", "1000"), True),
        ("auto", ("1000", "1000"), False),
        # Nothing at all would be served.
        ("plain", ("0001", "0001"), False),
    ],
)
def test_a_card_that_the_named_flavour_does_not_serve_has_no_say(
    host: Host, flavour: str, devices: tuple[str, str], *, is_ready: bool
) -> None:
    path = host.root / "etc/provision/provision.toml"
    path.write_text(f'{path.read_text()}flavour = "{flavour}"\n')
    host.plug_in(*devices)
    if devices[0] != devices[1]:
        bind(host, "demo-pci", "demo", where=OTHER)
    assert host.apply().status.is_ready == is_ready


def test_another_card_is_another_input(host: Host) -> None:
    def inputs() -> str:
        return read_inputs(host.root, host.desired()).of(DRIVER, KERNEL)

    without = inputs()
    host.plug_in("1000")
    # The recipe knows nothing of it, and what was built may have it on its list.
    unknown = inputs()
    host.write(f"{CARD}/class", "0x040300\n")
    # The driver is not for it.
    assert inputs() == without
    host.plug_in("0001")
    assert len({inputs(), unknown, without}) == 3
