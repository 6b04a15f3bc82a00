"""The agent's manifests, against the schemas of Kubernetes, as YAML that all read alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import make_pin
from provision.config import Config
from provision.documents import load_toml
from provision.errors import ConfigError, NotFoundError, UsageError
from provision.export.kubernetes import (
    Agent,
    beside_kmm,
    check_output,
    documents,
    read_config,
    read_keys,
    to_yaml,
    write_files,
)
from provision.registry import Reference
from unit.cli.outcome import Outcome

# What YAML 1.1 reads as another type where it has no quotes.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["on", "~", "1e3", "2026-01-01", "- a", "a: b", "# a"]
)
_LEAF = st.none() | st.booleans() | st.integers() | _TEXT
_VALUE = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4)
)


@given(st.lists(st.dictionaries(_TEXT, _VALUE, max_size=4), min_size=1, max_size=3))
def test_what_is_written_is_what_is_read(documents: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(to_yaml(*documents))) == documents


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    check_output(tmp_path)
    check_output(tmp_path / "new")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError):
            check_output(path)


def test_only_its_owner_reads_a_secret(tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"open.yaml": [{"kind": "Module"}], "x": [{"kind": "Secret"}]})
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()}
    assert modes == {"open.yaml": 0o644, "x": 0o600}


_CONFIG = """\
[registry]
address = "registry.example/drivers"
[trust]
keys = "/etc/provision/trust.d"
[policy]
build = "never"
[drivers.nvidia]
version = "535"
"""
_PEM = "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n"
# The oldest that is supported by anyone, and a new one.
_VERSIONS = ("1.30", "1.34")


def made(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of Agent
    agent = Agent(**{"image": "registry.example/agent:1", "config": _CONFIG, **changes})
    read = list(yaml.safe_load_all(to_yaml(*documents(agent))))
    assert read == documents(agent)
    return {one["kind"]: one for one in read}


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("changes", [{}, {"pull_secret": "pull", "selector": {"gpu": "yes"}}])
def test_every_manifest_is_one_that_kubernetes_takes(version: str, changes: dict[str, Any]) -> None:
    for document in made(**changes).values():
        kubernetes_validate.validate(document, version, strict=True)


def test_an_agent_beside_kmm_runs_where_that_has_loaded_and_unloads_nothing(
    tmp_path: Path,
) -> None:
    repository = Reference("registry.example:5000", "drivers/nvidia")
    driver = make_pin(driver="nvidia", version="590.48.01").driver
    agent = beside_kmm("registry.example/agent:1", {"a.pub": _PEM}, repository, driver, "gpus")
    for document in documents(agent):
        kubernetes_validate.validate(document, _VERSIONS[1], strict=True)
    assert agent.selector == {"kmm.node.kubernetes.io/gpus.nvidia.ready": ""}
    path = tmp_path / "provision.toml"
    path.write_text(agent.config)
    assert read_config(path, has_keys=True) == agent.config
    config = load_toml(path, Config)
    assert config.registry.address == "registry.example:5000/drivers"
    assert config.policy.unload == "never"
    wanted = config.drivers["nvidia"]
    assert (wanted.version, wanted.flavour) == (driver.version, driver.flavour)


def test_the_agent_logs_in_to_the_registry_with_the_secret_for_pulling() -> None:
    pod = made(pull_secret="pull")["DaemonSet"]["spec"]["template"]["spec"]  # noqa: S106 - a name
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    (container,) = pod["containers"]
    (folder,) = (one["value"] for one in container["env"] if one["name"] == "DOCKER_CONFIG")
    (name,) = (one["name"] for one in container["volumeMounts"] if one["mountPath"] == folder)
    (secret,) = (one["secret"] for one in pod["volumes"] if one["name"] == name)
    assert secret["secretName"] == "pull"
    assert secret["items"] == [{"key": ".dockerconfigjson", "path": "config.json"}]


def test_the_agent_may_do_no_more_than_it_has_to() -> None:
    pod = made()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    assert "SYS_ADMIN" not in security["capabilities"]["add"]
    assert not security["privileged"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    # It has no account at the API server.
    assert pod["automountServiceAccountToken"] is False
    assert not {"ServiceAccount", "ClusterRole"} & made().keys()


def test_a_configuration_with_a_password_is_a_secret() -> None:
    config = f'{_CONFIG}\n[network]\nproxy = "http://me:hush@proxy.example:3128"\n'
    found = made(config=config, keys={"a.pub": _PEM})
    assert "ConfigMap" not in found
    assert found["Secret"]["stringData"] == {"provision.toml": config, "a.pub": _PEM}
    volumes = found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    (mounted,) = (v for v in volumes if v["name"] == "config")
    assert mounted["secret"]["secretName"] == found["Secret"]["metadata"]["name"]


def test_names_belong_together() -> None:
    found = made(namespace="drivers", keys={"a.pub": _PEM})
    pod = found["DaemonSet"]["spec"]["template"]
    labels = found["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    (config,) = (v for v in pod["spec"]["volumes"] if v["name"] == "config")
    assert config["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert found["ConfigMap"]["data"] == {"provision.toml": _CONFIG, "a.pub": _PEM}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('build = "never"', 'build = "fallback"'),
        ('address = "registry.example/drivers"\n', ""),
        ('keys = "/etc/provision/trust.d"', "insecure = true"),
    ],
)
def test_settings_that_a_pod_cannot_work_by(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "provision.toml"
    path.write_text(_CONFIG)
    assert read_config(path, has_keys=True) == _CONFIG
    path.write_text(_CONFIG.replace(old, new))
    with pytest.raises(UsageError):
        read_config(path, has_keys=True)


def test_mistakes_in_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "provision.toml").write_text(_CONFIG.replace("never", "nevr"))
    with pytest.raises(ConfigError) as raised:
        read_config(tmp_path / "provision.toml", has_keys=False)
    assert [mistake.path for mistake in raised.value.mistakes] == ["policy.build"]


def _pem() -> tuple[str, str]:
    """Make a key: its public half, and its private one."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return public.decode(), private.decode()


