"""A fleet that moves to new kernels, in simulated time: real hosts' code, and a real registry.

What is real: docker-registry and its restarts; each host's `provision apply` (the agent's run with
its look-ups, retries, signatures, unpacking, store and status), on a root of its own; the builder's
uploads and signatures by skopeo. What is simulated: the clock, which only orders the runs;
builds, which push an artifact that was made beforehand; kernels, which are names, so that nothing
is loaded. The builder learns of a missing artifact by the host's status, as a notice would say it.
"""

from __future__ import annotations

import heapq
import io
import json
import os
import random
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from kit.artifact import KERNEL, VERMAGIC, make_artifact, make_module, make_pin
from kit.files import BOOKWORM, HostFiles, write_all
from kit.media import image_of
from kit.registry import RegistryServer, Sent
from provision.agent.desired import load_desired
from provision.agent.model import Run
from provision.agent.prepare import preparations
from provision.agent.run import apply
from provision.pin import Pin
from provision.registry import parse_reference
from provision.registry.find import facts_of, tag_of
from provision.registry.repositories import Registry
from provision.registry.signatures import generate_key, open_private_key, sign, signature_tag

# What hosts and the builder call themselves.
AGENT = "skopeo/"
DRIVER, FLAVOUR, VERSION = "v4l2loopback", "dkms", "0.12.7"
KERNELS = tuple(f"6.1.0-{number}-amd64" for number in range(50, 55))
# Bytes that no compression makes smaller: a module of tens of KB, and user space that all share.
_MODULE, _SHARED = 40_000, 160_000
_HOUR = 3600.0
# As provision-repeat.timer has it: an hour after the last run, and up to this much later.
_JITTER = 600.0
# What a build of NVIDIA's modules takes.
BUILD_S = 180.0
# How long the registry is away, besides its start; a host's client tries again for 3.5 s.
_AWAY_S = 0.5
# Hosts that run at the same time.
_AT_ONCE = 2


class _Artifact(NamedTuple):
    pin: Pin
    layers: tuple[bytes, ...]


