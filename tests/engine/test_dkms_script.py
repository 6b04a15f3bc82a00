"""What a dkms.conf is to our script and to Debian's DKMS: the same source, the same modules.

Both run in a mount namespace with a kernel whose build copies each .c to a .ko, so that a row takes
a second and needs no engine. `test_dkms.py` compiles real packages.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.files import write_all
from kit.foreign import program_root
from kit.probe import can_mount, need, need_programs

_KERNEL = "6.1.0-56-amd64"
_SCRIPT = REPOSITORY / "templates/dkms/dkms.bash"
# A root whose file system has nothing but what is made here, for each of the two.
_WORLD = """
set -e
who=$1 program=$2 source=$3 out=$4 kernel=$5
mkdir -p "$out/root"
mount -t tmpfs none "$out/root"
cd "$out/root"
mkdir -p proc dev etc tmp usr var/lib/dkms source out
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
mount --rbind /proc proc
mount --rbind /dev dev
mkdir -p ../lower ../usr-work
mount -t tmpfs none usr
for folder in bin sbin lib lib64 share libexec; do
    [ ! -d /usr/$folder ] || { mkdir usr/$folder; mount --bind /usr/$folder usr/$folder; }
done
mkdir usr/src modules
cp -a /etc/passwd /etc/ld.so.cache etc/
mkdir etc/alternatives && mount --bind /etc/alternatives etc/alternatives
[ ! -d /lib/modules ] || mount -t tmpfs none usr/lib/modules
cp "$program" program
build=usr/lib/modules/$kernel/build
mkdir -p "$build/include"
printf 'modules:\\n\\t@for f in $(M)/*.c; do cp $$f $${f%%.c}.ko; done\\n' >"$build/Makefile"
printf 'clean:\\n\\t@rm -f $(M)/*.ko\\n' >>"$build/Makefile"
printf 'CONFIG_PCI=y\\nCONFIG_CC_VERSION_TEXT="gcc-12 (Debian) 12"\\n' >"$build/.config"
if [ "$who" = ours ]; then
    cp -a "$source/." source/
    chroot . bash -c 'cd /source && bash /program build "$0" x86_64 1' "$kernel" || exit
    ls source/dkms-modules >"$out/modules"
else
    folder=usr/src/$6
    cp -a "$source" "$folder"
    chroot . bash /program build "${6%-*}/${6##*-}" -k "$kernel" -a x86_64 || true
    ls "var/lib/dkms/${6%-*}/${6##*-}/$kernel/x86_64/module" >"$out/modules"
