#!/bin/sh
# Unpacks what Ignition brought: Python, then provision in an environment of its own; installs the
# units, and starts the one that sees to the drivers. Run by provision-first-boot.service.
#
#   first-boot.sh ENVIRONMENT      such as venv-0123456789ab
#
# Each part gets its name when it is complete, and what is complete stays: power may go at
# any moment, and the next boot goes on from there. This file is what says that there is something
# left to do, so it goes last.
set -eu

folder=/opt/provision
staged=$folder/first-boot
python=$folder/python
environment=$folder/$1

say() { printf '%s\n' "$*"; }

works() { "$@" >/dev/null 2>&1; }

# SELinux: programs and libraries are labelled by their place, which is not where they were unpacked.
label() {
    if command -v restorecon >/dev/null; then restorecon -R "$1"; fi
}

link() {
    mkdir -p "$(dirname "$2")"
    ln -sfn "$1" "$2.draft"
    mv -fT "$2.draft" "$2"
}

if ! works "$python/bin/python3" -c 'import venv'; then
    say "unpacking Python"
    rm -rf "$staged/tree" "$python"
    mkdir "$staged/tree"
    tar -C "$staged/tree" --no-same-owner -xzf "$staged/python.tar.gz"
    # By this the Ansible role knows which archive it was.
    sum=$(sha256sum "$staged/python.tar.gz")
    printf '%s\n' "${sum%% *}" >"$staged/tree/opt/provision/python/.archive-sha256"
    sync -f "$staged"
    mv -T "$staged/tree/opt/provision/python" "$python"
    label "$python"
fi

if ! works "$environment/bin/provision" --version; then
    say "installing provision"
    rm -rf "$environment" "$staged/wheels"
    mkdir "$staged/wheels"
    tar -C "$staged/wheels" --no-same-owner -xf "$folder/provision.tar"
    "$python/bin/python3" -m venv --without-pip "$environment"
    pip=$(echo "$staged"/wheels/pip-*.whl)
    wheel=$(echo "$staged"/wheels/provision-*.whl)
    # NVML's package, by which GPUs are named, where the archive has it.
    extras=
    for found in "$staged"/wheels/nvidia_ml_py-*.whl; do
        [ ! -e "$found" ] || extras="[nvml]"
    done
    # pip runs from its own wheel: this Python has none.
    "$environment/bin/python" "$pip/pip" install --quiet --disable-pip-version-check \
        --no-index --no-cache-dir --find-links="$staged/wheels" "$wheel$extras"
    label "$environment"
    "$environment/bin/provision" --version
    sync -f "$environment"
fi

link "$1" "$folder/venv"
link ../venv/bin/provision "$folder/bin/provision"

"$folder/bin/provision" units --program "$folder/bin/provision"
# It may build for an hour; it reports how it ended, and its timer tries again.
systemctl start --no-block provision-apply.service

rm -rf "$staged/tree" "$staged/wheels" "$staged/python.tar.gz"
rm -r "$staged"
