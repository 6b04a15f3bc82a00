"""Checks that a loaded driver works, by the program of its own that its recipe names."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError
from provision.files import in_root
from provision.manifest import Manifest
from provision.progress import Note, report
from provision.run import TimeLimitError, run

_LINES = 20
# A folder with it has a whole distro's libraries, which fit no program of this host.
_C_LIBRARY = "libc.so.6"


class CheckFailedError(ProvisionError):
    """A driver was loaded and does not work, as its own check says."""


def run_check(entry: Path, manifest: Manifest) -> None:
    """Run the check of a store entry whose modules are loaded and whose user space is active.

    An artifact without the program can't be checked, which is no failure of it.

    Raises:
        CheckFailedError: The program failed, or did not end in time.
    """
    check, driver = manifest.check, manifest.pin.driver
    if check is None:
        return
    folder = in_root(entry, "driver")
    name, *words = check.command
    paths = [PurePosixPath(file.path) for file in manifest.files]
    program = next((path for path in paths if name in {str(path), path.name}), None)
    if program is None:
        report(Note(f"{driver.name} is not checked: its artifact has no '{name}'"))
        return
    named = {path.parent for path in paths if path.name == _C_LIBRARY}
    libraries = {
        PurePosixPath(file.path).parent
        for file in manifest.files
        if file.kind == "library" and file.elf_class != 32  # noqa: PLR2004 - bits
    }
    places = ":".join(str(in_root(folder, path)) for path in sorted(libraries - named))
    argv: list[str | Path] = ["env", f"LD_LIBRARY_PATH={places}", in_root(folder, program), *words]
    why = f"check {driver.name}"
    try:
        done = run(argv, why=why, check=False, timeout=check.seconds)
    except TimeLimitError as error:
        problem = f"it did not end within {check.seconds} s"
        raise _failed(manifest, problem, "") from error
    if done.returncode != 0:
        raise _failed(
            manifest, f"it ended with exit status {done.returncode}", done.stdout + done.stderr
        )


def _failed(manifest: Manifest, how: str, said: str) -> CheckFailedError:
    driver = manifest.pin.driver
    command = " ".join(manifest.check.command) if manifest.check else ""
    return CheckFailedError(
        f"{driver.name} {driver.version} was loaded and does not work: '{command}': {how}.",
        resolution="See what the driver says in the kernel's log: journalctl --dmesg. To try this"
        " version again: provision apply --retry",
        details="\n".join(said.splitlines()[-_LINES:]) or None,
    )
