"""A Kubernetes cluster of one node that runs here: control plane, kubelet, containerd 2, runc.

The node is a Debian 12 of its own in a network namespace and a mount namespace, on this machine's
kernel. It cannot load modules, therefore: `/` is no root of the machine's first process, as the
agent asks, and the kernel that it says it runs may be another. What it lists in `/sys/module` and
`/proc/devices` are files of its own, which programs that stand in for modprobe may change
(`kit.driver_pod`). Its pods have a network; the machine's end of the node's is `Cluster.host`,
where the API server listens.

A machine without CAP_SYS_RESOURCE lowers no OOM score and raises no limit: kubelet's and
containerd's settings say so. Where cgroups are of version 1, kubelet takes them (failCgroupV1).
All programs are compiled from the Go modules that tests/data/go pins by hash.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import NOT_FOUND
from pathlib import Path
from typing import Any, Self

from kit.api_server import ApiServer, kubernetes
from kit.engine_tree import DEBIAN_12
from kit.files import remove_tree, write_all
from kit.go_modules import go_programs
from kit.hosts import OLD_KERNEL
from kit.podman import Podman
from kit.probe import can_mount, is_root, need, need_programs
from kit.process import Completed, Daemon, end_tree_of, run, wait_for
from kit.released import bare

_NAME = "node"
# Paths at the API server: the node, and the namespace of tests' own pods.
NODE = f"/api/v1/nodes/{_NAME}"
DEFAULT = "/api/v1/namespaces/default"
# What every node has: a small Debian, and what holds the namespaces of a pod.
IMAGE = "docker.io/library/debian:bookworm"
_PAUSE = "docker.io/library/pause:latest"
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
_BOOT_ID = "sys/kernel/random/boot_id"
# With a major of those for local use: https://docs.kernel.org/admin-guide/devices.html
_DEVICES = "Character devices:\n  1 mem\n  5 /dev/tty\n120 hello\n\nBlock devices:\n"
# The node's root; the words are the tree, the folder, and the two folders of programs.
_BOOT = """\
set -e
tree=$1 folder=$2 programs=$3 kubernetes=$4
root=$folder/root
mount -t overlay -o "lowerdir=$tree,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
mount -t proc proc "$root/proc"
(cd "$folder/proc" && find . -type f) | while read -r name; do
    mount --bind "$folder/proc/$name" "$root/proc/$name"
