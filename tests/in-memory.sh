#!/bin/sh
# tests/in-memory.sh COMMAND...: run it with temporary files in memory, where root may have that.
#
# Tests make some hundred thousand small files and remove them. ext4 gives no inode away that was
# freed a moment ago, and looks for one longer and longer: on disk, the crate's tests take three times
# as long.
set -u
folder=
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then folder=$(mktemp -d /tmp/tests.XXXXXX); fi
[ -n "$folder" ] || exec "$@"
# In a mount namespace of its own, which ends with the command.
# shellcheck disable=SC2016 # expanded by the shell that runs it
unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tests "$0" && export TMPDIR="$0" && exec "$@"' \
    "$folder" "$@"
status=$?
rmdir "$folder"
exit $status
