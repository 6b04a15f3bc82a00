#!/bin/sh
# Installs exactly the packages that lie in /provision/packages, without a network.
#
# usage: install.sh SUMS [COMPILER MAJOR [KERNEL BUILD SOURCE]]
#
# SUMS is the list of their checksums, beside this file. Without a KERNEL, its headers come later.
# Without a COMPILER, that is no package.
#
# Their checksums are those of the Pin; the archive's signature was checked when it was made. apt sets
# them up in the right order, and is given no sources: a package that is missing is an error.
set -eu

sums=$1
compiler=${2:-}
major=${3:-}
kernel=${4:-}
build=${5:-}
source=${6:-}

# The base image may have everything.
if [ -d /provision/packages ]; then
    cd /provision/packages
    sha256sum --check --strict --quiet "/provision/$sums"
    # Nobody needs a container's files after a power cut: without this, dpkg waits for the disk.
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
    # Packages of headers bring these links, but for Ubuntu's, which bring the first.
    mkdir -p "/lib/modules/$kernel"
    [ -e "/lib/modules/$kernel/build" ] || ln -sfn "$build" "/lib/modules/$kernel/build"
    [ -e "/lib/modules/$kernel/source" ] || ln -sfn "$source" "/lib/modules/$kernel/source"
fi

[ -n "$compiler" ] || exit 0
mkdir -p /usr/local/bin
# Ubuntu's Makefile calls gcc, and so do many drivers, whatever other versions are there.
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
