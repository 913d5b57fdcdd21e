"""Champion and challenger on the same later traffic and the same known examples, at equal false alarms."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wildood.data.fingerprint import role_of
from wildood.data.sources import Source
from wildood.data.validation import id_source, rows_of
from wildood.detect.detector import Detector, examples_of
from wildood.detect.split import TAIL, subsample
from wildood.errors import InputError
from wildood.evaluate.intervals import in_percent
from wildood.evaluate.metrics import finite_scores
from wildood.evaluate.selection import Comparison, compare_acceptance
from wildood.evaluate.thresholds import check_confidence
from wildood.habitat.answers import Floats
from wildood.habitat.comparison_log import comparisons, record_comparison
from wildood.habitat.drift import KnownToday, changed_at
from wildood.habitat.holdout import HoldoutParts
from wildood.habitat.judged import is_evidence
from wildood.habitat.summary import Summary, count_text

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat

MOST = 10_000  # later rows that are compared
FEWEST = 100
CONFIDENCE = 0.95


@dataclass(frozen=True, repr=False)
class ChallengerComparison(Summary):
    """What `Habitat.compare` returns.

    Attributes:
        champion: the id of the detector that answers.
        challenger: the id of the detector that may replace it.
        later: how many rows of later traffic both have scored.
        evidence: judged known examples among the ID examples.
        holdout: holdout examples among them.
        alpha: the largest false-alarm rate at which they are compared.
        result: the shares of traffic that each accepts; None if something is missing.
        look: the number of this comparison among those of these two detectors.
        separated: whether the challenger is shown to accept less traffic, at a confidence that holds over all looks.
        missing: what is missing for a comparison; empty if nothing is.
        caveat: what favours one of them; empty if nothing does.
        confidence: over all looks.
    """

    champion: str
    challenger: str
    later: int
    evidence: int
    holdout: int
    alpha: float
    result: Comparison | None
    look: int
    separated: bool
    missing: str
    caveat: str
    confidence: float = CONFIDENCE

    @property
    def says(self) -> str:
        """The result in one line."""
        if self.result is None:
            return f"{self.challenger} cannot be compared yet: {self.missing}"
        shares = (
            f"{in_percent(self.result.start)} by {self.champion}, {in_percent(self.result.trained)} by {self.challenger}"
        )
        shown = "accepts less" if self.separated else "is not shown to accept less"
        return f"{self.challenger} {shown} traffic at equal false alarms up to {100 * self.alpha:g} % ({shares})"

    @property
    def summary(self) -> dict[str, str]:
        """The result in a few lines."""
        known = f"{self.evidence} judged known, {self.holdout} of the holdout"
        lines = {"result": self.says, "data": f"{count_text(self.later, 'later row')}; known examples: {known}"}
        if self.result is not None:
            sure = f"standard error of the difference {in_percent(self.result.error)}"
            lines["test"] = f"{sure}; look {self.look}, {100 * self.confidence:g} % confidence over all looks"
        if self.caveat:
            lines["caveat"] = self.caveat
        return lines | {"next": "promote" if self.separated else "wait for more later traffic and known answers"}


def compare(
    habitat: "Habitat",
    champion: Detector,
    challenger: Detector,
    holdout: Any = None,
    *,
    id: str | None = None,  # noqa: A002 - the field's own word
    confidence: float = CONFIDENCE,
) -> ChallengerComparison:
    """Compare the share of later traffic that champion and challenger accept at equal false alarms.

    Later traffic are the rows that neither has trained on, without evidence. ID examples are judged known evidence that is
    like known traffic of today; if it is too little for ten false alarms, also the quarter of the holdout that no refresh
    has seen. After a change of known data, the holdout is left out, and so is traffic from before. The test is that of
    `wildood.evaluate.selection`, paired, on the same examples. It is not `fit`'s choice again: other examples decide.

    The k-th look at the same two detectors may err with probability (1 - confidence) / (k (k + 1)), and these sum to 1 -
    confidence: a challenger that is no better is promoted with at most that probability, however often somebody looks.

    Args:
        habitat: of both.
        champion: the detector that answers.
        challenger: the detector that may replace it.
        holdout: the holdout that `refresh` was given.
        id: of the challenger; by default the habitat's.
        confidence: of the comparison, over all looks.
    """
    confidence = check_confidence(confidence)
    first, second = habitat.champion, habitat.challenger if id is None else id
    if second is None:
        raise InputError(f"{habitat.path} has no challenger: make one with refresh")
    entries = {each.id: each for each in habitat.detectors()}
    judged = habitat.store.judged()
    today = KnownToday.of(judged, champion)
    since = max(today.since, changed_at(challenger))
    until = max(*(entries[each].trained_until for each in (first, second)), since - 1)
    alpha = challenger.promise.alpha if challenger.promise is not None else 0.05
    evidence, aside, caveat = today.like_now, None, ""
    known: list[Source] = [] if evidence is None else [evidence]
    if holdout is not None and not since and not today.doubt and today.alike < TAIL / alpha:
        unseen = id_source(examples_of(rows_of(holdout, champion.classifier.spec, "holdout"), champion.example), "holdout")
        aside = HoldoutParts.of(unseen).comparison
        known.append(aside)
        is_refreshed = "wild" in champion.record.get("habitat", {})  # then the holdout was split as here
        if role_of(champion.record, unseen) and not is_refreshed:
            caveat = f"the holdout took part in making {first}, which can only make {first} look better here"
    scores = _later_scores(habitat, champion, challenger, (first, second), until)
    later, tail = len(scores[0]), alpha * sum(map(len, known))
    missing = _missing(later, tail, alpha, has_holdout=holdout is not None)
    shared: dict[str, Any] = {
        "champion": first, "challenger": second, "later": later, "evidence": 0 if evidence is None else len(evidence),
        "holdout": 0 if aside is None else len(aside), "alpha": alpha, "caveat": caveat, "confidence": confidence,
    }  # fmt: skip
    if missing:
        return ChallengerComparison(**shared, result=None, look=0, separated=False, missing=missing)
    start, trained = (
        (np.concatenate([_scores(detector, source) for source in known]), finite_scores(own))
        for detector, own in zip((champion, challenger), scores, strict=True)
    )
    result = compare_acceptance(start, trained, alpha)
    with habitat.store.index.reading() as index:
        last = index.execute("SELECT max(id) FROM answers").fetchone()[0]
        what = {name: shared[name] for name in ("later", "evidence", "holdout", "alpha", "confidence")} | {"until": last}
        earlier = [each for each in comparisons(index, first, second) if {name: each.get(name) for name in what} != what]
    look = len(earlier) + 1
    separated = result.is_shown(confidence, candidates=look * (look + 1))
    compared = ChallengerComparison(**shared, result=result, look=look, separated=separated, missing="")
    if not habitat.store.index.readonly:
        numbers = {"start": result.start, "trained": result.trained, "error": result.error}
        record = what | numbers | {"look": look, "separated": separated, "says": compared.says, "caveat": caveat}
        with habitat.store.index.writing() as index:
            record_comparison(index, habitat.clock(), first, second, record)
    return compared


def _later_scores(
    habitat: "Habitat",
    champion: Detector,
    challenger: Detector,
    ids: tuple[str, str],
    until: int,
) -> tuple[Floats, Floats]:
    """The scores that both give later traffic: of its examples, or in their absence those of shadow mode.

    Evidence is left out: it measures how many unknowns the champion catches, so it must not choose the champion.
    """
    rows = habitat.store.rows(after=until)
    compares = ~is_evidence(rows.id)
    with_example = np.flatnonzero(rows.has_example & compares)
    if len(with_example):
        source = habitat.store.source(rows.id[with_example])
        some = subsample(source, MOST, seed=until)
        return _scores(champion, some), _scores(challenger, some)
    shadowed = (rows.detector == ids[0]) & (rows.shadow == ids[1]) & compares
    return rows.score[shadowed], rows.shadow_score[shadowed]


def _scores(detector: Detector, source: Source) -> Floats:
    return finite_scores(detector.score(source))


def _missing(later: int, tail: float, alpha: float, *, has_holdout: bool) -> str:
    parts = []
    if later < FEWEST:
        parts.append(f"{count_text(FEWEST - later, 'more example')} of traffic that came after the training")
    if tail <= 2:
        count = int(np.ceil(2 / alpha)) + 1 - round(tail / alpha)
        where = "review answers them" if has_holdout else "review answers them, or give the holdout (--holdout)"
        parts.append(f"{count_text(count, 'more known example')} ({where})")
    return " and ".join(parts)
