# The loader of an artifact: loads its modules into their kernel, takes them out again, or says whether
# they are loaded. Needs only sh, kmod, awk and coreutils. build/loader_script.py writes what is of
# the artifact before it: driver, kernel, entry, …, and the functions each, nodes, old_nodes, firmware.
#
# usage: load [--root DIR] load|unload|status|has MODULE
# DIR is the root of the running host, where a container sees it. "has" is for other loaders.
# Exit status: 0 done; 1 failed; 2 wrong usage; 3 for another kernel, or (status) not loaded;
# 4 in use: a reboot helps.
set -u

root=
if [ "${1:-}" = --root ] && [ $# -ge 2 ]; then
    root=${2%/}
    shift 2
fi
# The artifact is on the host, or in this container. What modprobe reads is below it.
[ "$place" = here ] || entry=$root$entry
modules=$entry$modules
# Seconds for one module and its hardware, fewer than the boot unit has.
limit=100

say() { echo >&2 "$driver: $*"; }

# SELinux policies run modprobe in a domain that may not read the store; this process may.
context=
if [ -e "$root/sys/fs/selinux/enforce" ]; then
    context=$(tr -d '\000\n' 2>/dev/null <"$root/proc/self/attr/current")
    # In a container, the host's SELinux is seen, and runcon has neither selinuxfs nor a policy.
    [ -z "$context" ] || runcon "$context" true 2>/dev/null || context=
fi

# probe ARGUMENT...: run modprobe in this process's own domain, with a limit.
probe() {
    if [ -n "$context" ]; then set -- runcon "$context" modprobe "$@"; else set -- modprobe "$@"; fi
    timeout -k 5 "$limit" "$@"
}

# state NAME BUILD_ID SRCVERSION VERSION: absent, ours, or other if another build of it is loaded.
# Compared is the first of the three that both have.
state() {
    there=$root/sys/module/$1
    # What is built into the kernel has a folder, too, and no state.
    if [ ! -e "$there/initstate" ]; then
        echo absent
        return
    fi
    now=
    wanted=$4
    if [ -n "$2" ] && [ -e "$there/notes/.note.gnu.build-id" ]; then
        now=$(od -An -v -tx1 "$there/notes/.note.gnu.build-id" | tr -d ' \n')
        wanted=$2
    elif [ -n "$3" ] && [ -e "$there/srcversion" ]; then
        now=$(cat "$there/srcversion")
        wanted=$3
    elif [ -e "$there/version" ]; then
        now=$(cat "$there/version")
    fi
    if [ "$now" = "$wanted" ]; then echo ours; else echo other; fi
}

# users NAME...: the loaded ones of these modules that others use, also by a network interface that
# is up, for which the kernel counts no reference. Their use of each other is none.
users() {
    awk -v names=" $* " '
        index(names, " " $1 " ") {
            total = split($4, holders, ","); inside = 0; outside = 0
            for (at = 1; at <= total; at++) {
                if (holders[at] == "" || holders[at] == "-") continue
                if (index(names, " " holders[at] " ")) inside++; else outside++
            }
            if (outside || $3 == "-" || $3 > inside) print $1
        }' "$root/proc/modules"
    for flags in "$root"/sys/class/net/*/flags; do
        module=$(readlink -f "${flags%/flags}/device/driver/module") || continue
        module=${module##*/}
        case " $* " in
            *" $module "*) [ $(($(cat "$flags") & 1)) = 0 ] || echo "$module" ;;
        esac
    done
}

# take_out NAME...: unload the loaded ones of these modules: all, or none if one is in use.
# removed: those that were unloaded, in the order in which they can be loaded again.
take_out() {
    removed=
    used=$(users "$@" | sort -u | tr '\n' ' ')
    if [ -n "$used" ]; then
        say "in use: $used"
        return 4
    fi
    while :; do
        # One that none of the others uses; if there is none, the kernel refuses whichever.
        free=$(awk -v names=" $* " '
            index(names, " " $1 " ") { last = $1; if ($4 == "-") exit }
            END { print last }' "$root/proc/modules")
        [ -n "$free" ] || return 0
        # Someone may have opened a device since.
        rmmod "$free" || return 4
        removed="$free $removed"
    done
}

note_build() {
    case $(state "$1" "$3" "$4" "$5") in
        absent) [ "$2" = optional ] || missing=yes ;;
        other) others="$others $1" ;;
    esac
}

