"""A closure without a solver, made up; apt, dnf and zypper solve in the engine tests."""

from __future__ import annotations

from provision.build.package_store import Closure
from provision.build.solve import SolveRequest
from provision.pin import ClosurePackage, PackagePin

_GCC = "c" * 64


def closure(request: SolveRequest) -> Closure:
    """What a solver finds for a request: one package, GCC."""
    gcc = PackagePin(name="gcc-12", version="12.2.0-14+deb12u1")
    headers = PackagePin(name=f"linux-headers-{request.kernel}", version="6.1.170-3")
    return Closure(
        distro=request.distro.pin(request.release),
        kernel=request.kernel,
        architecture=request.architecture,
        cc_version_text="gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0",
        compiler=gcc,
        headers=() if request.toolchain else (headers,),
        tools=tuple(PackagePin(name=name, version="1") for name in request.tools),
        packages=(
            ClosurePackage(
                name=gcc.name,
                version=gcc.version,
                arch="amd64",
                sha256=_GCC,
                size=1,
                repository="main",
                location="pool/main/g/gcc-12/gcc-12_12.2.0-14+deb12u1_amd64.deb",
            ),
        ),
        urls={_GCC: ("http://mirror.example/debian/gcc-12.deb",)},
    )
