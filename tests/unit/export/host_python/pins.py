"""A pin like the ones that are made."""

from __future__ import annotations

from pathlib import Path

from provision.export.host_python.python_context import DEFAULT_PREFIX, PythonPin, SourceFilePin
from provision.pin import BasePin, DistroPin, PackagePin

TEMPLATES = Path(__file__).parents[3] / "templates"


def python_pin(*, prefix: str = DEFAULT_PREFIX) -> PythonPin:
    """Return the pin of Debian 12's Python."""
    return PythonPin(
        version="3.11.2",
        package="3.11.2-6+deb12u9",
        prefix=prefix,
        architecture="x86_64",
        distro=DistroPin(id="debian", version="12", codename="bookworm"),
        base=BasePin(image="debian:bookworm", digest="sha256:" + "b" * 64),
        original=SourceFilePin(name="python3.11_3.11.2.orig.tar.gz", sha256="1" * 64),
        patches=SourceFilePin(name="python3.11_3.11.2-6+deb12u9.debian.tar.xz", sha256="2" * 64),
        packages=(
            PackagePin(name="gcc", version="4:12.2.0-3"),
            PackagePin(name="libssl-dev", version="3.0.17-1~deb12u3"),
        ),
        template="3" * 64,
    )
