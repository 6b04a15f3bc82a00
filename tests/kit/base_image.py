"""Has a distro's base image in an engine, as builds do.

`python -m kit.base_image DISTRO ROOT MACHINE`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from provision.build.base_image import base_request, ensure_distro_base
from provision.build.workspace import load_settings
from provision.distros.distro import find_distro
from provision.errors import ProvisionError
from provision.pin import DistroPin


def _base(distro: str, root: Path, machine: str) -> dict[str, Any]:
    settings = load_settings(root, architecture=machine or None)
    name, _, version = distro.partition(":")
    if name == "flatcar":
        pin = DistroPin(id=name, version=version, codename=name)
        request = base_request(settings, pin, reference=f"flatcar-developer:{version}")
        request = request._replace(can_be_made=True, is_published=False)
    else:
        request = base_request(settings, find_distro(distro))
    was_there = settings.engine().image(request.name) is not None
    try:
        found = ensure_distro_base(settings, request)
    except ProvisionError as error:
        said = {"message": error.message, "resolution": error.resolution}
        return {"error": {**said, "exit_code": int(error.exit_code)}}
    return {"image": found.image, "digest": found.digest, "made": not was_there}


if __name__ == "__main__":
    json.dump(_base(sys.argv[1], Path(sys.argv[2]), sys.argv[3]), sys.stdout)
