#!/bin/sh
# Installs what Ignition has downloaded: Python, then provision in a virtual environment, then the
# units. Starts the unit that installs the drivers. provision-first-boot.service runs this script.
#
#   first-boot.sh ENVIRONMENT      the environment's name, such as venv-0123456789ab
#
# Each part gets its final name when it is complete. After a power cut, the next boot continues with
# the first incomplete part. The unit runs as long as this file exists, so it is removed last.
set -eu

folder=/opt/provision
staged=$folder/first-boot
python=$folder/python
environment=$folder/$1

say() { printf '%s\n' "$*"; }

works() { "$@" >/dev/null 2>&1; }

# SELinux labels depend on the path, and the files were unpacked below another path.
label() {
    if command -v restorecon >/dev/null; then restorecon -R "$1"; fi
}

link() {
    mkdir -p "$(dirname "$2")"
    ln -sfn "$1" "$2.draft"
    mv -fT "$2.draft" "$2"
}

if ! works "$python/bin/python3" -I -c 'import venv'; then
    say "unpacking Python"
    rm -rf "$staged/tree" "$python"
    mkdir -m 700 "$staged/tree"
    tar -C "$staged/tree" --no-same-owner -xzf "$staged/python.tar.gz"
    # The Ansible role reads this file to see which archive was unpacked.
    sum=$(sha256sum "$staged/python.tar.gz")
    printf '%s\n' "${sum%% *}" >"$staged/tree/opt/provision/python/.archive-sha256"
    sync -f "$staged"
    mv -T "$staged/tree/opt/provision/python" "$python"
    label "$python"
fi

if ! works "$environment/bin/provision" --version; then
    say "installing provision"
    rm -rf "$environment" "$staged/wheels"
    mkdir -m 700 "$staged/wheels"
    tar -C "$staged/wheels" --no-same-owner -xf "$folder/provision.tar"
    "$python/bin/python3" -I -m venv --without-pip "$environment"
    pip=$(echo "$staged"/wheels/pip-*.whl)
    wheel=$(echo "$staged"/wheels/provision-*.whl)
    # This Python has no pip, so pip runs from its wheel.
    "$environment/bin/python" -I "$pip/pip" install --quiet --disable-pip-version-check \
        --no-index --no-cache-dir --find-links="$staged/wheels" "$wheel"
    # Else PYTHONPATH would decide what root runs.
    sed -i '1s|^#!/[^ ]*$|& -I|' "$environment/bin/provision"
    label "$environment"
    "$environment/bin/provision" --version
    sync -f "$environment"
fi

link "$1" "$folder/venv"
link ../venv/bin/provision "$folder/bin/provision"

"$folder/bin/provision" units install --program "$folder/bin/provision"
# This may build for an hour. The unit reports its result, and its timer tries again.
systemctl start --no-block provision-apply.service

rm -rf "$staged/tree" "$staged/wheels" "$staged/python.tar.gz"
rm -r "$staged"
