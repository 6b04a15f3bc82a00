"""A build inside of an air gap: from a bundle's Pin, packages and base image, without a network."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need, need_programs
from kit.process import run
from kit.product import Provision
from kit.registry import serving_registry

if TYPE_CHECKING:
    from pathlib import Path

    from kit.engine import Engine

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)


def test_what_a_bundle_brings_is_built_without_a_network(engine: Engine, tmp_path: Path) -> None:
    need_programs("docker-registry")
    need(os.geteuid() == 0, "root", "a network namespace of its own")
    outer = Provision(engine.host)
    outer("registry", "key", "--output", tmp_path / "fleet", "--no-password")
    (tmp_path / "registry").mkdir()
    bundle = tmp_path / "bundle"
    signed = ("--key", tmp_path / "fleet.key")
    with serving_registry(tmp_path / "registry") as registry:
        address = f"{registry}/drivers"
        name = f"{address}/{SMALL_DRIVER}:built"
        built = outer.build(*_TARGET, "--push", name, "--sign", *signed)
        what = ("--from", address, "--driver", SMALL_DRIVER, "--public-key", tmp_path / "fleet.pub")
        created = outer.json("bundle", "create", *what, *signed, "--output", bundle)
    assert len(created["bases"]) == 1
    (pin,) = (bundle / "pins").iterdir()
    inner = Provision(engine.host, {"XDG_CACHE_HOME": str(tmp_path / "inner")})
    (tmp_path / "host").mkdir()
    words = ("bundle", "load", bundle, "--store", "--base-images", "--root", tmp_path / "host")
    loaded = inner.json(*words, "--public-key", tmp_path / "fleet.pub")
    assert loaded["packages"] > 0
    assert loaded["closures"] > 0
    again = ("build", "--pin", str(pin), "--rebuild", "--network", "none", "--json")
    isolated = ("unshare", "--net", inner.program, *again)
    document = json.loads(run(isolated, env=inner.variables()).stdout)
    assert (document["built"], document["digest"]) == (True, built["digest"])
