"""The keys of provision.toml, their types, and which values are secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

Spec = dict[str, Any]


def _words(*choices: str) -> Spec:
    return {"type": "str", "choices": list(choices)}


_TEXT: Spec = {"type": "str"}
_TEXTS: Spec = {"type": "list", "elements": "str"}
_RULE: Spec = {"keys": _TEXT, "insecure": {"type": "bool"}, "not_before": _TEXT}
SECTIONS: Spec = {
    "policy": {
        "unload": _words("idle", "never"),
        "prebuild": {"type": "bool"},
        "untried": _words("build", "refuse"),
        "trial": {"type": "bool"},
        "hold_kernels": {"type": "bool"},
        "keep": {"type": "int"},
        "update": _words("never", "timer"),
        "build": _words("never", "fallback", "always"),
    },
    "registry": {
        "address": _TEXT,
        "mirrors": _TEXTS,
        "folders": _TEXTS,
        "push": {"type": "bool"},
        "sign_key": _TEXT,
        "sign_password_file": _TEXT,
        "ca": _TEXT,
        "plain_http": {"type": "bool"},
        "auth_file": _TEXT,
    },
    "trust": {
        **_RULE,
        "registries": {"type": "dict"},
        "drivers": {"type": "dict"},
    },
    "signing": {
        "key": _TEXT,
        "certificate": _TEXT,
        "hash": _words("sha256", "sha384", "sha512"),
        "pin_file": _TEXT,
    },
    "metrics": {"textfile": _TEXT},
    "cdi": {"generate": {"type": "bool"}},
    "kubernetes": {"labels": _TEXT, "gates": {"type": "dict"}},
    "engine": {
        "host": _TEXT,
        "network": _TEXT,
        "jobs": {"type": "int"},
        "cpu_shares": {"type": "int"},
    },
    "network": {"proxy": _TEXT, "no_proxy": _TEXTS},
}
CONFIG: Spec = {
    "drivers": {"type": "dict"},
    **{name: {"type": "dict", "options": options} for name, options in SECTIONS.items()},
    "distros": {"type": "dict"},
    "kernel_distro": _TEXT,
    "catalogue": {"type": "list", "elements": "str"},
    "trees": {"type": "list", "elements": "dict"},
}
_DRIVER: Spec = {"version": _TEXT, "flavour": _TEXT, "options": {"type": "dict"}}
DISTRO: Spec = {
    "archive": {
        "type": "dict",
        "options": {
            "mirror": _TEXT,
            "security_mirror": _TEXT,
            "keyring": _TEXT,
            "backports": {"type": "bool"},
            "snapshot": {"type": "bool"},
            "sha256": {"type": "dict"},
        },
    },
    "repositories": {
        "type": "list",
        "elements": "dict",
        "options": {
            "id": {"type": "str", "required": True},
            "urls": {"type": "list", "elements": "str", "required": True},
            "keys": {"type": "list", "elements": "str", "no_log": False},
            "version": _TEXT,
            "signed": {"type": "bool"},
        },
    },
    "base_images": {"type": "dict"},
}
_TREE: Spec = {
    "kernels": {"type": "str", "required": True},
    "kind": _words("source", "prepared", "image"),
    **dict.fromkeys(("url", "sha256", "path", "config", "symvers", "toolchain"), _TEXT),
}


# The path of the file on a host.
PATH = "/etc/provision/provision.toml"
# The password of an address (https://www.rfc-editor.org/rfc/rfc3986#section-3.2.1) or a token in
# its place, a token in its query, and the PIN of a PKCS#11 URI
# (https://www.rfc-editor.org/rfc/rfc7512#section-2.3).
_SECRETS = (
    re.compile(r"://[^\s/:]*:([^\s/]+)@"),
    # Neither '@' nor '/' is encoded; a number before '/' is a port.
    re.compile(r"://(?!\[)[^\s/:]*:(?!\d+/)([^\s\"<>]*/[^\s\"<>]*)@"),
    re.compile(r"https?://([^\s/@:?#]+)@"),
    re.compile(r"(?i)[?&;]pin(?:-|%2d)value(?:=|%3d)([^&\s]+)"),
    re.compile(
        r"[?&#][\w.-]*(?:token|secret|passw|pwd|signature|credential|auth|api_?key)[\w.-]*=([^&\s]+)",
        re.IGNORECASE,
    ),
    re.compile(r"[?&#](?:key|sig|code|jwt)=([^&\s]+)", re.IGNORECASE),
    re.compile(r"https?://[^\s?]+\?([^&=\s]{16,}=*)(?=\s|$)"),
)


def parsed(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration with converted values, and its mistakes with their keys."""
    mistakes: list[str] = []

    def checked(spec: Spec, value: object, place: str) -> dict[str, Any]:
        # Many users write a driver without settings as 'nvidia:'.
        given = {} if value is None else value
        if not isinstance(given, dict):
            mistakes.append(f"{place}: must be a dictionary, not {given!r}")
            return {}
        result = ArgumentSpecValidator(spec).validate(given)
        mistakes.extend(f"{place}: {message}" for message in result.error_messages)
        return {k: v for k, v in result.validated_parameters.items() if v is not None}

    good = checked(CONFIG, config, "config")
    for section in SECTIONS.keys() & good.keys():
        good[section] = {k: v for k, v in good[section].items() if v is not None}
    for section, spec in (("drivers", _DRIVER), ("distros", DISTRO)):
        if section in good:
            entries = good[section].items()
            good[section] = {k: checked(spec, v, f"config.{section}.{k}") for k, v in entries}
    if "trees" in good:
        trees = enumerate(good["trees"])
        good["trees"] = [checked(_TREE, tree, f"config.trees.{at}") for at, tree in trees]
    return good, mistakes


def secrets_in(document: object) -> set[str]:
    """Return the passwords and PINs in the texts of a document, at any depth."""
    return {
        secret
        for text in _texts(document)
        for pattern in _SECRETS
        for secret in pattern.findall(text)
    }


def _texts(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _texts(name)
            yield from _texts(value)
    elif isinstance(document, (list, tuple)):
        for value in document:
            yield from _texts(value)
