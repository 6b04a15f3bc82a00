# shellcheck shell=sh
# What a guest runs in which an artifact is tried: its own loader loads it, and takes it out again.
#
# kmod/trial.py writes $loader and $names, those of the artifact's modules, before this text, and
# reads the lines that begin with @.
: "${loader:?}" "${names:?}"

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
