"""Nothing that a command prints has a password of the settings; keys and their passwords."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from kit.host_tree import HostTree
from provision.registry.signatures import load_keys
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]

# With '/' in it, which is to be written as %2F: parts of it then stand where a port does.
_SPELLED = ["hunt:zebra", "hunter2/zebra", "hunter2/ze@zebra", "hunt/er2/zebra", "hunter2%2Fzebra"]
_PARTS = ("hunt", "zebra")
# Whatever is wrong with the address is said, too.
_PLACES = {
    "catalogue": 'catalogue = ["{http}"]\n',
    "engine": '[engine]\nhost = "{tcp}"\n',
    "mirror": '[distros.debian]\narchive = {{mirror = "{http}"}}\n',
    "proxy": '[network]\nproxy = "{http}"\n',
    "registry": '[registry]\naddress = "{bare}"\n',
    "mirrors of a registry": '[registry]\naddress = "r.example/lab"\nmirrors = ["{bare}"]\n',
    "repository": '[distros.rocky]\nrepositories = [{{name = "a", urls = ["{http}"]}}]\n',
    "tree": '[[trees]]\nkernels = "*"\nkind = "source"\nurl = "{http}"\nsha256 = "{sum}"\n',
    "driver": '[drivers.demo]\nversion = "{http}"\n',
}
_COMMANDS = ("status", "plan", "doctor", "drivers", "drivers versions demo", "gc", "units install")
_WITH_NAMES = (
    *("install", "verify", "registry pull", "registry sign", "registry push demo"),
    *("registry list demo --registry", "export kmm demo --registry", "build demo --push"),
    *("build", "resolve", "load", "rollback", "plan", "drivers versions", "drivers import"),
    *("export daemonset", "matrix --drivers", "units", "me"),
)


# Every place and every spelling; how each spelling is found in a text, test_errors shows.
@pytest.mark.parametrize(
    ("place", "password"), [*zip(_PLACES, cycle(_SPELLED), strict=False)], ids=str
)
def test_no_command_prints_a_password_of_the_settings(
    host_tree: HostTree, call: Call, place: str, password: str
) -> None:
    login = f"me:{password}@h.example"
    host_tree.configure(
        _PLACES[place].format(
            http=f"http://{login}:3128",
            tcp=f"tcp://{login}:2375",
            bare=f"{login}/lab",
            sum="0" * 64,
        )
    )
    for words in _COMMANDS:
        for form in ([], ["--json"]):
            outcome = call(*words.split(), *form, "--root", host_tree.root)
            printed = outcome.out + outcome.err
            assert printed
            assert [part for part in _PARTS if part in printed] == [], words


@pytest.mark.parametrize(
    ("place", "password"),
    [
        *zip(("h.example/x:1", "host/x:1", "h.example:5000/x", "host"), _SPELLED, strict=False),
        ("host", _SPELLED[-1]),
    ],
)
def test_no_command_prints_a_password_of_its_arguments(
    host_tree: HostTree, call: Call, place: str, password: str
) -> None:
    host_tree.want()
    name = f"me:{password}@{place}"
    for words in _WITH_NAMES:
        outcome = call(*words.split(), name, "--root", host_tree.root)
        printed = outcome.out + outcome.err
        assert outcome.code
        assert [part for part in _PARTS if part in printed] == [], words


@pytest.mark.parametrize("variable", ["DOCKER_HOST", "HTTPS_PROXY"])
def test_no_command_prints_a_password_of_its_environment(
    host_tree: HostTree, call: Call, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    host_tree.want()
    scheme = "tcp" if variable == "DOCKER_HOST" else "http"
    monkeypatch.setenv(variable, f"{scheme}://me:hunter2/zebra@h.example:3128")
    for words in (*_COMMANDS, "build demo --network host"):
        outcome = call(*words.split(), "--root", host_tree.root)
        printed = outcome.out + outcome.err
        assert [part for part in _PARTS if part in printed] == [], words


def make_keys(call: Call, tmp_path: Path, *words: object) -> dict[str, Any]:
    (tmp_path / "password").write_text("a password\n")
    given = words or ("--password-file", tmp_path / "password")
    found = call("registry", "key", "--output", tmp_path / "new", *given, "--json")
    assert found.code == 0, found.out
    return found.document


def test_a_key_is_made_once(call: Call, tmp_path: Path) -> None:
    made = make_keys(call, tmp_path)
    assert made["encrypted"] is True
    assert load_keys(Path(made["public"]))
    public = Path(made["public"]).read_bytes()
    again = call("registry", "key", "--output", tmp_path / "new", "--no-password", "--json")
    assert again.code == 1
    assert Path(made["public"]).read_bytes() == public


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No terminal to ask"),
        (("--no-password", "--password-fd", "9"), "can't be given together"),
        (("--password-fd", "987"), "no password at the descriptor 987"),
    ],
)
def test_a_password_has_to_come_from_somewhere(
    call: Call, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    refused = call("registry", "key", "--output", tmp_path / "new", *words, "--json")
    assert refused.code == 2
    assert said in refused.document["error"]["message"]
    assert list(tmp_path.glob("new*")) == []


def test_a_password_comes_by_a_descriptor(call: Call, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a password\n")
    os.close(writer)
    made = make_keys(call, tmp_path, "--password-fd", reader)
    os.close(reader)
    assert b"ENCRYPTED" in Path(made["private"]).read_bytes()
