"""What Kubernetes' KMM does on a node with a Module, as commands: by hand, after its source.

Taken from internal/pod/workerpodmanager.go, internal/pod/imagepuller.go and
internal/worker/worker.go of https://github.com/kubernetes-sigs/kernel-module-management at commit
de3f8c9: facts, not its code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SHARED = "/tmp"  # noqa: S108 - where KMM's pods mount what they share
# Its pull pod.
PULL = ("/bin/sh", "-c", "exit 0")


@dataclass(frozen=True)
class Node:
    """What a node with one kernel does."""

    # The artifact image; the pull pod and the init container run it.
    image: str
    # The init container's script, started by `/bin/sh -c`.
    init: str
    # Content of /etc/modprobe.d/softdep.conf in the worker; without, there is none.
    softdep: str
    # Modules of the kernel's own to be unloaded, if /lib/modules has their files.
    remove: tuple[str, ...]
    # The worker's arguments of modprobe.
    load: tuple[str, ...]
    # The same when the Module is deleted.
    unload: tuple[str, ...]
    # The folder below SHARED whose content goes into the host's folder of firmware.
    firmware: str | None


def kmm_node(module: dict[str, Any], kernel: str) -> Node:
    """What a node with this kernel does with a Module."""
    container = module["spec"]["moduleLoader"]["container"]
    modprobe = container["modprobe"]
    root, name = modprobe["dirName"], modprobe["moduleName"]
    order = modprobe.get("modulesLoadingOrder", [])
    image = _mapping(container, kernel)["containerImage"]
    escaped = re.sub(r"[^A-Za-z0-9_.-]", "_", kernel)
    firmware = modprobe.get("firmwarePath")
    copies = [(f"{root}/lib/modules/{kernel}", f"{SHARED}{root}/lib/modules")]
    if firmware:
        copies.append((f"{firmware}/*", f"{SHARED}{firmware}"))
    return Node(
        image=image.replace("${KERNEL_FULL_VERSION}", escaped),
        init="".join(f"\nmkdir -p {to};\ncp -R {what} {to};\n" for what, to in copies),
        softdep="".join(f"softdep {last} pre: {before}\n" for last, before in pairwise(order)),
        remove=tuple(container.get("inTreeModulesToRemove", ())),
        load=("-vd", f"{SHARED}{root}", name, *modprobe.get("parameters", ())),
        unload=("-rvd", f"{SHARED}{root}", *(order or [name])),
        firmware=f"{SHARED}{firmware}" if firmware else None,
    )


def _mapping(container: dict[str, Any], kernel: str) -> dict[str, Any]:
    mappings: list[dict[str, Any]] = container["kernelMappings"]
    for mapping in mappings:
        if mapping.get("literal") == kernel:
            return mapping
        if "regexp" in mapping and re.search(mapping["regexp"], kernel):
            return mapping
    raise LookupError(f"no mapping for {kernel}")
