"""Machines that the real Ignition sets up: Debian, laid out by hand as those distros are.

The real Ignition, and a Debian tree that is laid out as Fedora CoreOS's or Flatcar's is, and has no
Python. What Ignition does in the initrd, it does here to the tree, which then boots for the first
time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from kit.bundles import overlaid
from kit.engine_tree import EngineTree
from kit.files import write
from kit.hosts import OLD_KERNEL
from kit.immutable import read_only_usr
from kit.process import Completed, run

Layout = Literal["fcos", "flatcar"]

# Which kernel a machine believes to run. Its modules can't be loaded: containers may not.
KERNEL = OLD_KERNEL
# Debian's package has the program only for its dracut module.
_IGNITION = Path("/usr/lib/dracut/modules.d/30ignition/ignition")
_BEGIN = read_only_usr("/bin/mount --bind /etc/kernel-release /proc/sys/kernel/osrelease")
_THEN = """\
systemctl enable kit-begin.service
# It wants a console, and isn't there on those distros.
systemctl mask systemd-firstboot.service
# No machine-id: the next boot is the first.
rm -f /etc/machine-id /var/lib/dbus/machine-id
rm -r /opt
if command -v python3; then exit 1; fi
"""
_FILES = {
    # A first boot enables what presets say, and nothing else, as on those distros. Nothing is to
    # touch this machine's network.
    "etc/systemd/system-preset/00-kit.preset": """\
disable systemd-network*
disable systemd-resolved*
disable systemd-timesyncd*
disable getty@*
""",
    "etc/systemd/system-preset/99-kit.preset": "disable *\n",
    "etc/systemd/system/kit-begin.service": _BEGIN,
    "etc/kernel-release": f"{KERNEL}\n",
    f"usr/lib/modules/{KERNEL}/modules.dep": "",
    f"boot/vmlinuz-{KERNEL}": "",
    # In a container, systemd gives units that it protects from the cgroups a /proc of their own.
    "etc/systemd/system/provision-apply.service.d/kit.conf": "[Service]\nProtectControlGroups=no\n",
    # Debian's Ignition asks it for the labels that files get.
    "etc/selinux/config": "SELINUX=disabled\nSELINUXTYPE=targeted\n",
}
_TREE = EngineTree("coreos", "bookworm", files=tuple(_FILES.items()), then=_THEN)


@contextmanager
def coreos_tree(layout: Layout, folder: Path) -> Iterator[Path]:
    """A tree that has not booted yet; what is written to it goes into `folder`."""
    with overlaid(_TREE.path(), folder) as tree:
        if layout == "fcos":
            (tree / "opt").symlink_to("var/opt")
            (tree / "var/opt").mkdir(exist_ok=True)
        else:
            (tree / "opt").mkdir()
        yield tree


def validate(config: Path) -> None:
    """Have Ignition's own validator read a configuration.

    Raises:
        CommandFailedError: it has mistakes, or something that the validator warns of.
    """
    done = run(["ignition-validate", config])
    if done.output.strip():
        raise AssertionError(done.output)


def ignite(config: Path, tree: Path, *, check: bool = True) -> Completed:
    """Have Ignition set up a tree: what it does between the initrd's network and its end.

    Raises:
        CommandFailedError: it failed and `check` is set.
    """
    with tempfile.TemporaryDirectory(prefix="provision-ignition-") as name:
        folder = Path(name)
        words = [
            str(_IGNITION),
            *("--platform=file", f"--root={tree}", "--log-to-stdout"),
            *(f"--config-cache={folder}/config.json", f"--state-file={folder}/state"),
            f"--neednet={folder}/neednet",
        ]
        # Labels are what it writes last, with a program that wants the distro's policy.
        setfiles = write(folder / "bin/setfiles", "#!/bin/sh\nexec cat\n", 0o755)
        path = f"{setfiles.parent}:{os.environ['PATH']}"
        env = {"IGNITION_CONFIG_FILE": str(config), "PATH": path}
        fetched = run([*words, "--stage=fetch"], env=env, check=check)
        if fetched.returncode != 0:
            return fetched
        return run([*words, "--stage=files"], env=env, check=check)
