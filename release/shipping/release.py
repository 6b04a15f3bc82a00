"""The steps of a release."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.errors import NotFoundError
from provision.run import LONG_LIMIT_S, run
from shipping import bundled, contents, deb, image, rpm, sbom
from shipping.source import Source
from shipping.tree import read_tar, write_tar

# What Debian 12 has too old or not at all; everything else is Debian's, with its security updates.
# Decision 32.
DEBIAN_LACKS = (
    *("annotated-types", "docker", "pydantic", "pydantic-core"),
    *("typing-extensions", "typing-inspection"),
)
_DEBIAN_HAS = {
    "click": "8.1",
    "cryptography": "38.0",
    "distro": "1.8",
    "jinja2": "3.1",
    "packaging": "23.0",
    "requests": "2.28",
    "rich": "13.0",
}
# Of the extension modules that are bundled: manylinux_2_28 at most.
_LIBRARIES = ("libc6 (>= 2.28)", "libgcc-s1")
_PROVISION = """\
Builds the kernel modules of an accelerator driver in a container, pinned to
kernel and driver version, installs them with the driver's user space, and has
them ready for a new kernel before the host reboots into it. No compiler and no
headers are needed on the host itself.

Units for systemd load drivers at boot without a network. What a host should
have is said in /etc/provision/provision.toml; without that file they do
nothing."""
_DECORATOR = """\
An OCI runtime, an OCI hook and a generator of CDI specifications in one static
program. Containers that ask for a driver get its device nodes, libraries and
programs; all others start untouched. Engines are set up by the command
oci-decorator configure."""
# What packages are made for, as ``uname -m`` prints it.
MACHINES = ("x86_64", "aarch64")
_NAMES = """\
Links by which what is set up for NVIDIA's container toolkit
(nvidia-container-runtime, nvidia-ctk and their like) starts oci-decorator."""


def make(source: Source, folder: Path, *, base: str | None = None) -> Iterator[str]:
    """Make everything in a folder, and say what is made.

    Args:
        source: The checkout.
        folder: The folder, which is empty.
        base: The image that the agent's image for this machine is made on; None: no images.

    Raises:
        NotFoundError: A program is missing, or the hook was not built.
        ProvisionError: A step failed.
    """
    built = [machine for machine in MACHINES if contents.program(source, machine).is_file()]
    if platform.machine() not in built:
        program = contents.program(source, platform.machine())
        raise NotFoundError(f"'{program}' is missing.", resolution="make build")
    yield "wheel and sdist"
    _python(source, folder)
    for machine in built:
        with TemporaryDirectory(prefix="wheels-") as name:
            yield f"Python packages to bundle for {machine}"
            wheels = _wheels(source, Path(name), machine)
            yield f"packages of Debian for {machine}"
            _debs(source, wheels, folder, machine)
            yield f"packages of RPM distros for {machine}"
            _rpms(source, wheels, folder, machine)
            if machine == platform.machine():
                yield "bill of materials"
                sbom.write(source, wheels, folder / "sbom.cdx.json")
    for machine in set(MACHINES) - set(built):
        yield f"packages for {machine}: left out, because the hook was not built for it"
    yield "collection"
    _collection(source, folder)
    if base is not None:
        for machine in built:
            yield from _image(source, folder, base, machine)


def make_debian(source: Source, folder: Path, machine: str | None = None) -> None:
    """Make only the packages of Debian in a folder, with the hook that was built before."""
    machine = machine or platform.machine()
    with TemporaryDirectory(prefix="wheels-") as name:
        _debs(source, _wheels(source, Path(name), machine), folder, machine)


def debian_packages(source: Source, wheels: list[Path], machine: str) -> list[deb.Package]:
    """Return Debian's packages, with their files."""
    provision = contents.provision(source, wheels, contents.DEBIAN, projects=DEBIAN_LACKS)
    python = [f"python3-{name} (>= {version})" for name, version in _DEBIAN_HAS.items()]
    units = {"ENABLED": " ".join(contents.ENABLED), "STARTED": " ".join(contents.STARTED)}
    return [
        deb.Package(
            name="oci-decorator",
            summary="puts accelerator drivers into containers when they start",
            description=_DECORATOR,
            tree=contents.decorator(source, contents.DEBIAN, machine),
            relations={"Suggests": ["docker.io | podman", "provision"]},
            machine=machine,
        ),
        deb.Package(
            name="oci-decorator-nvidia",
            summary="names of NVIDIA's container toolkit for oci-decorator",
            description=_NAMES,
            tree=contents.nvidia_names(),
            relations={
                "Depends": [f"oci-decorator (>= {source.version})"],
                "Conflicts": [
                    "nvidia-container-toolkit",
                    "nvidia-container-toolkit-base",
                    "libnvidia-container-tools",
                ],
            },
            machine=None,
        ),
        deb.Package(
            name="provision",
            summary="builds and keeps accelerator drivers for container hosts",
            description=_PROVISION,
            tree=provision,
            relations={
                "Depends": [
                    "python3 (>= 3.11)",
                    "python3 (<< 3.15)",
                    *python,
                    "kmod",
                    "skopeo",
                    *_LIBRARIES,
                ],
                "Recommends": [
                    "docker.io | docker-ce | podman",
                    "git",
                    "gpgv | sqv",
                    "oci-decorator",
                ],
                "Suggests": ["debootstrap"],
            },
            machine=machine,
            conffiles=[name for name in provision if name.startswith("etc/kernel/")],
            values=units,
        ),
    ]


