"""Configurations for Ignition against those that are kept here, with their texts readable.

After a change that was meant: ``UPDATE_GOLDEN=1 pytest tests/golden``, then read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from provision.ignition.engine_files import Engine, docker_with_runtime, hook_texts
from provision.ignition.machine import Contents, Machine, Variant, butane, configuration, fetched

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent / "ignition"
CASES: Mapping[Variant, tuple[Engine, ...]] = {
    "fcos": ("docker", "podman"),
    "flatcar": ("docker",),
}
_URL = "https://files.example/provision"


def _fetched(name: str) -> Contents:
    return fetched(f"{_URL}/{name}", "0123456789abcdef" * 8)


def rendered(variant: Variant) -> dict[str, str]:
    """The configuration, with the lines of its texts as lists, and the file for Butane."""
    machine = Machine(
        provision_toml="[drivers.nvidia]\n",
        environment="venv-0123456789ab",
        python=_fetched("provision-python.tar.gz"),
        bundle=_fetched("provision.tar"),
        hook=_fetched("oci-decorator"),
        texts=hook_texts(CASES[variant], docker_with_runtime(None, is_default=False)),
    )
    document = json.loads(configuration(machine).render())
    for file in document["storage"]["files"]:
        kind, _, text = file["contents"]["source"].partition("data:,")
        if not kind:
            file["contents"]["source"] = unquote(text).splitlines()
    for unit in document["systemd"]["units"]:
        unit["contents"] = unit["contents"].splitlines()
    return {
        f"{variant}.json": json.dumps(document, indent=1) + "\n",
        f"{variant}.bu": butane(variant, source=f"{_URL}/config.ign", sha512="ab" * 64),
    }


@pytest.mark.parametrize("variant", CASES)
def test_configuration_is_the_one_kept(variant: Variant) -> None:
    for name, text in rendered(variant).items():
        if os.environ.get("UPDATE_GOLDEN"):
            (HERE / name).write_text(text)
        assert text == (HERE / name).read_text()
