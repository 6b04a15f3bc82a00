"""Hosts of a fleet, asked from a Prometheus that scrapes the metrics of their agents.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, get_small
from provision.fleet.host_status import Host, broken_host, shown
from provision.fleet.metrics import OBSERVED, Sample, by_host, hosts_of_samples, unix_time

_NAMES = (
    "provision_driver_ready",
    "provision_driver_info",
    "provision_failures",
    "provision_reboot_required",
    "provision_ready",
    "provision_exit_code",
    "provision_observed_timestamp_seconds",
)
QUERY = f'{{__name__=~"{"|".join(_NAMES)}"}}'
# Hosts that were scraped within a week but are not scraped now.
GONE = f"last_over_time({OBSERVED}[7d]) unless on (instance) {OBSERVED}"
# Some 12 series a host and driver, of 400 bytes each: 25,000 hosts.
_LARGEST_ANSWER = 128 << 20
_LONGEST_DETAILS = 400


def hosts_of_prometheus(url: str) -> list[Host]:
    """Return the hosts of a Prometheus; those that it lost within a week are unreachable.

    Args:
        url: Its address, without ``/api/v1``; a name and password in it are sent to it.

    Raises:
        UnreachableError: It does not answer.
        ProvisionError: What answers is no Prometheus, or it refuses.
    """
    hosts = hosts_of_samples(_asked(url, QUERY))
    gone = [
        replace(
            broken_host(
                name,
                "unreachable",
                "Prometheus scraped it within the last week, and gets no metrics of it now",
                "Check whether the host is up and its node exporter runs; a host that was taken"
                " out of service disappears from here after a week.",
            ),
            time=unix_time(sample.value),
        )
        for name, samples in by_host(_asked(url, GONE), "?").items()
        for sample in samples[:1]
    ]
    if not hosts and not gone:
        raise NotFoundError(
            f"The Prometheus at '{url}' has no metric of provision.",
            resolution="Have the node exporter's textfile collector read"
            " /var/lib/prometheus/node-exporter/provision.prom on each host; Debian's does.",
        )
    known = {host.name for host in hosts}
    return hosts + [host for host in gone if host.name not in known]


def _asked(url: str, query: str) -> list[Sample]:
    """Return the samples that a query matches.

    Source: https://prometheus.io/docs/prometheus/latest/querying/api/#instant-vectors
    """
    address = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    try:
        data = get_small(address, limit=_LARGEST_ANSWER)
    except UnreachableError as error:
        raise UnreachableError(
            f"The Prometheus at '{url}' does not answer.",
            resolution=f"Check whether it runs: curl {url.rstrip('/')}/-/ready.",
            details=shown(error.details or error.message, _LONGEST_DETAILS),
        ) from error
    except ProvisionError as error:
        raise _no_prometheus(url, error) from error
    try:
        document = json.loads(data)
        # One that refuses says so with another status than 200, and never gets here.
        return [_sample(one) for one in document["data"]["result"]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _no_prometheus(url, error) from error


def _no_prometheus(url: str, error: Exception) -> ProvisionError:
    return ProvisionError(
        f"What answers at '{url}' is no Prometheus, or one that refuses.",
        resolution="Name the address that its web page has, such as"
        " http://prometheus.example:9090.",
        details=shown(f"{type(error).__name__}: {error}", _LONGEST_DETAILS),
    )


def _sample(one: Any) -> Sample:  # noqa: ANN401 - whatever JSON has
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    return Sample(labels.pop("__name__", OBSERVED), labels, float(one["value"][1]))
