# What a GPU operator runs in a pod of the artifact image: loads the driver, offers its user space to the
# node, and takes both away when the pod ends. build/loader_script.py writes what is of the driver
# before it. The contract is that of NVIDIA's own driver images: manifests/state-driver of
# https://github.com/NVIDIA/gpu-operator at a22dbf671, and k8s-driver-manager at bd62ca7d.
#
# usage: COMMAND [init] [OPTION...]   load the driver; options are those of other images, and ignored
#        COMMAND reload_MODULE        load one more module, when what it works with is ready
#        COMMAND probe_MODULE         whether that one is loaded
# Exit status: 0 done; 1 failed; 2 wrong usage.
set -u

loader=/usr/lib/provision/load
artifact=/opt
validations=$folder/validations
daemons=$validations/.driver-daemons-status
state=$folder/$command.state
lock=$folder/$command.pid

say() { echo >&2 "$command: $*"; }

fail() {
    say "$*"
    exit 1
}

# The root of the host: where the pod mounts it, or that of the host's first process (hostPID).
root=/host
[ -e "$root/proc/sys/kernel/osrelease" ] || root=/proc/1/root
kernel=$(cat "$root/proc/sys/kernel/osrelease")

is_loaded() { [ -e "$root/sys/module/$1/initstate" ]; }

# set_parameters: for modprobe, our own, and those of the admin's files, one a line. The last counts.
set_parameters() {
    mkdir -p /etc/modprobe.d
    {
        own_parameters
        for module in $names; do
            for file in "$parameters/$(echo "$module" | tr _ -).conf" "$parameters/$module.conf"; do
                [ -f "$file" ] || continue
                while read -r line || [ -n "$line" ]; do
                    [ -z "$line" ] || echo "options $module $line"
                done <"$file"
                break
            done
        done
    } >/etc/modprobe.d/pod.conf
    # Some builds of kmod look for modules there.
    for tree in "$artifact" "$artifact/host"; do
        mkdir -p "$tree/usr/lib"
        ln -sfn ../../lib/modules "$tree/usr/lib/modules"
    done
}

remove_root() {
    while umount -l "$offered" 2>/dev/null; do :; done
}

# The kubelet makes lib/firmware in the root that a killed pod left, so it has to be there.
offer_root() {
    mkdir -p "$offered" "$artifact/driver/lib/firmware" &&
        mount --bind "$artifact/driver" "$offered" && mount -o remount,bind,ro "$offered"
}

# The kernel looks into the node's root, so it finds the firmware in the root that is offered.
offer_firmware() {
    [ -n "$firmware" ] || return 0
    search=$root/sys/module/firmware_class/parameters/path
    now=$(cat "$search")
    case $now in
        '') printf %s "$offered$firmware" >"$search" ;;
        "$offered$firmware") ;;
        *) say "the kernel looks for firmware in $now, which someone else has set" ;;
    esac
}

run_daemon() {
    [ -n "$daemon_pid" ] || return 0
    mkdir -p "${daemon_pid%/*}"
    # Without the lock, which it would hold for longer than this process.
    start_daemon 3>&- || say "its daemon does not run: the driver works, and takes longer to start a program"
}

stop_daemon() {
    [ -n "$daemon_pid" ] && [ -e "$daemon_pid" ] || return 0
    process=$(cat "$daemon_pid")
    kill "$process" 2>/dev/null || return 0
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 "$process" 2>/dev/null || return 0
        sleep 1
    done
}

sleep_on() {
    while :; do
        sleep infinity 3>&- &
        sleeper=$!
        wait "$sleeper"
        kill "$sleeper" 2>/dev/null
    done
}

is_unchanged() {
    [ -n "${DRIVER_CONFIG_DIGEST:-}" ] && [ "$DRIVER_CONFIG_DIGEST" = "$(cat "$state" 2>/dev/null)" ] &&
        "$loader" --root "$root" status >/dev/null
}

replace_modules() {
    rm -f "$state"
    set_parameters
    if ! "$loader" --root "$root" unload; then
        say "pods use the driver of before: delete them, and this pod loads its own"
        return 1
    fi
    offer_firmware && "$loader" --root "$root" load
}

stop() {
    stop_daemon
    if "$loader" --root "$root" unload; then
        remove_root
        rm -f "$state" "$daemons" "$lock"
        exit 0
    fi
    say "pods use the driver, so it stays, with its root: delete them first"
    run_daemon
}

init() {
    mkdir -p "$validations"
    exec 3>>"$lock"
    flock --nonblock 3 || fail "another driver pod runs on this node"
    echo $$ >"$lock"
    trap stop TERM INT HUP QUIT
    echo NotReady >"$daemons"
    remove_root
    offer_root || fail "$offered could not be mounted: the pod has to be privileged"
    if is_unchanged; then
        say "loaded before with the same configuration: the modules stay"
    elif ! replace_modules; then
        remove_root
        exit 1
    fi
    run_daemon
    [ -z "${DRIVER_CONFIG_DIGEST:-}" ] || echo "$DRIVER_CONFIG_DIGEST" >"$state"
    echo Ready >"$daemons"
    say "ready"
    sleep_on
}

# By the flags that NVIDIA's operator sets, and the file of the pod with the network's own driver.
is_peer_ready() {
    [ -e "$validations/.driver-ctr-ready" ] || return 1
    if [ "${USE_HOST_MOFED:-}" = true ]; then
        is_loaded mlx5_core
    else
        [ -e /run/mellanox/drivers/.driver-ready ]
    fi
}

reload() {
    trap 'exit 0' TERM INT HUP QUIT
    until is_peer_ready; do
        sleep 10 &
        wait $!
    done
    set_parameters
    if is_loaded "$1"; then rmmod "$1" || fail "$1 is in use"; fi
    modprobe -i -d "$artifact$modules" -S "$kernel" "$1" ||
        fail "$1 could not be loaded: journalctl -k on the node shows the kernel's reason"
    say "loaded $1"
    sleep_on
}

set -- "${1:-init}"
case " $sidecars " in
    *" ${1#*_} "*)
        case $1 in
            reload_*) reload "${1#*_}" ;;
            probe_*)
                is_loaded "${1#*_}"
                exit
                ;;
        esac
        ;;
esac
case $1 in
    init | -*) init ;;
esac
say "usage: $command init$(for name in $sidecars; do printf ' | reload_%s | probe_%s' "$name" "$name"; done)"
exit 2
