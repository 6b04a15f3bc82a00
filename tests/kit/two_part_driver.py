"""A made-up driver whose halves have to be of one version: a module with a device, and a library.

Its program reads the module's version from `/dev/duo`, the library's from the library, and fails
where they differ, as a GPU's user space does. The library lies in a folder that no loader knows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from kit.upstream import published

DUO = "duo"
DUO_FLAG = "OCI_DUO"
DUO_LIBRARY = "/opt/duo/lib/libduo.so.1"
DUO_VERSIONS = ("1.0", "2.0")
# Builds with three arguments to a function that has four in the newest kernel of Debian 12 (what
# NVIDIA's driver trips over too: driver_images/nvidia/patches), or in a kernel that is named.
DUO_BROKEN = "3.0"
# Builds for every kernel, and one does not take it: where that kernel is named, there is this too.
DUO_REFUSED = "4.0"

# A `[check]` for its recipe, and the file of a host that names the version that fails it there, and
# how: a command of the shell in place of `exit 1`.
DUO_CHECK = """
[check]
command = ["duo-check"]
"""
DUO_FAILS_HERE = "/srv/duo-fails"

_MODULE = """\
#include <generated/utsrelease.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include "call.h"
#ifndef DUO_REFUSED_BY
#define DUO_REFUSED_BY ""
#endif

static ssize_t duo_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
    static const char version[] = "@version@\\n";
    return simple_read_from_buffer(to, size, at, version, sizeof version - 1);
}

static const struct file_operations operations = { .owner = THIS_MODULE, .read = duo_read };
static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR, .name = "duo", .fops = &operations, .mode = 0444,
};

static int __init duo_init(void)
{
    if (strcmp(UTS_RELEASE, DUO_REFUSED_BY))
        return misc_register(&device);
    pr_err("duo: this kernel lacks what the device needs\\n");
    return -EOPNOTSUPP;
}

static void __exit duo_exit(void)
{
    misc_deregister(&device);
}

module_init(duo_init);
module_exit(duo_exit);
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
_REFUSED = """/* What it is refused by. */
#define DUO_REFUSED_BY "@kernel@"
"""
_PATCHES = """
[[patches]]
file = "other-call.patch"
versions = "=={version}"
reason = "Newer kernels want something else."
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
_CHECK = f"""\
#!/bin/sh
[ -e {DUO_FAILS_HERE} ] || exit 0
read -r version how <{DUO_FAILS_HERE}
[ "$version" = @version@ ] || exit 0
echo 'duo: the card does not answer'
eval "${{how:-exit 1}}"
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
    "duo-check": _CHECK,
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

[[files]]
kind = "binary"
from = "duo-check"
to = "/usr/bin/duo-check"
"""


def duo_catalogue(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    since: str | None = None,
    refused_by: str | None = None,
) -> AbstractContextManager[Path]:
    """A catalogue below `folder` with every version of the driver, served meanwhile.

    Args:
        since: The first kernel that DUO_BROKEN doesn't build for, such as `6.12.117`; None: the
            newest of Debian 12.
        refused_by: The release of the kernel that doesn't take DUO_REFUSED; None: there is none.
    """
    calls = {
        **dict.fromkeys(DUO_VERSIONS, "/* nothing */\n"),
        DUO_BROKEN: _call(since, None),
        **({DUO_REFUSED: _call(since, refused_by)} if refused_by else {}),
    }
    versions = {
        version: {
            name: text.replace("@version@", version)
            for name, text in {**_SOURCE, "call.h": call}.items()
        }
        for version, call in calls.items()
    }
    return published(folder, DUO, versions, _BUILD, host)


def repair_duo(catalogue: Path, *, since: str | None = None, refused_by: str | None = None) -> None:
    """Add the patch with which DUO_BROKEN builds for every kernel, as it is for the catalogue.

    With `refused_by`, that with which every kernel takes DUO_REFUSED.
    """
    folder = catalogue / DUO
    (folder / "patches").mkdir()
    first, *others = _call(since, refused_by).splitlines()
    removed = "".join(f"-{line}\n" for line in others)
    hunk = f"@@ -1,{1 + len(others)} +1,1 @@\n {first}\n{removed}"
    (folder / "patches/other-call.patch").write_text(f"--- a/call.h\n+++ b/call.h\n{hunk}")
    with (folder / "driver.toml").open("a") as recipe:
        recipe.write(_PATCHES.format(version=DUO_REFUSED if refused_by else DUO_BROKEN))


def _call(since: str | None, refused_by: str | None) -> str:
    if refused_by:
        return _REFUSED.replace("@kernel@", refused_by)
    return _CALL_SINCE.replace("@since@", since.replace(".", ", ")) if since else _CALL
