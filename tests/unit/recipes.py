"""A driver.toml that no driver has, for tests to change."""

import json
import tomllib

from provision.catalogue import Recipe, RecipeSource, Variant
from provision.documents import parse_json

RECIPE = """\
schema = 1
name = "made-up"
summary = "A driver for tests"
vendor = "No one"
homepage = "https://driver.example"

[[hardware.pci]]
vendor = "1234"
classes = ["0300"]

[source]
kind = "deb"
components = ["contrib", "non-free"]
userspace = ["tool-user"]
companions = ["tool-companion"]

[[kernels]]
versions = "==1.*"
works = ">=6.1,<6.2"

[[kernels]]
versions = ">=2"
works = ">=6.1,<6.13"

[flavours.plain]
default = true
licences = ["MIT"]
package = "tool-source"
[flavours.plain.build]
command = ["make", "-j{jobs}", "KDIR={kernel_build}"]
modules = ["tool.ko"]

[flavours.other]
licences = ["GPL-2.0-only"]
package = "tool-other-source"
[flavours.other.build]
command = ["make", "other"]
modules = ["other.ko"]

[container]
activation_flag = "OCI_MADE_UP"
driver_feature = ["compute"]
[container.features.compute]
devices = ["tool[0-9]*"]

[[files]]
kind = "library"
from = "usr/lib/{multiarch}/libtool.so.{version}"
to = "/usr/lib64/made-up/"
features = ["compute"]

[[patches]]
file = "fix.patch"
versions = "<2"
flavours = ["plain"]
reason = "a kernel changed"
"""


def recipe(**changes: object) -> Recipe:
    """Return the recipe with some of its top-level tables replaced."""
    return parse_json(json.dumps({**tomllib.loads(RECIPE), **changes}), Recipe, name="recipe")


def variant(of: Recipe, flavour: str | None = None) -> Variant[RecipeSource]:
    """Return a flavour from the first source that has it."""
    return next(of.variants(None, flavour or of.default_flavour))


def archive_source(*versions: str, kind: str = "archive") -> str:
    """The source of a recipe that lists these versions."""
    return f'[source]\nkind = "{kind}"\n' + "".join(
        f'[[source.releases]]\nversion = "{version}"\nsha256 = "{"0" * 64}"\n'
        f'url = "https://driver.example/{version}.tar"\n'
        for version in versions
    )


def runfile_source(*versions: str) -> str:
    """One that lists these and takes any version besides."""
    listed = ", ".join(f'{{ version = "{version}" }}' for version in versions)
    return (
        '[source]\nkind = "runfile"\nurl = "https://vendor.example/{version}.run"\n'
        f'checksums = "https://vendor.example/{{version}}.run.sha256sum"\nreleases = [{listed}]\n'
    )
