#!/bin/sh
# Whether containers keep their devices when systemd reads its units again.
#
#   daemon_reload.sh PROGRAMS RUNTIME
#
# PROGRAMS is the folder with oci-decorator and oci-decorator-runtime, RUNTIME is runc or crun. For
# any machine whose PID 1 is systemd, with cgroups of version 1 or 2: a guest, or a container.
# Prints a line for each node, before and after: "WHEN CONTAINER NODE: WHAT OPENING IT SAYS".
#
# The container `spec` is started by our runtime, `hook` by RUNTIME itself with our hook. Nodes:
#   kmsg     of a driver that the kernel's sysfs knows; no one is allowed it by default
#   linked   of one that it doesn't know (as NVIDIA's), with the link in /dev/char that
#            runc 1.1.3 to 1.1.6 looks for before it passes a device to systemd
set -eu
programs=$1 low=$2
work=$(mktemp -d)
major=120 # "reserved for local use": no driver has it, so opening says ENXIO and touches nothing

finish() {
    for name in spec hook; do
        "$low" --root "$work/state" delete --force "reload-$name" >/dev/null 2>&1 || :
    done
    rm -f "/dev/char/$major:0"
    rm -rf "$work"
}
trap finish EXIT

mkdir -p "$work/host/dev" "$work/host/etc/oci-decorator/oci-decorator.d" /dev/char
mknod "$work/host/dev/kmsg" c 1 11
mknod "$work/host/dev/linked" c "$major" 0
ln -sf "$work/host/dev/linked" "/dev/char/$major:0"
cat >"$work/host/etc/oci-decorator/oci-decorator.d/gpu.json" <<END
{"activation_flag": "OCI_GPU", "driver_feature": ["run"], "inventory": {"run": {"devices": ["kmsg", "linked"]}}}
END
printf 'root = "%s"\nruntimes = ["%s"]\n' "$work/host" "$low" >"$work/config.toml"
export OCI_DECORATOR_CONFIG="$work/config.toml"

# A bundle whose root is the machine's /usr.
bundle() {
    mkdir -p "$work/$1/rootfs/usr"
    for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$work/$1/rootfs/$folder"; done
    hook="{\"path\": \"$programs/oci-decorator\", \"args\": [\"oci-decorator\", \"--config\", \"$work/config.toml\", \"createRuntime\"], \"env\": []}"
    [ "$1" = hook ] || hook=
    cat >"$work/$1/config.json" <<END
{
    "ociVersion": "1.0.2",
    "process": {"args": ["sleep", "1000"], "cwd": "/", "user": {"uid": 0, "gid": 0},
        "env": ["PATH=/usr/bin", "OCI_GPU=all"]},
    "root": {"path": "rootfs"},
    "mounts": [
        {"destination": "/usr", "source": "/usr", "type": "bind", "options": ["rbind", "ro"]},
        {"destination": "/proc", "source": "proc", "type": "proc"},
        {"destination": "/dev", "source": "tmpfs", "type": "tmpfs", "options": ["nosuid", "mode=755"]}
    ],
    "hooks": {"createRuntime": [$hook]},
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "mount"}],
        "resources": {"devices": [{"allow": false, "access": "rwm"}]}
    }
}
END
}

start() {
    bundle "$1"
    "$2" --systemd-cgroup --root "$work/state" run --detach --bundle "$work/$1" "reload-$1" \
        </dev/null >"$work/$1/log" 2>&1 || { cat "$work/$1/log" >&2; exit 1; }
}

report() {
    for name in spec hook; do
        for node in kmsg linked; do
            said=$("$low" --root "$work/state" exec "reload-$name" sh -c "(: >>/dev/$node) 2>&1" || :)
            printf '%s %s %s: %s\n' "$1" "$name" "$node" "${said##*: }"
        done
    done
}

start spec "$programs/oci-decorator-runtime"
start hook "$low"
report before
systemctl daemon-reload
report after
