"""A node of Kubernetes that runs here: kubelet, containerd 2 and runc, of a Debian 12 of its own.

It has a network namespace and a mount namespace, and this machine's kernel, whatever release it
says. So it loads no modules: `/` is no root of the machine's first process, as the agent asks. Its
pods have a network. It belongs to no cluster: pods are files in kubelet's folder, which are no
objects of an API server, so they have no account, and nothing of a cluster's can be in them.

A machine without CAP_SYS_RESOURCE lowers no OOM score and raises no limit: kubelet's and
containerd's settings say so. Where cgroups are of version 1, kubelet takes them (failCgroupV1).
kubelet and containerd are compiled from the Go modules that tests/data/go pins by hash.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import requests

from kit.engine import remove_tree
from kit.engine_tree import DEBIAN_12
from kit.go_program import go_programs
from kit.hosts import OLD_KERNEL
from kit.kubernetes import kubernetes
from kit.probe import can_mount, is_root, need, need_programs
from kit.process import Completed, Daemon, end_tree_of, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["PAUSE", "KubernetesNode"]

_NAME = "node"
_PORT = 10255
_TIMEOUT_S = 30
PAUSE = "docker.io/library/pause:latest"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_CONTAINERD_PACKAGES = (
    f"{_CONTAINERD}/containerd",
    f"{_CONTAINERD}/containerd-shim-runc-v2",
    f"{_CONTAINERD}/ctr",
    f"{_PLUGINS}/main/ptp",
    f"{_PLUGINS}/ipam/host-local",
)
_ENDED = ("Succeeded", "Failed")
_WITHIN_S = 180
_CGROUPS = Path("/sys/fs/cgroup")

# What kubelet sets for the whole machine: it finds it set, in files of the node's own.
_TUNED = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
# The node's root; the words are the tree, the folder, and the two folders of programs.
_BOOT = """\
set -e
tree=$1 folder=$2 programs=$3 kubernetes=$4
root=$folder/root
mount -t overlay -o "lowerdir=$tree,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
mount -t proc proc "$root/proc"
(cd "$folder/sysctl" && find . -type f) | while read -r name; do
    mount --bind "$folder/sysctl/$name" "$root/proc/sys/$name"
