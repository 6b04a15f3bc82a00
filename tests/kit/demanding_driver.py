"""A made-up driver that asks everything of its host that real ones do, and no hardware.

`lab` takes a dynamic major number and leaves its node to others, reads firmware, and wants the
kernel's own `dummy` and `loop` out of its way; `lab_extra` refuses to load, as modules for absent
hardware do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from kit.upstream import published

_LAB = """\
#include <linux/firmware.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/platform_device.h>

static struct platform_device *device;
static int major;
static int depth = 1;
module_param(depth, int, 0444);

static const struct file_operations operations = { .owner = THIS_MODULE };

int lab_depth(void) { return depth; }
EXPORT_SYMBOL_GPL(lab_depth);

static int __init lab_init(void)
{
    const struct firmware *firmware;
    int error;

    device = platform_device_register_simple("lab", -1, NULL, 0);
    if (IS_ERR(device))
        return PTR_ERR(device);
    error = request_firmware_direct(&firmware, "lab/lab.bin", &device->dev);
    if (!error) {
        pr_info("lab: firmware has %zu bytes\\n", firmware->size);
        release_firmware(firmware);
        major = register_chrdev(0, "lab", &operations);
        error = major < 0 ? major : 0;
    }
    if (error)
        platform_device_unregister(device);
    return error;
}

static void __exit lab_exit(void)
{
    unregister_chrdev(major, "lab");
    platform_device_unregister(device);
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
"""
_EXTRA = """\
#include <linux/module.h>

int lab_depth(void);

static int __init lab_extra_init(void) { return lab_depth() > 1 ? 0 : -EINVAL; }
static void __exit lab_extra_exit(void) { }

module_init(lab_extra_init);
module_exit(lab_extra_exit);
MODULE_LICENSE("GPL");
"""
_SOURCE = {
    "lab.c": _LAB,
    "lab_extra.c": _EXTRA,
    "lab.bin": "firmware",
    "Makefile": "obj-m := lab.o lab_extra.o\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n",
}
_BUILD = """\
command = ["make", "-j{jobs}", "KDIR={kernel_build}"]
modules = ["lab_extra.ko", "lab.ko"]

[host]
conflicts = @conflicts@
optional = ["lab_extra"]
[[host.nodes]]
name = "lab0"
major = "lab"
minor = 0
mode = "0666"

[container]
activation_flag = "OCI_LAB"
driver_feature = ["lab"]
[container.features.lab]
devices = ["lab[0-9]*"]

[[files]]
kind = "firmware"
from = "lab.bin"
to = "/lib/firmware/lab/lab.bin"
"""


def lab_catalogue(
    folder: Path, *, host: str = "127.0.0.1", conflicts: Sequence[str] = ("dummy", "loop")
) -> AbstractContextManager[Path]:
    """A catalogue with it below `folder`, for which modules of the kernel's own make way."""
    build = _BUILD.replace("@conflicts@", json.dumps(list(conflicts)))
    return published(folder, "lab", {"1.0": _SOURCE}, build, host)