@dataclass(slots=True)
class Figures:
    """What came of a rollout."""

    hosts: int
    builds: int = 0
    # Hosts that took their artifact from the registry.
    pulled: int = 0
    # Hosts that built anything.
    compiled: int = 0
    # Hosts that found none at first, and came again an hour later.
    waited: int = 0
    # Runs that gave up while the registry was away; they came again an hour later, too.
    lost: int = 0
    # Hosts that ended otherwise, with what they said.
    failed: list[str] = field(default_factory=list)
    # Runs with nothing to do, and what they had the registry send.
    idle: Sent | None = None
    # Bytes of what the hosts have to read: manifests, configurations, signatures, layers.
    needed: int = 0
    sent: Sent | None = None
    restarts: int = 0
    seconds: float = 0.0
    # Seconds of real time of each pull, sorted.
    each: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Bytes that left the registry over those that the hosts need."""
        return (self.sent.size if self.sent else 0) / self.needed

    def table(self) -> list[tuple[str, str]]:
        """The figures for people."""
        sent = self.sent
        median = self.each[len(self.each) // 2]
        return [
            ("hosts, kernels", f"{self.hosts}, {len(KERNELS)}"),
            ("builds", str(self.builds)),
            ("hosts that pulled", str(self.pulled)),
            ("hosts that compiled", str(self.compiled)),
            ("hosts that failed", str(len(self.failed))),
            ("hosts that came before the build", f"{self.waited}; pulled an hour later"),
            ("restarts of the registry", f"{self.restarts}; {self.lost} runs gave up meanwhile"),
            ("bytes that hosts need", f"{self.needed:,}"),
            ("bytes out of the registry", f"{sent.size if sent else 0:,} ({self.ratio:.4f} x)"),
            ("requests, of them 404", f"{sent.requests}, {sent.missing}" if sent else "-"),
            ("requests of runs with nothing to do", str(self.idle.requests if self.idle else "-")),
            ("a pull", f"{median * 1000:.0f} ms (median), {self.each[-1]:.1f} s (the longest)"),
            ("real time", f"{self.seconds:.0f} s"),
        ]


class Rollout:
    """Hosts below a folder, a builder, and the registry between them."""

    def __init__(self, folder: Path, registry: RegistryServer, *, hosts: int) -> None:
        """Make the hosts; none has anything yet."""
        self._folder = folder
        self._registry = registry
        self._random = random.Random(1)  # noqa: S311 - jitter, and the same in each run
        (folder / "key").mkdir()
        private, self._public = generate_key(folder / "key/fleet", None)
        self._signer = open_private_key(private, lambda: b"")
        self._artifacts = {kernel: self._made(kernel) for kernel in KERNELS}
        self._needed: dict[str, int] = {}
        self._builders: list[Sent] = []
        self.roots = [self._host(number) for number in range(hosts)]
        self.figures = Figures(hosts)

    def run(self) -> Figures:
        """Have every host move to its kernel within an hour, and look again when it has."""
        figures = self.figures
        begun = time.monotonic()
        # A fork would take this process's connections with it.
        with ProcessPoolExecutor(_AT_ONCE, mp_context=get_context("spawn")) as pool:
            _Play(self, pool).play()
            figures.seconds = time.monotonic() - begun
            before = self._registry.sent(AGENT)
            for said in pool.map(_apply, self.roots, chunksize=20):
                if said["state"] != "ready" or said["changed"]:
                    figures.failed.append(f"{said['root']}: {said}")
        after = self._registry.sent(AGENT)
        figures.idle = _less(after, before)
        for builder in self._builders:
            after = _less(after, builder)
        figures.sent = after
        figures.each.sort()
        return figures

    def build(self, kernel: str) -> None:
        """Push and sign the artifact of a kernel, as a builder does."""
        artifact = self._artifacts[kernel]
        name = f"{self._registry.address}/drivers/{DRIVER}:{tag_of(artifact.pin).text}"
        reference = parse_reference(name)
        repository = Registry(reference)
        before = self._registry.sent(AGENT)
        image = image_of(artifact.pin, artifact.layers)
        digest = repository.put_image(reference.tag or "", image.manifest, image.blobs)
        facts = facts_of(artifact.pin, int(time.time()))
        sign(repository, digest, facts, self._signer)
        signature = repository.manifest(signature_tag(digest)).data
        payloads = [layer["size"] for layer in json.loads(signature)["layers"]]
        parts = (image.manifest, signature, *image.blobs)
        self._needed[kernel] = sum(map(len, parts)) + sum(payloads)
        self.figures.builds += 1
        # No host is at work meanwhile.
        self._builders.append(_less(self._registry.sent(AGENT), before))

    def needed(self, kernel: str) -> int:
        """Bytes that a host has to read to have, and to trust, the artifact of a kernel."""
        return self._needed[kernel]

    def begins(self) -> float:
        """When a host gets its new kernel, in simulated seconds."""
        return self._random.uniform(0, _HOUR)

    def later(self) -> float:
        """After how many simulated seconds the timer starts the agent again."""
        return _HOUR + self._random.uniform(0, _JITTER)

    def restart(self) -> None:
        """Let the registry fail under those who are using it."""
        self._registry.restart(after_s=_AWAY_S)
        self.figures.restarts += 1

    def _host(self, number: int) -> Path:
        host = HostFiles(self._folder / f"host-{number:04}")
        kernel = KERNELS[number % len(KERNELS)]
        files = {
            "etc/os-release": BOOKWORM,
            "etc/provision/trust.d/fleet.pub": self._public.read_text(),
            "etc/provision/provision.toml": (
                f'[drivers.{DRIVER}]\n[engine]\nhost = "unix:///nonexistent/docker.sock"\n'
                f'[registry]\naddress = "{self._registry.address}/drivers"\n'
                '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n'
            ),
        }
        write_all(host.root, files)
        host.add_kernel(kernel)
        host.boot(kernel)
        return host.root

    def _made(self, kernel: str) -> _Artifact:
        pin = make_pin(driver=DRIVER, version=VERSION, kernel=kernel)
        pin = pin.model_copy(update={"driver": pin.driver.model_copy(update={"flavour": FLAVOUR})})
        folder = self._folder / f"artifact-{kernel}"
        module = make_module(VERMAGIC.replace(KERNEL, kernel)) + self._random.randbytes(_MODULE)
        shared = random.Random(0).randbytes(_SHARED)  # noqa: S311 - the same of all kernels
        make_artifact(folder, pin=pin, module=module, library=shared)
        manifest = "driver/manifest.json"
        user_space = _layer(folder, "driver", without=(manifest,))
        return _Artifact(pin, (user_space, _layer(folder, "lib", manifest)))


def _less(sent: Sent, other: Sent) -> Sent:
    return type(sent)(
        sent.requests - other.requests, sent.missing - other.missing, sent.size - other.size
    )


def _layer(folder: Path, *names: str, without: Sequence[str] = ()) -> bytes:
    """A tar file of parts of a folder, the same bytes for the same files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name.removeprefix("opt/") in without else member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            archive.add(folder / name, arcname=f"opt/{name}", filter=plain)
    return buffer.getvalue()


