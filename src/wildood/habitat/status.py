"""How a habitat is: its traffic, the unknowns in it, what the promise rests on, and what to do next."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.fingerprint import SEEN_HOLDOUT
from wildood.data.schema import SchemaError, parse
from wildood.data.sources import Part
from wildood.detect.detector import UNKNOWN, Detector, Promise
from wildood.detect.storage import read_description
from wildood.evaluate.intervals import CaughtBound, Share, in_percent
from wildood.evaluate.metrics import finite_scores
from wildood.evaluate.mixture import UnknownShare, unknown_share
from wildood.habitat.advice import DAY, SOME_UNKNOWN, advice
from wildood.habitat.answers import Judged, Rows, Windows
from wildood.habitat.calibrate import CalibrationNeed
from wildood.habitat.comparison_log import latest_comparison
from wildood.habitat.drift import MOST, KnownDrift, KnownToday, measured_until
from wildood.habitat.holdout import missing_answers
from wildood.habitat.judged import JudgedCounts, is_evidence
from wildood.habitat.sequential import ERROR, Block, Evidence, SequentialTest
from wildood.habitat.summary import Summary, count_text, days_text
from wildood.settings import check_number

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat

RECENT = 2000  # rows that the bound on the unknown share is computed from
ENOUGH_WILD = 500  # rows since the last training that make a refresh worth while, at least


@dataclass(frozen=True)
class Day:
    """A day of traffic, by UTC.

    Attributes:
        start: in seconds since 1970.
        rows: how many rows of the champion the test looked at; 0 if it did not.
        bound: the share of unknowns among them is at least this, each day by itself at 95 % confidence.
        estimate: of that share.
        evidence: of the sequential test after that day; None before it began.
    """

    start: float
    seen: int = 0
    unknown: int = 0
    sampled: int = 0
    dropped: int = 0
    rows: int = 0
    bound: float = 0.0
    estimate: float = 0.0
    evidence: float | None = None


@dataclass(frozen=True, repr=False)
class Status(Summary):
    """What `Habitat.status` returns.

    Attributes:
        time: of this status.
        champion: the id of the detector that answers.
        since: when it was promoted.
        challenger: the id of the detector that may replace it.
        days: the traffic by day.
        recent: what the last rows of the champion say about the share of unknowns; None if that cannot be tested.
        looks: the sequential test of the champion's traffic; None if it cannot be made.
        untested: why not; empty if it was.
        promise: of the champion, as text.
        calibrated: when the champion was made.
        judged: how many answers people have judged.
        people: how many answers of the random sample, since the last change of known data, people have called unknown.
        false_alarms: of the champion on judged known evidence since its calibration; None if there is none.
        caught: at least how many unknowns the champion answers with "unknown", by judged unknown evidence.
        drift: whether known scores have changed since the champion's calibration; None if that cannot be tested.
        doubt: whether known scores may have changed: the newest, by themselves, differ from those of the calibration.
        changed: known answers from this id on are like those of today; 0: no change has been found since the holdout.
        calibration: whether the threshold should be set anew, and by how many judged known examples.
        missing: how many more known answers of the random sample a refresh needs, about; 0 where no change has been found.
        waiting: rows with examples since the champion's training, or since the change.
        enough: how many of these make a refresh worth while: as many as the champion was trained on.
        unknowns: at least about so many unknown ones are among the waiting.
        tried: the detector of the last refresh that did not become champion; None if there was none since the change.
        retry: how many more answers make another refresh worth while: as many as there were before the last one.
        later: rows with examples that neither champion nor challenger has trained on, without evidence.
        compared: the record of the last comparison of the two; None if there is none.
        again: how many more answers make another comparison worth while: half as many as there were at the last one.
        next: what to do, in one line.
    """

    time: float
    champion: str
    since: float
    challenger: str | None
    days: tuple[Day, ...]
    recent: UnknownShare | None
    looks: Evidence | None
    untested: str
    promise: str
    calibrated: float
    judged: JudgedCounts
    people: int
    false_alarms: Share | None
    caught: CaughtBound
    drift: KnownDrift | None
    doubt: bool
    changed: int
    calibration: CalibrationNeed
    missing: int
    waiting: int
    enough: int
    unknowns: int
    tried: str | None
    retry: int
    later: int
    compared: dict[str, Any] | None
    again: int
    next: str

    @property
    def found(self) -> bool:
        """Whether the sequential test has found unknowns: the exit code of the command says so."""
        return self.looks is not None and self.looks.found

    @property
    def found_by_people(self) -> bool:
        """Whether people have: the test begins anew with each champion and each threshold, what they said stays."""
        return self.people >= SOME_UNKNOWN

    @property
    def unknowns_text(self) -> str:
        """What the test and people have found, in one line."""
        test = self.untested or str(self.looks)
        if self.looks is not None and not self.looks.values:
            test = f"not tested yet: the test begins anew with {self.champion}"
        found = f"{count_text(self.people, 'answer')} of the random sample"
        return test + (f"; people have called {found} unknown" if self.people else "")

    @property
    def caught_text(self) -> str:
        """The bound on what is caught, and which judged unknowns count."""
        return f"{self.caught} (only those of the evidence count, half of the random sample)"

    @property
    def summary(self) -> dict[str, str]:
        """The status in lines."""
        seen, unknown, sampled, dropped = (
            sum(getattr(day, name) for day in self.days) for name in ("seen", "unknown", "sampled", "dropped")
        )
        judged = self.judged
        newest = "" if judged.newest is None else f", the newest {days_text(self.time - judged.newest)} old"
        rejected = f", {in_percent(unknown / seen)} answered unknown" if seen else ""
        lines = {
            "champion": f"{self.champion}, for {days_text(self.time - self.since)}",
            "challenger": self.challenger or "none",
            "traffic": f"{count_text(seen, 'answer')}{rejected}; {sampled:,} kept, {dropped:,} dropped",
            "unknown": self.unknowns_text,
            "recent": self.untested or (str(self.recent) if self.recent else "no rows of the champion yet"),
            "promise": f"{self.promise}; {days_text(self.time - self.calibrated)} old",
            "judged": (
                f"{judged.random} known in the random sample ({judged.evidence} measure, {judged.choice} choose, "
                f"{judged.fresh} train{newest}), "
                f"{judged.chosen} known that were chosen, {judged.unknown} unknown"
            ),
        }
        if self.false_alarms is not None:
            lines["false alarms"] = f"{self.false_alarms.text(0.95)} of the known ones that measure"
        lines["caught"] = self.caught_text
        if self.drift is not None:
            lines["drift"] = str(self.drift)
        if self.compared is not None:
            lines["compared"] = str(self.compared.get("says", ""))
        return lines | {"next": self.next}


def status(habitat: "Habitat", detector: Detector, *, error: float = ERROR) -> Status:
    """The status of a habitat.

    Closed days of traffic are recorded in the index as looks of the sequential test, unless the habitat is read-only; the
    present day counts as a look as far as it has come.

    Args:
        habitat: of which the status is asked.
        detector: its champion.
        error: the probability that the looks at one champion's traffic ever find unknowns where there are none.
    """
    check_number(error, "error", "a probability strictly between 0 and 1, such as 0.05", least=1e-9, below=1)
    now, store, champion, challenger = habitat.clock(), habitat.store, habitat.champion, habitat.challenger
    entries = {each.id: each for each in habitat.detectors()}
    promoted = [each for each in habitat.promotions() if each.detector == champion][-1]
    judged = store.judged()
    trained, made = entries[champion].trained_until, detector.record.get("habitat", {})
    later = 0 if challenger is None else _comparing_after(habitat, max(trained, entries[challenger].trained_until))
    promise = detector.promise or Promise(0.05, 0, unseen=False)
    holdout = detector.holdout_scores if promise.unseen else None
    looks = recent = false_alarms = None
    days = _by_day(store.windows())
    if holdout is not None:
        looks, recent, course = look(habitat, champion, holdout, error)
        days = _with_course(days, course)
    today = KnownToday.of(judged, detector)
    fresh = today.answers > measured_until(detector)
    if fresh.any():
        rejected = ~detector.accepts(today.scores, today.classes)
        false_alarms = Share.of(rejected[fresh], 0.95)
    compared, again = None, 0
    if challenger is not None:
        with store.index.reading() as index:
            compared = latest_comparison(index, champion, challenger)
    if challenger is not None and compared is not None:
        until = max(trained, entries[challenger].trained_until)
        again = max(0, until + math.ceil(1.5 * (compared.get("until", until) - until)) - _last_answer(habitat))
    start = max(trained, today.since - 1)
    tried, retry = _last_try(habitat, start, today.since)
    counts, waiting = JudgedCounts.of(judged, today.since), _examples_after(habitat, start)
    share = Share.of((counts.random_unknown, counts.random + counts.random_unknown), 0.9).low if counts.random else 0.0
    share = max(share, recent.bound if recent is not None and looks is not None and looks.found else 0.0)
    found = Status(
        time=now,
        champion=champion,
        since=promoted.time,
        challenger=challenger,
        days=tuple(days),
        recent=recent,
        looks=looks,
        untested="" if holdout is not None else f"not tested: {SEEN_HOLDOUT}",
        promise=detector.promise_text,
        calibrated=entries[champion].time,
        judged=JudgedCounts.of(judged),
        people=counts.random_unknown,
        false_alarms=false_alarms,
        caught=_caught(habitat, judged, detector, today.since),
        drift=today.drift,
        doubt=today.doubt,
        changed=today.since,
        calibration=CalibrationNeed.of(detector, today),
        missing=missing_answers(counts, today.alike, promise.alpha, promise.confidence) if today.since else 0,
        waiting=waiting,
        enough=ENOUGH_WILD if start > trained else max(ENOUGH_WILD, int(made.get("wild", 0))),
        unknowns=int(share * waiting),
        tried=tried,
        retry=retry,
        later=later,
        compared=compared,
        again=again,
        next="",
    )
    return replace(found, next=advice(found))


def _caught(habitat: "Habitat", judged: Judged, detector: Detector, since: int) -> CaughtBound:
    """What unknown ones that measure, since the last change, say about how many unknowns the champion catches.

    No refresh trains on them, and no comparison reads them. A detector that was made elsewhere may have trained on all up to
    its `trained_until`: these are left out, for it and for its descendants.
    """
    entries = {each.id: each for each in habitat.detectors()}
    name: str | None = habitat.champion
    while name is not None:
        if entries[name].trained_until >= since and "wild" not in _made(habitat, name):
            since = entries[name].trained_until + 1
        name = entries[name].parent
    places = np.flatnonzero((is_evidence(judged.answer) & (judged.answer >= since))[judged.class_ < 0])[-MOST:]
    if judged.unknown is None or not len(places):
        return CaughtBound.of((0, 0))
    return CaughtBound.of(detector.predict(Part(judged.unknown, torch.from_numpy(places))) == UNKNOWN)


def _last_try(habitat: "Habitat", start: int, since: int) -> tuple[str | None, int]:
    """The last refresh after `start` that did not lead to a champion, and how many answers are missing until the next."""
    champions = {each.detector for each in habitat.promotions()}
    tries = [
        each
        for each in habitat.detectors()
        if each.id not in champions and each.trained_until > start and int(_made(habitat, each.id).get("since", 0)) == since
    ]
    if not tries:
        return None, 0
    until = max(each.trained_until for each in tries)
    return tries[-1].id, max(0, 2 * until - start - _last_answer(habitat))


def _last_answer(habitat: "Habitat") -> int:
    with habitat.store.index.reading() as index:
        return int(index.execute("SELECT max(id) FROM answers").fetchone()[0] or 0)


def _made(habitat: "Habitat", detector: str) -> dict[str, Any]:
    """What the record of a detector that is not loaded says of the habitat."""
    made: Any = read_description(habitat.directory(detector))["record"].get("habitat", {})
    return dict(made)


def look(
    habitat: "Habitat", champion: str, holdout_scores: npt.ArrayLike, error: float = ERROR
) -> tuple[Evidence, UnknownShare | None, list[tuple[float, Block, float, float, float]]]:
    """Look at the champion's traffic: the sequential test, the last rows, and the course by day.

    Each day is (its start, its block, bound, estimate, evidence after it).
    """
    test = SequentialTest.of(holdout_scores, error)
    name = f"unknowns {champion} {blake2b(np.asarray(holdout_scores).tobytes(), digest_size=8).hexdigest()}"
    closed = _closed(habitat, name, len(test.thresholds))
    after = max((each["until"] for each in closed), default=0)
    rows = habitat.store.rows(after=after, detector=champion)
    days = np.where(rows.time < _settled_until(habitat), np.floor(rows.time / DAY), np.nan)
    pending = [_measured(test, rows, days == day, holdout_scores) for day in np.unique(days[~np.isnan(days)])]
    today = np.floor(habitat.clock() / DAY) * DAY
    finished = [each for each in pending if each["start"] < today]
    if finished and not habitat.store.index.readonly:
        _close(habitat, name, finished)
    course = closed + pending
    blocks = [Block(each["rows"], tuple(each["above"])) for each in course]
    evidence = test.run(blocks)
    with habitat.store.index.reading() as index:
        query = "SELECT score FROM answers WHERE detector = ? ORDER BY id DESC LIMIT ?"
        last = np.array([np.nan if each is None else each for (each,) in index.execute(query, (champion, RECENT))])
    recent = unknown_share(holdout_scores, finite_scores(last)) if len(last) else None
    listed = [
        (each["start"], block, each["bound"], each["estimate"], value)
        for each, block, value in zip(course, blocks, evidence.values, strict=True)
    ]
    return evidence, recent, listed


def _settled_until(habitat: "Habitat") -> float:
    """The time until which it is settled which rows are kept.

    A window that has had more answers than it keeps exchanges rows until it ends. A look at rows that are gone at the next
    look would be no look at the same traffic.
    """
    windows = habitat.store.windows()
    if not len(windows) or windows.below[-1] >= 1 or habitat.clock() >= windows.start[-1] + habitat.store.window:
        return math.inf
    return float(windows.start[-1])


def _examples_after(habitat: "Habitat", after: int) -> int:
    """How many rows with an example have a later id."""
    with habitat.store.index.reading() as index:
        query = "SELECT count(*) FROM answers WHERE id > ? AND shard IS NOT NULL"
        return int(index.execute(query, (after,)).fetchone()[0])


def _comparing_after(habitat: "Habitat", after: int) -> int:
    """How many of these rows a comparison takes: those that are not evidence."""
    with habitat.store.index.reading() as index:
        rows = index.execute("SELECT id FROM answers WHERE id > ? AND shard IS NOT NULL", (after,))
        return int(np.sum(~is_evidence(np.array([id_ for (id_,) in rows], np.int64))))


def _measured(test: SequentialTest, rows: Rows, mask: npt.NDArray[np.bool_], holdout: npt.ArrayLike) -> dict[str, Any]:
    """A day of rows, as it is recorded."""
    block, share = test.count(rows.score[mask]), unknown_share(holdout, finite_scores(rows.score[mask])[-RECENT:])
    return {
        "start": float(np.floor(rows.time[mask][0] / DAY) * DAY),
        "until": int(rows.id[mask][-1]),
        "rows": block.rows,
        "above": list(block.above),
        "bound": share.bound,
        "estimate": share.estimate,
    }


def _closed(habitat: "Habitat", name: str, thresholds: int) -> list[dict[str, Any]]:
    """The days of a test that were recorded."""
    with habitat.store.index.reading() as index:
        texts = [row["data"] for row in index.execute("SELECT data FROM looks WHERE test = ? ORDER BY number", (name,))]
    days = []
    for text in texts:
        try:
            day: dict[str, Any] = parse(text.encode(), dict[str, Any])
        except SchemaError:
            continue
        if len(day.get("above", ())) == thresholds:
            days.append(day)
    return days


def _close(habitat: "Habitat", name: str, days: Sequence[dict[str, Any]]) -> None:
    """Record days; another process may have recorded some of them meanwhile."""
    with habitat.store.index.writing() as index:
        query = "SELECT max(json_extract(data, '$.until')) AS until FROM looks WHERE test = ?"
        until = index.execute(query, (name,)).fetchone()["until"] or 0
        rows = [(habitat.clock(), name, json.dumps(day)) for day in days if day["until"] > until]
        index.executemany("INSERT INTO looks(time, test, data) VALUES(?, ?, ?)", rows)


def _by_day(windows: Windows) -> list[Day]:
    starts = np.floor(windows.start / DAY) * DAY
    names = ("seen", "unknown", "sampled", "dropped")
    return [
        Day(float(start), **{name: int(getattr(windows, name)[starts == start].sum()) for name in names})
        for start in np.unique(starts)
    ]


def _with_course(days: Sequence[Day], course: Sequence[tuple[float, Block, float, float, float]]) -> list[Day]:
    """The days with what the test of the champion says of them."""
    by_start = {day.start: day for day in days}
    for start, block, bound, estimate, evidence in course:
        day = by_start.get(start, Day(start))
        by_start[start] = Day(
            day.start, day.seen, day.unknown, day.sampled, day.dropped, block.rows, bound, estimate, evidence
        )
    return [by_start[start] for start in sorted(by_start)]
