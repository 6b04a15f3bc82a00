"""The solving container: its packages, its entitlements, and its name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from provision.build.package_store import PackageStore
from provision.build.solve import solve
from provision.distros import Repository
from provision.errors import NotFoundError, ProvisionError
from unit.build.solving_engine import (
    BOTH,
    GOOD,
    FakeContainer,
    SolvingEngine,
    request,
    touch_files,
)


def test_a_file_with_other_content_than_was_listed_is_refused(tmp_path: Path) -> None:
    lying = BOTH.replace(hashlib.sha256(b"tool").hexdigest(), "d" * 64)
    engine = SolvingEngine(FakeContainer([GOOD[0], (0, "", lying)]))
    store = PackageStore(tmp_path)
    with pytest.raises(ProvisionError, match=r"make\.rpm"):
        solve(lambda: engine, request(tmp_path), store)
    assert store.kept(request(tmp_path).key) is None


def test_a_base_image_for_another_architecture_is_refused(tmp_path: Path) -> None:
    engine = SolvingEngine(architecture="arm64")
    with pytest.raises(ProvisionError) as caught:
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert "--platform linux/amd64" in str(caught.value.resolution)


# As the packages of clouds write them, with one that is switched off and one of someone else.
_RHUI = """\
[rhui-rhel-9-baseos]
name=BaseOS
baseurl=https://rhui.example/pulp/content/dist/rhel9/$relver/x86_64/baseos/os
enabled=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release
sslcacert=/etc/pki/rhui/cdn-chain.crt
sslclientcert=/etc/pki/rhui/product/content.crt
sslclientkey=/etc/pki/rhui/content.key
[rhui-source]
enabled=0
sslclientcert=/etc/pki/rhui/source.crt
"""
_PUBLIC = "[epel]\nbaseurl=https://epel.example/\nsslcacert=/etc/pki/epel.crt\n"
_OTHER_FILES = {
    "etc/yum.repos.d/epel.repo": _PUBLIC,
    "etc/yum.repos.d/broken.repo": "sslclientcert=/etc/shadow\n",
}
_CLOUD = (
    "etc/dnf/vars/relver",
    "etc/pki/rhui/cdn-chain.crt",
    "etc/pki/rhui/content.key",
    "etc/pki/rhui/product/content.crt",
    "etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release",
    "etc/yum.repos.d/redhat-rhui.repo",
)


_SUBSCRIPTION = "etc/pki/entitlement/1.pem"
_SECRETS = {"/run/secrets/etc-pki-entitlement": "etc/pki/entitlement"}


@pytest.mark.parametrize(
    ("files", "repositories", "binds"),
    [
        (
            (_SUBSCRIPTION, "etc/rhsm/rhsm.conf"),
            None,
            {**_SECRETS, "/run/secrets/rhsm": "etc/rhsm"},
        ),
        # A cloud entitles by what its repository files name; a subscription goes before it.
        (_CLOUD, _RHUI, {f"/{name}": name for name in _CLOUD}),
        ((*_CLOUD, _SUBSCRIPTION), _RHUI, _SECRETS),
        # A host that is no longer registered has the empty folder.
        ((), None, None),
        (("etc/pki/entitlement/",), None, None),
        # Repository files without a certificate entitle to nothing.
        (_CLOUD, _PUBLIC, None),
        (_CLOUD, _RHUI.replace("enabled=1", "enabled=0"), None),
        (_CLOUD, "[", None),
        (_CLOUD, "", None),
    ],
)
def test_entitlements_are_read_only_binds_of_the_solving_container(
    tmp_path: Path,
    files: tuple[str, ...],
    repositories: str | None,
    binds: dict[str, str] | None,
) -> None:
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            touch_files(tmp_path, name)
    if repositories is not None:
        more = ("etc/dnf/vars/other", "etc/pki/rhui/source.crt", "etc/pki/epel.crt")
        touch_files(tmp_path, *more, *_OTHER_FILES)
        for name, text in {
            **_OTHER_FILES,
            "etc/yum.repos.d/redhat-rhui.repo": repositories,
        }.items():
            (tmp_path / name).write_text(text)
    engine = SolvingEngine(FakeContainer(list(GOOD)))
    if binds is None:
        with pytest.raises(NotFoundError) as caught:
            solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
        assert "/etc/pki/entitlement" in str(caught.value.resolution)
        assert not engine.requests
    else:
        solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
        found = engine.requests[0].binds
        assert found == {place: str(tmp_path / name) for place, name in binds.items()}


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://root@builder.example"])
def test_an_engine_elsewhere_gets_no_entitlement(tmp_path: Path, host: str) -> None:
    """It would bind what lies at those paths of its own machine."""
    touch_files(tmp_path, "etc/pki/entitlement/1.pem")
    engine = SolvingEngine()
    engine.host = host
    with pytest.raises(ProvisionError) as caught:
        solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
    assert host in caught.value.message
    assert not engine.requests


def test_named_repositories_need_no_entitlement(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer(list(GOOD)))
    own = (Repository("own", ("http://m",)),)
    wish = request(tmp_path, "rhel:9", repositories=own)
    assert solve(lambda: engine, wish, PackageStore(tmp_path)).packages
    assert not engine.requests[0].binds
