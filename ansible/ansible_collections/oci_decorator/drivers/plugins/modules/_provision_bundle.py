"""Packs provision for hosts without a network; runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_bundle
short_description: Packs provision with the Python packages that it needs
description:
  - Runs on the controller. Makes one tar archive with the wheels of C(provision), its dependencies
    and pip, for the Python and the architecture of a host. The host then needs neither a package
    index nor C(ensurepip).
  - The constraints of I(source) name the versions, and each file by sha256.
  - An archive that was made from the same inputs is reused.
version_added: 0.1.0
options:
  source:
    description: A checkout of the project, or a wheel of C(provision).
    type: path
    required: true
  constraints:
    description: A requirements file that names every package with version and sha256. It replaces
      the one in I(source).
    type: path
  wheelhouse:
    description: A folder with these packages as wheels, for a controller without a package index.
    type: path
  python:
    description: The host's Python, as M(oci_decorator.drivers.provision_facts) describes it.
    type: dict
    required: true
  cache:
    description: The folder on the controller that keeps archives.
    type: path
    required: true
attributes:
  check_mode:
    description: Makes the archive in check mode too. That changes only the controller's cache.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure there is an archive for this host's Python
  oci_decorator.drivers._provision_bundle:
    source: /home/me/oci-decorator
    python: "{{ ansible_facts['provision']['python'] }}"
    cache: /home/me/.cache/provision/bundles
  delegate_to: localhost
"""

RETURN = r"""
path:
  description: The archive.
  returned: success
  type: str
digest:
  description: The checksum of its wheels, which names the environment made from them.
  returned: success
  type: str
made:
  description: Whether this run made it.
  returned: success
  type: bool
"""

import fcntl
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.bundles import (
    CONSTRAINTS,
    BundleError,
    checksums_in,
    constraints_of,
    contents_digest,
    download_words,
    inputs_digest,
    source_files,
)

# The number of archives that the cache keeps. Those that were used last stay.
_KEPT = 8
# The earliest time that a wheel can contain. With it, the same files give the same wheel.
# Source: https://reproducible-builds.org/specs/source-date-epoch/
_EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
_FILL = "Fill it with: pip download --require-hashes --no-deps -r FILE --dest FOLDER, where FILE is"


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process make the archive, because hosts run in parallel and need the same one."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _pip(module: AnsibleModule, words: list[str], way_out: str) -> None:
    common = ["--quiet", "--disable-pip-version-check", "--no-input"]
    argv = [sys.executable, "-I", "-m", "pip", words[0], *common, *words[1:]]
    code, printed, said = module.run_command(argv, environ_update=_EPOCH)
    if code != 0:
        text = (said or printed).strip()
        module.fail_json(msg=f"pip could not {words[0]} what provision needs: {text}\n{way_out}")


def _wheel(module: AnsibleModule, source: Path, folder: Path) -> Path:
    """Return the wheel of provision, made from a copy: setuptools writes into its source."""
    if source.is_file():
        return source
    copy = folder / "source"
    for path in source_files(source):
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    way_out = "Set provision_driver_source to a wheel where setuptools can't be had."
    _pip(module, ["wheel", "--no-deps", f"--wheel-dir={folder}", str(copy)], way_out)
    return next(folder.glob("provision-*.whl"))


def _way_out(wheelhouse: Path | None) -> str:
    if wheelhouse is None:
        return (
            "Without a package index, set provision_driver_wheelhouse to a folder with the wheels."
        )
    return f"The folder is '{wheelhouse}'. {_FILL} {CONSTRAINTS} of the source."


def _make(
    module: AnsibleModule, source: Path, constraints: str, wheelhouse: Path | None, target: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        wheels = folder / "wheels"
        wheels.mkdir()
        file = folder / CONSTRAINTS
        file.write_text(constraints, encoding="utf-8")
        shutil.copy(_wheel(module, source, folder), wheels)
        words = download_words(file, wheels, wheelhouse, module.params["python"])
        _pip(module, words, _way_out(wheelhouse))
        draft = folder / "bundle.tar"
        with tarfile.open(draft, "w") as archive:
            for path in sorted(wheels.glob("*.whl")):
                archive.add(path, path.name)
        draft.replace(target)


def _make_room(cache: Path) -> None:
    archives = sorted(cache.glob("provision-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-_KEPT]:
        path.unlink()


def _have(module: AnsibleModule) -> tuple[bool, Path]:
    """Return whether the archive was made now, and the archive."""
    source = Path(module.params["source"]).resolve()
    given, wheels = module.params["constraints"], module.params["wheelhouse"]
    wheelhouse = Path(wheels) if wheels else None
    constraints = Path(given).read_text(encoding="utf-8") if given else constraints_of(source)
    cache = Path(module.params["cache"])
    digest = inputs_digest(source, constraints, wheelhouse, module.params["python"])
    target = cache / f"provision-{digest[:12]}.tar"
    with _locked(cache):
        is_new = not target.exists()
        if is_new:
            _make(module, source, constraints, wheelhouse, target)
        target.touch()
        _make_room(cache)
    return is_new, target


def main() -> None:
    """Pack."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "constraints": {"type": "path"},
            "wheelhouse": {"type": "path"},
            "python": {"type": "dict", "required": True},
            "cache": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        is_new, path = _have(module)
        digest = contents_digest(checksums_in(path))
    except (BundleError, OSError) as error:
        module.fail_json(msg=f"provision can't be packed: {error}.")
    # 'changed' is about the host; the controller's cache is no configuration.
    module.exit_json(changed=False, made=is_new, path=str(path), digest=digest)


if __name__ == "__main__":
    main()
