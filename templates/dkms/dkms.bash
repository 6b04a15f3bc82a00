#!/bin/bash
# Does what DKMS does with a dkms.conf, for one kernel, in a container without a network.
#
#   dkms.bash print CONF KERNEL ARCH    prints its variables as NAME, INDEX and VALUE, each with a NUL
#                                       at its end; the last name is a dot
#   dkms.bash build KERNEL ARCH JOBS    builds what the dkms.conf of the current folder (or the one
#                                       below usr/src) describes: modules into dkms-modules, and the
#                                       folder in which they were built becomes dkms-build
#
# A dkms.conf is a program in bash. It runs in a process of its own with a time limit, and its output
# is ignored. Each refusal is a line that begins with "dkms: ", which provision explains.
# Variables, functions, folders and the order of steps: dkms(8) and the source of DKMS 3.
shopt -s extglob
export LC_ALL=C

READ_LIMIT_S=60
MAX_MODULES=1000

die() {
    printf 'dkms: %s\n' "$@" >&2
    exit 1
}

# Sets the variables to which a dkms.conf may refer.
set_given() {
    export kernelver=$1 arch=$2
    export kernel_source_dir=/lib/modules/$kernelver/build install_tree=/lib/modules
    export dkms_tree=/var/lib/dkms source_tree=/usr/src tmp_location=/tmp
    export kernel_config=$kernel_source_dir/.config parallel_jobs=${jobs-1} current_os=Linux
}

# Pads the numbers of a version, so that versions are compared as texts: DKMS's own function, which a
# dkms.conf may call.
VER() {
    # shellcheck disable=SC2086  # as in DKMS
    echo $1 | sed -e 's:\([^0-9]\)\([0-9]\):\1 \2:g' -e 's:\([0-9]\)\([^0-9]\):\1 \2:g' \
        -e 's:\(.*\): \1 :' -e 's: \([0-9]\) : 00\1 :g' -e 's: \([0-9][0-9]\) : 0\1 :g' -e 's: ::g'
}
export -f VER

# DKMS knows name and version from the folder before it reads the dkms.conf, which may use both, and
# files of that folder.
set_package() {
    local said
    # shellcheck disable=SC2016  # the inner shell expands these
    said=$(timeout --kill-after=5 "$READ_LIMIT_S" bash -O extglob -c \
        '. "$0" >/dev/null; printf "%s\n%s\n" "${PACKAGE_NAME-}" "${PACKAGE_VERSION-}"' "$1" \
        2>/dev/null </dev/null)
    { read -r module && read -r module_version; } <<<"$said"
    export module module_version
}

# Lays out what DKMS has when it reads a dkms.conf: the source as a folder below /usr/src, and a link.
# Sets 'conf' to the dkms.conf there.
add_source() {
    local source
    # An editor of another system leaves carriage returns, which bash takes for a part of each value.
    ! grep -q $'\r$' "$conf" || sed -i 's/\r$//' "$conf" || exit
    set_package "$conf"
    # If the dkms.conf does not say both, reading it says what is wrong.
    [[ $module =~ ^[A-Za-z0-9_-][A-Za-z0-9.+~:_-]*$ && $module_version =~ ^[A-Za-z0-9.+~:_-]+$ ]] || return
    source=$source_tree/$module-$module_version
    mkdir -p "$source_tree" "$dkms_tree/$module/$module_version" || exit
    [[ -e $source ]] || cp -a "${conf%/*}" "$source" || exit
    ln -sfn "$source" "$dkms_tree/$module/$module_version/source" || exit
    conf=$source/dkms.conf
}

provision_print_variables() {
    local -a provision_names=(
        PACKAGE_NAME PACKAGE_VERSION MAKE MAKE_MATCH CLEAN BUILT_MODULE_NAME BUILT_MODULE_LOCATION
        DEST_MODULE_NAME DEST_MODULE_LOCATION PATCH PATCH_MATCH PRE_BUILD POST_BUILD PRE_INSTALL
        POST_ADD POST_INSTALL POST_REMOVE BUILD_EXCLUSIVE_KERNEL BUILD_EXCLUSIVE_KERNEL_MIN
        BUILD_EXCLUSIVE_KERNEL_MAX BUILD_EXCLUSIVE_ARCH BUILD_EXCLUSIVE_CONFIG BUILD_DEPENDS
        OBSOLETE_BY STRIP AUTOINSTALL NO_WEAK_MODULES REMAKE_INITRD MODULES_CONF
        MODULES_CONF_OBSOLETES MODULES_CONF_ALIAS_TYPE MODULES_CONF_OBSOLETE_ONLY
    )
    local provision_name provision_index provision_text
    local -a provision_words
    set -f
    for provision_name in "${provision_names[@]}"; do
        local -n provision_values=$provision_name
        for provision_index in "${!provision_values[@]}"; do
            # DKMS writes each value between double quotes on one line, and bash reads that line again.
            # Values that are quoted twice in a dkms.conf rely on that.
            # shellcheck disable=SC2206  # split at blanks on purpose
            provision_words=(${provision_values[provision_index]})
            provision_text="${provision_words[*]}"
            eval "provision_text=\"$provision_text\""
            printf '%s\0%s\0%s\0' "$provision_name" "$provision_index" "$provision_text"
        done
        unset -n provision_values
    done
    printf '.\0000\0\0'
}

