"""The product as an archive of what it puts onto a host, below the host's root."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from kit.files import write
from kit.guest.recipe import Recipe
from kit.guest.tree import RUNTIME, VENV
from kit.process import run
from kit.product import DECORATOR

_PROGRAM = f"""\
#!{VENV}/bin/python
from provision.cli import main
main()
"""


def pack_product(recipe: Recipe, wheel: Path, folder: Path) -> Path:
    """Pack the product as it lies in a guest of `recipe`.

    Args:
        recipe: The guest's.
        wheel: Provision.
        folder: A fresh folder for this; the archive is in it.
    """
    installed = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    run([*pip, "--python-version", recipe.python, "--target", installed, wheel])
    root = folder / "root"
    packages = root / VENV[1:] / f"lib/python{recipe.python}/site-packages"
    packages.mkdir(parents=True)
    shutil.move(installed / "provision", packages)
    shutil.move(installed / "share", root / VENV[1:])
    if recipe.python == ".".join(map(str, sys.version_info[:2])):
        # Compiling in emulation takes long, and only this Python can do it for the guest's.
        mode = ["-q", "--invalidation-mode", "unchecked-hash"]
        run([sys.executable, "-m", "compileall", *mode, packages])
    write(root / "usr/local/bin/provision", _PROGRAM, 0o755)
    (root / "usr/bin").mkdir()
    shutil.copy2(DECORATOR, root / "usr/bin")
    (root / RUNTIME[1:]).symlink_to(f"/usr/bin/{DECORATOR.name}")
    archive = folder / "product.tar"
    run(["tar", "--owner=0", "--group=0", "-C", root, "-cf", archive, "."])
    return archive
