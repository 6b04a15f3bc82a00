#!/bin/sh
# Installs exactly the packages in /provision/packages, without a network.
#
# usage: install.sh SUMS [COMPILER MAJOR [KERNEL BUILD SOURCE]]
#
# SUMS    a file in this folder with the packages' checksums
# KERNEL  links and checks the kernel's headers; without it, a later stage installs them
# Without COMPILER, no compiler is checked: the base image has it.
#
# The checksums are those of the Pin; the archive's signature was checked when the Pin was made. apt
# sets the packages up in the right order and has no sources, so a missing package is an error.
set -eu

sums=$1
compiler=${2:-}
major=${3:-}
kernel=${4:-}
build=${5:-}
source=${6:-}

# Without this folder, the base image has everything.
if [ -d /provision/packages ]; then
    cd /provision/packages
    sha256sum --check --strict --quiet "/provision/$sums"
    # force-unsafe-io: dpkg would wait for the disk, but a build starts again after a power cut.
    DEBIAN_FRONTEND=noninteractive apt-get --quiet install --yes --no-install-recommends \
        --allow-downgrades \
        -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists=/provision/lists -o APT::Sandbox::User=root \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io ./*.deb
    cd /
    rm -rf /provision/packages /provision/lists
fi

if [ -n "$kernel" ]; then
    if [ ! -d "$build" ]; then
        echo >&2 "The packages brought no folder $build: they are of another kernel than $kernel."
        exit 1
    fi
    # Header packages contain both links, except Ubuntu's, which contain only the first.
    mkdir -p "/lib/modules/$kernel"
    [ -e "/lib/modules/$kernel/build" ] || ln -sfn "$build" "/lib/modules/$kernel/build"
    [ -e "/lib/modules/$kernel/source" ] || ln -sfn "$source" "/lib/modules/$kernel/source"
fi

[ -n "$compiler" ] || exit 0
mkdir -p /usr/local/bin
# Ubuntu's kernel Makefile and many drivers call plain gcc, whatever versions are installed.
for program in gcc g++ cpp clang; do
    [ ! -x "/usr/bin/$program-$major" ] \
        || ln -sf "/usr/bin/$program-$major" "/usr/local/bin/$program"
done
[ "$compiler" != gcc ] || ln -sf gcc /usr/local/bin/cc
found=$("$compiler" -dumpversion 2> /dev/null | cut -d . -f 1) || found=
if [ "$found" != "$major" ]; then
    echo >&2 "There is no $compiler of major version $major, which built the kernel, but '$found'."
    exit 1
fi
