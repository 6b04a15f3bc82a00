#!/bin/bash
# Everything that has to be on the machine before Python can take over: Debian packages and the
# virtual environment. Called by the Makefile; safe to call again, does only what is missing.
#
#   setup.sh packages   Debian packages for the programs that aren't there
#   setup.sh install P  these packages
#   setup.sh venv       .venv with provision and its development tools, when pyproject.toml changed
#
# The network is reached with the machine's own apt and pip settings; nothing about mirrors,
# proxies or certificates is decided here.
set -euo pipefail
cd "$(dirname "$0")/../.."

# What must be there -> the package that has it. Asked by program, not by package, because a
# machine may have its engine from elsewhere (docker-ce, rustup) and apt would replace that.
readonly NEEDED=(
    "python3 python3"
    "git git"
    "gcc gcc"
    "/usr/include/stdlib.h libc6-dev"
    "/etc/ssl/certs/ca-certificates.crt ca-certificates"
    "dockerd docker.io"
    "docker docker-cli"
    "containerd containerd"
    "runc runc"
    "crun crun"
    "podman podman"
    "debootstrap debootstrap"
    "docker-registry docker-registry"
    "modinfo kmod"
    "patch patch"
    "xz xz-utils"
    "qemu-system-x86_64 qemu-system-x86"
    "qemu-img qemu-utils"
    "mke2fs e2fsprogs"
    "ssh openssh-client"
    "openssl openssl"
    "systemd-analyze systemd"
    "shellcheck shellcheck"
    "softhsm2-util softhsm2"
    "ignition-validate ignition"
    "/usr/share/doc/libengine-pkcs11-openssl libengine-pkcs11-openssl"
)
readonly PYTHON_MIN="3.11"

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $1"
    say "  what to do: $2"
    exit 1
}

# Programs of the admin (/usr/sbin) count even where the caller's PATH lacks them.
present() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing_packages() {
    local row
    for row in "${NEEDED[@]}"; do
        present "${row% *}" || printf '%s\n' "${row#* }"
    done
    # Without its parser dockerd refuses to start where the kernel has AppArmor switched on.
    if grep -q Y /sys/module/apparmor/parameters/enabled 2>/dev/null && ! present apparmor_parser; then
        printf 'apparmor\n'
    fi
    # Debian splits venv's pip seed (ensurepip) off from python3 itself.
    if ! usable_python >/dev/null; then printf 'python3-venv\n'; fi
}

# Debian 12 has the docker client inside docker.io, Debian 13 in docker-cli.
without_unknown() {
    local name
    for name in "$@"; do
        if [ "$name" = docker-cli ] && ! apt-cache show docker-cli >/dev/null 2>&1; then
            name=docker.io
        fi
        printf '%s\n' "$name"
    done | sort -u
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" </dev/null
}

install_packages() {
    local log
    command -v apt-get >/dev/null || die "not found: $*" "install them by hand; only Debian's apt is known here"
    [ "$(id -u)" = 0 ] || die "not installed: $*" "run as root, or: apt-get install $*"
    log=$(mktemp)
    # shellcheck disable=SC2064 # the name is known now
    trap "rm -f '$log'" EXIT
    say "installing $* (apt)"
    # The machine's package lists are often fresh enough: try with them, refresh only if not.
    # shellcheck disable=SC2046 # one word a package
    apt_install $(without_unknown "$@") >"$log" 2>&1 && return 0
    say "refreshing apt's package lists"
    if ! apt-get update >"$log" 2>&1 </dev/null; then
        tail -n 30 "$log" >&2
        die "apt-get update failed" "see its output above"
    fi
    # shellcheck disable=SC2046
    if ! apt_install $(without_unknown "$@") >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "apt could not install $*" "see its output above"
    fi
}

packages() {
    local wanted
    mapfile -t wanted < <(missing_packages)
    [ ${#wanted[@]} = 0 ] || install_packages "${wanted[@]}"
    # Debian 12 is the last that has it; without it, its tests are left out.
    if ! present vagrant && apt-cache show vagrant-libvirt >/dev/null 2>&1; then
        install_packages vagrant-libvirt
    fi
}

# Debian's own python first: what pyenv and the like put on PATH is slower to start.
usable_python() {
    local candidate
    for candidate in ${PYTHON:-} /usr/bin/python3 python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c "
import ensurepip, sys, venv
sys.exit(sys.version_info < tuple(map(int, '$PYTHON_MIN'.split('.'))))" >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# The stamp holds what the environment was made from, so that a pull that changes pyproject.toml
# renews it and nothing else does.
venv() {
    local python stamp=.venv/made-from
    if [ -x .venv/bin/provision ] && sha256sum --check --status "$stamp" 2>/dev/null; then
        return 0
    fi
    python=$(usable_python) || die "no python of $PYTHON_MIN or newer with venv" "apt-get install python3 python3-venv, or set PYTHON"
    if ! .venv/bin/python -c '' 2>/dev/null; then
        say "making .venv with $python"
        "$python" -m venv --clear .venv
    fi
    say "installing provision and its development tools into .venv (pip)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
    sha256sum pyproject.toml >"$stamp"
}

case ${1:-} in
    packages) packages ;;
    venv) venv ;;
    install) shift && install_packages "$@" ;;
    *) die "setup.sh knows 'packages', 'venv' and 'install', not '${1:-}'" "see its first lines" ;;
esac
