"""Packs provision for hosts without a network; runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle
short_description: Packs provision with everything that it needs of Python
description:
  - Runs on the controller. Makes one tar archive of wheels, C(provision) and all that it
    depends on and pip itself, for the Python and the machine of a host, so that the host needs
    neither an index nor C(ensurepip).
  - An archive that was made from the same source for the same Python is taken as it is.
options:
  source:
    description: A checkout of the project, or a wheel of C(provision).
    type: path
    required: true
  wheelhouse:
    description: A folder with the wheels that it depends on, for a controller without a
      package index.
    type: path
  python:
    description: The host's Python, as M(oci_decorator.drivers.facts) describes it.
    type: dict
    required: true
  cache:
    description: The folder on the controller where archives are kept.
    type: path
    required: true
attributes:
  check_mode:
    description: Makes the archive also then, which changes the controller's cache alone.
    support: full
author:
  - The authors of provision and oci-decorator
"""

EXAMPLES = r"""
- name: Ensure there is an archive for this host's Python
  oci_decorator.drivers.bundle:
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
  description: What it was made from, as a checksum.
  returned: success
  type: str
"""

import fcntl
import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# What of a checkout goes into the wheel: pyproject.toml, setup.py.
_PARTS = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "src",
    "docs",
    "driver_images",
    "templates",
)
_OLDEST_GLIBC = 5
# Archives that are kept in the cache, those that were used last.
_KEPT = 8
_FORMAT = b"1"


def source_files(source: Path) -> list[Path]:
    """Return the files that decide what is in a bundle."""
    if source.is_file():
        return [source]
    found = [p for part in _PARTS for p in _below(source / part)]
    return [
        path for path in found if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    ]


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def fingerprint(source: Path, wheelhouse: Path | None, python: dict[str, Any]) -> str:
    """Return a checksum of everything that a bundle is made from."""
    total = hashlib.sha256(_FORMAT)
    total.update(repr([python["version"][:2], python["machine"], python["libc"]]).encode())
    for path in source_files(source):
        total.update(f"{path.relative_to(source.parent)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(wheelhouse.glob("*.whl")) if wheelhouse else ():
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    return total.hexdigest()


def platforms(python: dict[str, Any]) -> list[str]:
    """Return the platforms whose wheels run with a host's Python, best first.

    Source: https://peps.python.org/pep-0600/
    """
    kind, version = python["libc"]
    machine = python["machine"]
    if kind != "glibc":
        return []
    newest = int(version.split(".")[1])
    known = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
    return [*known, f"manylinux2014_{machine}"]


def download_words(
    wheel: Path, draft: Path, wheelhouse: Path | None, python: dict[str, Any]
) -> list[str]:
    """Return pip's command line that gathers a wheel and all that it needs."""
    version = ".".join(map(str, python["version"][:2]))
    words = ["download", "--only-binary=:all:", f"--python-version={version}", f"--dest={draft}"]
    words += [f"--platform={name}" for name in platforms(python)]
    if wheelhouse is not None:
        words += ["--no-index", f"--find-links={wheelhouse}"]
    return [*words, str(wheel), "pip"]


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Hosts are handled at once, and want the same archive."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _pip(module: AnsibleModule, words: list[str]) -> None:
    common = ["--quiet", "--disable-pip-version-check", "--no-input"]
    argv = [sys.executable, "-m", "pip", words[0], *common, *words[1:]]
    code, printed, said = module.run_command(argv)
    if code != 0:
        module.fail_json(
            msg=f"pip could not {words[0]} what provision needs: {(said or printed).strip()}"
        )


def _wheel(module: AnsibleModule, source: Path, folder: Path) -> Path:
    """Return the wheel of provision, made from a copy: setuptools writes into its source."""
    if source.is_file():
        return source
    copy = folder / "source"
    for path in source_files(source):
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    _pip(module, ["wheel", "--no-deps", f"--wheel-dir={folder}", str(copy)])
    return next(folder.glob("provision-*.whl"))


def _make(module: AnsibleModule, source: Path, wheelhouse: Path | None, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        wheels = folder / "wheels"
        wheel = _wheel(module, source, folder)
        _pip(module, download_words(wheel, wheels, wheelhouse, module.params["python"]))
        draft = folder / "bundle.tar"
        with tarfile.open(draft, "w") as archive:
            for path in sorted(wheels.glob("*.whl")):
                archive.add(path, path.name)
        draft.replace(target)


def _make_room(cache: Path) -> None:
    archives = sorted(cache.glob("provision-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-_KEPT]:
        path.unlink()


def main() -> None:
    """Pack."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "wheelhouse": {"type": "path"},
            "python": {"type": "dict", "required": True},
            "cache": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    source = Path(module.params["source"]).resolve()
    wheelhouse = Path(module.params["wheelhouse"]) if module.params["wheelhouse"] else None
    if not (source.is_file() or (source / "pyproject.toml").is_file()):
        module.fail_json(msg=f"'{source}' is neither a wheel nor a checkout of the project.")
    cache = Path(module.params["cache"])
    digest = fingerprint(source, wheelhouse, module.params["python"])
    target = cache / f"provision-{digest[:12]}.tar"
    with _locked(cache):
        is_new = not target.exists()
        if is_new:
            _make(module, source, wheelhouse, target)
        target.touch()
        _make_room(cache)
    # The host is what changes; a cache on the controller is nobody's configuration.
    module.exit_json(changed=False, made=is_new, path=str(target), digest=digest)


if __name__ == "__main__":
    main()
