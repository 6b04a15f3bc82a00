"""The manifest of an artifact: its actual contents, written by the build itself.

It lies at ``driver/manifest.json`` in a store entry (``/opt/driver/manifest.json`` in the image).
The vendor config and the ld.so.conf.d file are made from it, not from the recipe.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from provision.documents import Frozen, default, like, load_json
from provision.errors import NotFoundError
from provision.pin import Pin, Sha256

#: The manifest in a store entry and in an artifact.
MANIFEST = PurePosixPath("driver/manifest.json")
# A file in a store entry: who vouches for an artifact that was not built here.
ADMISSION = PurePosixPath("admission.json")

# What only exports need: the shell and the index of Kubernetes' KMM, the driver pod of an operator.
Extra = Literal["kmm", "driver-pod"]
EXTRAS: Mapping[str, str] = {
    "kmm": "what Kubernetes' KMM loads it with",
    "driver-pod": "the driver pod of a GPU operator",
}
FileKind = Literal["library", "binary", "miscellaneous", "firmware"]


def _relative(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        raise ValueError(f"'{path}' must be a plain relative path without '..'")
    return path


def _absolute(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        raise ValueError(f"'{path}' must be a plain absolute path without '..'")
    return path


RelativePath = Annotated[str, AfterValidator(_relative)]
ContainerPath = Annotated[str, AfterValidator(_absolute)]
FeatureName = Annotated[str, like(r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$", "some-name_1")]
# https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap08.html
VariableName = Annotated[str, like(r"^[A-Za-z_][A-Za-z0-9_]*$", "EXAMPLE_NAME")]
# A module as /proc/modules names it: with '_', whatever its file's name has.
ModuleName = Annotated[str, like(r"^[A-Za-z0-9_]+$", "some_name", max_length=64)]
# Below /dev; {minor} stands for the number that a node of several has.
NodeName = Annotated[
    str,
    like(r"^[A-Za-z0-9][A-Za-z0-9._-]*(/?[A-Za-z0-9_-]|\{minor\})*$", "dri/card{minor}"),
]
# A shell pattern of names below /dev.
DevicePattern = Annotated[
    str, like(r"^[A-Za-z0-9][A-Za-z0-9._/-]*[*?\[][A-Za-z0-9._/*?\[\]!-]*$", "nvidia[0-9]*")
]
PciId = Annotated[str, like(r"^[0-9a-f]{4}$", "10de")]
PciClass = Annotated[str, like(r"^[0-9a-f]{2}([0-9a-f]{2})?$", "03 or 0302")]
# Foreign interfaces for requesting devices, which oci-decorator serves.
Interface = Literal["nvidia", "amd"]
LogLevel = Literal[
    "LOG_EMERG",
    "LOG_ALERT",
    "LOG_CRIT",
    "LOG_ERR",
    "LOG_WARNING",
    "LOG_NOTICE",
    "LOG_INFO",
    "LOG_DEBUG",
]


class PciMatch(Frozen):
    """PCI devices that a driver is for, or drives: hexadecimal ids as ``lspci -n`` prints them.

    Attributes:
        vendor: Four hexadecimal digits, as ``lspci -n`` prints them.
        devices: Device ids. Without it: any.
        classes: Class and subclass, such as ``0300``, or a class, such as ``03``. Without it: any.
    """

    vendor: PciId
    devices: tuple[PciId, ...] = ()
    classes: tuple[PciClass, ...] = ()

    def matches(self, *, vendor: str, device: str, device_class: str) -> bool:
        """Return whether a device matches; an empty list of ids matches any."""
        return (
            vendor == self.vendor
            and (not self.devices or device in self.devices)
            and (not self.classes or device_class.startswith(self.classes))
        )


class Module(Frozen):
    """A kernel module; ``path`` is relative to the store entry, ``size`` in bytes.

    Its name and those that it needs are given to modprobe, and stand in scripts and in KMM's YAML.
    """

    name: ModuleName
    path: RelativePath
    sha256: Sha256
    size: int = Field(ge=0)
    vermagic: str
    version: str | None = None
    licence: str | None = None
    depends: tuple[ModuleName, ...] = ()


class DriverFile(Frozen):
    """A user-space file or link.

    Attributes:
        path: In the container; the file lies at ``driver/<path>`` in the store entry.
        kind: Which list of the vendor config it belongs to (firmware: none, it is the host's).
        features: The features that want it.
        sha256: Of the content; None for a link.
        size: Bytes; None for a link.
        mode: Permission bits, as octal text; None for a link.
        soname: ELF SONAME of a library; None if it has none.
        elf_class: 64, or 32 for a library of the architecture's smaller sibling; None if it is no
            ELF file.
        link: Target of a symbolic link, relative to its folder; None for a file.
    """

    path: ContainerPath
    kind: FileKind
    features: tuple[FeatureName, ...] = ()
    sha256: Sha256 | None = None
    size: int | None = Field(default=None, ge=0)
    mode: Annotated[str, StringConstraints(pattern=r"^[0-7]{4}$")] | None = None
    soname: str | None = None
    elf_class: Literal[32, 64] | None = None
    link: str | None = None


class ContainerFeature(Frozen):
    """Devices and folders of one feature; its files are in the manifest's list.

    Attributes:
        devices: Names or globs below ``/dev``.
        directories: Folders to create in the container, as absolute paths.
    """

    devices: tuple[str, ...] = ()
    directories: tuple[ContainerPath, ...] = ()


class Container(Frozen):
    """How a container asks for the driver: the head of the vendor config.

    A driver that no container asks for, such as that of a network card, has none of this, and its
    host gets no vendor config.

    Attributes:
        activation_flag: Environment variable by which a container asks. Without it: no container
            gets anything of the driver.
        driver_feature: Features that a flag without a value gives.
        log_level: ``LOG_EMERG`` … ``LOG_DEBUG``.
        units: Pattern of nodes that can be chosen one by one (``nvidia[0-9]*``); others come with
            each choice. Without it: nodes whose names end with a digit.
        interfaces: ``nvidia``, ``amd``: [variables and
            commands](oci-decorator.md#interfaces-of-others) that this driver answers. With
            ``nvidia``, loading it writes the [facts of its devices](cdi.md#device-facts). Without
            it: only ``activation_flag`` counts.
        features: The features that a container can ask for.
    """

    activation_flag: VariableName | None = None
    driver_feature: tuple[FeatureName, ...] = ()
    log_level: LogLevel = "LOG_INFO"
    units: DevicePattern | None = None
    # None and not empty: a Pin has what a recipe says, and nothing of what it leaves out.
    interfaces: Annotated[tuple[Interface, ...], Field(min_length=1)] | None = None
    features: dict[FeatureName, ContainerFeature] = Field(default_factory=dict)

    def vendor_file(
        self,
        version: str,
        inventory: Mapping[str, object],
        *,
        root: str | None = None,
        sonames: Mapping[str, str] | None = None,
    ) -> str:
        """Return the text of a vendor file, which says what a container gets."""
        document = {
            "version": version,
            "log_level": self.log_level,
            "activation_flag": self.activation_flag,
            "driver_feature": list(self.driver_feature),
            **({} if root is None else {"root": root}),
            **({"interfaces": list(self.interfaces)} if self.interfaces else {}),
            **({"units": self.units} if self.units else {}),
            "inventory": inventory,
            **({} if sonames is None else {"sonames": sonames}),
        }
        return json.dumps(document, indent=2) + "\n"

    @model_validator(mode="after")
    def _all_or_nothing(self) -> Self:
        if self.activation_flag is not None:
            if not {"driver_feature", "features"} <= self.model_fields_set:
                raise ValueError("'activation_flag' needs 'driver_feature' and 'features'")
        elif self.driver_feature or self.features or self.interfaces or self.units:
            raise ValueError("'activation_flag' is missing, by which a container asks")
        return self


class MinorsFrom(Frozen):
    """Where to read the minor numbers of several nodes: in a line ``FIELD: NUMBER`` each.

    Attributes:
        files: Files of the host, as a glob relative to its root.
        field: What the line begins with.
    """

    files: RelativePath
    field: Annotated[str, StringConstraints(min_length=1)]


class DeviceNode(Frozen):
    """A device node that neither the kernel nor udev makes.

    Attributes:
        name: Name below ``/dev``; contains ``{minor}`` exactly when ``each`` is given.
        major: Major number, or its name in ``/proc/devices``.
        minor: Minor number.
        each: Replaces ``minor``: ``{ files = "GLOB", field = "TEXT" }`` makes a node for each line
            ``TEXT: NUMBER`` in host files.
        mode: Permission bits.
    """

    name: NodeName
    major: Annotated[int, Field(ge=0)] | Annotated[str, StringConstraints(min_length=1)]
    minor: Annotated[int, Field(ge=0)] | None = None
    each: MinorsFrom | None = None
    mode: Annotated[str, like(r"^0[0-7]{3}$", "0660")] = "0660"

    @model_validator(mode="after")
    def _one_or_each(self) -> Self:
        if (self.minor is None) == (self.each is None):
            raise ValueError("give either 'minor' or 'each'")
        if (self.each is not None) != ("{minor}" in self.name):
            raise ValueError("the name must hold '{minor}' exactly when 'each' is given")
        return self


class DriverPod(Frozen):
    """What a GPU operator runs in a pod of the artifact image, as NVIDIA's does.

    The folder above the root's ``path`` is the operator's: there are the pod's lock and state.

    Attributes:
        command: The program that starts the pod: ``COMMAND init``.
        parameters: Folder with the admin's parameters: ``MODULE.conf``, one a line.
        defaults: Parameters by module that the pod gives, if the module has them.
        without: Modules of the driver that the pod leaves alone.
        sidecars: Modules that the operator loads at will: ``COMMAND reload_MODULE``, ``COMMAND
            probe_MODULE``.
        daemon: A program of the driver, with arguments, that runs beside it if the artifact has it.
        daemon_pid: The file in which the daemon writes its number.
        environment: Variables of the image.
    """

    command: Annotated[str, like(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "some-program")]
    parameters: ContainerPath
    defaults: dict[ModuleName, tuple[str, ...]] = Field(default_factory=dict)
    without: tuple[ModuleName, ...] = ()
    sidecars: tuple[ModuleName, ...] = ()
    daemon: tuple[str, ...] = ()
    daemon_pid: ContainerPath | None = None
    environment: dict[VariableName, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _daemon_with_pid(self) -> Self:
        if bool(self.daemon) != bool(self.daemon_pid):
            raise ValueError("'daemon' and 'daemon_pid' go together")
        return self


class ForeignRoot(Frozen):
    """A root filesystem of the driver that other systems look for, such as NVIDIA's GPU Operator.

    Attributes:
        path: Where hosts offer it; letters, digits and ``_`` only, as it names the mount unit.
        libraries: The folder in it where libraries are looked for: a relative link to each is made.
        ready_file: The file by which an operator knows that a driver's pod is ready; it exists
            while the root is mounted, so that no operator waits for one.
        ready_lines: What that file says.
        pod: How an operator runs the driver in a pod; None: it can't.
    """

    path: Annotated[str, like(r"^/run(/[A-Za-z0-9_]+)+$", "/run/vendor/driver")]
    libraries: ContainerPath
    ready_file: Annotated[str, like(r"^/run(/[A-Za-z0-9_.-]+)+$", "/run/vendor/ready")] | None = (
        None
    )
    ready_lines: tuple[Annotated[str, like(r"^[A-Za-z0-9_: =-]+$", "DRIVER_READY=1")], ...] = ()
    pod: DriverPod | None = None


class HostNeeds(Frozen):
    """The driver's needs on the host, besides loaded modules.

    Attributes:
        conflicts: In-tree modules for the same hardware: unloaded when idle, and blacklisted in
            ``/etc/modprobe.d/provision-DRIVER.conf``.
        optional: Modules that some hosts do not need: no failure if one does not load.
        nodes: Device nodes that the driver doesn't make itself.
        root: Where other systems look for the driver; None: nowhere.
    """

    conflicts: tuple[ModuleName, ...] = ()
    optional: tuple[ModuleName, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    root: ForeignRoot | None = None


class Check(Frozen):
    """How to see that a loaded driver works: a program of its own that ends with 0.

    Attributes:
        command: The program, by name or path in the artifact, and arguments; runs as root, without
            a network, with the driver's libraries.
        seconds: After which it has failed.
    """

    command: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = Field(min_length=1)
    seconds: int = Field(default=30, ge=1, le=90)


class Manifest(Frozen):
    """The contents of an artifact.

    ``cards`` is what its modules drive, as the driver itself says; empty if it says nothing.
    ``kmm`` is a module that Kubernetes' KMM loads before the driver's, so that the kernel loads
    its own modules that they need; our agent never loads it. None if they need none.
    ``left_out`` has what the build could not make of what only exports need, with the reasons:
    an ``Extra``, or ``driver-pod/PROGRAM`` for a program of the driver that does not start in
    the pod.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    pin: Pin
    pin_digest: str
    licences: tuple[str, ...] = ()
    modules: tuple[Module, ...]
    files: tuple[DriverFile, ...] = ()
    container: Container
    host: HostNeeds = default(HostNeeds)
    check: Check | None = None
    cards: tuple[PciMatch, ...] = ()
    kmm: Module | None = None
    left_out: dict[str, str] = Field(default_factory=dict)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    def require(self, extra: Extra, image: str) -> None:
        """Refuse an image that was built without an extra."""
        reason = self.left_out.get(extra)
        if reason is None:
            return
        driver = self.pin.driver
        raise NotFoundError(
            f"'{image}' was built without {EXTRAS[extra]}: {reason}.",
            resolution="Have the build install what is missing ('packages' of the build in"
            " driver.toml, or a base image that has it: --base), then build and push again:"
            f" provision build {driver.name} --version {driver.version} --kernel"
            f" {self.pin.kernel.release} --rebuild --push REGISTRY",
        )


def load_manifest(artifact: Path) -> Manifest:
    """Read the manifest of a store entry, or of another folder with an artifact."""
    return load_json(artifact / MANIFEST, Manifest)
