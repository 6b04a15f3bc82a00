"""Which packages hold a kernel's headers and its compiler, by distro and flavour."""

import pytest

from provision.distros import Distro, HeaderQuery, distro_named, family_of
from provision.distros.family import cc_version_text
from provision.errors import NotFoundError


def distro(name: str) -> Distro:
    found = distro_named(name)
    assert found is not None
    return found


def headers(name: str, kernel: str, architecture: str = "x86_64") -> HeaderQuery:
    return family_of(distro(name)).headers(distro(name), kernel, architecture)


@pytest.mark.parametrize(
    ("name", "kernel", "spec", "build"),
    [
        # The kernel is `{}`, and the folder is below /usr/src.
        ("rocky", "5.14.0-427.13.1.el9_4.x86_64", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("rhel", "5.14.0-427.13.1.el9_4.x86_64+rt", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("rhel", "5.14.0-503.11.1.el9_5.aarch64+64k", "kernel-devel-uname-r = {}", "kernels/{}"),
        ("ol", "5.15.0-205.149.5.4.el9uek.x86_64", "kernel-uek-devel-uname-r = {}", "kernels/{}"),
        ("amzn", "6.1.109-118.189.amzn2023.x86_64", "kernel-devel-{}", "kernels/{}"),
        ("amzn", "6.12.20-23.97.amzn2023.x86_64", "kernel6.12-devel-{}", "kernels/{}"),
        (
            "opensuse-leap",
            "6.4.0-150600.23.17-default",
            "kernel-default-devel = 6.4.0-150600.23.17",
            "linux-6.4.0-150600.23.17-obj/x86_64/default",
        ),
        (
            "sles",
            "6.4.0-150600.8.5-azure",
            "kernel-azure-devel = 6.4.0-150600.8.5",
            "linux-6.4.0-150600.8.5-azure-obj/x86_64/azure",
        ),
    ],
)
def test_headers(name: str, kernel: str, spec: str, build: str) -> None:
    query = headers(name, kernel)
    assert [one.text for one in query.specs] == [spec.format(kernel)]
    assert query.build == f"/usr/src/{build.format(kernel)}"
    assert query.config == f"{query.build}/.config"


@pytest.mark.parametrize("variant", ["rt", "rt-debug", "rt-64k"])
def test_kernels_in_a_repository_of_their_own_name_it(variant: str) -> None:
    found = headers("rhel", f"5.14.0-503.11.1.el9_5.aarch64+{variant}", "aarch64")
    assert "real-time" in str(found.repository)
    assert headers("rhel", "5.14.0-503.11.1.el9_5.aarch64+64k", "aarch64").repository is None


def test_suse_has_the_kernels_own_name_of_the_architecture() -> None:
    query = headers("sles", "6.4.0-150600.23.17-default", "aarch64")
    assert query.build == "/usr/src/linux-6.4.0-150600.23.17-obj/arm64/default"
    assert query.source == "/usr/src/linux-6.4.0-150600.23.17"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("rhel", "2.6.18-400.el5xen"), ("sles", "3.12.49-11-xen"), ("opensuse-leap", "4.4.21-69-xen")],
)
def test_xen_kernels_are_refused(name: str, kernel: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        headers(name, kernel)
    assert "flavour 'xen'" in caught.value.message


def test_a_kernel_of_another_distro_is_refused() -> None:
    with pytest.raises(NotFoundError) as caught:
        headers("opensuse-leap", "5.14.0-427.13.1.el9_4.x86_64")
    assert "no kernel of openSUSE Leap" in caught.value.message


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", 11),
        ("gcc (SUSE Linux) 7.5.0", 7),
        ("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", 12),
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", 12),
        ("gcc (GCC) 8.5.0 20210514 (Red Hat 8.5.0-20)", 8),
    ],
)
def test_the_compilers_major_version(text: str, major: int) -> None:
    rocky = distro("rocky")
    found = family_of(rocky).compiler(rocky, text)
    assert [spec.text for spec in found] == ["gcc", f"gcc-toolset-{major}-gcc"]
    assert {spec.major for spec in found} == {major}


def test_clang_is_another_package() -> None:
    rocky = distro("rocky")
    (spec,) = family_of(rocky).compiler(rocky, "Red Hat clang version 17.0.6 (Red Hat 17.0.6-5)")
    assert (spec.text, spec.major) == ("clang", 17)


def test_the_compilers_text_is_read_from_a_configuration() -> None:
    text = 'CONFIG_CC_VERSION_TEXT="gcc (GCC) 11.4.1"\nCONFIG_CC_IS_GCC=y\n'
    assert cc_version_text(f"# Linux\n{text}") == "gcc (GCC) 11.4.1"
    assert cc_version_text("# CONFIG_CC_VERSION_TEXT is not set\n") is None