class _Running(NamedTuple):
    """A run of a host that has not ended."""

    # When it began, in simulated seconds.
    time: float
    number: int
    # How often the registry had been started again by then.
    restarts: int
    is_away: bool


@dataclass
class _Play:
    """The runs of a rollout, in their simulated order, some at once."""

    rollout: Rollout
    pool: ProcessPoolExecutor

    def play(self) -> None:
        """Run until every host has what it should have."""
        rollout = self.rollout
        self._events = [(rollout.begins(), 1, number) for number in range(len(rollout.roots))]
        self._asked: set[str] = set()
        self._restarting = Thread()
        self._running: dict[Future[dict[str, Any]], _Running] = {}
        # Twice while most hosts are at it.
        restarts = [_HOUR / 3, 2 * _HOUR / 3]
        heapq.heapify(self._events)
        while self._events or self._running:
            now = self._events[0][0] if self._events else float("inf")
            is_time = restarts and now >= restarts[0] and self._running
            if is_time and not self._restarting.is_alive():
                restarts.pop(0)
                # Hosts go on meanwhile, and find no registry.
                self._restarting = Thread(target=rollout.restart)
                self._restarting.start()
            if not self._events or len(self._running) >= _AT_ONCE or self._waits():
                self._finish()
                continue
            time_, kind, number = heapq.heappop(self._events)
            if kind == 0:
                # A builder tries until the registry is there.
                if self._restarting.ident:
                    self._restarting.join()
                rollout.build(KERNELS[number])
                continue
            future = self.pool.submit(_apply, rollout.roots[number])
            before, is_away = rollout.figures.restarts, self._restarting.is_alive()
            self._running[future] = _Running(time_, number, before, is_away)
        if self._restarting.ident:
            self._restarting.join()

    def _waits(self) -> bool:
        """Whether the next event is a build, for which earlier runs have to be over."""
        return self._events[0][1] == 0 and bool(self._running)

    def _finish(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED, timeout=300)
        if not done:
            raise RuntimeError("no host has ended within 300 s")
        for future in done:
            self._ended(self._running.pop(future), future.result())

    def _ended(self, run: _Running, said: dict[str, Any]) -> None:
        time_, number = run.time, run.number
        figures, kernel = self.rollout.figures, KERNELS[number % len(KERNELS)]
        figures.compiled += "(from: build)" in said["result"]
        if said["state"] == "ready" and "(from: registry)" in said["result"]:
            figures.pulled += 1
            figures.each.append(said["seconds"])
            figures.needed += self.rollout.needed(kernel)
        elif said["state"] == "missing" and kernel not in self._built():
            figures.waited += 1
            heapq.heappush(self._events, (time_ + self.rollout.later(), 1, number))
            if kernel not in self._asked:
                self._asked.add(kernel)
                build = (time_ + BUILD_S, 0, KERNELS.index(kernel))
                heapq.heappush(self._events, build)
        elif run.is_away or self._restarting.is_alive() or figures.restarts != run.restarts:
            # To start it may take longer than a client tries, on a busy machine.
            figures.lost += 1
            heapq.heappush(self._events, (time_ + self.rollout.later(), 1, number))
        else:
            figures.failed.append(f"{said['root']}: {said}")

    def _built(self) -> set[str]:
        """The kernels whose artifact is in the registry."""
        waiting = {KERNELS[number] for _, kind, number in self._events if kind == 0}
        return self._asked - waiting


def _apply(root: Path) -> dict[str, Any]:
    """Run the agent of a host, in a worker."""
    os.environ.pop("DOCKER_HOST", None)
    begun = time.monotonic()
    result = apply(Run(root, load_desired(root, keep=True)), preparations)
    outcomes = result.outcomes
    return {
        "root": root.name,
        "state": result.status.state,
        "changed": bool(outcomes),
        "result": "; ".join(outcome.result for outcome in outcomes),
        "seconds": time.monotonic() - begun,
    }
