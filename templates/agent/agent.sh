#!/bin/sh
# Runs the agent in a pod: keeps the host below ROOT as provision.toml says, until it is stopped.
# With arguments, it runs 'provision' once with these arguments.
#
# ROOT       where the host's root is mounted      [/host]
# CONFIG     folder with provision.toml and *.pub  [/config]
# INTERVAL   seconds between two runs              [3600]
# ONCE       if not empty: run once, and exit with the status of 'provision apply'
set -u

[ $# -eq 0 ] || exec provision "$@"

root=${ROOT:-/host}
config=${CONFIG:-/config}
own=${0%/*}
child=

# The shell handles a signal only between commands, so each command is a child that it waits for. When
# this shell ends, everything in the container is killed, so a run in progress cleans up first.
end() {
    trap '' TERM INT
    if [ -n "$child" ]; then
        kill "$child" 2> /dev/null
        wait "$child"
    fi
    exit 0
}
trap end TERM INT

run() {
    "$@" &
    child=$!
    wait "$child"
    status=$?
    child=
    return "$status"
}

# give FILE MODE TARGET: writes a file of the host in one step. The host's shell does it in a chroot,
# so that links of the host are resolved within the host.
give() {
    # shellcheck disable=SC2016 # the host's shell expands it
    chroot "$root" /bin/sh -c \
        'mkdir -p "${2%/*}" && cat > "$2.new" && chmod "$1" "$2.new" && mv -f "$2.new" "$2"' \
        sh "$2" "$3" < "$1"
}

# keep_keys NAMES: removes the keys that the agent wrote earlier and that are not in NAMES, so that they
# are no longer trusted. Keys of others stay. Names in a ConfigMap have no spaces.
keep_keys() {
    # shellcheck disable=SC2016 # the host's shell expands it
    chroot "$root" /bin/sh -fc '
        [ -z "$1" ] || mkdir -p /etc/provision/trust.d || exit 1
        [ -d /etc/provision/trust.d ] || exit 0
        cd /etc/provision/trust.d || exit 1
        [ -n "$1" ] || [ -e .agent ] || exit 0
        if [ -e .agent ]; then
            for name in $(cat .agent); do
                case " $1 " in
                    *" $name "*) ;;
                    *) rm -f "./$name" || exit 1 ;;
                esac
            done
        fi
        echo "$1" > .agent.new && mv -f .agent.new .agent' sh "$1"
}

prepare() {
    # It may have a proxy's password.
    give "$config/provision.toml" 0600 /etc/provision/provision.toml || return 1
    names=
    for key in "$config"/*.pub; do
        [ ! -e "$key" ] || names="$names ${key##*/}"
    done
    keep_keys "$names" || return 1
    for name in $names; do
        give "$config/$name" 0644 "/etc/provision/trust.d/$name" || return 1
    done
    [ -e "$own/oci-decorator" ] || return 0
    cmp -s "$own/oci-decorator" "$root/opt/provision/bin/oci-decorator" \
        || give "$own/oci-decorator" 0755 /opt/provision/bin/oci-decorator || return 1
    # The runtime is the same program under this name; 'configure' expects it beside itself.
    chroot "$root" ln -sfn oci-decorator /opt/provision/bin/oci-decorator-runtime
}

# provision makes the same check: it loads modules only for the root of the machine's first process.
[ "$(stat -L -c %d:%i "$root/proc/1/root" 2> /dev/null)" = "$(stat -L -c %d:%i "$root")" ] \
    || echo >&2 "agent: modules are not loaded: $root is not this machine's root, or that can't be seen."

while :; do
    if prepare; then
        run provision apply --timer --root "$root"
        result=$?
        # Runs in the host's root, because specifications name paths of the host.
        run chroot "$root" /opt/provision/bin/oci-decorator cdi generate --output-dir /run/cdi \
            || echo >&2 "agent: no CDI specification was written; pods can use the RuntimeClass."
    else
        echo >&2 "agent: the host's /etc/provision could not be written."
        result=1
    fi
    [ -z "${ONCE:-}" ] || exit "$result"
    run sleep "${INTERVAL:-3600}"
done