# check_file FILE SHA256: whether it is what was built and verified; damage must not get into the
# kernel.
check_file() {
    echo "$2  $entry/$1" | sha256sum --check --status 2>/dev/null && return 0
    say "$entry/$1 is damaged or missing"
    return 1
}

check_required() {
    [ "$2" = optional ] || [ "$(state "$1" "$3" "$4" "$5")" = ours ] || check_file "$6" "$7"
}

# need NAME: load a module that the build names beside the driver's own. Another driver's loader knows
# whether it has it, and modprobe, whether the kernel has it. Where nobody has, the name is the build's
# alone (a stand-in that it compiled against, say): the kernel looks for symbols, wherever they come
# from, and says so if there are none.
need() {
    [ ! -e "$root/sys/module/$1" ] || return 0
    for other in "${entry%/*/*}"/*/kernels/"$kernel"/load; do
        its_name=${other#"${entry%/*/*}/"}
        # Not this one, and none that waits for it.
        case " ${asking:-} $driver " in *" ${its_name%%/*} "*) continue ;; esac
        if [ -f "$other" ] && sh "$other" has "$1" 2>/dev/null; then
            asking="${asking:-} $driver" sh "$other" ${root:+--root "$root"} load
            return
        fi
    done
    if timeout -k 5 "$limit" modprobe ${root:+-d "$root"} -S "$kernel" -n -q "$1"; then
        timeout -k 5 "$limit" modprobe ${root:+-d "$root"} "$1" && return 0
        say "$1 could not be loaded: journalctl -k shows the kernel's reason"
        return 1
    fi
    say "no module $1 is here: neither the kernel nor another driver has it"
}

insert() {
    name=$1 need=$2
    [ "$(state "$1" "$3" "$4" "$5")" = absent ] || return 0
    if [ "$need" = optional ] && ! check_file "$6" "$7"; then return 0; fi
    shift 7
    # Without -i, modprobe would run a command that modprobe.d has for the module.
    if probe -i -d "$modules" -S "$kernel" "$name" "$@"; then
        loaded="$loaded $name"
        say "loaded $name"
    elif [ "$need" = optional ]; then
        say "left out $name, which is optional"
    else
        say "$name could not be loaded: journalctl -k shows the kernel's reason"
        return 1
    fi
}

# major_of MAJOR: the number of a character device, which is a number or a name in /proc/devices;
# nothing if the kernel has no such device.
major_of() {
    awk -v wanted="$1" '/^Block/ { exit } $2 == wanted || $1 == wanted { print $1; exit }' "$root/proc/devices"
}

# make_node NAME MAJOR MINOR MODE: if the kernel has no such device, no node is made.
make_node() {
    major=$(major_of "$2")
    [ -n "$major" ] || return 0
    node=$root/dev/$1
    if [ ! -c "$node" ] || [ "$(stat -c %t:%T "$node")" != "$(printf %x:%x "$major" "$3")" ]; then
        mkdir -p "${node%/*}"
        if ! mknod -m "$4" "$node.$$" c "$major" "$3" || ! mv -f "$node.$$" "$node"; then
            say "the device node /dev/$1 could not be made"
            return 1
        fi
    fi
    mkdir -p "$root/dev/char"
    ln -sfn "../$1" "$root/dev/char/$major:$3"
}

# drop_nodes MAJOR NODE...: remove nodes and their links, if the kernel has no such device any more.
drop_nodes() {
    [ -z "$(major_of "$1")" ] || return 0
    shift
    for node; do
        [ -c "$node" ] || continue
        rm -f "$root/dev/char/$((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node")))" "$node"
    done
}

