"""The detector that answers, loaded and warm; and the thread that follows promotions and replaces it."""

import logging
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from wildood.data.sources import ArraySource, Source, StructuredSource
from wildood.data.structures import Raw, map_structure
from wildood.detect.detector import Detector
from wildood.errors import InputError, WildoodError, printable
from wildood.habitat.examples import ExampleReader, Limits
from wildood.habitat.metrics import Metrics, Scores
from wildood.habitat.process import freeze, is_frozen
from wildood.habitat.protocol import Decisions
from wildood.scores.score import score_all

_LOGGER = logging.getLogger("wildood")
POLL: Final = 0.5  # seconds between two looks at the habitat's champion
PATIENCE: Final = 30.0  # seconds before a detector that could not be loaded is tried again


class Served:
    """A detector that answers batches, with what reads the requests for it.

    Attributes:
        id: of the detector, in every answer.
        reader: of the examples in requests.
        names: of the classes.
        scores: that it gave.
    """

    def __init__(self, identifier: str, detector: Detector, limits: Limits) -> None:
        if np.isnan(detector.threshold) or detector.holdout_scores is None:
            raise InputError("this detector has no threshold: call detector.calibrate(holdout, alpha) first")
        self.id, self.detector = identifier, detector
        self.reader = ExampleReader(detector, limits)
        self.scores = Scores(identifier, detector)
        self._ordered = np.sort(detector.holdout_scores)
        self.names: list[str | int] = []

    def warm(self, size: int) -> "Served":
        """Run the model on blank examples, so that the first request is not the slowest."""
        for count in {1, size}:
            self.decide(self.detector.example.blank(count))
        classes = self.detector.predict_proba(self.detector.example.blank(1)).shape[1]
        self.names = [self.detector.class_name(number) for number in range(classes)]
        return self

    def decide(self, examples: Raw) -> Decisions:
        """What the detector says of a raw batch."""
        scores, classes = score_all(self.detector.classifier, _source(examples), self.detector.scorer)
        below = np.searchsorted(self._ordered, scores, side="left")
        p_values = (1 + len(self._ordered) - below) / (len(self._ordered) + 1)
        return Decisions(classes, scores, p_values, self.detector.accepts(scores, classes))


def _source(examples: Raw) -> Source:
    structured = not hasattr(examples, "shape")
    return StructuredSource(map_structure(ArraySource, examples)) if structured else ArraySource(examples)  # type: ignore[arg-type]


class Follower:
    """Loads the detector that shall answer, in the background, and replaces the one that does when it is warm.

    Attributes:
        served: the detector that answers now; one assignment replaces it.
        shadow: the challenger, if one is to be served in the shadow.

    Args:
        current: tells the id of the detector that shall answer.
        load: loads a detector by its id.
        challenger: tells the id of the detector for the shadow; None: there is none.
        limits: of requests.
        metrics: where failures are counted.
        batch: the size to warm a detector with.
        poll: seconds between two looks.
    """

    def __init__(
        self,
        current: Callable[[], str],
        load: Callable[[str], Detector],
        challenger: Callable[[], str | None] = lambda: None,
        *,
        limits: Limits,
        metrics: Metrics,
        batch: int = 64,
        poll: float = POLL,
    ) -> None:
        self._current, self._load, self._challenger = current, load, challenger
        self._limits, self._metrics, self._batch, self._poll = limits, metrics, batch, poll
        self.served = self._ready(current())
        metrics.scores = self.served.scores
        self.shadow: Served | None = None
        self._failed: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="wildood follower", daemon=True)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once at which detectors shall be served, and load those that are not."""
        champion, challenger = self._current(), self._challenger()
        is_loaded = self.shadow is not None and self.shadow.id == champion
        if champion != self.served.id and (served := self.shadow if is_loaded else self._tried(champion)) is not None:
            former = self.served.id
            self.served, self._metrics.scores = served, served.scores
            _LOGGER.info("detector %s answers in the place of %s", served.id, former)
            if is_frozen():
                freeze()
        if challenger is None or challenger == self.served.id:
            self.shadow = None
        elif self.shadow is None or self.shadow.id != challenger:
            self.shadow = self._tried(challenger)

    def _ready(self, identifier: str) -> Served:
        return Served(identifier, self._load(identifier), self._limits).warm(self._batch)

    def _tried(self, identifier: str) -> Served | None:
        """The detector; None if it cannot be loaded, which is logged, and tried again after a while."""
        if self._failed.get(identifier, 0) > 0:
            self._failed[identifier] -= self._poll
            return None
        try:
            return self._ready(identifier)
        except Exception as error:  # noqa: BLE001 - whatever a user's model raises: the present detector goes on
            self._failed[identifier] = PATIENCE
            self._metrics.failed_loads.inc()
            _LOGGER.warning("detector %s cannot be loaded, %s goes on: %s", identifier, self.served.id, printable(error))
            return None

    def _follow(self) -> None:
        quiet = False
        while not self._stopped.wait(self._poll):
            try:
                self.look()
                quiet = False
            except (WildoodError, OSError) as error:
                if not quiet:
                    _LOGGER.warning("the habitat cannot be read, %s goes on: %s", self.served.id, printable(error))
                quiet = True
