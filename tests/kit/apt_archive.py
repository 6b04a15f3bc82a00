"""Archives for apt, written by Debian's apt-ftparchive and signed by gpg.

Their packages are files, or the text of an index that a real archive has published.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from kit.files import write
from kit.openpgp import Key, key_of
from kit.probe import need_programs
from kit.process import run


@dataclass
class AptArchive:
    """An archive's folder, to be served over HTTP."""

    folder: Path
    # Signs its suites.
    key: Key = field(default_factory=key_of)
    # Fields of its Release files, besides those that it works out.
    fields: dict[str, str] = field(default_factory=lambda: {"Origin": "Debian"})
    _signed: int = field(default=0, init=False)

    def publish(self, suite: str, components: Mapping[str, str | Iterable[Path]]) -> None:
        """Write a suite; each of its components has packages, or the text of a Packages file."""
        need_programs("apt-ftparchive", "dpkg-deb")
        root = self.folder / "dists" / suite
        texts = {
            f"{component}/binary-amd64/Packages": (
                content if isinstance(content, str) else self._packages(component, content)
            )
            for component, content in components.items()
        }
        for name, text in texts.items():
            path = write(root / name, text)
            path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(text.encode()))
        fields = {
            "Suite": suite,
            "Date": format_datetime(datetime.now(UTC), usegmt=True).replace("GMT", "UTC"),
            "Architectures": "amd64",
            "Components": " ".join(components),
            **self.fields,
        }
        options = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in fields.items()]
        for old in ("InRelease", "Release"):
            (root / old).unlink(missing_ok=True)
        # It would list itself.
        said = run(["apt-ftparchive", *options, "release", root]).stdout
        (root / "Release").write_text(said)
        if self.fields.get("Acquire-By-Hash") == "yes":
            self._name_by_hash(root, texts)
        # As archives do: the sum of the unpacked file is listed, the file isn't there.
        for name in texts:
            (root / name).unlink()
        self.sign(suite)

    def sign(self, suite: str) -> None:
        root = self.folder / "dists" / suite
        signed = root / "InRelease"
        signed.write_text(self.key.sign((root / "Release").read_text()))
        # HTTP dates count whole seconds; two versions must differ for a conditional request.
        self._signed += 1
        os.utime(signed, times=(self._signed, self._signed))

    def _packages(self, component: str, packages: Iterable[Path]) -> str:
        """Put packages into the pool; what apt-ftparchive says of them."""
        with tempfile.TemporaryDirectory(prefix="provision-pool-") as name:
            only = Path(name, "pool")
            only.mkdir()
            for package in packages:
                form = "--showformat=${source:Package} ${Package} ${Version} ${Architecture}"
                source, *own = run(["dpkg-deb", form, "--show", package]).stdout.split()
                own[1] = own[1].rpartition(":")[2]
                start = source[:4] if source.startswith("lib") else source[0]
                place = f"{component}/{start}/{source}/{'_'.join(own)}.deb"
                for pool in (only, self.folder / "pool"):
                    (pool / place).parent.mkdir(parents=True, exist_ok=True)
                    if not (pool / place).exists():
                        (pool / place).symlink_to(package)
            words = ["apt-ftparchive", "--arch", "amd64", "packages", "pool"]
            return run(words, cwd=Path(name)).stdout

    @staticmethod
    def _name_by_hash(root: Path, names: Iterable[str]) -> None:
        for path in [root / name for name in names]:
            for file in (path, path.with_name(f"{path.name}.xz")):
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                hashed = file.parent / "by-hash/SHA256" / digest
                hashed.parent.mkdir(parents=True, exist_ok=True)
                hashed.unlink(missing_ok=True)
                hashed.hardlink_to(file)
