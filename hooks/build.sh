#!/bin/bash
# Builds and tests the crate with whatever toolchain there is.
#
#   hooks/build.sh build         the release binary, as build/oci-decorator and its other name; the
#                                same bytes wherever the checkout and cargo's home lie
#   hooks/build.sh check         format and lints
#   hooks/build.sh test          the crate's own tests
#   hooks/build.sh dev           the same, and the program that they tried as build/oci-decorator
#   hooks/build.sh msrv          the same with the oldest compiler that Cargo.toml promises
#   hooks/build.sh cargo VERB …  `cargo VERB` for the target that is shipped
#   hooks/build.sh which         says which toolchain that is
#
# ARCH=aarch64 (or x86_64) builds, checks and tests for another machine than this one: with rustup's
# target and Debian's gcc-aarch64-linux-gnu as linker; the program goes to build/aarch64/, and
# tests run by qemu-user, which has to know the system call openat2: Debian 13's does, Debian 12's
# doesn't. cargo's own variable CARGO_TARGET_…_RUNNER names another.
#
# The toolchain is the first of these: the machine's cargo where it is new enough for Cargo.toml;
# Debian's own, where that is new enough (Debian 13) and apt may install it; a Debian 13 made by
# debootstrap (`msrv` always takes that). With musl, which starts faster, where the toolchain has
# that target or rustup can add it; else with glibc. Both are static: docs/decisions/02-static-binary.md.
set -euo pipefail
# The program is for all users to run, and images of tests are for all to read.
umask 022
cd "$(dirname "$0")"
# cargo would look for the job server of a make, which hands it to other makes only.
unset MAKEFLAGS MFLAGS

readonly RUSTUP_S=120
readonly SUITE=trixie
# runc and crun, which tests start.
readonly PACKAGES=cargo,rustc,rustfmt,rust-clippy,gcc,libc6-dev,ca-certificates,runc,crun
REPOSITORY=$(cd .. && pwd)
readonly REPOSITORY
readonly IN_TREE_TARGET=$REPOSITORY/build/cargo-container
# The words that choose the target. Never none: cargo would give the program's flags to procedural
# macros too, and a static one is refused. First what Debian's cargo has.
target=(--target "$(uname -m)-unknown-linux-gnu")
# Where the program goes.
output=$REPOSITORY/build
cargo=

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $1"
    say "What to do: $2"
    exit 1
}

in_ci() { [[ ${CI:-} =~ ^(1|true|yes)$ ]]; }
# In CI the same commit meets the same made-up cases, as those of Hypothesis do by themselves.
if in_ci; then export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"; fi

oldest_rust() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# Whether a version such as `1.85.1` is new enough; Cargo.toml's is `1.85`.
new_enough() {
    local wanted
    wanted=$(oldest_rust)
    [ "$(printf '%s\n%s\n' "$wanted" "$1" | sort -V | head -n 1)" = "$wanted" ]
}

