"""A made-up driver with several versions, built in seconds from a source on a server of our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.git_server import Commit
from kit.upstream import releases_of, write_recipe, write_tarball

MADE_UP = "hello"
# For tests that take only one version.
MADE_UP_VERSION = "1.2"
# What the compiler says no to in a version that is made to be broken.
BROKEN_LINE = "static int hello_broken(void) { return no_such_thing; }"

_SOURCE = """\
#include <linux/module.h>
{extra}
static int __init hello_init(void) {{ return 0; }}
static void __exit hello_exit(void) {{ }}
module_init(hello_init);
module_exit(hello_exit);
// Latin-1, as vendors' old sources have it.
MODULE_AUTHOR("J\\366rg");
MODULE_LICENSE("GPL");
MODULE_VERSION("{version}");
"""
_MAKEFILE = "obj-m := hello.o\nall:\n\tsleep {seconds}\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n"
_BUILD = """\
command = ["make", "-j{jobs}", "KDIR={kernel_build}"]
modules = ["hello.ko"]

[container]
activation_flag = "OCI_HELLO"
driver_feature = ["tool"]
[container.features.tool]

[[files]]
kind = "binary"
from = "hello-tool"
to = "/usr/bin/hello-tool"
features = ["tool"]
"""
_FEATURE = "[container.features.tool]\n"
_NODE = """\

[[host.nodes]]
name = "hello0"
major = "hello"
minor = 0
mode = "0666"
"""
_COMMIT = """\
[[source.releases]]
version = "{version}"
url = "{url}/{of.repository}"
commit = "{of.commit}"
sha256 = "{of.sha256}"
"""
_SUBMODULE = """\
[[source.releases.submodules]]
path = "{of.folder}"
url = "{url}/{of.repository}"
commit = "{of.commit}"
sha256 = "{of.sha256}"
"""


def made_up_files(version: str, *, extra: str = "", seconds: int = 0) -> dict[str, str]:
    """Return the texts of a version's source, by name."""
    return {
        "hello.c": _SOURCE.format(extra=extra, version=version),
        "Makefile": _MAKEFILE.format(seconds=seconds),
        "hello-tool": f"#!/bin/sh\necho hello {version}\n",
    }


def made_up_source(folder: Path, version: str, *, extra: str = "", seconds: int = 0) -> Path:
    """Write the tarball of a version.

    `extra` is a line of C in its module; `seconds` is what its build waits before it begins.
    """
    files = made_up_files(version, extra=extra, seconds=seconds)
    return write_tarball(folder, f"hello-{version}", files)


def write_made_up_in_git(
    catalogue: Path, version: str, url: str, *commits: Commit, ref: str | None = None
) -> Path:
    """Write the driver's folder into a catalogue: one commit served at `url`, and submodules.

    With `ref`, the recipe names that tag or branch in place of the commit.
    """
    own, *others = commits
    lines = [_COMMIT.format(version=version, url=url, of=own)]
    if ref is not None:
        kept = [line for line in lines[0].splitlines() if not line.startswith(("commit", "sha256"))]
        lines = ["\n".join([*kept, f'ref = "{ref}"', ""])]
    lines += [_SUBMODULE.format(url=url, of=one) for one in others]
    return write_recipe(catalogue, MADE_UP, "\n".join(lines), _BUILD, kind="git")


def write_made_up(
    catalogue: Path,
    sources: Mapping[str, Path],
    url: str,
    *,
    has_nodes: bool = False,
) -> Path:
    """Write the driver's folder into a catalogue: a release a version, served at `url`.

    With `has_nodes` its loader makes `/dev/hello0`, which its containers get.
    """
    text = _BUILD
    if has_nodes:
        text = text.replace(_FEATURE, f'{_FEATURE}devices = ["hello*"]\n') + _NODE
    return write_recipe(catalogue, MADE_UP, releases_of(sources, url), text)
