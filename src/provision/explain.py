"""What the failure of another program means for what we do next.

The programs' own last lines are what people read. The one table here knows only the classes after
which something else is done: another registry asked, an artifact rejected, a build left for later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Literal, NamedTuple

from provision.errors import (
    DeniedError,
    NotFoundError,
    ProvisionError,
    UnfitError,
    UnreachableError,
    WrongContentError,
)


class Kind(Enum):
    """The classes, each with the error that says so to callers."""

    # Contents, servers or signatures that nothing vouches for.
    UNTRUSTED = WrongContentError
    MISSING = NotFoundError
    DENIED = DeniedError
    # It may work later.
    UNREACHABLE = UnreachableError
    # A module, for the kernel that runs: no other moment, key or setting would help.
    UNFIT = UnfitError
    # Below: the machine's trouble, with which every build would fail alike.
    DISK_FULL = "disk full"
    IN_USE = "in use"
    MACHINE = "machine"

    @property
    def error(self) -> type[ProvisionError]:
        """The class of the error."""
        return self.value if isinstance(self.value, type) else ProvisionError

    @property
    def is_outside(self) -> bool:
        """Whether neither the driver nor its Pin is the cause."""
        return not isinstance(self.value, type) or self.error.is_outside


class Explanation(NamedTuple):
    """Why a program failed, and what to do."""

    kind: Kind
    cause: str
    what_to_do: str
    # What the program says is missing.
    name: str = ""


Program = Literal["build", "git", "kernel", "skopeo", "solver"]


class _Row(NamedTuple):
    program: Program
    # Of a line; its group that matched is ``{name}``.
    pattern: str
    kind: Kind
    # ``{line}`` is the line, other placeholders are the caller's.
    cause: str
    what_to_do: str


_NETWORK = (
    r"[Cc]ould ?n[o']t (?:resolve|connect)|Temporary failure resolving|[Uu]nable to connect"
    r"|[Ff]ailed to connect|[Cc]onnection (?:refused|reset|timed out)|[Nn]etwork is unreachable"
)
_REPOSITORIES = "the repositories under [distros.{distro}] of /etc/provision/provision.toml"
_SIGN = (
    "Sign modules with a key of yours ([signing] in /etc/provision/provision.toml), and enrol its"
    " certificate: docs/how-to/secure-boot.md. Whether it is: mokutil --list-enrolled"
)
# The first row of a program that matches any line counts.
_TABLE = (
    # apt, dnf, zypper. A mirror that is out of step, or packages that do not fit together, are said
    # by themselves.
    _Row(
        "solver",
        r"NO_PUBKEY|(?:EXPKEY|REVKEY|BAD)SIG|(?:is|are) not signed|couldn't be verified"
        r"|[Ss]ignature.*invalid|can't be done securely|signed index of another suite"
        r"|[Cc]ertificate verification failed|GPG check FAILED|Public key for \S+ is not installed"
        r"|GPG signature verification error|GPG verification is enabled, but GPG signature"
        r"|Signature verification failed|is (?:unsigned|signed with an unknown key)",
        Kind.UNTRUSTED,
        "Packages of {release}, or their index, are not signed with a trusted key",
        "If it is your own repository, name its key, or that its index is unsigned, in"
        f" {_REPOSITORIES} (docs/reference/provision-toml.md). If it is the distro's, do not"
        " use this mirror.",
    ),
    _Row(
        "solver",
        r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate"
        r"|No match for argument: (.+)|Unable to find a match: (.+)|nothing provides requested (.+)"
        r"|No provider of '([^']+)' found|'([^']+)' not found in package names"
        r"|Depends: (\S+).* but it is not installable",
        Kind.MISSING,
        "The repositories of {release} have no package '{name}', which the build needs",
        f"Check the name in driver.toml, and that {_REPOSITORIES} or of the base image hold it.",
    ),
    _Row(
        "solver",
        r"\b(?:HTTP error|Status code:?|error:?) ?40[13]\b|\b40[13] +(?:Forbidden|Unauthorized)",
        Kind.DENIED,
        "A repository of {release} refuses this machine",
        f"Register this machine ('pro attach' for Ubuntu's ESM), or name {_REPOSITORIES}.",
    ),
    _Row(
        "solver",
        rf"{_NETWORK}|Curl error \((?:5|6|7|28|35|52|56|60)\)|[Tt]imeout|Download \(curl\) error"
        r"|Failed to (?:download metadata|synchronize cache)|does not have a Release file"
        r"|Valid metadata not found|[Cc]ould not be refreshed",
        Kind.UNREACHABLE,
        "The repositories of {release} can't be reached from the solving container",
        "Check that containers reach the network ([engine] network in provision.toml; behind"
        f" a proxy: [network] proxy), or name {_REPOSITORIES}.",
    ),
    # The engine, and what runs in the build container.
    _Row(
        "build",
        # moby's classic builder keeps each step as an image without a name: SetParent in its
        # image/store.go, and the answer to the creation of a container from a removed one.
        r"unknown parent image ID|[Nn]o such image: sha256:|layer does not exist",
        Kind.IN_USE,
        "other programs kept removing layers that the build uses",
        "Stop what removes images of the engine, such as a timer with 'docker image prune', then"
        " run the command again.",
    ),
    _Row(
        "build",
        r"exec format error$",
        Kind.MACHINE,
        "this machine can't run programs of its architecture",
        "Let QEMU run them (sudo apt-get install qemu-user-binfmt; before Debian 13:"
        " qemu-user-static).",
    ),
    _Row(
        "build",
        r"[Nn]o space left on device",
        Kind.DISK_FULL,
        "the engine's disk is full",
        "Make room where the engine keeps its images (docker system df, docker image prune), "
        "then run the command again.",
    ),
    _Row(
        "build",
        # templates/dkms/dkms.bash.
        r"^dkms: ((?:excluded|BUILD_DEPENDS names other DKMS packages):.*)",
        Kind.MISSING,
        "its dkms.conf is not for this: {name}",
        "Take another version (--version) or kernel (--kernel). Sources that need other DKMS"
        " packages are built together with them: [[source.releases.submodules]] in driver.toml"
        " (docs/reference/driver-toml.md).",
    ),
    # modprobe, and the kernel's log: kernel/module/main.c, version.c, signing.c and
    # security/lockdown/lockdown.c of Linux.
    _Row(
        "kernel",
        r"unsigned module|unavailable key|unsupported crypto|Lockdown|Required key not available"
        r"|Key was rejected by service",
        Kind.DENIED,
        "this kernel accepts only modules that a key which it knows has signed ({line})",
        _SIGN,
    ),
    _Row(
        "kernel",
        r"Operation not permitted|Permission denied",
        Kind.DENIED,
        "{line}",
        "Run this as root on the host itself. 'provision doctor' looks for lockdown and"
        " kernel.modules_disabled, 'ausearch -m avc' for SELinux (modules need the type"
        " modules_object_t).",
    ),
    _Row(
        "kernel",
        r"version magic|disagrees about version of symbol|Exec format error|Bad message"
        r"|Invalid module format",
        Kind.UNFIT,
        "it was built for another kernel than {kernel}, or is damaged ({line})",
        "Build it for this kernel: provision apply --kernel {kernel}",
    ),
    _Row(
        "kernel",
        r"Unknown symbol",
        Kind.UNFIT,
        "it needs symbols that the kernel {kernel} and its loaded modules don't have ({line})",
        "A module that it depends on is missing or of another build. See that the kernel's own are"
        " all installed (linux-modules-extra and the like), and which ones the artifact has:"
        " provision verify {artifact}",
    ),
    _Row(
        "kernel",
        r"No such device",
        Kind.MISSING,
        "no hardware that it drives was found, or another driver holds it",
        "'provision facts' shows the devices and what drives each; 'provision doctor' looks for"
        " modules that are in the way.",
    ),
    _Row(
        "skopeo",
        r"Digest did not match|does not match (?:provided manifest digest|expected sha256)"
        # More than it may take: some answers have no end.
        r"|file too large|cannot allocate memory|out of memory",
        Kind.UNTRUSTED,
        "",
        "Don't use it. The registry or a proxy before it is damaged or was altered; try a mirror of"
        " it, or push the image again.",
    ),
    _Row("skopeo", r"no space left on device", Kind.DISK_FULL, "", ""),
    _Row(
        "skopeo",
        r"manifest unknown|(?:repository )?name (?:not known|unknown)|404 \(Not Found\)",
        Kind.MISSING,
        "",
        "Check whether the name is right: provision registry list DRIVER.",
    ),
    _Row(
        "skopeo",
        r"unauthorized|authentication required|access to the resource is denied|: denied"
        # A credential helper that a file names is missing or failed.
        r"|40[13] \((?:Unauthorized|Forbidden)\)|retrieve auth token|docker-credential-",
        Kind.DENIED,
        "Access to the registry {host} denied",
        "Log in: docker login {host}, or podman login {host}; for the agent, as root. If the"
        " repository is new, push its first image.",
    ),
    _Row(
        "skopeo",
        rf"{_NETWORK}|no such host|no route to host|server misbehaving|timeout|deadline exceeded"
        r"|x509:|pinging container registry|unexpected HTTP status: 5|too ?many ?requests|EOF",
        Kind.UNREACHABLE,
        "The registry {host} can't be reached",
        "Check that this machine reaches the registry. Behind a proxy, name it: [network] proxy;"
        " for a registry with a certificate of its own, name its authority: [registry] ca in"
        " /etc/provision/provision.toml; for one without TLS: [registry] plain_http = true.",
    ),
    _Row(
        "git",
        r"Authentication failed|could not read Username|returned error: 40[13]"
        r"|Permission denied \(",
        Kind.DENIED,
        "the server asks for a login, or refuses the one it got",
        "Give git of the user who builds a login, by its credential helper, ~/.netrc or a key of"
        " SSH without a password, until this works without a question: {command}.",
    ),
    _Row(
        "git",
        r"[Cc]ertificate|Host key verification failed",
        Kind.UNTRUSTED,
        "nothing that this machine knows vouches for the server",
        "Add its authority to this machine's own (update-ca-certificates on Debian, update-ca-trust"
        " on RHEL); a server of SSH is known once you have confirmed it: {command}",
    ),
    _Row(
        "git",
        rf"{_NETWORK}|Operation timed out|returned error: (?:5[0-9][0-9]|429)|early EOF|RPC failed"
        r"|Empty reply from server",
        Kind.UNREACHABLE,
        "",
        "Check whether the repository can be reached: {command}; or set [network] proxy in"
        " /etc/provision/provision.toml.",
    ),
)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in place of ``{name}``; other braces stay as they are."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def explain(program: Program, output: str, values: Mapping[str, str]) -> Explanation | None:
    """Return what a program's output means for us; None: nothing, and its last lines speak.

    ``values`` are for the table's placeholders.
    """
    for row in _TABLE:
        if row.program == program and (found := re.search(row.pattern, output, re.MULTILINE)):
            name = next((text for text in found.groups() if text), "").strip()
            begin = output.rfind("\n", 0, found.start()) + 1
            line = output[begin:].partition("\n")[0].strip()
            known = {**values, "name": name, "line": line}
            return Explanation(row.kind, fill(row.cause, known), fill(row.what_to_do, known), name)
    return None


def last_line(output: str) -> str:
    """Return the last line that a program printed."""
    return (output.strip().splitlines() or ["it gave no reason"])[-1].strip().rstrip(".")
