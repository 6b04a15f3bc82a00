"""Checks both halves of the project on a machine with an NVIDIA GPU, and writes down what it saw.

It runs under the Python of the kit that `make gpu-kit` makes (`run` beside this file starts it),
with the standard library alone, and relies on nothing of the machine but a kernel and a driver.
Each check ends in one of three ways: passed, failed, or not possible here, because. None stops the
others.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree as ET

Json = dict[str, Any]

PASSED, FAILED, NOT_POSSIBLE = "passed", "failed", "not possible here"
# No user of the container's image; it has no capability.
NOBODY = 65534
ROUNDS = 15
FLAG, FEATURES = "OCI_NVIDIA", "compute,utility"
CHOICE, CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", f"NVIDIA_DRIVER_CAPABILITIES={FEATURES}"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Below each root that a driver may have, in the order of preference.
LIBRARY_FOLDERS = (
    f"usr/lib/{platform.machine()}-linux-gnu",
    f"usr/lib/{platform.machine()}-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib64/nvidia",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
)
# The names under which programs ask for the driver.
BUILT_WITH = ("libcuda.so.1", "libnvidia-ml.so.1")
PROGRAM_FOLDERS = ("usr/local/bin", "usr/bin", "usr/local/nvidia/bin", "usr/lib/nvidia/current")
NVML = "libnvidia-ml.so"
DRIVER_ROOTS = ("/", "/run/nvidia/driver")
FACTS = Path("/run/oci-decorator/devices/nvidia.json")
# What the programs under test write outside of the kit's own folder; what was not there goes again.
LEFT = ("/run/oci-decorator", "/run/provision", "/etc/provision", "/var/lib/provision")


class CheckFailedError(Exception):
    """What was checked is not so."""


class NotPossibleHereError(Exception):
    """This machine does not let it be checked."""


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """What it said last, in one line."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        line = lines[-1] if lines else f"exit status {self.status}"
        # What runc logs has a time and a level before it.
        return line.rpartition(' msg="')[2].rstrip('"')[:300]

    def must(self, what: str) -> Done:
        """Return it if it succeeded.

        Raises:
            CheckFailedError: it did not.
        """
        if self.status != 0:
            raise CheckFailedError(f"{what}: exit status {self.status}: {self.last}")
        return self


