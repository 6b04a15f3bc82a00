"""Which versions a vendor offers, what it promises of their branches, and its checksums."""

from __future__ import annotations

from provision.sources.upstream.branches import (
    Branch,
    Branches,
    Ended,
    ended_branch,
    known_branches,
    today,
)
from provision.sources.upstream.formats import Release, newest_first
from provision.sources.upstream.queries import MAX_AGE, UpstreamResult, ask, kept
from provision.sources.upstream.vendor_sums import ChangedSumError, SumRecord, published_sum

__all__ = [
    "MAX_AGE",
    "Branch",
    "Branches",
    "ChangedSumError",
    "Ended",
    "Release",
    "SumRecord",
    "UpstreamResult",
    "ask",
    "ended_branch",
    "kept",
    "known_branches",
    "newest_first",
    "published_sum",
    "today",
]
