#!/bin/sh
# Takes the agent tree out of the agent's image, onto a host without Python: /opt/provision/python, with the link
# /opt/provision/bin/provision. It replaces an earlier one if the new one runs here, and does nothing if it is there.
#
#   agent-tree.sh REGISTRY/NAME@sha256:DIGEST
#   agent-tree.sh --remove
#
# It needs podman or docker, which fetches the image by its digest.
set -eu
umask 022

folder=/opt/provision
python=$folder/python
draft=$folder/.python.draft

fail() {
    printf 'agent-tree: %s\n' "$*" >&2
    exit 1
}

# Loads all libraries that come with Python, and provision with its packages.
works() {
    "$python/bin/python3" -I -c 'import bz2, ctypes, lzma, sqlite3, ssl, xml.parsers.expat, zlib' > /dev/null 2>&1 \
        && "$python/bin/provision" --version > /dev/null 2>&1
}

if [ "$1" = --remove ]; then
    rm -rf "$draft"
    [ ! -e "$python" ] || mv "$python" "$draft"
    rm -rf "$draft"
    [ -e "$folder/bin/provision" ] || rm -f "$folder/bin/provision"
    rmdir "$folder/bin" "$folder" 2> /dev/null || true
    exit 0
fi

image=$1
# A record of the tree's origin: whoever looks for this tree finds it by its digest.
mark=.image-${image##*@sha256:}
# A run that was interrupted between two renames left the earlier tree there.
if [ -e "$draft/former" ] && [ ! -e "$python" ]; then mv "$draft/former" "$python"; fi
rm -rf "$draft"
if [ -e "$python/$mark" ] && [ -L "$folder/bin/provision" ] && works; then exit 0; fi

engine=
for name in podman docker; do
    if command -v "$name" > /dev/null && "$name" version > /dev/null 2>&1; then
        engine=$name
        break
    fi
done
[ -n "$engine" ] || fail "neither podman nor docker answers, so $image can't be fetched"

if "$engine" image inspect "$image" > /dev/null 2>&1; then was_here=yes; else was_here=; fi
# It never runs: only its files are wanted.
container=
end() {
    [ -z "$container" ] || "$engine" rm "$container" > /dev/null || true
    [ -n "$was_here" ] || "$engine" rmi "$image" > /dev/null 2>&1 || true
    rm -rf "$draft"
}
trap end EXIT
container=$("$engine" create "$image" none) || fail "$engine could not fetch $image"
mkdir -p "$folder/bin"
mkdir -m 700 "$draft"
"$engine" cp "$container:$python" "$draft/new" || fail "$image has no $python"
chown -R 0:0 "$draft/new"
: > "$draft/new/$mark"
sync
if [ -e "$python" ]; then mv "$python" "$draft/former"; fi
mv "$draft/new" "$python"
# SELinux labels depend on the path.
if command -v restorecon > /dev/null; then restorecon -R "$python" || true; fi
if ! works; then
    mv "$python" "$draft/refused"
    if [ -e "$draft/former" ]; then mv "$draft/former" "$python"; fi
    fail "$image does not run on this $(uname -m)"
fi
ln -sfn ../python/bin/provision "$folder/bin/.provision.draft"
mv -fT "$folder/bin/.provision.draft" "$folder/bin/provision"