def run(
    argv: Sequence[object],
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    limit_s: float = 60,
    enter: Callable[[], None] | None = None,
) -> Done:
    """Run a program to its end, or for `limit_s`; it need not succeed, nor exist.

    `enter` is called in the new process, before the program.
    """
    words = tuple(map(str, argv))
    begun = time.monotonic()
    variables = {"PATH": PATH, "HOME": "/", "LANG": "C.UTF-8", **(env or {})}
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
            preexec_fn=enter,  # noqa: PLW1509 - this process has one thread
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Done(words, 127, "", f"{words[0]}: {error}", 0)
    try:
        out, err = process.communicate(stdin.encode(), timeout=limit_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A grandchild in a session of its own may hold the pipes.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        out, err, status = b"", f"it did not end within {limit_s:.0f} s".encode(), 124
    taken = time.monotonic() - begun
    return Done(words, status, out.decode(errors="replace"), err.decode(errors="replace"), taken)


def enter(root: Path, user: int) -> None:
    """Have this process see a folder as `/`, as a user without rights."""
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def say(line: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# Records


@dataclass
class Record:
    """What was seen; written after each check, so that a machine that goes away leaves the rest."""

    folder: Path
    limit_s: float
    head: Json = field(default_factory=dict)
    checks: list[Json] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def check(self, number: int, title: str, look: Callable[[], str | None]) -> None:
        """Make one check and write it down; `look` returns what was seen."""
        begun = time.monotonic()
        try:
            outcome, detail = PASSED, self._in_time(look) or ""
        except NotPossibleHereError as error:
            outcome, detail = NOT_POSSIBLE, str(error)
        except CheckFailedError as error:
            outcome, detail = FAILED, str(error)
        except Exception as error:  # A mistake here must not cost the other checks.
            outcome, detail = FAILED, f"this script's own mistake: {error!r}"
            traceback.print_exc()
        because = ", because" if outcome == NOT_POSSIBLE else ":" if detail else ""
        say(f"{number} {title}: {outcome}{because} {detail}".rstrip())
        seconds = round(time.monotonic() - begun, 2)
        row = {"number": number, "title": title, "outcome": outcome, "detail": detail}
        self.checks.append({**row, "seconds": seconds})
        self.write()

    def _in_time(self, look: Callable[[], str | None]) -> str | None:
        if time.monotonic() - self.begun > self.limit_s:
            raise NotPossibleHereError(f"the {self.limit_s:.0f} s of this run were over")
        return look()

    def write(self) -> None:
        """Write the record, and its page."""
        document = {"schema": 1, **self.head, "checks": self.checks}
        (self.folder / "record.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.folder / "record.md").write_text(page(document))

    @property
    def status(self) -> int:
        """The exit status of the run."""
        # That containers can be started shows nothing of ours.
        outcomes = {check["outcome"] for check in self.checks if check["number"]}
        return 1 if FAILED in outcomes else 0 if PASSED in outcomes else 3


def page(document: Json) -> str:
    """A record as a page."""
    gpus = document.get("gpus", [])
    names = sorted({gpu.get("name") or "a GPU of an unknown name" for gpu in gpus})
    machine, driver = document.get("machine", {}), document.get("driver") or {}
    outcomes = [check["outcome"] for check in document["checks"]]
    counted = ", ".join(f"{outcomes.count(one)} {one}" for one in (PASSED, FAILED, NOT_POSSIBLE))
    facts = {
        "date": document.get("date"),
        "source": document.get("kit", {}).get("commit"),
        "GPUs": f"{len(gpus)}: {', '.join(names)}" if gpus else "none found",
        "driver": f"{driver.get('version')} in {driver.get('folder')}" if driver else "none found",
        "kernel": machine.get("kernel"),
        "system": machine.get("system"),
        "containers by": document.get("containers_by"),
        "checks": counted,
    }
    lines = ["# A machine with an NVIDIA GPU", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    lines += ["", "| check | outcome | what was seen |", "|---|---|---|"]
    for check in document["checks"]:
        cells = (f"{check['number']} {check['title']}", check["outcome"], check["detail"])
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join([*lines, ""])


def _cell(value: object) -> str:
    return str("unknown" if value is None else value).replace("|", "\\|").replace("\n", " ")


# The machine


@dataclass(frozen=True)
class Driver:
    """The driver's user space, wherever it lies."""

    # The folder that programs of the driver see as `/`.
    root: Path
    folder: Path
    version: str

    @property
    def variables(self) -> dict[str, str]:
        """With these the loader finds its libraries."""
        return {"LD_LIBRARY_PATH": str(self.folder)}


def find_driver() -> Driver:
    """Find NVML, first where the machine's own loader would.

    Raises:
        NotPossibleHereError: there is none.
    """
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    places = [(Path("/"), Path(name)) for name in named if name.startswith("/")]
    places += [(Path(r), Path(r, folder)) for r in DRIVER_ROOTS for folder in LIBRARY_FOLDERS]
    for root, folder in places:
        # Of an image for another driver, there may be empty files with the names.
        found = [p for p in folder.glob(f"{NVML}.*.*") if p.is_file() and p.stat().st_size]
        if found:
            return Driver(root, folder, max(found).name.removeprefix(f"{NVML}."))
    raise NotPossibleHereError(
        f"no driver was found in {', '.join(LIBRARY_FOLDERS)} below {' or '.join(DRIVER_ROOTS)}"
    )


def listed(text: str) -> list[tuple[str, list[str]]]:
    """The UUIDs of `nvidia-smi -L`: of each GPU, with those of its parts."""
    found: list[tuple[str, list[str]]] = []
    for uuid in re.findall(r"\(UUID: (\S+)\)", text):
        if uuid.startswith("MIG") and found:
            found[-1][1].append(uuid)
        else:
            found.append((uuid, []))
    return found


@dataclass(frozen=True)
class Smi:
    """The driver's own nvidia-smi."""

    program: Path
    driver: Driver

    def __call__(self, *words: str) -> str:
        """Return what it prints.

        Raises:
            NotPossibleHereError: it failed.
        """
        done = run([self.program, *words], env=self.driver.variables)
        if done.status != 0:
            raise NotPossibleHereError(f"nvidia-smi {' '.join(words)} failed: {done.last}")
        return done.out

    @cached_property
    def listing(self) -> str:
        """What `nvidia-smi -L` prints."""
        return self("-L").strip()

    @cached_property
    def report(self) -> Json:
        """What `nvidia-smi -q -x` says, under the names of our device facts."""
        return read_report(self("-q", "-x"), listed(self.listing))


def read_report(text: str, uuids: Sequence[tuple[str, list[str]]]) -> Json:
    """Read the XML of `nvidia-smi -q -x`; the UUIDs of parts are in its list only."""
    log = ET.fromstring(text)  # noqa: S314 - of the driver, which we trust with more

    def value(node: ET.Element, path: str) -> str | None:
        said = (node.findtext(path) or "").strip()
        return None if said in {"", "N/A", "None"} or said.startswith("[") else said

    def number(node: ET.Element, path: str) -> int | None:
        said = value(node, path)
        return int(said) if said and said.isdigit() else None

    gpus = []
    for index, gpu in enumerate(log.iter("gpu")):
        brand = value(gpu, "product_brand")
        of_list = uuids[index][1] if index < len(uuids) else []
        parts = [
            {
                "index": number(part, "index"),
                "uuid": of_list[place] if place < len(of_list) else None,
                "gpu_instance": number(part, "gpu_instance_id"),
                "compute_instance": number(part, "compute_instance_id"),
            }
            for place, part in enumerate(gpu.iter("mig_device"))
        ]
        gpus.append(
            {
                "index": index,
                "minor": number(gpu, "minor_number"),
                "pci": address(gpu.get("id") or value(gpu, "pci/pci_bus_id") or ""),
                "uuid": value(gpu, "uuid"),
                "name": value(gpu, "product_name"),
                "brand": brand and re.sub(r"[^a-z0-9]", "", brand.lower()),
                "mig": parts if value(gpu, "mig_mode/current_mig") == "Enabled" else None,
            }
        )
    return {
        "driver_version": value(log, "driver_version"),
        "cuda_version": value(log, "cuda_version"),
        "devices": gpus,
    }


def address(text: str) -> str | None:
    """A PCI address as the kernel writes it: four digits of domain, or more where it needs them."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.strip().lower())
    if match is None:
        return None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def differences(expected: object, found: object, where: str = "") -> list[str]:
    """Where two documents differ, of what the first one knows."""
    if isinstance(expected, dict) and isinstance(found, dict):
        rows = [differences(expected[k], found.get(k), f"{where}.{k}") for k in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        rows = [
            differences(*pair, f"{where}[{n}]")
            for n, pair in enumerate(zip(expected, found, strict=True))
        ]
    elif expected is None or expected == found:
        rows = []
    else:
        rows = [[f"{where.lstrip('.')}: nvidia-smi says {expected!r}, we say {found!r}"]]
    return [line for row in rows for line in row]


def machine_facts() -> Json:
    """What decides whether containers can be started, and what a record has to say of a machine."""

    def text(path: str) -> str:
        try:
            return Path(path).read_text(errors="replace").strip()
        except OSError as error:
            return f"unreadable: {error.strerror}"

    status = dict(
        line.partition(":")[::2] for line in text("/proc/self/status").splitlines() if ":" in line
    )
    system = dict(
        line.partition("=")[::2] for line in text("/etc/os-release").splitlines() if "=" in line
    )
    cgroups = [line.split() for line in text("/proc/self/mounts").splitlines() if " cgroup" in line]
    return {
        "kernel": platform.release(),
        "version": text("/proc/version"),
        "architecture": platform.machine(),
        "system": system.get("PRETTY_NAME", "unknown").strip('"'),
        "capabilities": status.get("CapEff", "").strip(),
        "seccomp": status.get("Seccomp", "").strip(),
        "cgroups": [f"{row[2]} {row[1]} {row[3].partition(',')[0]}" for row in cgroups],
        "user_namespaces": text("/proc/sys/user/max_user_namespaces"),
        "nvidia": text("/proc/driver/nvidia/version"),
        "nodes": sorted(
            str(p) for p in [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("nvidia-caps/*")]
        ),
        "openat2": _openat2(),
    }


def _openat2() -> str:
    """Whether the kernel, or the sandbox that plays one, has the call that our edits need."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(437, ctypes.c_int(-100), b"/", ctypes.byref(how), ctypes.c_size_t(24))
    if found < 0:
        return os.strerror(ctypes.get_errno())
    os.close(found)
    return "yes"


# Containers


@dataclass(frozen=True)
class Sandbox:
    """A way to start containers; what a machine refuses decides which one it is."""

    name: str
    options: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ("pid", "ipc", "uts", "mount", "network")
    has_cgroups: bool = False


_ROOTLESS = ("--rootless", "true")
SANDBOXES = (
    Sandbox("runc", has_cgroups=True),
    Sandbox("runc without cgroups", _ROOTLESS),
    Sandbox("runc with namespaces of mounts and processes only", _ROOTLESS, ("pid", "mount")),
    Sandbox("runc with a namespace of mounts only", _ROOTLESS, ("mount",)),
)
CHROOT = Sandbox("chroot", namespaces=())


def specification(sandbox: Sandbox, words: Sequence[str], variables: Sequence[str]) -> Json:
    """A container's config.json: of a user without any right."""

    def mount(kind: str, place: str, *options: str) -> Json:
        return {"destination": place, "type": kind, "source": kind, "options": list(options)}

    proc = mount("proc", "/proc")
    if "pid" not in sandbox.namespaces:
        proc = {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]}
    memory = mount("tmpfs", "/dev/shm", "nosuid", "nodev")  # noqa: S108 - a container's own
    mounts = [proc, mount("tmpfs", "/dev", "nosuid", "mode=755"), memory]
    namespaces = [{"type": name} for name in sandbox.namespaces]
    linux: Json = {"namespaces": namespaces}
    if sandbox.has_cgroups:
        linux["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    nothing: Json = {name: [] for name in ("bounding", "effective", "permitted")}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": NOBODY, "gid": NOBODY},
            "args": list(words),
            # As images of CUDA have it.
            "env": [f"PATH=/usr/local/nvidia/bin:{PATH}", "HOME=/", *variables],
            "cwd": "/",
            "capabilities": nothing,
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": mounts,
        "linux": linux,
    }


@dataclass(frozen=True)
class Way:
    """A way to ask for a driver."""

    name: str
    # What starts the container, in place of runc; None: runc itself.
    program: str | None = None
    # The hook's words, at the stage `prestart`; None: no hook.
    hook: tuple[str, ...] | None = None
    filters: bool = False
    # Of NVIDIA's settings: how its names find the devices.
    mode: str = "auto"
    variable: str = CHOICE
    # What stands before the name of a device.
    kind: str = ""

    def request(self, devices: str) -> list[str]:
        """The container's variables with which it asks for these devices."""
        if self.variable == FLAG:
            return [f"{FLAG}={FEATURES}"]
        return [f"{CHOICE}={self.kind}{devices}", CAPABILITIES]


_SETTINGS, _NVIDIA_SETTINGS = "@SETTINGS@", "@NVIDIA_SETTINGS@"
_HOOK = ("oci-decorator", "-config", _SETTINGS, "prestart")
RUNTIME = Way("runtime", "oci-decorator-runtime", variable=FLAG)
NVIDIA_RUNTIME = Way("nvidia-container-runtime", "nvidia-container-runtime")
OUR_CDI = Way(
    "our CDI specification", "nvidia-container-runtime", mode="cdi", kind="oci-decorator/nvidia="
)
WAYS = (
    RUNTIME,
    Way("hook", hook=_HOOK, variable=FLAG),
    # As podman's hooks.d has them: the hook after the filter makes the library cache.
    Way("precreate filter", hook=_HOOK, filters=True, variable=FLAG),
    OUR_CDI,
    NVIDIA_RUNTIME,
    Way(
        "nvidia-container-runtime-hook",
        hook=(
            "nvidia-container-runtime-hook",
            "-config",
            _NVIDIA_SETTINGS,
            "-oci-decorator-config",
            _SETTINGS,
            "prestart",
        ),
    ),
)
# Prints what a container has of a driver, a section each. The first word is nvidia-smi.
LOOK = """
echo "== nodes"
for node in /dev/nvidia* /dev/nvidia-caps/*; do [ ! -c "$node" ] || echo "$node"; done
echo "== cache"; ldconfig -p
echo "== list"; "$1" -L 2>&1
shift
echo "== names"; open_libraries "$@"
echo "== sum"; vectorAdd 2>&1
echo "== sum by nvcc"; [ ! -x /usr/local/bin/vectorAddNvcc ] || vectorAddNvcc 2>&1
"""


@dataclass
class Lab:
    """The kit on this machine: what it found, and where it works."""

    kit: Path
    # The folder of this file, where the sources lie.
    sources: Path
    record: Record
    number: int = 0

    def program(self, name: str) -> Path:
        """A program of the kit's."""
        return self.kit / "programs" / name

    def provision(self, *words: str | Path, limit_s: float = 60) -> Done:
        """Run `provision`, which finds the driver's libraries."""
        with suppress(NotPossibleHereError):
            variables = self.driver.variables
            return run(
                [sys.executable, "-I", "-m", "provision", *words], env=variables, limit_s=limit_s
            )
        return run([sys.executable, "-I", "-m", "provision", *words], limit_s=limit_s)

    @cached_property
    def driver(self) -> Driver:
        """The driver that is there."""
        return find_driver()

    @cached_property
    def smi(self) -> Smi:
        """Its nvidia-smi."""
        driver = self.driver
        named = shutil.which("nvidia-smi")
        places = [Path(named)] if named else []
        places += [driver.root / folder / "nvidia-smi" for folder in PROGRAM_FOLDERS]
        for place in places:
            if os.access(place, os.X_OK):
                return Smi(place, driver)
        raise NotPossibleHereError("the driver that is there has no nvidia-smi")

    @cached_property
    def vendor(self) -> Json:
        """The vendor file of the driver that is there."""
        raise NotPossibleHereError("there is no vendor file (check 2)")

    @cached_property
    def settings(self) -> Path:
        """Our settings, and NVIDIA's for its names."""
        folder = self.kit / "etc"
        lines = {
            "config-dir": str(folder / "vendors"),
            "runtimes": [str(self.runc)],
            "interfaces": ["nvidia"],
        }
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        (folder / "config.toml").write_text(text)
        return folder / "config.toml"

    def nvidia_settings(self, mode: str, runtime: Path | None = None) -> Path:
        """NVIDIA's settings, with a mode of its runtime and what that starts."""
        low_level = runtime or self.runc
        path = self.kit / f"etc/nvidia-{mode}-{low_level.name}.toml"
        path.write_text(
            "[nvidia-container-cli]\n"
            f'root = "{self.driver.root}"\n'
            "[nvidia-container-runtime]\n"
            f'mode = "{mode}"\nruntimes = ["{low_level}"]\n'
            "[nvidia-container-runtime.modes.cdi]\n"
            f'spec-dirs = ["{self.kit}/etc/cdi"]\n'
            f'[nvidia-ctk]\npath = "{self.program("nvidia/nvidia-ctk")}"\n'
        )
        return path

    # Containers

    @cached_property
    def refused(self) -> dict[str, str]:
        """Why a way to start containers was not taken."""
        return {}

    @cached_property
    def sandbox(self) -> Sandbox:
        """The first that starts a container which does nothing."""
        for sandbox in SANDBOXES:
            done = self.start(sandbox, ["true"])
            if done.status == 0:
                return sandbox
            self.refused[sandbox.name] = done.last
        return CHROOT

    @property
    def runc(self) -> Path:
        """The low-level runtime, with the options that this machine needs."""
        return self.runc_of(self.sandbox)

    def runc_of(self, sandbox: Sandbox) -> Path:
        """The same for a sandbox; where there are no containers, it does nothing."""
        if sandbox is CHROOT:
            return self.nothing
        if not sandbox.options:
            return self.program("runc")
        path = self.kit / "etc/runc"
        path.write_text(
            f'#!/bin/sh\nexec {self.program("runc")} {" ".join(sandbox.options)} "$@"\n'
        )
        path.chmod(0o755)
        return path

    @cached_property
    def nothing(self) -> Path:
        """A low-level runtime that does nothing: what is above it has edited config.json."""
        path = self.kit / "etc/nothing"
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(0o755)
        return path

    def bundle(self, spec: Json) -> Path:
        """A bundle with a root of its own, which has nothing of a driver."""
        self.number += 1
        folder = self.kit / "bundles" / f"c{self.number}"
        shutil.copytree(self.kit / "root", folder / "rootfs", symlinks=True)
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    def start(self, sandbox: Sandbox, words: Sequence[str]) -> Done:
        """Run a plain container to its end."""
        bundle = self.bundle(specification(sandbox, words, ()))
        try:
            return self.run_bundle(self.runc_of(sandbox), bundle)
        finally:
            shutil.rmtree(bundle, ignore_errors=True)

    def run_bundle(self, program: Path, bundle: Path, env: Mapping[str, str] | None = None) -> Done:
        """`PROGRAM run`, and the container is gone after it."""
        self.number += 1
        name, state = f"r{self.number}", self.kit / "state"
        words = ["--root", state, "run", "--bundle", bundle, name]
        done = run([program, *words], env=env)
        if (state / name).exists():
            run([self.program("runc"), "--root", state, "delete", "--force", name])
        return done

    def contain(self, way: Way, words: Sequence[str], request: Sequence[str]) -> Done:
        """Run a container that asks for this by a way, to its end.

        Raises:
            NotPossibleHereError: there is no such way here.
        """
        bundle = self.prepare(way, words, request)
        try:
            if self.sandbox is CHROOT:
                return self.in_chroot(way, bundle)
            return self.run_bundle(self.starter(way), bundle, self.variables(way))
        finally:
            shutil.rmtree(bundle, ignore_errors=True)

    def prepare(self, way: Way, words: Sequence[str], request: Sequence[str]) -> Path:
        """A bundle as an engine would make it for this way."""
        spec = specification(self.sandbox, words, request)
        if way.hook is not None and not (way.filters and self.sandbox is CHROOT):
            if self.sandbox is CHROOT:
                raise NotPossibleHereError("a hook needs a container (check 0)")
            values = {_SETTINGS: self.settings, _NVIDIA_SETTINGS: self.nvidia_settings(way.mode)}
            args = [str(values.get(word, word)) for word in way.hook]
            spec["hooks"] = {"prestart": [{"path": str(self.program(args[0])), "args": args}]}
        bundle = self.bundle(spec)
        if way.filters:
            # An engine gives the filter absolute paths: it has no bundle.
            spec["root"]["path"] = str(bundle / "rootfs")
            argv = [self.program("oci-decorator"), "precreate", "--config", self.settings]
            edited = run(argv, stdin=json.dumps(spec)).must("precreate")
            (bundle / "config.json").write_text(edited.out)
        return bundle

    def starter(self, way: Way) -> Path:
        """What starts a container of this way."""
        return self.runc if way.program is None else self.program(way.program)

    def variables(self, way: Way) -> dict[str, str]:
        """The environment that an engine gives to its runtime."""
        return {
            "OCI_DECORATOR_CONFIG": str(self.settings),
            "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.nvidia_settings(way.mode)),
        }

    @property
    def why_no_containers(self) -> str:
        """What was refused, in one line."""
        return "; ".join(f"{name}: {why}" for name, why in self.refused.items())

    def in_chroot(self, way: Way, bundle: Path) -> Done:
        """Apply what a way makes of config.json by hand, where nothing can be mounted."""
        if not way.filters:
            argv = [self.starter(way), "create", "--bundle", bundle, bundle.name]
            run(argv, env=self.variables(way)).must(way.name)
        spec = json.loads((bundle / "config.json").read_text())
        root = bundle / "rootfs"
        for mount in spec.get("mounts", []):
            source = Path(mount.get("source", ""))
            if mount.get("type") in {None, "", "bind", "none"} and source.is_file():
                target = root / mount["destination"].lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    copy_or_link(source, target)
        for node in spec.get("linux", {}).get("devices", []):
            target = root / node["path"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            number = os.makedev(node["major"], node["minor"])
            kind = stat.S_IFBLK if node["type"] == "b" else stat.S_IFCHR
            try:
                os.mknod(target, kind | 0o666, number)
                target.chmod(0o666)
            except OSError as error:
                raise NotPossibleHereError(
                    f"neither a container nor a node can be made: {error.strerror}"
                ) from error
        for name, number in (("null", 3), ("zero", 5), ("urandom", 9)):
            with suppress(OSError):
                os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, number))
                (root / "dev" / name).chmod(0o666)
        variables = dict(entry.partition("=")[::2] for entry in spec["process"]["env"])
        # The cache is what hooks make; where there is no container, the loader's own program does.
        inside = run(["/sbin/ldconfig"], enter=lambda: enter(root, 0))
        if inside.status != 0:
            raise NotPossibleHereError(f"no program starts in a chroot: {inside.last}")
        words = spec["process"]["args"]
        return run(words, env=variables, enter=lambda: enter(root, NOBODY))

    # What a container has

    @cached_property
    def names(self) -> list[str]:
        """The names of the driver's libraries that a container with FEATURES has."""
        parts = [self.vendor["inventory"].get(name, {}) for name in FEATURES.split(",")]
        return sorted({Path(path).name for part in parts for path in part.get("libraries", [])})

    @cached_property
    def opened(self) -> list[str]:
        """What programs open: each library by its paths, and some by a name alone."""
        parts = [self.vendor["inventory"].get(name, {}) for name in FEATURES.split(",")]
        paths = {path for part in parts for path in part.get("libraries", [])}
        return [*sorted(paths), *BUILT_WITH]

    @cached_property
    def smi_inside(self) -> str:
        """Where nvidia-smi is in a container."""
        paths = self.vendor["inventory"].get("utility", {}).get("binaries", [])
        return next((path for path in paths if path.endswith("/nvidia-smi")), "nvidia-smi")

    def look(self, way: Way, request: Sequence[str]) -> dict[str, str]:
        """What a container has that asks for this by a way: text by section.

        Raises:
            CheckFailedError: it did not start.
        """
        words = ["sh", "-c", LOOK, "sh", self.smi_inside, *self.opened]
        done = self.contain(way, words, request)
        if "== nodes" not in done.out and way.hook and "/sys/fs/cgroup" in done.last:
            raise NotPossibleHereError(f"a hook lets devices in by the cgroup: {done.last}")
        if "== nodes" not in done.out:
            raise CheckFailedError(f"the container did not start: {done.last}")
        return sections(done.out)


def sections(said: str) -> dict[str, str]:
    """What LOOK prints, by its headings."""
    parts = re.split(r"^== (.*)\n", said, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def copy_or_link(source: Path, target: Path) -> None:
    """Have a file at a second place, without a copy where one file system has both."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


# The checks, in the order of their numbers


def check_facts(lab: Lab) -> str:
    """`provision facts` says what the kernel and nvidia-smi say."""
    done = lab.provision("facts", "--json").must("provision facts")
    facts = json.loads(done.out)
    if facts["kernel"] != platform.release():
        raise CheckFailedError(f"the kernel is {platform.release()}, and not {facts['kernel']}")
    seen = {address(device.get("address", "")) for device in facts.get("pci", [])}
    expected = {gpu["pci"] for gpu in lab.smi.report["devices"]}
    if not Path("/sys/bus/pci/devices").is_dir():
        return f"{facts['distro']}; without a list of PCI devices, which the kernel doesn't offer"
    if not expected <= seen:
        missing = sorted(str(one) for one in expected - seen)
        raise CheckFailedError(f"the list of PCI devices is without {', '.join(missing)}")
    return f"kernel {facts['kernel']}, {len(expected)} GPUs among {len(seen)} PCI devices"


def check_devices(lab: Lab) -> str:
    """`provision devices` and the device facts say what `nvidia-smi -q -x` says here."""
    _ = lab.smi
    if not Path("/proc/driver/nvidia/version").exists():
        raise NotPossibleHereError(
            "/proc/driver/nvidia, which shows that it is loaded, is not there"
        )
    done = lab.provision("devices", "--rescan", "--json", "nvidia").must("provision devices")
    lab.record.head["devices"] = json.loads(done.out)
    if not FACTS.is_file():
        raise CheckFailedError(f"{FACTS} was not written: {done.last}")
    facts = json.loads(FACTS.read_text())
    if facts.get("problems"):
        raise CheckFailedError("; ".join(facts["problems"]))
    if facts.get("source") != "nvml":
        raise CheckFailedError(f"they come from {facts.get('source')}, and not from NVML")
    if found := differences(lab.smi.report, facts):
        raise CheckFailedError("; ".join(found))
    parts = sum(len(gpu["mig"] or ()) for gpu in lab.smi.report["devices"])
    what = "index, UUID, PCI, minor, brand and versions"
    return f"{what} of {len(facts['devices'])} GPUs, {parts} MIG parts"


def check_vendor_file(lab: Lab) -> str:
    """`provision drivers vendor-file` finds the driver."""
    path = lab.kit / "etc/vendors/nvidia.json"
    root = lab.driver.root
    words = ("drivers", "vendor-file", "nvidia", "--root", root, "--output", path)
    lab.provision(*words).must("provision drivers vendor-file")
    vendor = json.loads(path.read_text())
    if vendor["version"] != lab.driver.version:
        raise CheckFailedError(f"the driver is {lab.driver.version}, not {vendor['version']}")
    if root != Path("/"):
        vendor["root"] = str(root)
        path.write_text(json.dumps(vendor))
    lab.vendor = vendor
    lab.record.head["vendor_file"] = vendor
    return f"{vendor['version']}, {len(lab.names)} names of libraries for {FEATURES}"


def check_check(lab: Lab) -> str:
    """`oci-decorator check` has nothing to say against it."""
    words = ["check", "--config", lab.settings, "--env", f"{FLAG}={FEATURES}", "--json"]
    _ = lab.vendor
    done = run([lab.program("oci-decorator"), *words])
    with suppress(ValueError):
        lab.record.head["check"] = json.loads(done.out)
    if done.status != 0:
        raise CheckFailedError(f"exit status {done.status}: {(done.err or done.out).strip()[:600]}")
    return ""


def check_sandbox(lab: Lab) -> str:
    """Containers can be started."""
    name = lab.sandbox.name
    lab.record.head |= {"containers_by": name, "refused": lab.refused}
    if lab.sandbox is CHROOT:
        raise NotPossibleHereError(f"{lab.why_no_containers}. What edits give is tried in a chroot")
    after = f"; {lab.why_no_containers}" if lab.refused else ""
    return f"{name}{after}"


def check_cdi(lab: Lab) -> str:
    """`oci-decorator cdi generate` writes a specification."""
    folder = lab.kit / "etc/cdi"
    _ = lab.vendor
    words = ["cdi", "generate", "--config", lab.settings, "--output", folder / "ours.json"]
    run([lab.program("oci-decorator"), *words]).must("cdi generate")
    document = json.loads((folder / "ours.json").read_text())
    names = [device["name"] for device in document["devices"]]
    return f"{document['kind']}, version {document['cdiVersion']}: {', '.join(names)}"


def checks_of_ways(lab: Lab) -> None:
    """Each way gives a container the driver where it asks, and nothing where it doesn't."""
    for way in WAYS:
        seen: dict[str, str] = {}

        def given(way: Way = way, seen: dict[str, str] = seen) -> str:
            seen |= lab.look(way, way.request("all"))
            if seen["list"].strip() != lab.smi.listing:
                raise CheckFailedError(f"the container lists {seen['list'].strip()!r}")
            return f"{len(listed(lab.smi.listing))} GPUs, nodes {' '.join(seen['nodes'].split())}"

        def opened(seen: dict[str, str] = seen) -> str:
            _needs(seen)
            return libraries_open(seen["names"], lab.opened)

        def nothing(way: Way = way) -> str:
            found = lab.look(way, [])
            cached = [name for name in lab.names if name in found["cache"].split()]
            if found["nodes"].split() or cached:
                raise CheckFailedError(f"it has {found['nodes'].split()} and {cached}")
            return "no node, no library"

        def added(seen: dict[str, str] = seen) -> str:
            _needs(seen)
            return sum_is_right(seen["sum"])

        def by_nvcc(seen: dict[str, str] = seen) -> str:
            return sum_is_right(_needs(seen)["sum by nvcc"])

        lab.record.check(3, f"{way.name}: nvidia-smi -L is the host's", given)
        lab.record.check(3, f"{way.name}: every name of the libraries opens", opened)
        lab.record.check(3, f"{way.name}: nothing without a request", nothing)
        lab.record.check(4, f"{way.name}: vectorAdd, unprivileged", added)
        if way is RUNTIME and (lab.kit / "root/usr/local/bin/vectorAddNvcc").exists():
            lab.record.check(4, f"{way.name}: vectorAdd by nvcc", by_nvcc)


def _needs(seen: dict[str, str]) -> dict[str, str]:
    if not seen:
        raise NotPossibleHereError("its container did not start")
    return seen


def libraries_open(said: str, names: Sequence[str]) -> str:
    """Whether each name was opened; a library may need what is not of the driver."""
    lines = said.splitlines()
    opened = [line.removeprefix("opened ") for line in lines if line.startswith("opened ")]
    refused = [line.removeprefix("refused ") for line in lines if line.startswith("refused ")]
    # `refused NAME: OTHER: cannot open shared object file`: the plain root is without OTHER.
    foreign = [line for line in refused if not _is_of(line, names)]
    bad = [line for line in refused if line not in foreign]
    if bad or len(opened) + len(refused) < len(names):
        raise CheckFailedError("; ".join(bad) or f"{len(opened)} of {len(names)} were tried")
    more = f"; need what the root is without: {'; '.join(foreign)}" if foreign else ""
    return f"{', '.join(opened)}{more}"


def _is_of(line: str, names: Iterable[str]) -> bool:
    _name, _, why = line.partition(": ")
    lacked = Path(why.partition(":")[0]).name
    known = {Path(one).name for one in names}
    return "cannot open shared object file" not in why or lacked in known


def sum_is_right(said: str) -> str:
    """Whether the example passed."""
    if "Test PASSED" in said:
        return next(iter(said.splitlines()))
    if "GLIBC" in said:
        raise NotPossibleHereError(f"it was compiled here for a newer C library: {said.strip()}")
    raise CheckFailedError(said.strip()[:300] or "it said nothing")


def check_on_host(lab: Lab) -> str:
    """The example on the host itself: where it fails, containers can do no better."""
    lib = lab.kit / "python/lib"
    loader = next(lib.glob("ld-linux*"))
    search = f"{lab.driver.folder}:{lib}"
    program = lab.kit / "root/usr/local/bin/vectorAdd"
    done = run([loader, "--library-path", search, program])
    return sum_is_right(f"{done.out}{done.err}")


def check_nvcc(lab: Lab) -> str:
    """CUDA's own compiler, where it is, compiles the example against CUDA's runtime."""
    target = lab.kit / "root/usr/local/bin/vectorAddNvcc"
    if target.exists():
        return "carried"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin:/opt/cuda/bin")
    if nvcc is None:
        raise NotPossibleHereError("there is no nvcc; the driver's own compiler of PTX is used")
    flags = ("-cudart", "static", "-o", target, lab.sources / "vector_add.cu")
    run([nvcc, *flags], env={"PATH": os.environ.get("PATH", PATH)}, limit_s=90).must("nvcc")
    return nvcc


def checks_of_one(lab: Lab) -> None:
    """A request for one of several GPUs, or for one MIG part, gives that one."""
    hook = WAYS[-1]
    of_gpus: tuple[tuple[Way, str, Callable[[Json], str]], ...] = (
        (NVIDIA_RUNTIME, "index", lambda gpu: str(gpu["index"])),
        (NVIDIA_RUNTIME, "UUID", lambda gpu: str(gpu["uuid"])),
        (hook, "UUID", lambda gpu: str(gpu["uuid"])),
        # A device of the specification has the name of its node.
        (OUR_CDI, "node", lambda gpu: f"nvidia{gpu['minor']}"),
    )
    for way, by, name in of_gpus:
        title = f"{way.name}: one of several GPUs by its {by}"
        lab.record.check(3, title, partial(one_gpu, lab, way, name))
    title = f"{NVIDIA_RUNTIME.name}: one MIG part by its UUID"
    lab.record.check(3, title, partial(one_part, lab))


def one_gpu(lab: Lab, way: Way, name: Callable[[Json], str]) -> str:
    """A container that asks for the last of several GPUs lists that one, and none of its parts."""
    gpus = listed(lab.smi.listing)
    if len(gpus) < 2:
        raise NotPossibleHereError("the machine has one GPU")
    if not FACTS.is_file():
        raise NotPossibleHereError("there are no device facts (check 1)")
    return gives(lab, way, name(lab.smi.report["devices"][-1]), (gpus[-1][0], []))


def one_part(lab: Lab) -> str:
    """A container that asks for the last of several MIG parts lists that one, on its GPU."""
    for gpu, parts in listed(lab.smi.listing):
        if len(parts) > 1 and FACTS.is_file():
            return gives(lab, NVIDIA_RUNTIME, parts[-1], (gpu, parts[-1:]))
    raise NotPossibleHereError("no GPU has several MIG parts")


def gives(lab: Lab, way: Way, devices: str, expected: tuple[str, list[str]]) -> str:
    """A container that asks for these devices lists one GPU, with these parts."""
    found = listed(lab.look(way, way.request(devices))["list"])
    if found != [expected]:
        raise CheckFailedError(f"{devices} gives {found}, not {expected}")
    return f"{devices} gives {' '.join([expected[0], *expected[1]])}"


# Times, and NVIDIA's own toolkit


def theirs(lab: Lab, name: str) -> Path:
    """A program of NVIDIA's toolkit.

    Raises:
        NotPossibleHereError: it was not carried.
    """
    path = lab.program(f"nvidia/{name}")
    if not path.exists():
        raise NotPossibleHereError("NVIDIA's toolkit was not carried")
    return path


def their_variables(lab: Lab) -> dict[str, str]:
    """The environment in which NVIDIA's programs find the driver and each other."""
    folder = lab.program("nvidia")
    return {
        **lab.driver.variables,
        "PATH": f"{folder}:{PATH}",
        "NVIDIA_CTK_CONFIG_FILE_PATH": str(lab.nvidia_settings("auto", lab.nothing)),
    }


def check_their_runtime(lab: Lab) -> str:
    """NVIDIA's own runtime gives a container the same GPUs."""
    program, _ = theirs(lab, "nvidia-container-runtime"), lab.vendor
    if lab.sandbox is CHROOT:
        raise NotPossibleHereError("no container can be started (check 0)")
    words = ["sh", "-c", LOOK, "sh", "nvidia-smi", *lab.opened]
    bundle = lab.prepare(Way("theirs"), words, NVIDIA_RUNTIME.request("all"))
    # It edits config.json only where it is to create a container, and not where it is to run one.
    done = run([program, "create", "--bundle", bundle, bundle.name], env=their_variables(lab))
    if done.status == 0:
        done = lab.run_bundle(lab.runc, bundle)
    shutil.rmtree(bundle, ignore_errors=True)
    if "== nodes" not in done.out:
        raise NotPossibleHereError(f"it does not start a container here: {done.last}")
    found = sections(done.out)
    if found["list"].strip() != lab.smi.listing:
        raise NotPossibleHereError(f"its container lists {found['list'].strip()[:300]!r}")
    return f"nodes {' '.join(found['nodes'].split())}; {found['sum'].strip().splitlines()[-1:]}"


def check_their_cdi(lab: Lab) -> str:
    """What NVIDIA's `cdi generate` gives to a container is in ours."""
    program, _ = theirs(lab, "nvidia-ctk"), lab.vendor
    ours = json.loads((lab.kit / "etc/cdi/ours.json").read_text())
    hook = lab.program("nvidia/nvidia-cdi-hook")
    words = ["cdi", "generate", "--format", "json", "--driver-root", lab.driver.root]
    words += ["--dev-root", "/", "--nvidia-cdi-hook-path", hook]
    done = run([program, *words], env=their_variables(lab))
    if done.status != 0:
        raise NotPossibleHereError(f"nvidia-ctk cdi generate failed: {done.last}")
    document = json.loads(done.out)
    lab.record.head["cdi"] = {"ours": ours, "theirs": document}
    nodes, files = zip(_edits(ours), _edits(document), strict=True)
    lacking = {
        "nodes": sorted(nodes[1] - nodes[0]),
        "files": sorted(files[1] - files[0]),
    }
    more = {"nodes": len(nodes[0] - nodes[1]), "files": len(files[0] - files[1])}
    if lacking["nodes"] or lacking["files"]:
        raise CheckFailedError(f"theirs has more: {lacking}; ours has more: {more}")
    return f"{len(nodes[1])} nodes and {len(files[1])} files are in both; ours has more: {more}"


def _edits(document: Json) -> tuple[set[str], set[str]]:
    """The nodes of `all`, and the files, of a CDI specification."""
    chosen = [device for device in document["devices"] if device["name"] == "all"]
    edits = [document.get("containerEdits", {}), *(device["containerEdits"] for device in chosen)]
    nodes = {node["path"] for one in edits for node in one.get("deviceNodes", [])}
    mounts = [mount for one in edits for mount in one.get("mounts", [])]
    # Mounts of /dev/null are words of a request.
    files = {Path(m["containerPath"]).name for m in mounts if m["hostPath"] != "/dev/null"}
    return nodes, files


def check_times(lab: Lab) -> str:
    """How long the start of a container takes that does nothing, and the edits alone."""
    if lab.sandbox is CHROOT:
        raise NotPossibleHereError("no container can be started (check 0)")
    _ = lab.vendor
    ours, variables = lab.starter(NVIDIA_RUNTIME), lab.variables(NVIDIA_RUNTIME)
    settings = lab.settings.with_name("nothing.toml")
    settings.write_text(lab.settings.read_text().replace(str(lab.runc), str(lab.nothing)))
    alone = {
        "OCI_DECORATOR_CONFIG": str(settings),
        "NVIDIA_CTK_CONFIG_FILE_PATH": str(lab.nvidia_settings("auto", lab.nothing)),
    }
    asked = NVIDIA_RUNTIME.request("all")
    programs: dict[str, tuple[str, Path, dict[str, str], Sequence[str]]] = {
        "runc": ("run", lab.runc, {}, ()),
        "ours, nothing asked": ("run", ours, variables, ()),
        "ours": ("run", ours, variables, asked),
        "our edits": ("create", ours, alone, asked),
    }
    with suppress(NotPossibleHereError):
        runtime = theirs(lab, "nvidia-container-runtime")
        programs["NVIDIA's edits"] = ("create", runtime, their_variables(lab), asked)
    specs = {
        name: json.dumps(specification(lab.sandbox, ["true"], request))
        for name, (_verb, _program, _env, request) in programs.items()
    }
    bundles = {name: lab.bundle(json.loads(spec)) for name, spec in specs.items()}
    taken: dict[str, list[Done]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, (verb, program, env, _request) in programs.items():
            bundle = bundles[name]
            (bundle / "config.json").write_text(specs[name])
            if verb == "run":
                taken[name].append(lab.run_bundle(program, bundle, env).must(name))
            else:
                taken[name].append(run([program, verb, "--bundle", bundle, bundle.name], env=env))
    ms = {
        name: round(median(done.seconds for done in dones) * 1000, 1)
        for name, dones in taken.items()
        # Another check says why NVIDIA's runtime does not.
        if all(done.status == 0 for done in dones)
    }
    lab.record.head["start_ms"] = ms
    listed_ms = ", ".join(f"{name} {value} ms" for name, value in ms.items())
    return f"{listed_ms}; median of {ROUNDS} each, in turns"


def check_plan(lab: Lab) -> str:
    """`provision plan` says whether it would build this driver for this kernel."""
    release = platform.release()
    places = (f"/lib/modules/{release}/build", f"/boot/config-{release}", "/proc/config.gz")
    there = [place for place in places if Path(place).exists()]
    if not there:
        raise NotPossibleHereError(
            f"the kernel's headers and config are not there: {', '.join(places)}"
        )
    settings = Path("/etc/provision/provision.toml")
    if settings.exists():
        raise NotPossibleHereError(f"{settings} is there, and is another's")
    try:
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(f'[drivers.nvidia]\nversion = "{lab.driver.version}"\n')
    except OSError as error:
        raise NotPossibleHereError(f"{settings} can't be written: {error.strerror}") from error
    try:
        done = lab.provision("plan", "--json", limit_s=60)
    finally:
        settings.unlink()
    try:
        document = json.loads(done.out)
    except ValueError as error:
        raise CheckFailedError(f"exit status {done.status}, and no JSON: {done.last}") from error
    lab.record.head["plan"] = document
    said = (document.get("error") or {}).get("message") or json.dumps(document)
    if done.status not in {0, 1, 3, 4}:
        raise CheckFailedError(f"exit status {done.status}: {said[:600]}")
    return f"{' and '.join(there)}; exit status {done.status}: {said[:600]}"


def look_at_everything(lab: Lab) -> None:
    """Make all checks."""
    check = lab.record.check
    check(1, "provision facts", lambda: check_facts(lab))
    check(
        1,
        "provision devices and device facts, against nvidia-smi -q -x",
        lambda: check_devices(lab),
    )
    check(2, "provision drivers vendor-file", lambda: check_vendor_file(lab))
    check(0, "containers can be started", lambda: check_sandbox(lab))
    check(2, "oci-decorator check", lambda: check_check(lab))
    check(3, "oci-decorator cdi generate", lambda: check_cdi(lab))
    check(4, "vectorAdd on the host", lambda: check_on_host(lab))
    check(4, "vectorAdd compiled by nvcc", lambda: check_nvcc(lab))
    checks_of_ways(lab)
    checks_of_one(lab)
    check(5, "start times", lambda: check_times(lab))
    check(5, "NVIDIA's cdi generate, against ours", lambda: check_their_cdi(lab))
    check(5, "NVIDIA's runtime", lambda: check_their_runtime(lab))
    check(6, "provision plan", lambda: check_plan(lab))


def main() -> int:
    """Look, and return the exit status."""
    parser = argparse.ArgumentParser(prog="run", description="Checks on a machine with a GPU.")
    parser.add_argument("--kit", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("gpu-record"), metavar="DIR")
    parser.add_argument("--limit", type=float, default=270, metavar="SECONDS")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("containers and nodes need root. What to do: sudo sh run")
    options.output.mkdir(parents=True, exist_ok=True)
    kit: Path = options.kit.resolve()
    for name in ("etc/vendors", "etc/cdi", "bundles"):
        (kit / name).mkdir(parents=True, exist_ok=True)
    sources = Path(__file__).resolve().parent
    record = Record(options.output.resolve(), options.limit)
    lab = Lab(kit, sources, record)
    there = {path for path in LEFT if Path(path).exists()}
    record.head = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kit": json.loads((sources / "kit.json").read_text()),
        "machine": machine_facts(),
    }
    with suppress(NotPossibleHereError):
        driver = lab.driver
        record.head["driver"] = {"version": driver.version, "folder": str(driver.folder)}
        record.head["gpus"] = lab.smi.report["devices"]
    try:
        look_at_everything(lab)
    finally:
        for path in set(LEFT) - there:
            shutil.rmtree(path, ignore_errors=True)
    say(f"{record.folder / 'record.md'} has all of it")
    return record.status


if __name__ == "__main__":
    sys.exit(main())
