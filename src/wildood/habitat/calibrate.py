"""A threshold of today: the champion, unchanged but for its threshold, set by judged known examples of now."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wildood.detect.detector import Detector, Promise
from wildood.detect.split import TAIL
from wildood.errors import InputError
from wildood.evaluate.thresholds import examples_needed
from wildood.habitat.drift import KnownToday, measured_until
from wildood.habitat.summary import Summary, count_text
from wildood.train.progress import logger

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat


@dataclass(frozen=True, repr=False)
class Calibration(Summary):
    """What `Habitat.calibrate` returns.

    Attributes:
        champion: the id of the detector with the new threshold, which answers from now on.
        former: the id of the one before.
        examples: how many judged known examples set the threshold.
        why: in words.
        promise: that the threshold makes, as text.
    """

    champion: str
    former: str
    examples: int
    why: str
    promise: str

    @property
    def summary(self) -> dict[str, str]:
        """The result in a few lines."""
        return {
            "champion": f"{self.champion} answers in the place of {self.former}: the same but for its threshold",
            "why": self.why,
            "promise": self.promise,
        }


@dataclass(frozen=True)
class CalibrationNeed:
    """Whether a champion's threshold should be set anew, and what that needs.

    Attributes:
        why: the reason; empty if there is none.
        examples: judged known examples that may set it.
        needed: how many must be there.
    """

    why: str
    examples: int
    needed: int

    @classmethod
    def of(cls, champion: Detector, today: KnownToday) -> "CalibrationNeed":
        """That of a champion. After a change, few examples may set the threshold, and twice as many set it again."""
        promise = champion.promise or Promise(0.05, 0, unseen=False)
        needed, most = examples_needed(promise.alpha, promise.confidence), _most(promise)
        examples = min(today.alike, most)
        if not promise.unseen:
            return cls("the threshold promises nothing", examples, needed)
        if today.drift is not None and today.drift.found:
            return cls("known scores have changed, so the threshold is of another time", examples, needed)
        if measured_until(champion) and 2 * promise.examples <= examples:
            return cls(f"the threshold rests on only {promise.examples} examples", examples, needed)
        return cls("", examples, needed)

    @property
    def missing(self) -> int:
        """How many known answers of the random sample are still to come: half of them measure."""
        return 2 * max(0, self.needed - self.examples)


def calibrate(
    habitat: "Habitat", champion: Detector, *, who: str, why: str = "", force: bool = False, today: KnownToday | None = None
) -> Calibration:
    """Set the champion's threshold by the newest judged known evidence, and let it answer, in one step.

    Nothing is trained, and the ranking of examples by their scores stays: so there is nothing to compare. The promise is
    about known data like these examples: the newest, as far back as no change is found (`count_alike`), at most as many as
    make ten false alarms. A challenger from before is left: its threshold is of the data before.

    Args:
        habitat: of the champion.
        champion: it, which is changed.
        who: the person or the program that calibrates.
        why: in their own words.
        force: also where known scores have not changed.
        today: what `KnownToday.of` gives, if it is there already.
    """
    former = habitat.champion
    today = KnownToday.of(habitat.store.judged(), champion) if today is None else today
    need = CalibrationNeed.of(champion, today)
    if not (need.why or force):
        raise InputError(
            f"no change of known scores is found, so the threshold of {former} stays: force it (--force) to set it anew"
        )
    source = today.newest(need.examples)
    if source is None or need.missing:
        raise InputError(
            f"{count_text(need.missing, 'more known answer')} of the random sample are needed to calibrate (about; half of "
            f"them measure, and {need.examples} of {need.needed} are there): wildood habitat review lists them"
        )
    before, first, last = (
        champion.promise or Promise(0.05, 0, unseen=False),
        today.answers[-need.examples],
        today.answers[-1],
    )
    caveat = f"these are judged known answers from {first} to {last}, so future known traffic must be like theirs"
    promise = Promise(before.alpha, len(source), unseen=True, confidence=before.confidence, caveat=caveat)
    try:
        champion.calibrate_on(source, replace(promise, by_class=before.by_class))
    except InputError as error:
        if not before.by_class:
            raise
        logger.warning("by class was NOT done, one threshold is for all classes: %s", error)
        champion.calibrate_on(source, promise)
        champion.record["not_by_class"] = str(error)
    about = {"parent": former, "calibrated on": "judged known examples", "measured": int(last), "forced": not need.why}
    since = today.since if before.unseen else max(today.since, int(first))
    champion.record["habitat"] = champion.record.get("habitat", {}) | about | {"since": since}
    why = why or need.why or "by force"
    evidence = {"calibrated on": len(source), "says": why, "drift": None if today.drift is None else str(today.drift)}
    trained = next(each.trained_until for each in habitat.detectors() if each.id == former)
    promotion = habitat.add_champion(champion, trained_until=trained, against=former, who=who, why=why, evidence=evidence)
    return Calibration(promotion.detector, former, len(source), why, champion.promise_text)


def _most(promise: Promise) -> int:
    """More examples hardly steady the threshold, and the oldest are the least like those of today."""
    return max(examples_needed(promise.alpha, promise.confidence), round(TAIL / promise.alpha))