print_conf() {
    set_given "$2" "$3"
    # A condition on a command that is not there is false, and would leave out a module without a word.
    command_not_found_handle() {
        printf '%s\n' "$1" >>"$lacking"
        return 127
    }
    exec 3>&1 1>&2 </dev/null
    # shellcheck disable=SC1090  # which file is the caller's choice
    . "$1"
    provision_print_variables >&3
}

# Bash stops at the first unset variable and names it. So each one is set and bash runs again, until
# none is left. CONFIG_* are not printed: a kernel's configuration leaves out options that are off.
unset_variables() {
    local conf=$1 name said
    local -a found=()
    set_given "$2" "$3"
    set_package "$conf"
    for _ in {1..20}; do
        # shellcheck disable=SC2016  # the inner shell expands these
        said=$(timeout --kill-after=5 "$READ_LIMIT_S" env "${found[@]/%/=}" \
            bash -O extglob -u -c '. "$0" >/dev/null 2>&3 3>&-' "$conf" 3>&1 </dev/null 2>/dev/null |
            sed -n 's/^.*: \([A-Za-z_][A-Za-z0-9_]*\): unbound variable$/\1/p' | sort -u)
        [[ $said ]] || break
        for name in $said; do
            found+=("$name")
            [[ $name == CONFIG_* ]] || printf '%s\n' "$name"
        done
    done
}

find_conf() {
    if [[ -f dkms.conf ]]; then
        printf '%s/dkms.conf' "$PWD"
        return
    fi
    shopt -s nullglob
    local -a there=(usr/src/*/dkms.conf */dkms.conf)
    shopt -u nullglob
    case ${#there[@]} in
        1) printf '%s/%s' "$PWD" "${there[0]}" ;;
        0) die "no dkms.conf: neither in $PWD nor in a folder of it or of its usr/src" ;;
        *) die "several dkms.conf: ${there[*]}" ;;
    esac
}

# Prints files that changed after another file, outside of the folder for temporary files.
changed_after() {
    command -v find >/dev/null || return 0
    find / -mindepth 1 -xdev \( -path /tmp -o -path /proc -o -path /sys -o -path /dev \) -prune -o \
        -cnewer "$1" -print 2>/dev/null | head -n 5
}

declare -A value=()
last=-1

# Reads a dkms.conf into 'value', by "NAME.INDEX"; 'last' is the highest index of a module.
load() {
    local conf=$1 work=$2 name index text status changed whole=no
    bash -n "$conf" || die "dkms.conf is no program that bash understands"
    touch "$work/before"
    # File systems count time in ticks of some milliseconds.
    sleep 0.05
    (
        # At most 16 MiB of output, because the disk belongs to the engine.
        ulimit -f 16384
        export lacking=$work/lacking
        exec timeout --kill-after=5 "$READ_LIMIT_S" bash "$0" print "$conf" "$kernelver" "$arch"
    ) >"$work/variables"
    status=$?
    ((status != 124 && status != 137)) || die "reading dkms.conf did not end within $READ_LIMIT_S s"
    changed=$(changed_after "$work/before")
    [[ ! $changed ]] || die "reading dkms.conf changes files: ${changed//$'\n'/, }"
    [[ ! -s $work/lacking ]] ||
        die "dkms.conf runs programs that the build has not: $(sort -u "$work/lacking" | tr '\n' ' ')"
    while IFS= read -r -d '' name && IFS= read -r -d '' index && IFS= read -r -d '' text; do
        if [[ $name == . ]]; then
            whole=yes
        elif [[ $index =~ ^[0-9]+$ ]]; then
            value[$name.$index]=$text
            case $name in
                BUILT_MODULE_* | DEST_MODULE_*) ((index > last)) && last=$index ;;
            esac
        fi
    done <"$work/variables"
    [[ $whole == yes ]] || die "dkms.conf ends itself, with exit status $status"
    ((last < MAX_MODULES)) || die "dkms.conf names a module with the index $last: count from 0"
}