# The machine's cargo, if its compiler is new enough.
machines_cargo() {
    local candidate version
    for candidate in "$(command -v cargo || true)" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo"; do
        if [ ! -x "$candidate" ] || [ ! -x "${candidate%/*}/rustc" ]; then continue; fi
        version=$("${candidate%/*}/rustc" --version 2>/dev/null | cut -d' ' -f2) || continue
        if [ -n "$version" ] && new_enough "$version"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Have Debian's cargo, where apt has one that is new enough.
install_debians() {
    local candidate
    [ "${PROVISION_INSTALLS:-yes}" = yes ] || return 1
    if [ "$(id -u)" != 0 ] || ! command -v apt-cache >/dev/null; then return 1; fi
    candidate=$(apt-cache policy rustc 2>/dev/null | sed -n 's/^ *Candidate: //p')
    if [[ ! $candidate =~ ^[0-9] ]] || ! new_enough "${candidate%%[+~-]*}"; then return 1; fi
    "$REPOSITORY/.ci/setup" install cargo rustc rustfmt rust-clippy
}

has_target() {
    local folder
    folder=$("$1" --print target-libdir --target "$2" 2>/dev/null) || return 1
    compgen -G "$folder/libstd-*.rlib" >/dev/null
}

# The target of another machine, its linker, and what runs its programs here.
pick_foreign_target() {
    local triple=$1-unknown-linux-musl variable package
    local linker=$1-linux-gnu-gcc
    package=gcc-${1//_/-}-linux-gnu
    [[ -n $cargo && -x ${cargo%/*}/rustup ]] ||
        die "a build for $1 needs rustup, which has compilers for other machines" \
            "curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y"
    has_target "${cargo%/*}/rustc" "$triple" ||
        timeout "$RUSTUP_S" "${cargo%/*}/rustup" target add "$triple" >&2
    command -v "$linker" >/dev/null ||
        die "the linker for $1, $linker, is missing" "sudo apt-get install $package"
    variable=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$triple")
    local runner=${variable}_RUNNER
    export "${variable}_LINKER=$linker" "$runner=${!runner:-qemu-$1-static}"
    target=(--target "$triple")
    output=$REPOSITORY/build/$1
}

# The words for musl, where the compiler has it or can be given it; else for the compiler's own.
pick_target() {
    local beside=${cargo%/*} own triple
    own=$("$beside/rustc" -vV | sed -n 's/^host: //p')
    target=(--target "$own")
    triple=${own%-gnu}-musl
    [ "$triple" != "$own-musl" ] || return 0
    if ! has_target "$beside/rustc" "$triple"; then
        [ -x "$beside/rustup" ] || return 0
        say "adding the target $triple (rustup)"
        if ! timeout "$RUSTUP_S" "$beside/rustup" target add "$triple" >&2; then
            say "going on without it"
            return 0
        fi
    fi
    target=(--target "$triple")
}

pick_toolchain() {
    if [ "${ARCH:-$(uname -m)}" != "$(uname -m)" ]; then
        cargo=$(machines_cargo) || cargo=
        pick_foreign_target "$ARCH"
    elif cargo=$(machines_cargo) || { install_debians && cargo=$(machines_cargo); }; then
        pick_target
    else
        cargo=
        [ "$(id -u)" = 0 ] || no_cargo
    fi
}

# Says which cargo is missing, and what installs one.
no_cargo() {
    local found
    found=$(rustc --version 2>/dev/null) || found="no rustc in PATH"
    die "a cargo of version $(oldest_rust) or newer is missing ($found)" "one of these
    sudo apt-get install cargo rustc rustfmt rust-clippy            # Debian 13
    curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y   # any other distro"
}

name() {
    if [ -z "$cargo" ]; then
        printf "Debian %s's cargo in a tree of its own\n" "$SUITE"
    else
        printf "the machine's %s, target %s\n" "$("$cargo" --version)" "${target[1]:-its own}"
    fi
}

cache_dir() {
    local parent=${XDG_CACHE_HOME:-}
    printf '%s\n' "${PROVISION_TEST_CACHE:-${parent:-/var/cache}/provision-tests}"
}

# The machine's Debian archive, as its apt knows it.
mirror() {
    # shellcheck disable=SC2016 # these are apt's variables
    apt-get indextargets --format '$(LABEL)|$(RELEASE)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F '|' '($1 == "Debian" || ($1 == "" && $2 !~ /-/)) && !found { print $3; found = 1 }'
}

have_debootstrap() {
    if command -v debootstrap >/dev/null; then return 0; fi
    [ "${PROVISION_INSTALLS:-yes}" = yes ] ||
        die "a cargo of version $(oldest_rust) or newer is missing, and so is debootstrap, which makes a Debian $SUITE with one" \
            "apt-get install debootstrap"
    "$REPOSITORY/.ci/setup" install debootstrap >&2
}

# The Debian with cargo, made where the cache lacks it; two processes don't both make it.
tree() {
    local cache entry draft
    cache=$(cache_dir)
    entry=$cache/rust-$SUITE-2
    draft=$cache/.rust-$SUITE.draft
    mkdir -p "$cache"
    exec 9>"$cache/.rust-$SUITE.lock"
    flock 9
    if [ ! -d "$entry" ]; then
        have_debootstrap
        say "making a Debian $SUITE tree with cargo (debootstrap, some minutes, once)"
        rm -rf "$draft"
        debootstrap --variant=minbase --include=$PACKAGES $SUITE "$draft" "$(mirror)" >&2 ||
            die "debootstrap could not make a Debian $SUITE: its output is above" \
                "less $draft/debootstrap/debootstrap.log, then run the command again"
        mv "$draft" "$entry"
    fi
    exec 9>&-
    printf '%s\n' "$entry"
}

# Runs cargo with the tree as its root: a layer on top keeps the tree as it is; the network, this
# repository and a cargo home in the cache are the machine's. Not chroot(2), in which the crate's
# tests could make no user namespaces.
# shellcheck disable=SC2016 # expanded by the shell that runs it
readonly ENTER='
set -eu
tree=$1 repository=$2 home=$3 settings=$4; shift 4
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$tree,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
for kernel in sys dev; do mount --rbind "/$kernel" "$kernel"; done
mount -t tmpfs tmpfs tmp
for folder in "$repository" "$home"; do
    mkdir -p ".$folder"
    mount --bind "$folder" ".$folder"
done
cp -L /etc/resolv.conf etc/resolv.conf
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/ca-certificates.crt
fi
if [ -e "$settings" ]; then cp "$settings" ".$home/config.toml"; fi
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
cd "$repository/hooks"
# Its /tmp is in memory, and has no folder of the machine that started this.
unset TMPDIR
exec "$@"
'

in_tree() {
    local home settings entry
    entry=$(tree) || exit 1
    home=$(cache_dir)/cargo-home
    settings=${CARGO_HOME:-$HOME/.cargo}/config.toml
    mkdir -p "$home" "$IN_TREE_TARGET"
    PATH=/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=$home CARGO_TARGET_DIR=$IN_TREE_TARGET \
        unshare --mount --pid --fork --kill-child --propagation=private \
        sh -c "$ENTER" sh "$entry" "$REPOSITORY" "$home" "$settings" "$@"
}

# Runs a program of the toolchain.
toolchain() {
    if [ -z "$cargo" ]; then
        in_tree "$@"
    else
        # cargo finds rustc on PATH, and rustup's is not always there.
        PATH=${cargo%/*}:$PATH "$@"
    fi
}

# Runs `cargo VERB …`, for the target if VERB compiles.
run_cargo() {
    local verb=$1
    shift
    [[ $verb =~ ^(fmt|metadata)$ ]] || set -- "${target[@]}" "$@"
    toolchain cargo "$verb" "$@"
}

# Prints, as cargo's setting, the compiler's flags that keep the folders of this machine out of the
# program: panic messages name source files. cargo adds them to those of .cargo/config.toml. All
# paths are those that cargo itself hands to the compiler, so mirrors and vendored crates count too.
without_paths() {
    local described folder found=() flags=
    described=$(run_cargo metadata --locked --format-version 1)
    # The last one that matches counts: the target folder lies in this repository, or elsewhere.
    mapfile -t found < <(grep -o '"manifest_path":"[^"]*"' <<<"$described" | cut -d '"' -f 4)
    while read -r folder; do
        flags+="\"--remap-path-prefix=$folder=/crates\","
    done < <(printf '%s\n' "${found[@]}" | sed 's|/[^/]*/Cargo.toml$||' | sort -u)
    flags+="\"--remap-path-prefix=$REPOSITORY=/oci-decorator\","
    folder=$(grep -o '"target_directory":"[^"]*"' <<<"$described" | cut -d '"' -f 4)
    flags+="\"--remap-path-prefix=$folder=/target\","
    # The standard library's sources, where the toolchain has them; its own name for them elsewhere.
    found=("$(toolchain rustc --print sysroot)" "$(toolchain rustc -vV | sed -n 's/^commit-hash: //p')")
    flags+="\"--remap-path-prefix=${found[0]}/lib/rustlib/src/rust=/rustc/${found[1]}\""
    printf "target.'cfg(unix)'.rustflags=[%s]\n" "$flags"
}

# Puts the program of a profile where others look for it.
put() {
    local from=${CARGO_TARGET_DIR:-target}
    [ -n "$cargo" ] || from=$IN_TREE_TARGET
    mkdir -p "$output"
    cp -p "$from/${target[1]}/$1/oci-decorator" "$output/.oci-decorator"
    mv "$output/.oci-decorator" "$output/oci-decorator"
    ln -sfn oci-decorator "$output/oci-decorator-runtime"
}

build() {
    local flags
    if [ -n "${RUSTFLAGS:-}${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
        say "RUSTFLAGS has no effect here: the program is built with the flags of .cargo/config.toml"
        unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
    fi
    flags=$(without_paths)
    run_cargo build --release --locked --config "$flags"
    put release
}

dev() {
    run_cargo test --locked
    put debug
}

# Whether `cargo $1` is there: rustup's minimal profile lacks fmt and clippy.
has_verb() {
    [ -z "$cargo" ] || PATH=${cargo%/*}:$PATH "$cargo" "$1" --version >/dev/null 2>&1 && return 0
    if in_ci; then die "cargo $1 is missing, and CI=true" "$(command_for "$1")"; fi
    say "skipped: cargo $1 is missing ($(command_for "$1"))"
    return 1
}

# What installs `cargo fmt` or `cargo clippy`: rustup's, or Debian's package beside Debian's cargo.
command_for() {
    local name=${1/fmt/rustfmt}
    if [ -x "${cargo%/*}/rustup" ]; then
        printf 'rustup component add %s\n' "$name"
    else
        printf 'sudo apt-get install %s\n' "${name/#clippy/rust-clippy}"
    fi
}

check() {
    if has_verb fmt; then run_cargo fmt --check; fi
    if has_verb clippy; then run_cargo clippy --all-targets --locked -- -D warnings; fi
}

verb=${1:-}
case $verb in
    build | check | test | dev | cargo | which) pick_toolchain ;;
    msrv) [ "$(id -u)" = 0 ] || die "the tree with the oldest compiler needs root" "run as root" ;;
    *) die "hooks/build.sh knows build, check, test, dev, msrv, cargo and which, not '$verb'" \
        "see its first lines" ;;
esac
[ "$verb" = which ] || say "cargo $verb with $(name)"
case $verb in
    build) build ;;
    check) check ;;
    test | msrv) run_cargo test --locked ;;
    dev) dev ;;
    cargo) shift && run_cargo "$@" ;;
    which) name ;;
esac
