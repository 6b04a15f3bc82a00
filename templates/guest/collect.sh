#!/bin/sh
# Collects what a guest boots: a kernel, some of its modules, and programs with their libraries.
#
# usage: collect.sh OUT KERNEL ROOT MODULES PROGRAM...
#
# OUT      the tar archive to write: kernel, and root/ with the rest
# ROOT     the folder with KERNEL's boot/vmlinuz-KERNEL and lib/modules/KERNEL; empty: this machine's own
# MODULES  names of in-tree modules, in one word; they come with those that they need. One that the
#          kernel lacks is left out: the guest says so when it is to be loaded
set -eu

out=$1
kernel=$2
root=$3
modules=$4
shift 4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A reader that is gone, too, ends this by its trap.
trap 'exit 1' HUP INT PIPE TERM
guest=$work/root
mkdir -p "$guest/usr/bin" "$guest/usr/lib" "$guest/usr/lib64"
ln -s bin "$guest/usr/sbin"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$guest/$name"; done

for program; do
    path=$(command -v "$program") || { echo >&2 "This machine has no '$program'."; exit 3; }
    cp -L "$path" "$guest/usr/bin/$program"
    # ldd fails for what is linked statically.
    { ldd "$path" 2> /dev/null || :; } |
        awk '{ for (word = 1; word <= NF; word++) if ($word ~ /^\//) { print $word; break } }'
done | sort -u | while read -r library; do
    mkdir -p "$guest${library%/*}"
    cp -L "$library" "$guest$library"
done

tree=$root/lib/modules/$kernel
for image in "$root/boot/vmlinuz-$kernel" "$tree/vmlinuz" "$root/boot/Image-$kernel"; do
    if [ -r "$image" ]; then
        cp -L "$image" "$work/kernel"
        break
    fi
done
[ -e "$work/kernel" ] || { echo >&2 "There is no image of the kernel $kernel."; exit 3; }

mkdir -p "$guest/lib/modules/$kernel"
for file in modules.builtin modules.builtin.modinfo modules.order; do
    [ ! -e "$tree/$file" ] || cp "$tree/$file" "$guest/lib/modules/$kernel"
done
for name in $modules; do
    # -C: nothing of what this machine blacklists or installs by commands is of the artifact.
    modprobe ${root:+-d "$root"} -C /dev/null -S "$kernel" --show-depends "$name" 2> /dev/null || :
done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r file; do
    file=${file#*"/lib/modules/$kernel/"}
    mkdir -p "$guest/lib/modules/$kernel/${file%/*}"
    cp "$tree/$file" "$guest/lib/modules/$kernel/$file"
done
depmod -b "$guest" "$kernel"

tar -C "$work" -cf "$out" kernel root
