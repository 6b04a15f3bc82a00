#!/bin/sh
# The first program of a guest: runs /main, and says on the serial port $report how it ended.
#
# The kernel's command line sets the variable. The kernel's own messages go to another port.
export PATH=/usr/bin LC_ALL=C

if [ "${1:-}" != moved ]; then
    # Runtimes of containers can't pivot away from what the kernel unpacked; from a mount of it, they
    # can.
    mkdir -p /root-mount
    mount -n --bind / /root-mount
    cd /root-mount || exit
    mount -n --move . /
    exec chroot . /init moved
fi
mkdir -p /proc /sys /dev /run /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o mode=755 tmpfs /run
exec < /dev/null > "/dev/${report:?}" 2>&1
echo '@started'
# From here on, everything that the kernel says counts.
echo 8 > /proc/sys/kernel/printk
sh /main
echo "@ended $?"
# The machine is stopped when that has been read; else it resets itself, which stops it too.
sleep 20
echo b > /proc/sysrq-trigger