check_required() {
    local name
    local -a problems=()
    for name in PACKAGE_NAME PACKAGE_VERSION; do
        case ${value[$name.0]} in
            '') problems+=("dkms.conf does not set $name") ;;
            *[!A-Za-z0-9.+~:_-]* | .*)
                problems+=("dkms.conf sets $name to '${value[$name.0]}', which is a template")
                ;;
        esac
    done
    local index
    for ((index = 0; index <= last; index++)); do
        name=${value[BUILT_MODULE_NAME.$index]}
        if [[ ! $name ]] && ((last > 0)); then
            problems+=("dkms.conf does not set BUILT_MODULE_NAME[$index]")
        elif [[ $name == *.o || $name == *.ko || $name == */* ]]; then
            problems+=("dkms.conf sets BUILT_MODULE_NAME[$index] to '$name': a name without a folder and without .ko")
        fi
        name=${value[DEST_MODULE_NAME.$index]}
        if [[ $name == *.o || $name == *.ko || $name == */* ]]; then
            problems+=("dkms.conf sets DEST_MODULE_NAME[$index] to '$name': a name without a folder and without .ko")
        fi
    done
    ((last >= 0)) || problems+=("dkms.conf does not set BUILT_MODULE_NAME or DEST_MODULE_LOCATION")
    ((${#problems[@]} == 0)) || die "${problems[@]}"
}

is_older() {
    [[ $1 != "$2" && $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

# Prints the reason if a variable with that index excludes the kernel. Index 0 is for all modules.
exclusion() {
    local index=$1 text option
    text=${value[BUILD_EXCLUSIVE_KERNEL.$index]}
    if [[ $text && ! $kernelver =~ $text ]]; then
        printf "BUILD_EXCLUSIVE_KERNEL is '%s', and the kernel is %s" "$text" "$kernelver"
        return
    fi
    text=${value[BUILD_EXCLUSIVE_KERNEL_MIN.$index]}
    if [[ $text ]] && is_older "$kernelver" "$text"; then
        printf "BUILD_EXCLUSIVE_KERNEL_MIN is '%s', and the kernel is %s" "$text" "$kernelver"
        return
    fi
    local name=BUILD_EXCLUSIVE_KERNEL_MAX
    text=${value[$name.$index]}
    if ((index == 0)) && [[ ! $text ]]; then
        name=OBSOLETE_BY
        text=${value[$name.0]}
    fi
    if [[ $text ]] && is_older "$text" "$kernelver"; then
        printf "%s is '%s', and the kernel is %s" "$name" "$text" "$kernelver"
        return
    fi
    text=${value[BUILD_EXCLUSIVE_ARCH.$index]}
    if [[ $text && ! $arch =~ $text ]]; then
        printf "BUILD_EXCLUSIVE_ARCH is '%s', and the kernel %s is for %s" "$text" "$kernelver" "$arch"
        return
    fi
    [[ -e $kernel_source_dir/.config ]] || return
    for option in ${value[BUILD_EXCLUSIVE_CONFIG.$index]}; do
        if grep -q "^${option#!}=[ym]" "$kernel_source_dir/.config"; then
            [[ $option == !* ]] || continue
        else
            [[ $option == !* ]] && continue
        fi
        printf "BUILD_EXCLUSIVE_CONFIG wants '%s', and the kernel %s is configured otherwise" \
            "$option" "$kernelver"
        return
    done
}

check_excluded() {
    local why name depends='' lacking=''
    why=$(exclusion 0)
    [[ ! $why ]] || die "excluded: $why"
    for name in "${!value[@]}"; do
        [[ $name == BUILD_DEPENDS.* ]] && depends+=" ${value[$name]}"
    done
    for name in $depends; do
        [[ $name == "${value[PACKAGE_NAME.0]}" ]] || lacking+=" $name"
    done
    [[ ! $lacking ]] || die "BUILD_DEPENDS names other DKMS packages:$lacking"
}

apply_patches() {
    local index file match
    for ((index = 0; index < 1000; index++)); do
        file=${value[PATCH.$index]} match=${value[PATCH_MATCH.$index]}
        [[ $file ]] || continue
        [[ ! $match || $kernelver =~ $match ]] || continue
        [[ -f patches/$file ]] || die "dkms.conf names the patch '$file', and there is no file patches/$file"
        patch --strip=1 --no-backup-if-mismatch --input="patches/$file" ||
            die "the patch '$file' of dkms.conf can't be applied"
    done
}

# Runs a script of the current folder as DKMS does: a path and its arguments, split at blanks.
run_script() {
    local name=$1
    local -a words
    # shellcheck disable=SC2206  # split at blanks on purpose
    words=(${value[$name.0]})
    ((${#words[@]})) || return 0
    if [[ ! -x $PWD/${words[0]} ]]; then
        printf 'warning: %s is not run: %s is no program of the source\n' "$name" "${words[0]}" >&2
        return 0
    fi
    "$PWD/${words[0]}" "${words[@]:1}" || failed "$name of dkms.conf failed: ${words[*]}"
}

failed() {
    local names lines
    lines=$(grep -rnE --include='Makefile*' --include=Kbuild --include='*.mk' --include=dkms.conf \
        'uname +(-r|--kernel-release)' . | head -n 3 | sed 's/^\.\///; s/:[[:blank:]]*/: /2' | tr '\n' ' ')
    [[ ! $lines ]] || printf 'dkms: the running kernel is asked for: %s\n' "${lines% }" >&2
    names=$(unset_variables "$conf" "$kernelver" "$arch" | tr '\n' ' ')
    [[ ! $names ]] || printf 'dkms: dkms.conf uses variables that nothing sets: %s\n' "${names% }" >&2
    die "$@"
}

make_command() {
    local command='' index text match
    [[ ${value[MAKE_MATCH.0]} ]] || command=${value[MAKE.0]}
    for ((index = 0; index < 1000; index++)); do
        text=${value[MAKE.$index]} match=${value[MAKE_MATCH.$index]}
        [[ $text && $match && $kernelver =~ $match ]] && command=$text
    done
    [[ $command ]] || command="make -C $kernel_source_dir M=$PWD"
    case $command in
        make | make[[:space:]]*)
            command="make -j$jobs KERNELRELEASE=$kernelver${command#make}"
            ;;
    esac
    printf '%s' "$command"
}

collect_modules() {
    local out=$1 index built name why
    local -a missing=() made
    for ((index = 0; index <= last; index++)); do
        built=${value[BUILT_MODULE_NAME.$index]:-${value[PACKAGE_NAME.0]}}
        name=${value[DEST_MODULE_NAME.$index]:-$built}
        if ((index > 0)) && why=$(exclusion "$index") && [[ $why ]]; then
            printf 'not built: %s, as %s\n' "$name" "$why"
            continue
        fi
        built=${value[BUILT_MODULE_LOCATION.$index]%/}/$built.ko
        built=${built#/}
        [[ ! -e $out/$name.ko ]] || die "dkms.conf names two modules $name.ko"
        if [[ -f $built ]]; then
            cp "$built" "$out/$name.ko" || exit
        else
            missing+=("$built")
        fi
    done
    ((${#missing[@]})) || return 0
    mapfile -t made < <(find . -name '*.ko' -printf '%P\n' | sort | head -n 20)
    failed "the build did not make: ${missing[*]}" "it made: ${made[*]:-no module}"
}

# Prints the settings of the dkms.conf for bash.
settings() {
    local key
    for key in "${!value[@]}"; do
        printf '%s[%s]=%q\n' "${key%.*}" "${key##*.}" "${value[$key]}"
    done
}

# Runs a command of the dkms.conf, which may use the other settings, as in DKMS.
run_command() {
    bash -c "$(settings)"$'\n'"{ $1"$'\n}'
}

build() {
    jobs=$3
    set_given "$1" "$2"
    local top=$PWD conf work command cc tree
    conf=$(find_conf) || exit
    work=$(mktemp -d) || exit
    add_source
    load "$conf" "$work"
    check_required
    check_excluded
    tree=$dkms_tree/$module/$module_version
    mkdir -p "$tree/$kernelver/$arch/module" "$top/dkms-modules" || exit
    cd "${conf%/*}" || exit
    # DKMS takes no notice of how it ends, and it may be for the host that the source is added to.
    (run_script POST_ADD) || printf 'warning: POST_ADD failed\n' >&2
    cp -a "$PWD" "$tree/build" || exit
    cd "$tree/build" || exit
    apply_patches
    cc=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\([^ ]*\) .*"/\1/p' "$kernel_source_dir/.config")
    if [[ $cc && ! ${LLVM-} ]] && command -v "$cc" >/dev/null; then
        export CC=$cc
    fi
    run_script PRE_BUILD
    [[ ! ${value[CLEAN.0]} ]] || run_command "${value[CLEAN.0]}"
    command=$(make_command)
    printf '%s\n' "$command"
    run_command "$command" || failed "the command of dkms.conf failed: ${command//$'\n'/ }"
    collect_modules "$top/dkms-modules"
    cp "$top/dkms-modules"/*.ko "$tree/$kernelver/$arch/module/" || exit
    run_script POST_BUILD
    cd "$top" || exit
    mv "$tree/build" dkms-build || exit
    rm -rf "$work"
}

case ${1-} in
    print) print_conf "$2" "$3" "$4" ;;
    build) build "$2" "$3" "$4" ;;
    *) die "what to do is 'print' or 'build'" ;;
esac
