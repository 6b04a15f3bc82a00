"""What the action for hosts without Python asks and says; tests/hosts runs it."""

from __future__ import annotations

import shlex

from ansible_collections.oci_decorator.drivers.plugins.module_utils.host_python import (
    There,
    install_script,
    look_script,
    parse_look,
    remove_script,
)

_PREFIX = "/srv/it's here/python"


def test_what_is_there_is_read_through_a_terminal_too() -> None:
    assert parse_look("") == There(None, works=False)
    assert parse_look("works\r\n") == There(None, works=True)
    assert parse_look(f"digest={'a' * 64}\r\nworks\r\n") == There("a" * 64, works=True)
    assert parse_look(f"digest={'b' * 64}\n") == There("b" * 64, works=False)


def test_names_are_quoted() -> None:
    scripts = (
        look_script(_PREFIX),
        install_script("/tmp/a b.tar.gz", "0" * 64, _PREFIX),  # noqa: S108 - only a name
        remove_script(_PREFIX),
    )
    for script in scripts:
        assert shlex.quote(_PREFIX) in script
        assert _PREFIX not in script


def test_the_former_keeps_its_place_until_the_new_one_has_it() -> None:
    script = install_script("/a.tar.gz", "0" * 64, _PREFIX)
    steps = ["sha256sum -c", "tar -xzf", 'mv "$prefix" "$draft/former"', 'mv "$new" "$prefix"']
    places = [script.index(step) for step in steps]
    assert places == sorted(places)
