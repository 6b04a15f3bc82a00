#!/bin/sh
# Mutation tests of the security-relevant modules: what .cargo/mutants.toml lists is changed, a
# line at a time, and the tests have to notice. Options are cargo-mutants' own:
#
#   hooks/mutants.sh                            all (hours on two cores)
#   hooks/mutants.sh --re src/host/rootfs.rs         one module
#   hooks/mutants.sh --in-diff changes.patch    what a patch touches (git diff main > changes.patch)
#   hooks/mutants.sh --iterate                  what the last run left; also continues an interrupted run
#   hooks/mutants.sh --shard 0/4                a quarter of it
#
# A mutant may do what the program must never do: follow a link to the host and write there, as
# root. So the tests run where the file system and /dev are read-only, except for a folder of their
# own.
# Fails when 2 % or more survive; those are listed in target/mutants/mutants.out/missed.txt.
set -eu

VERSION=27.1.0
LIMIT=2 # per cent
cd "$(dirname "$0")"
fail() {
    echo "mutants: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "root is needed: the tests mount, make device nodes and start containers"
if [ "$(cargo mutants --version 2>/dev/null)" != "cargo-mutants $VERSION" ]; then
    echo "mutants: installing cargo-mutants $VERSION (some minutes, once)" >&2
    cargo install cargo-mutants --locked --version "$VERSION"
fi
cargo fetch --locked --quiet
output=$PWD/target/mutants
scratch=$(mktemp -d /var/tmp/oci-decorator-mutants.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$output" "$scratch/copies" "$scratch/tests"
# cargo-mutants copies this folder only; tests hold the documentation to the code.
ln -s "$(dirname "$PWD")/docs" "$scratch/copies/docs"
# Containers whose root is another user have to reach their files.
chmod 711 "$scratch"

# How cargo runs the tests' binaries: each in namespaces of its own, so that a mutant that takes a
# mount away, or leaves a container behind, spoils no other's verdict. Not as their first process,
# whose number no container's has. The corpus makes the runtime's link beside the program, where
# nothing can be written then.
cat >"$scratch/runner" <<END
#!/bin/sh
ln -sfn oci-decorator "\${1%/deps/*}/oci-decorator-runtime"
exec env TMPDIR="$scratch/tests" unshare --mount --pid --fork --kill-child --mount-proc \\
    sh -ec 'mount -o remount,bind,ro "$scratch/copies"; mount -o remount,bind,ro "$output"
        "\$@" || exit \$?' sh "\$@"
END
chmod 755 "$scratch/runner"
host=$(rustc -vV | sed -n 's/^host: //p')
triple=$(echo "$host" | tr 'a-z-' 'A-Z_')

# In the shell within: $1 to $3 stay writable, the rest goes to cargo-mutants.
# shellcheck disable=SC2016 # Expanded there.
within='
    set -eu
    for folder in "$1" "$2" "$3"; do mount --bind "$folder" "$folder"; done
    mount -o remount,bind,ro /
    mount --rbind /dev /dev
    mount -o remount,bind,ro /dev
    shift 3
    exec cargo mutants "$@"
'
# CI: a test that leaves itself out would let mutants survive. Flags: the crate denies warnings, and
# a mutant may leave a variable unused; cargo-mutants' own cap_lints drops those of config.toml.
# The target is named, or procedural macros would get the flags too.
flags='-C target-feature=+crt-static --cap-lints=warn'
try() {
    status=0
    env RUSTFLAGS="$flags" CARGO_BUILD_TARGET="$host" "CARGO_TARGET_${triple}_RUNNER=$scratch/runner" CI=true TESTS_QUICK=1 \
        PROPTEST_CASES=32 CARGO_NET_OFFLINE=true TMPDIR="$scratch/copies" \
        nice unshare --mount --pid --fork --kill-child --mount-proc \
        sh -c "$within" mutants "$scratch/copies" "$scratch/tests" "$output" \
        --jobs 2 --output "$output" --no-shuffle --colors never "$@" || status=$?
    # 2: some survived, 3: some never ended. Anything else is no verdict.
    case $status in 0 | 2 | 3) ;; *) fail "cargo mutants ended with $status" ;; esac
}
found=$output/mutants.out
count() { wc -l <"$found/$1.txt"; }

# The unit tests take seconds, and notice most; only they are compiled for it, and those that read
# much to see that it takes no time are left out, because they take four fifths of it. What the rest
# doesn't notice goes to all tests, which start containers: these mutants by name, because
# cargo-mutants would choose a shard from what is left, and not what is left of the shard.
try "$@" --cargo-arg=--lib -- -- --skip in_no_time
tried=$(($(count missed) + $(count caught) + $(count timeout)))
[ "$tried" -gt 0 ] || fail "no mutant was tried"
unviable=$(count unviable)
endless=$(count timeout)
# The second phase begins these lists again.
sed 's/^/  never ended: /' "$found/timeout.txt"
cp "$found/missed.txt" "$scratch/missed"
if [ -s "$scratch/missed" ]; then
    set -- --iterate
    while IFS= read -r name; do
        set -- "$@" --re "^$(printf '%s' "$name" | sed 's/[][\\.*+?(){}|^$]/\\&/g')$"
    done <"$scratch/missed"
    try "$@"
fi
# cargo-mutants 27.1 holds deletions of a field to no name: it tried others of them, too.
grep -Fxf "$scratch/missed" "$found/missed.txt" >"$scratch/survived" || true
missed=$(wc -l <"$scratch/survived")
echo "mutants: $missed of $tried survived, $endless never ended, $unviable could not be compiled"
sed 's/^/  /' "$scratch/survived"
[ $((missed * 100)) -lt $((tried * LIMIT)) ] || fail "$LIMIT % or more survived"
