"""Checks that a loaded driver works, by the program of its own that its recipe names."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError, choices
from provision.files import in_root
from provision.manifest import Manifest
from provision.run import TimeLimitError, run

_LINES = 20
# A folder with it has a whole distro's libraries, which fit no program of this host.
_C_LIBRARY = "libc.so.6"


class CheckFailedError(ProvisionError):
    """A driver was loaded and does not work, as its own check says."""


def run_check(entry: Path, manifest: Manifest) -> None:
    """Run the check of a store entry whose modules are loaded and whose user space is active.

    Raises:
        CheckFailedError: The program failed, or did not end in time.
    """
    check, program = manifest.check, _program(manifest)
    if check is None or program is None:
        return
    folder = in_root(entry, "driver")
    paths = [PurePosixPath(file.path) for file in manifest.files]
    named = {path.parent for path in paths if path.name == _C_LIBRARY}
    libraries = {
        PurePosixPath(file.path).parent
        for file in manifest.files
        if file.kind == "library" and file.elf_class != 32  # noqa: PLR2004 - bits
    }
    places = ":".join(str(in_root(folder, path)) for path in sorted(libraries - named))
    argv: list[str | Path] = ["env", f"LD_LIBRARY_PATH={places}", in_root(folder, program)]
    argv += check.command[1:]
    why = f"check {manifest.pin.driver.name}"
    try:
        done = run(argv, why=why, check=False, timeout=check.seconds)
    except TimeLimitError as error:
        problem = f"it did not end within {check.seconds} s"
        raise _failed(manifest, problem, "") from error
    if done.returncode != 0:
        raise _failed(
            manifest, f"it ended with exit status {done.returncode}", done.stdout + done.stderr
        )


def why_unchecked(manifest: Manifest) -> str | None:
    """Return why an artifact with a check can't be checked, which is no failure of it."""
    if manifest.check is None or _program(manifest) is not None:
        return None
    name = manifest.check.command[0]
    programs = [PurePosixPath(file.path).name for file in manifest.files if file.kind == "binary"]
    return f"it is not checked: its artifact has no '{name}'. {choices(name, programs)}"


def _program(manifest: Manifest) -> PurePosixPath | None:
    """Return the program of an artifact's check; None: the artifact does not have it."""
    name = manifest.check.command[0] if manifest.check else ""
    paths = [PurePosixPath(file.path) for file in manifest.files]
    return next((path for path in paths if name in {str(path), path.name}), None)


def _failed(manifest: Manifest, how: str, said: str) -> CheckFailedError:
    driver = manifest.pin.driver
    command = " ".join(manifest.check.command) if manifest.check else ""
    return CheckFailedError(
        f"{driver.name} {driver.version} was loaded and does not work: '{command}': {how}.",
        resolution="See what the driver says in the kernel's log: journalctl --dmesg. To try this"
        " version again: provision apply --retry",
        details="\n".join(said.splitlines()[-_LINES:]) or None,
    )
