#!/bin/sh
# Makes of a kernel's packages what a guest boots, without a network: collect.sh has the last word.
#
# usage: kernel.sh OUT KERNEL MODULES PROGRAM...
#
# Unpacks the packages in this folder and runs none of their scripts: those of a kernel make an
# initramfs. The kernel goes into a folder of its own, all others where their programs work.
set -eu

out=$1
kernel=$2
modules=$3
shift 3
folder=$(dirname "$(readlink -f "$0")")
root=$folder/kernel

mkdir -p "$root"
others=
for package in "$folder"/packages/*.deb; do
    case ${package##*/} in
        linux-image-* | linux-modules-*) dpkg-deb --extract "$package" "$root" ;;
        *) others="$others $package" ;;
    esac
done
# shellcheck disable=SC2086 # one word a package
[ -z "$others" ] || dpkg --unpack --force-all --force-unsafe-io $others
# Debian 13's packages have all of it below /usr.
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
depmod -b "$root" "$kernel"
sh "$folder/collect.sh" "$out" "$kernel" "$root" "$modules" "$@"
