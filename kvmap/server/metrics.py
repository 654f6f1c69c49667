"""What ``/metrics`` shows, in a registry of the application's own."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from kvmap.runtime.answer import Stats
from kvmap.server.errors import Outcome
from kvmap.server.summary import Summary

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
SECONDS_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """Counters, gauges and histograms; any thread may add to them.

    Attributes:
        content_type: Of :meth:`text`.
        queue_length: Requests that wait.
        aborts: Requests whose client went, or whose time was up, before they ended.
        live_bytes: Memory of all caches alive.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.queue_length = self._gauge("queue_length", "Requests that wait for the engine")
        self.live_bytes = self._gauge("live_cache_bytes", "Bytes of all caches alive")
        self.aborts = self._counter("aborts", "Requests given up, queued or running")
        self._requests = Counter(
            "kvmap_requests",
            "Requests by how they ended",
            ["endpoint", "outcome"],
            registry=self._registry,
        )
        self._stages = Counter(
            "kvmap_stage_seconds", "Seconds by stage", ["stage"], registry=self._registry
        )
        self._queued = self._histogram("queue_seconds", "Wait for the engine", SECONDS)
        self._ttft = self._histogram("ttft_seconds", "Acceptance to first token", SECONDS)
        self._tpot = self._histogram(
            "tpot_seconds", "Seconds per token after the first", SECONDS_PER_TOKEN
        )
        self._prompt = Counter(
            "kvmap_prompt_tokens",
            "Prompt tokens by where their KV came from",
            ["origin"],
            registry=self._registry,
        )
        self._generated = self._counter("generated_tokens", "Tokens generated")
        self._proposed = self._counter("proposed_tokens", "Tokens that drafts proposed")
        self._accepted = self._counter("accepted_tokens", "Proposed tokens that were accepted")
        self._fallbacks = self._counter("fallbacks", "Prompts that the guard had read natively")

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"kvmap_{name}", what, registry=self._registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"kvmap_{name}", what, registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"kvmap_{name}", what, registry=self._registry, buckets=buckets)

    def end(self, endpoint: str, outcome: Outcome) -> None:
        """Count a request."""
        self._requests.labels(endpoint, outcome).inc()

    def count(self, stats: Stats) -> None:
        """Add the work of one answer, finished or not."""
        origins = {
            "reused": stats.reused,
            "mapped": stats.mapped,
            "repaired": stats.repaired,
            "native": stats.prefilled,
        }
        for origin, tokens in origins.items():
            self._prompt.labels(origin).inc(tokens)
        for stage, seconds in stats.stages.seconds.items():
            self._stages.labels(stage).inc(max(seconds, 0.0))
        self._generated.inc(stats.generated)
        self._proposed.inc(stats.proposed)
        self._accepted.inc(stats.accepted)
        self._fallbacks.inc(stats.fell_back)

    def finish(self, summary: Summary) -> None:
        """Add the times of an answer that came to its end."""
        self._queued.observe(summary.queue_s)
        self._ttft.observe(summary.ttft_s)
        if summary.tpot_s is not None:
            self._tpot.observe(summary.tpot_s)

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self._registry)
