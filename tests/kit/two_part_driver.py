"""A made-up driver whose halves have to be of one version: a module with a device, and a library.

Its program reads the module's version from `/dev/duo`, the library's from the library, and fails
where they differ, as a GPU's user space does. The library lies in a folder that no loader knows.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kit.fileserver import served
from kit.upstream import releases_of, write_recipe, write_tarball

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "DUO",
    "DUO_BROKEN",
    "DUO_FLAG",
    "DUO_LIBRARY",
    "DUO_VERSIONS",
    "duo_catalogue",
    "repair_duo",
]

DUO = "duo"
DUO_FLAG = "OCI_DUO"
DUO_LIBRARY = "/opt/duo/lib/libduo.so.1"
DUO_VERSIONS = ("1.0", "2.0")
# Builds with three arguments to a function that has four in the newest kernel of Debian 12 (what
# NVIDIA's driver trips over too: driver_images/nvidia/patches), or in a kernel that is named.
DUO_BROKEN = "3.0"

_MODULE = """\
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include "call.h"

static ssize_t duo_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
    static const char version[] = "@version@\\n";
    return simple_read_from_buffer(to, size, at, version, sizeof version - 1);
}

static const struct file_operations operations = { .owner = THIS_MODULE, .read = duo_read };
static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR, .name = "duo", .fops = &operations, .mode = 0444,
};

module_misc_device(device);
MODULE_LICENSE("GPL");
MODULE_VERSION("@version@");
"""
_CALL = """#include <linux/pci.h>
int duo_resize(struct pci_dev *device);
int duo_resize(struct pci_dev *device) { return pci_resize_resource(device, 0, 0); }
"""
# The same for other distros: what changes with a kernel there changes with its number.
_CALL_SINCE = """#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(@since@)
static inline int duo_bars(int first, int last, int without) { return last - first - without; }
#else
static inline int duo_bars(int first, int last) { return last - first; }
#endif
int duo_resize(void);
int duo_resize(void) { return duo_bars(0, 1); }
"""
_PATCHES = f"""
[[patches]]
file = "fewer-calls.patch"
versions = "=={DUO_BROKEN}"
reason = "pci_resize_resource() has four arguments in newer kernels."
"""
_LIBRARY = 'const char *duo_version(void) { return "@version@"; }\n'
_PROGRAM = """\
#include <stdio.h>
#include <string.h>

const char *duo_version(void);

int main(void)
{
    char module[16] = "";
    FILE *device = fopen("/dev/duo", "r");
    if (!device || !fgets(module, sizeof module, device)) {
        perror("/dev/duo");
        return 1;
    }
    module[strcspn(module, "\\n")] = 0;
    printf("module %s library %s\\n", module, duo_version());
    return strcmp(module, duo_version()) != 0;
}
"""
_MAKEFILE = """\
obj-m := duo.o
all:
\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules
\tgcc -shared -fPIC -Wl,-soname,libduo.so.1 -o libduo.so.@version@ libduo.c
\tln -s libduo.so.@version@ libduo.so
\tgcc -o duo-version duo-version.c -L. -lduo
"""
_SOURCE = {
    "duo.c": _MODULE,
    "libduo.c": _LIBRARY,
    "duo-version.c": _PROGRAM,
    "Makefile": _MAKEFILE,
}
_BUILD = """\
packages = ["gcc", "libc6-dev"]
command = ["make", "KDIR={kernel_build}"]
modules = ["duo.ko"]

[container]
activation_flag = "OCI_DUO"
driver_feature = ["duo"]
[container.features.duo]
devices = ["duo"]

[[files]]
kind = "library"
from = "libduo.so.{version}"
to = "/opt/duo/lib/libduo.so.{version}"
features = ["duo"]

[[files]]
kind = "binary"
from = "duo-version"
to = "/usr/bin/duo-version"
features = ["duo"]
"""


@contextmanager
def duo_catalogue(
    folder: Path, *, host: str = "127.0.0.1", since: str | None = None
) -> Iterator[Path]:
    """A catalogue below `folder` with every version of the driver, served meanwhile.

    Args:
        folder: For its files.
        host: This machine's loopback address, as the one that downloads has to name it.
        since: The first kernel that DUO_BROKEN doesn't build for, such as `6.12.117`; None: the
            newest of Debian 12.
    """
    versions = (*DUO_VERSIONS, DUO_BROKEN)
    tarballs = {version: _tarball(folder / "files", version, since) for version in versions}
    with served(folder / "files") as url:
        releases = releases_of(tarballs, url.replace("127.0.0.1", host))
        write_recipe(folder / "drivers", DUO, releases, _BUILD)
        yield folder / "drivers"


def repair_duo(catalogue: Path, *, since: str | None = None) -> None:
    """Add the patch with which DUO_BROKEN builds on every kernel; `since` as for the catalogue."""
    folder = catalogue / DUO
    (folder / "patches").mkdir()
    first, *others = _call(since).splitlines()
    removed = "".join(f"-{line}\n" for line in others)
    hunk = f"@@ -1,{1 + len(others)} +1,1 @@\n {first}\n{removed}"
    (folder / "patches/fewer-calls.patch").write_text(f"--- a/call.h\n+++ b/call.h\n{hunk}")
    with (folder / "driver.toml").open("a") as recipe:
        recipe.write(_PATCHES)


def _call(since: str | None) -> str:
    return _CALL_SINCE.replace("@since@", since.replace(".", ", ")) if since else _CALL


def _tarball(folder: Path, version: str, since: str | None) -> Path:
    call = _call(since) if version == DUO_BROKEN else "/* nothing */\n"
    files = {**_SOURCE, "call.h": call}
    texts = {name: text.replace("@version@", version) for name, text in files.items()}
    return write_tarball(folder, f"duo-{version}", texts)
