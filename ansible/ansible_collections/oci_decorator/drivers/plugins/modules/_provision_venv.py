"""Installs provision from an archive of wheels."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_venv
short_description: Installs provision into a virtual environment of its own
description:
  - Installs an archive of M(oci_decorator.drivers._provision_bundle) below I(folder), without a
    network.
  - The name of an environment contains the checksum of its contents, so a change makes a new
    environment. A link is switched when the new environment works, so that an interrupted run
    leaves the earlier one in use. Earlier environments are then removed, except one from which a
    process still runs; the next run removes that one.
  - An environment whose Python is gone, as after an upgrade of the distro, is made again.
version_added: 0.1.0
options:
  archive:
    description: The archive on the host.
    type: path
  digest:
    description: The checksum of the archive's contents, which
      M(oci_decorator.drivers._provision_bundle) returns.
    type: str
  python:
    description: The Python that makes the environment.
    type: path
  folder:
    description: The folder of environments and of the link C(bin/provision).
    type: path
    default: /opt/provision
  state:
    description: Whether C(provision) should be installed.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports whether it would be installed. Only I(digest) is needed for that.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure provision is installed
  oci_decorator.drivers._provision_venv:
    archive: /opt/provision/provision.tar
    digest: "{{ bundle.digest }}"
    python: /usr/bin/python3
"""

RETURN = r"""
program:
  description: The path of C(provision).
  returned: always
  type: str
"""

import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.bundles import (
    contents_digest,
    sha256_of,
)

_OURS = "venv-*"


def _works(module: AnsibleModule, environment: Path) -> bool:
    """Whether an environment is complete and its Python still exists."""
    program = environment / "bin/provision"
    return program.exists() and module.run_command([str(program), "--version"])[0] == 0


def _links(folder: Path, environment: Path) -> dict[Path, str]:
    return {folder / "venv": environment.name, folder / "bin/provision": "../venv/bin/provision"}


def _is_linked(links: dict[Path, str]) -> bool:
    return all(p.is_symlink() and str(p.readlink()) == target for p, target in links.items())


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive that has only files; not all Pythons have extractall() with a filter."""
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member)
            if content is not None:
                with (folder / Path(member.name).name).open("wb") as stream:
                    shutil.copyfileobj(content, stream)


def _check_contents(module: AnsibleModule, wheels: Path) -> None:
    """Check that the archive's contents match the environment's name."""
    found = contents_digest({path.name: sha256_of(path) for path in wheels.glob("*.whl")})
    if found != module.params["digest"]:
        archive = module.params["archive"]
        module.fail_json(
            msg=f"The contents of '{archive}' have the checksum {found}, not"
            f" {module.params['digest']}. Remove it, and run the playbook again."
        )


def in_use(environment: Path, processes: Path = Path("/proc")) -> bool:
    """Whether a process runs from an environment, which its command line starts with."""
    prefix = f"{environment}/".encode()
    for path in processes.glob("[0-9]*/cmdline"):
        # A process may end while it is looked at.
        with suppress(OSError):
            if path.read_bytes().startswith(prefix):
                return True
    return False


def isolate(script: Path) -> None:
    """Let pip's script of a program start Python with -I.

    Else PYTHONPATH, and a user's own packages, would decide what root runs.
    """
    text = script.read_text(encoding="utf-8")
    first, rest = text.split("\n", 1)
    if first.startswith("#!/") and " " not in first:
        script.write_text(f"{first} -I\n{rest}", encoding="utf-8")


def _install(module: AnsibleModule, environment: Path) -> None:
    """Make an environment at its final path, because its programs contain that path."""
    shutil.rmtree(environment, ignore_errors=True)
    environment.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.parent) as name:
        wheels = Path(name)
        _unpack(Path(module.params["archive"]), wheels)
        _check_contents(module, wheels)
        made = [module.params["python"], "-I", "-m", "venv", "--without-pip", str(environment)]
        module.run_command(made, check_rc=True)
        pip = next(wheels.glob("pip-*.whl"))
        wheel = str(next(wheels.glob("provision-*.whl")))
        # Many hosts have no ensurepip, so pip runs from its wheel.
        words = [str(environment / "bin/python"), "-I", f"{pip}/pip", "install", "--quiet"]
        words += ["--no-index", "--no-cache-dir", f"--find-links={wheels}", wheel]
        module.run_command([*words, "--disable-pip-version-check"], check_rc=True)
    isolate(environment / "bin/provision")
    if not _works(module, environment):
        module.fail_json(
            msg=f"provision was installed in '{environment}' and does not start there."
        )


def _present(module: AnsibleModule, folder: Path) -> bool:
    environment = folder / f"venv-{module.params['digest'][:12]}"
    links = _links(folder, environment)
    works = _works(module, environment)
    others = [p for p in folder.glob(_OURS) if p != environment and not in_use(p)]
    if works and _is_linked(links) and not others:
        return False
    if module.check_mode:
        return True
    if not works:
        _install(module, environment)
    for path, target in links.items():
        _link(path, target)
    for path in others:
        shutil.rmtree(path)
    return True


def _absent(module: AnsibleModule, folder: Path) -> bool:
    # The link into the tree of a host without Python goes with that tree.
    links = [
        path
        for path in _links(folder, folder)
        if path.is_symlink() and not str(path.readlink()).startswith("../python/")
    ]
    found = [*folder.glob(_OURS), *links]
    if module.check_mode or not found:
        return bool(found)
    for path in found:
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    return True


def main() -> None:
    """Install or remove."""
    present: list[Any] = ["state", "present", ["archive", "digest", "python"]]
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path"},
            "digest": {"type": "str"},
            "python": {"type": "path"},
            "folder": {"type": "path", "default": "/opt/provision"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[present],
        supports_check_mode=True,
    )
    folder = Path(module.params["folder"])
    act = _present if module.params["state"] == "present" else _absent
    module.exit_json(changed=act(module, folder), program=str(folder / "bin/provision"))


if __name__ == "__main__":
    main()