done
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/sys/module"
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
        run(("ip", "netns", "delete", self.name), check=False)
        run(("ip", "link", "delete", self.name), check=False)

    def cni(self) -> dict[str, Any]:
        """What containerd gives pods a network with."""
        ipam = {"type": "host-local", "subnet": self.pods, "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "ipam": ipam}]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


class Cluster:
    """`with Cluster() as cluster:` starts all of it, and leaves nothing."""

    def __enter__(self) -> Self:
        need(is_root() and can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
        need_programs("go", "ip", "sysctl", "debootstrap", "podman")
        self.folder = Path(tempfile.mkdtemp(prefix="provision-node-"))
        with ExitStack() as stack:
            stack.callback(remove_tree, self.folder)
            self._network = stack.enter_context(_Network())
            self.host = self._network.host
            self.server = stack.enter_context(ApiServer(self.host))
            self._start_controllers(stack)
            stack.enter_context(_cgroups(self._cgroup))
            self._lay_out()
            self._boot()
            stack.callback(self._power_off)
            self._start_containerd()
            stack.callback(end_tree_of, str(self._socket))
            stack.callback(self._stop_containerd)
            images = self.folder / "images.tar"
            _write_images(images)
            self._import(images)
            self._start_kubelet()
            stack.callback(self._stop_kubelet)
            self.wait_for("the node", self._is_ready)
            account = f"{DEFAULT}/serviceaccounts/default"
            self.wait_for("the pods' account", lambda: bool(self.get(account)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- the cluster

    def get(self, path: str) -> dict[str, Any]:
        """The object or the list at a path; empty where there is none."""
        answer = self.server.request("GET", path)
        found: dict[str, Any] = answer.json() if answer.status_code != NOT_FOUND else {}
        return found

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        wait_for(what, holds, within_s=_WITHIN_S, pause_s=0.5, said=self._said)

    def start_pod(self, pod: dict[str, Any]) -> str:
        """Start a pod of one container, and wait until it runs or has ended; its path."""
        path = self.server.apply(pod)
        begun = ("Running", *_ENDED)
        self.wait_for(f"pod {path}", lambda: self.get(path)["status"]["phase"] in begun)
        return path

    def run_pod(self, pod: dict[str, Any]) -> str:
        """Run a pod to its end, and remove it; what it printed."""
        path = self.start_pod(pod)
        self.wait_for(f"pod {path}", lambda: self.get(path)["status"]["phase"] in _ENDED)
        said = self.server.request("GET", f"{path}/log").text
        phase = self.get(path)["status"]["phase"]
        self.remove(path)
        assert phase == "Succeeded", said
        return said

    def label(self, labels: dict[str, str]) -> None:
        """Give the node these labels, and take away those that it got before."""
        metadata = {"name": _NAME, "labels": labels}
        self.server.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def remove(self, path: str) -> None:
        self.server.request("DELETE", path)
        self.wait_for(f"the end of {path}", lambda: not self.get(path))

    # -- the node

    @property
    def root(self) -> Path:
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
        return run((*self._enter(), *words), check=check)

    def load(self, archive: Path) -> None:
        """Load the images of a `docker save` archive."""
        copied = self.folder / "images.tar"
        shutil.copy(archive, copied)
        self._import(copied)

    def _import(self, archive: Path) -> None:
        self._ctr("images", "import", archive)
        archive.unlink()

    def _ctr(self, *words: str | Path) -> Completed:
        return self.run("ctr", "--address", self._socket, "--namespace=k8s.io", *words)

    def container(self, path: str) -> tuple[str, int]:
        """The id of the container of a pod, and how often it was restarted."""
        (container,) = self.get(path)["status"]["containerStatuses"]
        return container["containerID"].removeprefix("containerd://"), container["restartCount"]

    def exec(self, path: str, *words: str) -> str:
        """Run a command in the container of a running pod; what it prints."""
        container, _ = self.container(path)
        process = secrets.token_hex(4)
        return self._ctr("tasks", "exec", "--exec-id", process, container, *words).stdout

    def kill(self, path: str) -> None:
        self._ctr("tasks", "kill", "--signal=SIGKILL", self.container(path)[0])

    def _start_containerd(self) -> None:
        self._containerd = Daemon(
            (*self._enter(), "/usr/local/bin/containerd"),
            log=self.folder / "containerd.log",
            ready=lambda: (
                self.run("ctr", "--address", self._socket, "version", check=False).returncode == 0
            ),
        )

    def restart_containerd(self) -> None:
        """As `systemctl restart containerd` does it: containers go on."""
        self._stop_containerd()
        self._start_containerd()

    def _start_kubelet(self) -> None:
        words = {
            "config": self.folder / "kubelet.json",
            "kubeconfig": self.folder / "node-kubeconfig",
            "hostname-override": _NAME,
            "node-ip": self._network.node,
        }
        self._kubelet = Daemon(
            (
                *self._enter(),
                "/usr/local/sbin/kubelet",
                *(f"--{name}={value}" for name, value in words.items()),
            ),
            log=self.folder / "kubelet.log",
            ready=(self.sockets / "kubelet.sock").exists,
        )

    def restart_kubelet(self) -> None:
        """As `systemctl restart kubelet` does it: pods go on."""
        self._stop_kubelet()
        (self.sockets / "kubelet.sock").unlink(missing_ok=True)
        self._start_kubelet()

    def reboot(self, at_boot: Sequence[str | Path] = ("true",)) -> None:
        """End all that runs on the node, at once, and start it again.

        /run, /dev and /sys/module are empty then; the files stay.

        Args:
            at_boot: a command that runs before containerd and kubelet do.
        """
        self._stop_kubelet()
        self._stop_containerd()
        end_tree_of(str(self._socket))
        self._power_off()
        (self.sockets / "kubelet.sock").unlink(missing_ok=True)
        self._boot()
        self.run(*at_boot)
        self._start_containerd()
        self._start_kubelet()
        self.wait_for("the node", self._is_ready)

    def _stop_containerd(self) -> None:
        self._containerd.stop()  # whichever it is by then

    def _stop_kubelet(self) -> None:
        self._kubelet.stop()

    def _power_off(self) -> None:
        self._node.stop()

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

    def _start_controllers(self, stack: ExitStack) -> None:
        own = {
            "kube-scheduler": {},
            "kube-controller-manager": {
                "service-account-private-key-file": self.server.accounts_key,
                "root-ca-file": self.server.authority,
                "use-service-account-credentials": "true",
            },
        }
        for name, flags in own.items():
            config = self.server.kubeconfig(self.folder / f"{name}-kubeconfig", f"system:{name}")
            common = {"kubeconfig": config, "leader-elect": "false", "secure-port": "0"}
            words = [f"--{key}={value}" for key, value in {**common, **flags}.items()]
            daemon = Daemon(
                (kubernetes(name) / name, *words),
                log=self.folder / f"{name}.log",
                ready=lambda: True,
            )
            stack.callback(daemon.stop)

    def _lay_out(self) -> None:
        for name in ("root", "upper", "work", "containerd", "kubelet"):
            (self.folder / name).mkdir()
        write_all(self.folder, self._files())
        self.server.kubeconfig(self.folder / "node-kubeconfig", f"system:node:{_NAME}")

    def _boot(self) -> None:
        self._boot_id = str(uuid.uuid4())
        (self.folder / "proc" / _BOOT_ID).write_text(f"{self._boot_id}\n")
        booted = self.folder / "booted"
        booted.unlink(missing_ok=True)
        programs = go_programs("containerd", *_CONTAINERD_PACKAGES)
        network = f"/run/netns/{self._network.name}"
        namespaces = ("nsenter", f"--net={network}", "unshare", "--mount")
        self._node = Daemon(
            (
                *namespaces,
                *("--propagation=private", "sh", "-c", _BOOT, "sh", DEBIAN_12.path(), self.folder),
                *(programs, kubernetes("kubelet")),
            ),
            log=self.folder / "node.log",
            ready=booted.exists,
        )

    def _files(self) -> dict[str, str]:
        config = _CONTAINERD_CONFIG.format(socket=self._socket, pause=_PAUSE)
        return {
            "upper/etc/containerd/config.toml": config,
            "upper/etc/cni/net.d/10-pods.conflist": json.dumps(self._network.cni()),
            "upper/etc/hostname": f"{_NAME}\n",
            "kubelet.json": json.dumps(self._kubelet_config()),
            **{f"proc/sys/{name}": f"{value}\n" for name, value in _TUNED.items()},
            "proc/sys/kernel/osrelease": f"{OLD_KERNEL}\n",
            f"proc/{_BOOT_ID}": "",
            "proc/devices": _DEVICES,
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
            # Nobody else reaches its address.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # A full disk of the machine is not the node's concern.
            "evictionHard": {
                "memory.available": "0%",
                **{f"{fs}.available": "0%" for fs in ("nodefs", "imagefs")},
            },
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
        }

    def _is_ready(self) -> bool:
        """Whether the node is, since it was booted."""
        status = self.get(NODE).get("status", {})
        return status.get("nodeInfo", {}).get("bootID") == self._boot_id and any(
            one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"]
        )

    def _said(self) -> str:
        events = self.get("/api/v1/events").get("items", [])
        told = [f"{one['involvedObject'].get('name')}: {one['message']}" for one in events[-20:]]
        logs = [self.folder / f"{name}.log" for name in ("kubelet", "containerd")]
        tails = [
            line for log in logs for line in log.read_text(errors="replace").splitlines()[-15:]
        ]
        return "\n".join([*told, *tails])


def pod_of(name: str, script: str, **container: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A pod that runs a script in the small Debian, with further fields of its container."""
    main = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{**main, "command": ["sh", "-c", script]}],
        },
    }


def _write_images(archive: Path) -> None:
    """Write the small Debian under both names, as `docker save` would."""
    layer = archive.with_suffix(".layer")
    run(("tar", "--create", "--numeric-owner", "--file", layer, "-C", bare("bookworm"), "."))
    changes = ('CMD ["sleep", "infinity"]', "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin")
    with Podman() as podman:
        podman("import", "--quiet", *(f"--change={change}" for change in changes), layer, IMAGE)
        podman("tag", IMAGE, _PAUSE)
        podman("save", "--quiet", "--output", archive, IMAGE, _PAUSE)
    layer.unlink()


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