def _wheels(source: Source, folder: Path, machine: str) -> list[Path]:
    """Get what is bundled; pip is in the constraints for hosts whose environment is made by it."""
    wheels = bundled.wheels(source.root / "constraints.txt", folder, machine)
    return [path for path in wheels if bundled.project(path) != "pip"]


def _debs(source: Source, wheels: list[Path], folder: Path, machine: str) -> None:
    for package in debian_packages(source, wheels, machine):
        deb.build(package, source, folder)


def _python(source: Source, folder: Path) -> None:
    """Make wheel and sdist, from a copy: setuptools writes beside what it reads."""
    with TemporaryDirectory(prefix="source-") as name:
        copy = Path(name)
        parts = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
        data = ("constraints.txt", "src", "docs", "driver_images", "templates")
        for file in source.below(*parts, *data):
            target = copy / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.root / file, target)
            target.chmod(0o755 if (source.root / file).stat().st_mode & 0o100 else 0o644)
        made = copy / "dist"
        run(
            [sys.executable, "-I", "-m", "build", "--no-isolation", f"--outdir={made}", copy],
            why="make wheel and sdist",
            env={"SOURCE_DATE_EPOCH": str(source.epoch)},
            timeout=900.0,
        )
        for path in made.iterdir():
            _take(path, folder, source)


def _collection(source: Source, folder: Path) -> None:
    with TemporaryDirectory(prefix="collection-") as name:
        script = source.root / "ansible/build_collection.py"
        run(
            [sys.executable, script, "--output", name],
            why="pack the collection",
            timeout=LONG_LIMIT_S,
        )
        for path in Path(name).iterdir():
            _take(path, folder, source)


def _image(source: Source, folder: Path, base: str, machine: str) -> Iterator[str]:
    what = f"image of the agent for {machine}"
    program = image.engine()
    if program is None:
        yield f"{what}: left out, because no container engine answers"
        return
    if machine != platform.machine():
        base = image.FOREIGN_BASES[machine]
    yield f"{what}, with {program} on {base}"
    if missing := image.make(source, folder, program, base, machine):
        yield f"{what}: left out, because {missing}"


def _take(path: Path, folder: Path, source: Source) -> None:
    """Put a file into the release; of an archive, only names and content count."""
    if path.name.endswith(".tar.gz"):
        write_tar(read_tar(path), folder / path.name, source.epoch)
    else:
        shutil.copyfile(path, folder / path.name)


def _rpms(source: Source, wheels: list[Path], folder: Path, machine: str) -> None:
    decorator = contents.decorator(source, contents.RPM, machine)
    decorator["etc/oci-decorator/config.toml"] = decorator["usr/share/oci-decorator/config.toml"]
    trees = {
        "provision": contents.provision(source, wheels, contents.RPM, projects=None),
        "oci-decorator": decorator,
        "oci-decorator-nvidia": contents.nvidia_names(),
    }
    rpm.build(rpm.archive(trees, source, folder, machine), source, folder, machine)
