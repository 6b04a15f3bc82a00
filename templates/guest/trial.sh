# /main of a guest in which an artifact is tried: its own loader loads it, and takes it out again.
#
# $loader and $names (of the artifact's modules) are set above this text. A line
# that begins with @ is for kmod/trial.py.

# mark WHAT: a line between those of the kernel, which say nothing of when a program did what.
mark() { echo "provision: $1" > /dev/kmsg; }

mark load
sh "$loader" load 2>&1
echo "@load $?"
mark unload
sh "$loader" unload 2>&1
echo "@unload $?"
mark end
for name in $names; do
    [ ! -e "/sys/module/$name/initstate" ] || echo "@stayed $name"
done
