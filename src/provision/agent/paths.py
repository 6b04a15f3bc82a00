"""Where the agent keeps and writes what is about the whole host."""

from __future__ import annotations

from pathlib import Path

STATUS = Path("run/provision/status.json")
# The exporter's folder where a distro's package has one: Debian, Fedora.
EXPORTER_FOLDERS = (
    Path("var/lib/prometheus/node-exporter"),
    Path("var/lib/node_exporter/textfile_collector"),
)
METRICS = "provision.prom"
