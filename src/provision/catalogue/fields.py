"""The kinds of text in a recipe, and the placeholders that they may hold."""

from __future__ import annotations

import re
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from packaging.version import Version as PepVersion
from pydantic import AfterValidator, StringConstraints

from provision.manifest import RelativePath
from provision.pin import is_address

# What a recipe's texts may refer to; resolve and render fill them in.
PLACEHOLDERS = frozenset(
    {
        "arch",
        "jobs",
        "kernel",
        "kernel_build",
        "kernel_source",
        "machine",
        "multiarch",
        "source",
        "version",
    }
)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# Those that provision.build.quoting refuses.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def _specifiers(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"'{text}' is no version specifier such as '>=5.4,<6.13'") from error
    return text


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("holds a control character, which can't go into a Dockerfile")
    return text


def _text(text: str) -> str:
    # Line ends may be there: it is put on one line where it is used.
    _one_line(" ".join(text.split()))
    return text


def _placeholders(text: str, *, known: frozenset[str] = PLACEHOLDERS) -> str:
    unknown = sorted(set(_PLACEHOLDER.findall(text)) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise ValueError(f"unknown placeholder '{{{unknown[0]}}}'; there are {names}")
    return text


def _fixed_placeholders(text: str) -> str:
    # The number of jobs differs from build to build: nothing that is shipped may depend on it. The
    # source's folder is an absolute path of the build, and these are relative ones.
    return _placeholders(text, known=PLACEHOLDERS - {"jobs", "source"})


Specifiers = Annotated[str, AfterValidator(_specifiers)]
Argument = Annotated[str, AfterValidator(_placeholders), AfterValidator(_one_line)]
Template = Annotated[str, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]
SourcePath = Annotated[RelativePath, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]
Licence = Annotated[str, AfterValidator(_text)]
PciId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}$")]
# An id of os-release, "id:version", or a family of distros; may be a glob.
DistroPattern = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9*?\[][a-z0-9._:*?\[\]-]*$", max_length=64)
]


def _url_template(text: str) -> str:
    filled = _placeholders(text, known=frozenset({"arch", "version"}))
    if not is_address(filled.replace("{version}", "1").replace("{arch}", "1")):
        raise ValueError(
            "this is no address such as https://example.org/{version}/driver-{arch}.run"
        )
    return text


# An address; {version} and {arch} (as uname -m prints it) are filled in.
UrlTemplate = Annotated[str, AfterValidator(_url_template)]


def version_matches(version: str, specifiers: str) -> bool:
    """Return whether a version satisfies specifiers; a version that has no PEP 440 form does not.

    Source: https://packaging.python.org/en/latest/specifications/version-specifiers/
    """
    if not specifiers:
        return True
    try:
        return SpecifierSet(specifiers).contains(PepVersion(version), prereleases=True)
    except InvalidVersion:
        return False
