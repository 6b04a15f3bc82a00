"""Commands and answers of `oci-decorator configure` for `provision_runtime`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def words(engine: str, params: Mapping[str, Any], *, is_dry: bool) -> list[str]:
    """Return the arguments of `oci-decorator` that add the runtime to an engine or remove it."""
    found = [
        "configure",
        engine,
        f"--config={params[f'{engine}_path']}",
        f"--runtime-name={params['name']}",
        f"--runtime-path={params['program']}",
        "--json",
    ]
    if engine not in params["engines"]:
        found.append("--remove")
    elif engine == "docker":
        found.append(f"--set-as-default={str(params['docker_default']).lower()}")
    return [*found, "--dry-run"] if is_dry else found


def leaves_default(change: Mapping[str, Any], name: str) -> bool:
    """Whether the runtime was Docker's default and the change names no other."""
    before, after = _docker(change["before"]), _docker(change["after"])
    return before.get("default-runtime") == name and "default-runtime" not in after


def with_default(text: str, name: str) -> str:
    """Return a daemon.json with another default, for a Docker that runs to read once."""
    return json.dumps(_docker(text) | {"default-runtime": name})


def diffs(answer: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Return the changes of an answer as ``--diff`` shows them."""
    for file in answer["files"]:
        if file["changed"]:
            yield {
                "before_header": file["path"],
                "after_header": file["path"],
                "before": file["before"] or "",
                "after": file["after"] or "",
            }


def _docker(text: str | None) -> dict[str, Any]:
    """Return a daemon.json as a document; an unreadable one is empty, as for Docker."""
    try:
        # Docker takes the byte order mark of an editor of Windows.
        document = json.loads((text or "{}").removeprefix("\ufeff"))
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
