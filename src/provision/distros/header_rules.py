"""Which rule of a distro is about a kernel, and which package holds the kernel's compiler."""

from __future__ import annotations

import re

from provision.distros.distro import Distro, HeaderRule
from provision.distros.family import HeaderQuery, Spec
from provision.errors import NotFoundError, ProvisionError

# Such as "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", "x86_64-linux-gnu-gcc-12 (Ubuntu) 12.3",
# and "clang version 17.0.6" and "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0".
_GCC = re.compile(r"^\S*gcc\S* \([^()]*(?:\([^()]*\)[^()]*)*\) (?P<major>[0-9]+)\.[0-9]")
_CLANG = re.compile(r"^(?:[\w.-]+ ){0,3}clang version (?P<major>[0-9]+)\.[0-9]")
# Where the kernel's own name of an architecture, in SUSE's paths, is not that of ``uname -m``.
_KERNEL_NAMES = {"aarch64": "arm64"}


def find_headers(distro: Distro, kernel: str, architecture: str) -> HeaderQuery:
    """Return where a kernel's headers are, by the first of the distro's rules that matches.

    Raises:
        NotFoundError: None does, or the flavour can't be built for.
    """
    for rule in distro.headers:
        match = re.fullmatch(rule.kernels, kernel)
        if match:
            values = {
                **{name: text or "" for name, text in match.groupdict().items()},
                "kernel": kernel,
                "arch": architecture,
                "cpu": _KERNEL_NAMES.get(architecture, architecture),
            }
            return _query(distro, rule, kernel, values)
    known = ", ".join(rule.flavour for rule in distro.headers if rule.refusal is None)
    raise NotFoundError(
        f"'{kernel}' is no kernel of {distro.name}.",
        resolution=f"Name one of its own kernels with --kernel (flavours: {known}), or the distro"
        " that this kernel comes from with --distro.",
    )


def _query(distro: Distro, rule: HeaderRule, kernel: str, values: dict[str, str]) -> HeaderQuery:
    if rule.refusal is not None or rule.build is None:
        raise NotFoundError(
            f"Modules can't be built for the kernel {kernel} of {distro.name}: it is of the flavour"
            f" '{rule.flavour}'.",
            resolution=rule.refusal,
        )
    build = fill(rule.build, values)
    return HeaderQuery(
        flavour=rule.flavour,
        specs=tuple(Spec(fill(spec, values)) for spec in rule.specs),
        build=build,
        source=fill(rule.source, values) if rule.source else build,
        config=f"{build}/.config",
        repository=rule.repository and fill(rule.repository, values),
    )


def find_compilers(distro: Distro, cc_version_text: str) -> tuple[Spec, ...]:
    """Return the packages that may hold a compiler, the preferred one first.

    Raises:
        ProvisionError: The text names no compiler that is known, or the distro has none.
    """
    gcc = _GCC.match(cc_version_text)
    clang = _CLANG.match(cc_version_text)
    match = gcc or clang
    if match is None:
        raise ProvisionError(
            f"The kernel was built with '{cc_version_text}', which is no compiler that is known.",
            resolution="Give a kernel that was built with gcc or clang (--kernel).",
        )
    command = "gcc" if gcc else "clang"
    major = match["major"]
    values = {"major": major}
    found = tuple(
        Spec(fill(rule.package, values), int(major), rule.path and fill(rule.path, values))
        for rule in distro.compilers
        if rule.command == command
    )
    if not found:
        raise NotFoundError(
            f"The kernel was built with {command} {major}, and {distro.name} is not known to"
            " package that compiler.",
            resolution="Give another kernel (--kernel).",
        )
    return found


def cc_version_text(config: str) -> str | None:
    """Return the value of ``CONFIG_CC_VERSION_TEXT`` in a kernel's configuration, if it is there.

    Kernels before 4.18 have none.
    """
    match = re.search(r'^CONFIG_CC_VERSION_TEXT="(.*)"$', config, re.MULTILINE)
    return match[1] if match else None


def fill(text: str, values: dict[str, str]) -> str:
    """Put values in place of ``{name}``; other braces stay as they are."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