done
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty kmsg; do cp -a "/dev/$node" "$root/dev/"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
bind() { mkdir -p "$root$2"; mount --bind "$1" "$root$2"; }
bind "$programs" /usr/local/bin
bind "$programs" /opt/cni/bin
bind "$kubernetes" /usr/local/sbin
bind "$folder" "$folder"
bind "$folder/containerd" /var/lib/containerd
bind "$folder/kubelet" /var/lib/kubelet
cd "$root"
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
# As systemd does it: what pods mount below the root may reach other pods.
mount --make-rshared /
: > "$folder/booted"
exec chroot . sleep infinity
"""

_CONTAINERD_CONFIG = """\
version = 4
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.server.v1.grpc"]
address = "{socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
use_internal_loopback = true
"""


@dataclass
class _Network:
    """A network namespace with one wire to this machine, and addresses for pods behind it."""

    def __enter__(self) -> Self:
        """Make it."""
        self.name = f"node{secrets.token_hex(4)}"
        net = f"10.{secrets.randbelow(56) + 200}.{secrets.randbelow(256)}"
        self.host, self.node, self.pods = f"{net}.1", f"{net}.2", f"{net}.128/25"
        run(("ip", "netns", "add", self.name))
        far = ("peer", "name", "eth0", "netns", self.name)
        run(("ip", "link", "add", self.name, "type", "veth", *far))
        run(("ip", "address", "add", f"{self.host}/30", "dev", self.name))
        run(("ip", "link", "set", self.name, "up"))
        within = ("ip", "-netns", self.name)
        run((*within, "address", "add", f"{self.node}/30", "dev", "eth0"))
        for device in ("lo", "eth0"):
            run((*within, "link", "set", device, "up"))
        run((*within, "route", "add", "default", "via", self.host))
        inside = ("nsenter", f"--net=/run/netns/{self.name}")
        run((*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
        run(("ip", "route", "add", self.pods, "via", self.node))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it; the wire ends with it."""
        run(("ip", "netns", "delete", self.name), check=False)
        run(("ip", "link", "delete", self.name), check=False)

    def cni(self) -> dict[str, Any]:
        """What containerd gives pods a network with."""
        ipam = {"type": "host-local", "subnet": self.pods, "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "ipam": ipam}]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


class KubernetesNode:
    """`with KubernetesNode() as node:` starts all of it, and leaves nothing."""

    def __enter__(self) -> Self:
        """Start it, and wait until kubelet answers.

        Raises:
            RuntimeError: a part of it did not come up; the message has the end of its log.
        """
        need(is_root() and can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
        need_programs("go", "ip", "sysctl", "debootstrap")
        self.folder = Path(tempfile.mkdtemp(prefix="provision-node-"))
        with ExitStack() as stack:
            stack.callback(remove_tree, self.folder)
            self._network = stack.enter_context(_Network())
            stack.enter_context(_cgroups(self._cgroup))
            self._boot(stack)
            self._start_containerd()
            stack.callback(end_tree_of, str(self._socket))
            stack.callback(self._stop_containerd)
            self._start_kubelet()
            stack.callback(self._stop_kubelet)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all of it."""
        self._stack.close()

    @property
    def root(self) -> Path:
        """Its files."""
        return Path(f"/proc/{self._node.pid}/root")

    @property
    def socket(self) -> Path:
        """Where containerd listens."""
        return self.root / str(self._socket).lstrip("/")

    @property
    def sockets(self) -> Path:
        """Where kubelet and device plugins have their sockets; the node has it elsewhere."""
        return self.folder / "kubelet/device-plugins"

    def run(self, *words: str | Path, check: bool = True) -> Completed:
        """Run a command on it."""
        return run((*self._enter(), *words), check=check)

    def load(self, archive: Path) -> None:
        """Load the images of a `docker save` archive."""
        shutil.copy(archive, self.folder / "images.tar")
        self._ctr("images", "import", self.folder / "images.tar")
        (self.folder / "images.tar").unlink()

    def start_pod(self, name: str, spec: Mapping[str, Any]) -> None:
        """Have kubelet start a pod, and wait until it runs or has ended."""
        metadata = {"name": name, "namespace": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        draft = self.folder / "pod.json"
        draft.write_text(json.dumps(pod))
        draft.rename(self.folder / "pods" / f"{name}.json")
        self._wait_for_start(name)

    def run_pod(self, name: str, spec: Mapping[str, Any]) -> str:
        """Run a pod of one container to its end, and remove it; what it printed.

        Raises:
            AssertionError: it failed.
        """
        self.start_pod(name, spec)
        self.wait_for(f"the end of {name}", lambda: self._phase(name) in _ENDED)
        phase, said = self._phase(name), self._log_of(name)
        self.remove_pod(name)
        assert phase == "Succeeded", said
        return said

    def remove_pod(self, name: str) -> None:
        """Have kubelet end a pod, and wait until it is gone."""
        (self.folder / "pods" / f"{name}.json").unlink()
        self.wait_for(f"{name} to be gone", lambda: not self._pod(name))

    def container(self, name: str) -> tuple[str, int]:
        """The id of the container of a pod, and how often it was restarted."""
        (container,) = self._pod(name)["status"]["containerStatuses"]
        return container["containerID"].removeprefix("containerd://"), container["restartCount"]

    def exec(self, name: str, *words: str) -> str:
        """Run a command in the container of a running pod; what it prints."""
        container, _ = self.container(name)
        process = secrets.token_hex(4)
        return self._ctr("tasks", "exec", "--exec-id", process, container, *words).stdout

    def restart_containerd(self) -> None:
        """As `systemctl restart containerd` does it: containers go on."""
        self._stop_containerd()
        self._start_containerd()

    def restart_kubelet(self) -> None:
        """As `systemctl restart kubelet` does it: pods go on. Wait until it knows them again."""
        self._stop_kubelet()
        self._start_kubelet()
        for pod in (self.folder / "pods").iterdir():
            self._wait_for_start(pod.stem)

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds.

        Raises:
            TimeoutError: it does not; with the ends of the logs.
        """
        deadline = time.monotonic() + _WITHIN_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no sign of {what}\n{self._said()}")
            time.sleep(0.2)

    def _wait_for_start(self, name: str) -> None:
        begun = {"Running", *_ENDED}
        self.wait_for(f"a start of {name}", lambda: self._phase(name) in begun)

    def _pods(self) -> list[dict[str, Any]]:
        return self._asked("pods").json().get("items") or []

    def _asked(self, what: str) -> requests.Response:
        return requests.get(f"http://{self._network.node}:{_PORT}/{what}", timeout=_TIMEOUT_S)

    def _pod(self, name: str) -> dict[str, Any]:
        # kubelet appends the node's name.
        found = [pod for pod in self._pods() if pod["metadata"]["name"] == f"{name}-{_NAME}"]
        return found[0] if found else {}

    def _phase(self, name: str) -> str:
        return str(self._pod(name).get("status", {}).get("phase"))

    def _log_of(self, name: str) -> str:
        (log,) = (self.root / "var/log/pods").glob(f"default_{name}-{_NAME}_*/*/0.log")
        # A time, a stream, and whether the line is whole, before each.
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in log.read_text().splitlines())

    def _ctr(self, *words: str | Path) -> Completed:
        return self.run("ctr", "--address", self._socket, "--namespace=k8s.io", *words)

    def _is_up(self) -> bool:
        return self.run("ctr", "--address", self._socket, "version", check=False).returncode == 0

    def _start_containerd(self) -> None:
        self._containerd = Daemon(
            (*self._enter(), "/usr/local/bin/containerd"),
            log=self.folder / "containerd.log",
            ready=self._is_up,
        )

    def _start_kubelet(self) -> None:
        config = f"--config={self.folder / 'kubelet.json'}"
        named = (f"--hostname-override={_NAME}", f"--node-ip={self._network.node}")
        self._kubelet = Daemon(
            (*self._enter(), "/usr/local/sbin/kubelet", config, *named),
            log=self.folder / "kubelet.log",
            ready=self._answers,
        )

    def _answers(self) -> bool:
        with suppress(requests.ConnectionError):
            return self._asked("pods").ok and (self.sockets / "kubelet.sock").exists()
        return False

    def _stop_containerd(self) -> None:
        self._containerd.stop()  # whichever it is by then

    def _stop_kubelet(self) -> None:
        self._kubelet.stop()
        (self.sockets / "kubelet.sock").unlink(missing_ok=True)

    def _said(self) -> str:
        logs = [self.folder / f"{name}.log" for name in ("kubelet", "containerd")]
        lines = [
            line for log in logs for line in log.read_text(errors="replace").splitlines()[-15:]
        ]
        return "\n".join(lines)

    @property
    def _socket(self) -> Path:
        # Its shims, which outlive it by design, are found by this word.
        return Path("/run/containerd") / self._network.name

    @property
    def _cgroup(self) -> str:
        return f"provision-{self._network.name}"

    def _enter(self) -> tuple[str, ...]:
        return (
            "nsenter",
            f"--target={self._node.pid}",
            "--mount",
            "--net",
            "--root",
            "--wdns=/",
            "--",
        )

    def _boot(self, stack: ExitStack) -> None:
        tree = DEBIAN_12.path()
        for name in ("root", "upper", "work", "containerd", "kubelet", "pods"):
            (self.folder / name).mkdir()
        for name, text in self._files().items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        programs = go_programs("containerd", *_CONTAINERD_PACKAGES)
        network = f"/run/netns/{self._network.name}"
        namespaces = ("nsenter", f"--net={network}", "unshare", "--mount")
        self._node = Daemon(
            (
                *namespaces,
                *("--propagation=private", "sh", "-c", _BOOT, "sh", tree, self.folder),
                *(programs, kubernetes("kubelet")),
            ),
            log=self.folder / "node.log",
            ready=(self.folder / "booted").exists,
        )
        stack.callback(self._node.stop)

    def _files(self) -> dict[str, str]:
        config = _CONTAINERD_CONFIG.format(socket=self._socket, pause=PAUSE)
        return {
            "upper/etc/containerd/config.toml": config,
            "upper/etc/cni/net.d/10-pods.conflist": json.dumps(self._network.cni()),
            "upper/etc/hostname": f"{_NAME}\n",
            "kubelet.json": json.dumps(self._kubelet_config()),
            **{f"sysctl/{name}": f"{value}\n" for name, value in _TUNED.items()},
            "sysctl/kernel/osrelease": f"{OLD_KERNEL}\n",
        }

    def _kubelet_config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "protectKernelDefaults": True,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # Only this machine reaches its address.
            "readOnlyPort": _PORT,
            "staticPodPath": str(self.folder / "pods"),
            "fileCheckFrequency": "1s",
            # A full disk of the machine is not the node's concern.
            "evictionHard": {
                "memory.available": "0%",
                **{f"{fs}.available": "0%" for fs in ("nodefs", "imagefs")},
            },
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
        }


@contextmanager
def _cgroups(name: str) -> Iterator[None]:
    """The group that all of the node's pods are below, in each hierarchy that the machine has."""
    hierarchies = [path for path in _CGROUPS.iterdir() if path.is_mount()] or [_CGROUPS]
    groups = [path / name for path in hierarchies]
    for group in groups:
        group.mkdir()
    try:
        yield
    finally:
        for group in groups:
            below = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
            for path in (*below, group):
                with suppress(OSError):
                    path.rmdir()
