"""An output of Ansible for programs: one JSON document a line and host, in a file.

Ansible runs it (a stdout callback by ``ANSIBLE_STDOUT_CALLBACK``), in its own Python. In Ansible's
own outputs, its words look like those of a host, and ansible-core has no output in JSON.
Source: https://docs.ansible.com/ansible/latest/dev_guide/developing_plugins.html#callback-plugins
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: provision_rows
type: stdout
short_description: One JSON document a line and host
description: Writes what each host answered to the file that PROVISION_ROWS names.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # it has no type hints
    """Writes a line a host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "provision_rows"

    def v2_runner_on_ok(self, result: Any) -> None:  # noqa: ANN401 - Ansible's own
        """Write down what a host answered."""
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ANN401, FBT001, FBT002 - Ansible calls it so
        """Write down that the command failed on a host."""
        del ignore_errors
        self._write("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:  # noqa: ANN401 - as above
        """Write down that a host can't be reached."""
        self._write("unreachable", result)

    def _write(self, kind: str, result: Any) -> None:  # noqa: ANN401 - as above
        found = result._result  # noqa: SLF001 - the name that every version of Ansible has
        row = {
            # Host.get_name() of every version; text of a host may be of a class of Ansible's.
            "host": str(result._host.get_name()),  # noqa: SLF001 - as above
            "kind": kind,
            "rc": found.get("rc"),
            "stdout": str(found.get("stdout", "")),
            "message": str(found.get("msg", "")),
        }
        with Path(os.environ["PROVISION_ROWS"]).open("a") as stream:
            stream.write(json.dumps(row) + "\n")
