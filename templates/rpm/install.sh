#!/bin/sh
# Installs exactly the packages in /provision/packages, without a network.
#
# usage: install.sh SUMS COMPILER MAJOR [KERNEL BUILD SOURCE]
#
# SUMS    a file in this folder with the packages' checksums
# KERNEL  links and checks the kernel's headers; without it, a later stage installs them
#
# The checksums are those of the Pin; the packages' signatures were checked when the Pin was made.
# Modules are built against /lib/modules/KERNEL/build. That link belongs to the kernel's own package,
# which is not installed, so this script makes it.
set -eu

sums=$1
compiler=$2
major=$3
kernel=${4:-}
build=${5:-}
source=${6:-}

# Without this folder, the base image has everything.
if [ -d /provision/packages ]; then
    cd /provision/packages
    sha256sum --check --strict --quiet "/provision/$sums"
    # A pinned package may be older than the base image's.
    rpm --upgrade --oldpackage --excludedocs ./*.rpm
    cd /
    rm -rf /provision/packages
fi

mkdir -p /usr/local/bin
if [ -n "$kernel" ]; then
    if [ ! -d "$build" ]; then
        echo >&2 "The packages brought no folder $build: they are of another kernel than $kernel."
        exit 1
    fi
    mkdir -p "/lib/modules/$kernel"
    ln -sfn "$build" "/lib/modules/$kernel/build"
    ln -sfn "$source" "/lib/modules/$kernel/source"
fi

# The kernel's Makefile calls plain gcc, whatever versions are installed.
if [ "$compiler" = gcc ] && [ "$(gcc -dumpversion 2> /dev/null | cut -d . -f 1)" != "$major" ]; then
    for program in gcc g++ cpp; do
        [ ! -x "/usr/bin/$program-$major" ] || ln -sf "/usr/bin/$program-$major" "/usr/local/bin/$program"
    done
    found=$(gcc -dumpversion 2> /dev/null | cut -d . -f 1) || found=
    if [ "$found" != "$major" ]; then
        echo >&2 "There is no gcc of major version $major, which built the kernel, but '$found'."
        exit 1
    fi
fi

# step.py and what it runs need Python 3.9. Older releases have a newer Python beside their own.
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2> /dev/null; then
        ln -sf "$(command -v "$python")" /usr/local/bin/provision-python
        exit 0
    fi
done
echo >&2 "There is no Python 3.9 or newer among the packages."
exit 1