# make_numbered NAME MAJOR MODE FIELD FILE...: a node NAME for each FILE, with the number in its line
# FIELD in place of {minor}.
make_numbered() {
    name=$1 major_name=$2 mode=$3 field=$4
    shift 4
    for file; do
        [ -e "$file" ] || continue
        minor=$(awk -F: -v field="$field" '{ key = $1; gsub(/[ \t]+$/, "", key) } key == field { gsub(/[ \t]/, "", $2); print $2; exit }' "$file")
        [ -z "$minor" ] || make_node "${name%%"{minor}"*}$minor${name#*"{minor}"}" "$major_name" "$minor" "$mode" || return
    done
}

# The kernel looks into one folder of our choice before its own.
offer_firmware() {
    [ "$has_firmware" = yes ] || return 0
    ours=/run/provision/firmware
    parameter=$root/sys/module/firmware_class/parameters/path
    now=$(cat "$parameter")
    if [ -n "$now" ] && [ "$now" != "$ours" ]; then
        say "the kernel looks for firmware in $now, which someone else has set"
        return 1
    fi
    firmware link_firmware
    printf %s "$ours" >"$parameter"
}

link_firmware() {
    mkdir -p "$root$ours/$(dirname "$1")"
    ln -sfn "${entry#"$root"}/$2" "$root$ours/$1"
}

# The vendor file, which oci-decorator reads. The rename replaces it in one step.
installed=$root/etc/oci-decorator/oci-decorator.d/$driver.json
offer_vendor_file() {
    [ -n "$vendor_file" ] || return 0
    mkdir -p "${installed%/*}"
    cp "$vendor_file" "$installed.new"
    chmod 0644 "$installed.new"
    mv -f "$installed.new" "$installed"
}

load() {
    missing='' others='' loaded=''
    each note_build
    if [ -n "$missing$others" ]; then
        each check_required || return 1
        if [ -n "$conflicts" ] && ! take_out $conflicts; then
            [ -z "$removed" ] || modprobe -a $removed
            say "these modules hold the hardware: reboot; they are blacklisted"
            return 4
        fi
        if [ -n "$others" ] && ! take_out $others; then
            say "another build of$others is loaded: stop what uses it, or reboot"
            return 4
        fi
        offer_firmware || return 1
        for name in $needed; do need "$name" || return 1; done
        for name in $nice_to_have; do need "$name" 2>/dev/null || :; done
        if ! each insert; then
            take_out $loaded || :
            return 1
        fi
    fi
    nodes || return 1
    offer_vendor_file
}

unload() {
    missing='' others='' loaded=''
    each note_build
    if ! take_out $names; then
        # Half of a driver serves nobody.
        if [ -n "$removed" ] && [ -z "$others" ]; then each insert || :; fi
        return 4
    fi
    old_nodes
    if [ -n "$vendor_file" ] && cmp -s "$vendor_file" "$installed"; then rm -f "$installed"; fi
}

status_of() {
    now=$(state "$1" "$3" "$4" "$5")
    case $now in
        absent) echo "$1: not loaded" ;;
        ours) echo "$1: loaded" ;;
        other) echo "$1: another build is loaded" ;;
    esac
    [ "$now" = ours ] || [ "$2" = optional ] || result=3
}

status() {
    result=0
    each status_of
    return $result
}

case ${1:-} in
    load | unload | status) ;;
    has) case " $names " in *" ${2:-} "*) exit 0 ;; *) exit 3 ;; esac ;;
    *)
        echo >&2 "usage: load [--root DIR] load|unload|status|has MODULE"
        exit 2
        ;;
esac
running=$(cat "$root/proc/sys/kernel/osrelease")
if [ "$1" != unload ] && [ "$running" != "$kernel" ]; then
    say "these modules are for the kernel $kernel, and $running runs"
    exit 3
fi
"$1"
