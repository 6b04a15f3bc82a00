"""What is wrong with an artifact on disk, and the report of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.manifest import Manifest

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with an artifact.

    Attributes:
        path: The file, relative to the artifact.
        kind: ``missing``, ``altered``, ``mode``, ``link``, ``extra``, ``vermagic``,
            ``modules.dep``, ``signature``, ``pin`` or ``manifest``.
        message: What is wrong, completing the path.
    """

    path: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification.

    Attributes:
        manifest: None where no readable one is there.
        findings: Everything that is wrong; empty for a whole artifact.
        size: Bytes that were compared.
    """

    manifest: Manifest | None
    findings: tuple[Finding, ...]
    size: int = 0

    def require_whole(self, what: str) -> Manifest:
        """Return the manifest of a whole artifact.

        Raises:
            DamagedError: Something is wrong; names all of it.
        """
        if self.findings or self.manifest is None:
            raise DamagedError(what, self.findings)
        return self.manifest


class DamagedError(ProvisionError):
    """An artifact that is not what its manifest says.

    Args:
        what: The artifact, as its user would name it.
        findings: Everything that is wrong with it.
    """

    def __init__(self, what: str, findings: Sequence[Finding]) -> None:
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        super().__init__(
            f"{what} is damaged: {count}.",
            resolution="Install it again (provision install --replace); if the image itself is "
            "damaged, build it again first (provision build --rebuild).",
            details="\n".join(str(finding) for finding in findings),
        )
        self.findings = tuple(findings)

    def members(self) -> dict[str, object]:
        """Return each finding."""
        return {"findings": [asdict(finding) for finding in self.findings]}
