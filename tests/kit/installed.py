"""The program where a package would have it, for one command and without touching the machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kit.cache import REPOSITORY
from kit.product import DECORATOR

# Layers on top of /etc and /usr, in a mount namespace that ends with the command.
_ENTER = """\
set -e
layers=$1; shift
for place in etc usr; do
    mkdir -p "$layers/$place" "$layers/.work-$place"
    mount -t overlay -o "lowerdir=/$place,upperdir=$layers/$place,workdir=$layers/.work-$place" \
        overlay "/$place"
done
exec "$@"
"""


class Installed:
    """A machine that differs from this one in what lies in `etc` and `usr` of a folder."""

    def __init__(self, layers: Path) -> None:
        """Put the program and its settings there; `layers` is the folder."""
        self.layers = layers
        program = layers / "usr/bin/oci-decorator"
        program.parent.mkdir(parents=True)
        shutil.copy2(DECORATOR, program)
        (program.parent / "oci-decorator-runtime").symlink_to("oci-decorator")

    def settings(self, config: Path) -> None:
        """Have the content of `config` as the settings."""
        folder = self.layers / "etc/oci-decorator"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(config, folder / "config.toml")

    def hooks(self, *names: str) -> None:
        """Have these files of hooks/hooks.d where podman looks for them."""
        folder = self.layers / "usr/share/containers/oci/hooks.d"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy2(REPOSITORY / "hooks/hooks.d" / name, folder)

    def command(self, argv: Sequence[str | Path]) -> list[str | Path]:
        """`argv`, to be run on that machine."""
        namespace = ["unshare", "--mount", "--propagation=private", "sh", "-c", _ENTER, "sh"]
        return [*namespace, self.layers, *argv]
