"""What a server counts, for Prometheus, in a registry of its own."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from wildood.detect.detector import Detector
from wildood.evaluate.mixture import unknown_share
from wildood.habitat.recorder import Counters

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LATEST: Final = 2000  # answers that the bound on the share of unknowns is computed from
_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # of the holdout's scores: the edges of the histogram
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LARGEST = float(np.finfo(np.float32).max)


class Scores:
    """The scores that one detector gave: a histogram of all, and the latest ones."""

    def __init__(self, identifier: str, detector: Detector) -> None:
        self.id, self.detector = identifier, detector
        known = detector.holdout_scores
        self._known = np.zeros(0, np.float32) if known is None else known
        self._edges = np.unique(np.quantile(self._known, _QUANTILES)) if len(self._known) else np.zeros(0)
        self._counts, self._sum = np.zeros(len(self._edges) + 1, np.int64), 0.0
        self._latest, self._seen = np.zeros(LATEST, np.float32), 0
        self._lock = threading.Lock()
        self._bound: tuple[int, float | None] = (0, None)

    def observe(self, scores: npt.NDArray[np.float32]) -> None:
        """Count a batch."""
        finite = np.minimum(scores, _LARGEST)
        places = np.searchsorted(self._edges, finite, side="left")
        with self._lock:
            self._counts += np.bincount(places, minlength=len(self._counts))
            self._sum += float(finite.sum(dtype=np.float64))
            self._latest[np.arange(self._seen, self._seen + len(finite)) % LATEST] = finite
            self._seen += len(finite)

    def bound(self) -> float | None:
        """A lower bound at 95 % confidence on the share of unknowns among the latest; None without an unseen holdout."""
        with self._lock:
            seen, latest = self._seen, self._latest[: min(self._seen, LATEST)].copy()
        promise = self.detector.promise
        if promise is None or not promise.unseen or not seen:
            return None
        if self._bound[0] != seen:
            self._bound = seen, unknown_share(self._known, latest).bound
        return self._bound[1]

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by their upper edges, and the sum."""
        with self._lock:
            counts, total = np.cumsum(self._counts), self._sum
        names = [*(f"{edge:.6g}" for edge in self._edges), "+Inf"]
        return list(zip(names, counts.astype(float).tolist(), strict=True)), total


class Metrics:
    """The counters of a server.

    >>> metrics = Metrics()
    >>> metrics.requests.labels("/predict", "200").inc()
    >>> 'wildood_requests_total{route="/predict",status="200"} 1.0' in metrics.text().decode()
    True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        settings: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("wildood_requests", "Answered HTTP requests.", ["route", "status"], **settings)
        self.seconds = Histogram(
            "wildood_request_seconds", "From the request's header to the answer.", ["route"], buckets=_SECONDS, **settings
        )
        self.queued = Histogram("wildood_queue_seconds", "From the queue to the model.", buckets=_SECONDS, **settings)
        self.batches = Histogram("wildood_batch_examples", "Examples of a batch.", buckets=_EXAMPLES, **settings)
        self.decisions = Counter("wildood_decisions", "Examples by decision.", ["detector", "decision"], **settings)
        self.shadow = Counter("wildood_shadow_batches", "Batches for the challenger.", ["outcome"], **settings)
        self.failed_loads = Counter("wildood_failed_loads", "Detectors that could not be loaded.", **settings)
        self.waiting = Gauge("wildood_waiting_examples", "Examples that wait for the model.", **settings)
        self.scores: Scores | None = None
        self.collected: Callable[[], Counters] | None = None  # of the recorder
        self.registry.register(_Now(self))

    def answered(self, scores: Scores, values: npt.NDArray[np.float32], unknown: int) -> None:
        """Count the answers to a batch."""
        self.batches.observe(len(values))
        self.decisions.labels(scores.id, "unknown").inc(unknown)
        self.decisions.labels(scores.id, "known").inc(len(values) - unknown)
        scores.observe(values)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Now(Collector):
    """What is computed when it is asked for."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The detector that answers, its scores, and what was collected."""
        if (scores := self.metrics.scores) is not None:
            yield from _of_detector(scores)
        if self.metrics.collected is not None:
            counters = self.metrics.collected()
            yield CounterMetricFamily("wildood_sampled", "Answers that were recorded.", counters.stored)
            yield CounterMetricFamily(
                "wildood_dropped", "Answers of the sample that could not be recorded.", counters.dropped
            )
            yield GaugeMetricFamily("wildood_recording", "0 while nothing can be recorded, else 1.", not counters.stopped)

    def describe(self) -> Iterator[Metric]:
        """Nothing before it is asked for."""
        return iter(())


def _of_detector(scores: Scores) -> Iterator[Metric]:
    detector = scores.detector
    info = InfoMetricFamily("wildood_detector", "The detector that answers.")
    info.add_metric([], {"id": scores.id, "score": type(detector.scorer).__name__})
    yield info
    if detector.promise is not None:
        yield GaugeMetricFamily("wildood_alpha", "The false-alarm rate that the threshold is for.", detector.promise.alpha)
    if detector.class_thresholds is None:
        yield GaugeMetricFamily("wildood_threshold", "Scores above it are unknown.", detector.threshold)
    buckets, total = scores.histogram()
    histogram = HistogramMetricFamily(
        "wildood_score", "The edges are quantiles of the holdout's scores.", labels=["detector"]
    )
    histogram.add_metric([scores.id], buckets, total)
    yield histogram
    if (bound := scores.bound()) is not None:
        text = f"A lower bound at 95 % confidence on the share of unknowns among the latest {LATEST} answers."
        yield GaugeMetricFamily("wildood_unknown_share_bound", text, bound)
