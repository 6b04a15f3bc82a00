"""The bill of materials of a release, as CycloneDX: every crate and Python package inside of it.

The model, the text and the check against the schema are the CycloneDX project's own library.
Source: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from provision.errors import ProvisionError
from provision.run import run
from shipping.bundled import project
from shipping.source import Source
from shipping.tree import text

_LICENSES = LicenseFactory()


def write(source: Source, wheels: Collection[Path], target: Path) -> Path:
    """Write the document; its path.

    Args:
        source: The checkout.
        wheels: The Python packages that packages of the release bring.
        target: The file.

    Raises:
        ProvisionError: cargo does not know the crates, or the document is no CycloneDX.
    """
    root = Component(
        name="provision and oci-decorator",
        version=source.version,
        type=ComponentType.APPLICATION,
        licenses=[_LICENSES.make_from_string("Apache-2.0")],
        bom_ref="release",
    )
    parts = [*_python(wheels), *_crates(source)]
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"provision-{source.version}-{source.epoch}"),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(source.epoch, UTC),
            component=root,
        ),
        components=parts,
    )
    bom.register_dependency(root, parts)
    document = JsonV1Dot6(bom).output_as_string(indent=2)
    mistakes = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document)
    if mistakes is not None:
        raise ProvisionError(f"The bill of materials is no CycloneDX: {mistakes}.")
    target.write_bytes(text(f"{document}\n").content)
    return target


def _python(wheels: Collection[Path]) -> Iterator[Component]:
    """Yield what wheels are, once for each project."""
    for wheel in {project(path): path for path in sorted(wheels)}.values():
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            fields = HeaderParser().parsestr(archive.read(name).decode())
        called, version = str(fields["Name"]), str(fields["Version"])
        licence = fields["License-Expression"] or _classified(fields.get_all("Classifier", []))
        url = PackageURL("pypi", name=project(wheel), version=version)
        yield _component(called, version, url, licence or fields["License"], None)


def _crates(source: Source) -> Iterator[Component]:
    """Yield the crates that are linked into the program."""
    words: list[str | Path] = [source.root / "hooks/build.sh", "cargo", "metadata"]
    words += ["--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-musl"]
    answer: dict[str, Any] = json.loads(run(words, why="list the crates", timeout=600.0).stdout)
    packages = {one["id"]: one for one in answer["packages"]}
    below = {
        node["id"]: [
            one["pkg"]
            for one in node["deps"]
            if any(kind["kind"] is None for kind in one["dep_kinds"])
        ]
        for node in answer["resolve"]["nodes"]
    }
    root = answer["resolve"]["root"]
    reached, todo = {root}, [root]
    while todo:
        new = set(below[todo.pop()]) - reached
        reached |= new
        todo += sorted(new)
    sums = _checksums(source)
    for one in sorted(
        (packages[name] for name in reached - {root}), key=lambda one: str(one["id"])
    ):
        name, version = str(one["name"]), str(one["version"])
        url = PackageURL("cargo", name=name, version=version)
        licence = str(one["license"] or "").replace("/", " OR ") or None
        yield _component(name, version, url, licence, sums.get((name, version)))


def _checksums(source: Source) -> dict[tuple[str, str], str]:
    lock = tomllib.loads((source.root / "hooks/Cargo.lock").read_text())
    return {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}


def _component(
    name: str, version: str, url: PackageURL, licence: str | None, sha256: str | None
) -> Component:
    short = licence.splitlines()[0] if licence else None
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=[_LICENSES.make_from_string(short)] if short else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
    )


def _classified(classifiers: Collection[str]) -> str | None:
    """Return the licence that PyPI's classifiers name."""
    named = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    return named[0] if named else None