def test_keys_are_public_ones(tmp_path: Path) -> None:
    public, private = _pem()
    good, bad, both = (tmp_path / name for name in ("site.pub", "site.key", "both.pub"))
    good.write_text(f"a remark\n{public}")
    bad.write_text(private)
    # A ConfigMap is read by everyone in a cluster.
    both.write_text(public + private)
    assert read_keys((good,)) == {"site.pub": public}
    for path in (bad, both):
        with pytest.raises(ConfigError) as raised:
            read_keys((path,))
        assert "is a private key" in str(raised.value.mistakes[0])
    spaces = tmp_path / "of the site.pub"
    spaces.write_text(public)
    for paths in ((good, good), (spaces,)):
        with pytest.raises(UsageError):
            read_keys(paths)
    with pytest.raises(NotFoundError):
        read_keys((tmp_path / "none",))


def test_a_configuration_that_trusts_no_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "provision.toml"
    text = _CONFIG.replace('keys = "/etc/provision/trust.d"', "")
    path.write_text(text)
    with pytest.raises(UsageError):
        read_config(path, has_keys=False)
    path.write_text(text.replace("[trust]", "[trust]\ninsecure = true"))
    assert read_config(path, has_keys=False)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("535", 1), ("535.261.03", 1), ("550.163.01", 0), ("580", 0), ("production", 0)],
)
def test_an_export_says_if_the_dra_driver_does_not_start_with_the_version(
    tmp_path: Path, version: str, expected: int, notes: list[str]
) -> None:
    path = tmp_path / "provision.toml"
    path.write_text(_CONFIG.replace('"535"', f'"{version}"') + "[drivers.zip_nic]\n")
    read_config(path, has_keys=True)
    assert sum("gpu.nvidia.com" in note for note in notes) == expected


@pytest.mark.parametrize("text", ["gpu", "=yes"])
def test_a_label_without_a_value_is_named(
    call: Callable[..., Outcome], tmp_path: Path, text: str
) -> None:
    config = tmp_path / "provision.toml"
    config.write_text(_CONFIG)
    words = ("export", "daemonset", "--image", "registry.example/agent:1", "--config", config)
    result = call(*words, "--selector", text)
    assert (result.code, "is not a Kubernetes label" in result.err) == (2, True), result.err
    good = call(*words, "--selector", "feature.node.kubernetes.io/pci-10de.present=true")
    assert good.code == 0, good.err
