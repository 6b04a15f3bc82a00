"""A made-up driver whose modules are no good, and artifacts with one of them each."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.fileserver import served
from kit.process import run
from kit.upstream import releases_of, write_recipe, write_tarball
from provision.kmod.loader import remove_host_files

BROKEN = "broken"
_INITS = {
    "good": 'printk("good\\n"); return 0;',
    "einval": "return -EINVAL;",
    "nodev": "return -ENODEV;",
    "null": "*(volatile int *)NULL = 1; return 0;",
    "loop": "for (;;) cpu_relax(); return 0;",
    "stays": "return 0;",
    "gives": "return 0;",
    "takes": "broken_given(); return 0;",
}
# What the one offers to the other.
_MORE = {
    "gives": "void broken_given(void);\nvoid broken_given(void) { }\n"
    "EXPORT_SYMBOL_GPL(broken_given);\n",
    "takes": "void broken_given(void);\n",
}
_SOURCE = """\
#include <linux/module.h>

{more}static int __init {name}_init(void) {{ {init} }}
module_init({name}_init);
{exit}
MODULE_LICENSE("GPL");
"""
_EXIT = """\
static void __exit {name}_exit(void) {{ }}
module_exit({name}_exit);
"""
_BUILD = """\
command = ["make", "-j{jobs}", "KDIR={kernel_build}"]
modules = @modules@

[container]
activation_flag = "OCI_BROKEN"
driver_feature = ["broken"]
[container.features.broken]
devices = ["broken[0-9]*"]
"""
# include/linux/module.h, struct modversion_info: a symbol's checksum, and its name in 56 bytes.
_SYMBOL = b"_printk"
_NAMES = 56


def _sources() -> dict[str, str]:
    files = {}
    for name, init in _INITS.items():
        module = f"{BROKEN}_{name}"
        # A module without an exit can't be unloaded.
        end = "" if name == "stays" else _EXIT.format(name=module)
        files[f"{module}.c"] = _SOURCE.format(
            name=module, init=init, exit=end, more=_MORE.get(name, "")
        )
    objects = " ".join(f"{BROKEN}_{name}.o" for name in _INITS)
    make = f"obj-m := {objects}\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n"
    return {**files, "Makefile": make}


@contextmanager
def broken_catalogue(folder: Path) -> Iterator[Path]:
    """A catalogue with the driver below `folder`; its source is served meanwhile."""
    tarball = write_tarball(folder / "files", "broken-1.0", _sources())
    names = json.dumps([f"{BROKEN}_{name}.ko" for name in _INITS])
    with served(tarball.parent) as url:
        releases = releases_of({"1.0": tarball}, url)
        write_recipe(folder / "drivers", BROKEN, releases, _BUILD.replace("@modules@", names))
        yield folder / "drivers"


def alone(
    entry: Path,
    name: str,
    folder: Path,
    *,
    change: Callable[[bytes], bytes] | None = None,
    depends: tuple[str, ...] = (),
) -> Path:
    """An artifact in `folder` as if the driver had one module only, which verifies.

    Args:
        entry: The store entry of the whole driver.
        change: Makes another content of the module's.
        depends: Names of modules that the manifest says it needs.
    """
    shutil.copytree(entry, folder, symlinks=True)
    remove_host_files(folder)
    path = folder / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    kept = next(one for one in manifest["modules"] if one["name"] == f"{BROKEN}_{name}")
    for module in manifest["modules"]:
        if module is not kept:
            (folder / module["path"]).unlink()
    file = folder / kept["path"]
    if change is not None:
        content = change(file.read_bytes())
        # The copy may be a link to the store's own.
        file.unlink()
        file.write_bytes(content)
        file.chmod(0o644)
        kept["sha256"] = hashlib.sha256(content).hexdigest()
    kept["depends"] = list(depends)
    manifest["modules"] = [kept]
    path.write_text(json.dumps(manifest))
    run(["depmod", "-b", folder, manifest["pin"]["kernel"]["release"]])
    return folder


def other_symbol(content: bytes) -> bytes:
    """A module that needs a symbol that no kernel has."""
    assert content.count(_SYMBOL) > 1
    return content.replace(_SYMBOL, b"_nobody")


def other_configuration(content: bytes) -> bytes:
    """A module of a kernel that was configured otherwise, as its vermagic says."""
    assert content.count(b" mod_unload ") == 1
    return content.replace(b" mod_unload ", b" mod_unl_ad ")


def other_version(content: bytes) -> bytes:
    """A module that was built with another version of a symbol."""
    at = content.index(_SYMBOL.ljust(_NAMES, b"\0")) - 8
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