fi
"""
_HEAD = 'PACKAGE_NAME="t"\nPACKAGE_VERSION="1.0"\n'
_A = 'BUILT_MODULE_NAME[0]="a"\nDEST_MODULE_LOCATION[0]="/extra"\n'
_B = 'BUILT_MODULE_NAME[1]="b"\nDEST_MODULE_LOCATION[1]="/extra"\n'
_AB = _HEAD + _A + "if {}; then\n" + _B + "fi\n"
_SCRIPTED = "#!/bin/sh\n"


def _run(who: str, program: Path, source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    need_programs("unshare", "make")
    need(can_mount(), "a mount namespace", "run as root")
    words = [who, str(program), str(source), str(out), _KERNEL, "t-1.0"]
    argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _WORLD, "bash", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def _built(who: str, program: Path, source: Path, out: Path) -> list[str]:
    done = _run(who, program, source, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return (out / "modules").read_text().split()


@pytest.mark.parametrize(
    ("conf", "files", "modules"),
    [
        pytest.param(_HEAD + _A, {}, ["a.ko"], id="plain"),
        pytest.param(
            _AB.format("[[ $(VER $kernelver) > $(VER 5.11) ]]"), {}, ["a.ko", "b.ko"], id="VER"
        ),
        pytest.param(
            _AB.format("[[ $(VER $kernelver) > $(VER 6.11) ]]"), {}, ["a.ko"], id="VER, older"
        ),
        pytest.param(
            _AB.format("grep -q '^CONFIG_PCI=[ym]' $kernel_source_dir/.config"),
            {},
            ["a.ko", "b.ko"],
            id="the kernel's configuration",
        ),
        pytest.param(
            _AB.format("[ -e $install_tree/$kernelver/build ]"),
            {},
            ["a.ko", "b.ko"],
            id="install_tree",
        ),
        pytest.param(
            _HEAD + ". /usr/src/t-1.0/more.conf\n",
            {"more.conf": _A},
            ["a.ko"],
            id="a file below /usr/src",
        ),
        pytest.param(
            _HEAD + ". $source_tree/$module-$module_version/more.conf\n",
            {"more.conf": _A},
            ["a.ko"],
            id="the same by its variables",
        ),
        pytest.param(
            _HEAD + _A + 'MAKE="make -C /lib/modules/$kernelver/build M=/usr/src/t-1.0 modules;'
            " find /usr/src/t-1.0 -name '*.ko' -exec mv {} $dkms_tree/t/1.0/build \\;\"\n",
            {},
            ["a.ko"],
            id="built below /usr/src",
        ),
        pytest.param(
            _HEAD + _A + "MAKE='make -C $kernel_source_dir"
            " M=$dkms_tree/$PACKAGE_NAME/$PACKAGE_VERSION/build'\n",
            {},
            ["a.ko"],
            id="variables when it is run",
        ),
        pytest.param(
            _HEAD + _A + 'POST_ADD="add.sh"\n'
            'MAKE="test -e added && make -C $kernel_source_dir M=$dkms_tree/t/1.0/build"\n',
            {"add.sh": f"{_SCRIPTED}touch added\n"},
            ["a.ko"],
            id="POST_ADD",
        ),
        pytest.param(
            _HEAD + _A + 'PRE_BUILD="pre.sh x"\nMAKE="test -e x && make -C $kernel_source_dir'
            ' M=$dkms_tree/t/1.0/build"\n',
            {"pre.sh": f'{_SCRIPTED}touch "$1"\n'},
            ["a.ko"],
            id="PRE_BUILD",
        ),
        pytest.param(
            _HEAD
            + _A
            + 'MAKE[0]="false"\nMAKE[1]="make -C $kernel_source_dir M=$dkms_tree/t/1.0/build"\n'
            'MAKE_MATCH[1]="^6"\n',
            {},
            ["a.ko"],
            id="MAKE_MATCH",
        ),
        pytest.param(
            _HEAD + 'DEST_MODULE_LOCATION="/extra"\n', {"t.c": ""}, ["t.ko"], id="defaults"
        ),
        pytest.param(
            _HEAD + _A + 'DEST_MODULE_NAME[0]="z"\nBUILT_MODULE_LOCATION[0]="./"\n',
            {},
            ["z.ko"],
            id="names",
        ),
    ],
)
def test_a_source_gives_the_modules_that_debians_dkms_makes(
    tmp_path: Path, conf: str, files: Mapping[str, str], modules: list[str]
) -> None:
    source = tmp_path / "t"
    write_all(source, {"a.c": "", "b.c": "", "dkms.conf": conf, **files}, 0o755)
    dkms = program_root("bookworm", "dkms", alone=True) / "usr/sbin/dkms"
    assert _built("theirs", dkms, source, tmp_path / "theirs") == modules
    assert _built("ours", _SCRIPT, source, tmp_path / "ours") == modules


def test_a_dkms_conf_with_carriage_returns_is_read(tmp_path: Path) -> None:
    source = tmp_path / "t"
    write_all(source, {"a.c": "", "dkms.conf": (_HEAD + _A).replace("\n", "\r\n")})
    assert _built("ours", _SCRIPT, source, tmp_path / "ours") == ["a.ko"]


@pytest.mark.parametrize(
    ("more", "makefile", "line"),
    [
        # With DKMS, the condition would be false, and a module less.
        (_AB.format("no-such-program --version"), "", "dkms: dkms.conf runs programs"),
        (
            _HEAD + _A + 'MAKE="make"\n',
            "K ?= $(shell uname -r)\nall:\n\tmake -C /lib/modules/$(K)/build M=$(CURDIR) modules\n",
            "dkms: the running kernel is asked for: Makefile:1: K ?= $(shell uname -r)",
        ),
    ],
)
def test_a_build_that_fails_says_which_line_is_wrong(
    tmp_path: Path, more: str, makefile: str, line: str
) -> None:
    source = tmp_path / "t"
    write_all(source, {"a.c": "", "b.c": "", "Makefile": makefile, "dkms.conf": more})
    done = _run("ours", _SCRIPT, source, tmp_path / "ours")
    assert done.returncode != 0
    assert line in done.stderr
