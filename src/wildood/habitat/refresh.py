"""A challenger: `fit` on what the habitat has collected, with the champion's model, method and schedule."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildood.data.files import DAMAGED_ARRAY, locked, write_array_file
from wildood.data.fingerprint import role_of, role_text
from wildood.data.mapped import MappedSource
from wildood.data.schema import SchemaError, check_arguments
from wildood.data.sources import Source
from wildood.data.validation import classes_of, labelled_and_holdout, rows_of
from wildood.detect.detector import WARNINGS, Detector, Promise, warnings_of
from wildood.detect.fit import fit
from wildood.detect.split import TAIL, SplitHoldout, check_holdout_size, check_seed
from wildood.detect.storage import read_description
from wildood.errors import InputError
from wildood.habitat.answers import Judged
from wildood.habitat.drift import KnownToday, measured_until
from wildood.habitat.holdout import ChangedParts, HoldoutParts, trains
from wildood.habitat.judged import is_choice, is_evidence, known_part
from wildood.habitat.snapshot import open_snapshot, take_snapshot
from wildood.habitat.summary import Summary, count_text
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.methods.woods import Woods
from wildood.train.progress import logger, verbose_logging

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat

RUN, FROZEN, TRAFFIC = "refresh", "frozen.npz", "traffic"
Integers = npt.NDArray[np.int64]
FORCED = (
    "the champion's threshold was set by judged known answers, by force; the challenger's is of the holdout again: to keep "
    "the former, calibrate by force once it is promoted"
)
_REVIEW = "more known answers of the random sample (wildood habitat review)"
_ADVICE = (  # what `fit` advises, and what a refresh has in its place
    ("known examples of today as fresh= (--fresh) would help", f"{_REVIEW} would help"),
    ("give known examples of today as fresh= (--fresh)", f"give {_REVIEW}"),
    (", or keep='last' (--keep last)", ""),
    ("a larger alpha (--alpha)", "a larger alpha= (in Python)"),
    ("give others, or no holdout", "give others"),
    (" or more wild data", " or collect more traffic"),
    ("give wild data with some unknowns, or more of it", "collect more traffic"),
    (": name the submodule whose output are the features with features= (--features)", ""),
    ("frozen (--frozen) needs an nn.Linear: leave it out", "give another method (--method)"),
    (
        (
            "say how they become model input, with input=InputSpec(mean=..., std=...) in Python or --mean and --std on the "
            "command line, as the model was trained (wildood pretrain wrote them to its settings.toml); or "
        ),
        "",
    ),
    ("leave frozen (--frozen) out", "give another method (--method)"),
    ("a fixed setting of the score (--epsilon)", "a method with a fixed epsilon= (in Python)"),
    ("give input=InputSpec(mean=..., std=...) (--mean and --std), too", "give another method (--method)"),
)


@dataclass(frozen=True, repr=False)
class Refresh(Summary):
    """What `Habitat.refresh` returns.

    Attributes:
        challenger: the id of the new detector.
        champion: the id of the detector that it may replace.
        wild: how many rows of traffic it was trained on.
        unknown: how many of these were judged unknown.
        until: the largest id among them; later traffic may judge it.
        fresh: judged known examples of the random sample that took part in training.
        labelled: judged known examples that were added to the labelled ones.
        calibrated_on: "holdout", or "judged known examples, because known scores have changed".
        promise: of the challenger, as text.
        helped: whether training was shown to help; if not, the challenger has the starting classifier with its best score.
        warnings: what to know before it is promoted.
    """

    challenger: str
    champion: str
    wild: int
    unknown: int
    until: int
    fresh: int
    labelled: int
    calibrated_on: str
    promise: str
    helped: bool
    warnings: tuple[str, ...]

    @property
    def summary(self) -> dict[str, str]:
        """The result in a few lines; first, whether training helped."""
        kept = "training did not help: the challenger is the starting classifier with its best score"
        return {
            **({} if self.helped else {"NOT TRAINED": kept}),
            "challenger": f"{self.challenger}, to replace {self.champion}",
            "data": (
                f"{count_text(self.wild, 'row')} of traffic up to answer {self.until} ({self.unknown} judged unknown), "
                f"{self.fresh} fresh and {self.labelled} labelled by people"
            ),
            "promise": f"{self.promise}; calibrated on {self.calibrated_on}",
            **{f"warning {number}": text for number, text in enumerate(self.warnings, 1)},
            "next": "collect later traffic, then compare",
        }


@dataclass(frozen=True)
class _Rows:
    """The rows that a refresh trains on, frozen when it starts.

    Attributes:
        wild: ids of the traffic.
        judged: ids of the answers that were judged, and
        classes: what they were called; -1 for unknown.
        parent: the champion's id.
        since: known data is as it is now from this id on; 0: no change has been found since the holdout.
    """

    wild: Integers
    judged: Integers
    classes: Integers
    parent: str
    since: int

    @property
    def until(self) -> int:
        """The largest id that the challenger has seen."""
        return int(max(self.wild.max(initial=0), self.judged.max(initial=0)))

    def write(self, path: Path) -> None:
        """Write them to a file."""
        parent = np.frombuffer(self.parent.encode(), np.uint8)
        since = np.array(self.since)
        write_array_file(path, wild=self.wild, judged=self.judged, classes=self.classes, parent=parent, since=since)

    @classmethod
    def read(cls, path: Path) -> "_Rows | None":
        """Those of a file; None where there is none that can be read."""
        try:
            with np.load(path, allow_pickle=False) as file:
                wild, judged, classes = (file[name].astype(np.int64) for name in ("wild", "judged", "classes"))
                return cls(wild, judged, classes, file["parent"].tobytes().decode(), int(file["since"]))
        except (FileNotFoundError, *DAMAGED_ARRAY):
            return None


def refresh(
    habitat: "Habitat",
    champion: Detector,
    labelled: Any,
    holdout: Any,
    *,
    start: nn.Module | None = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
    alpha: float | None = None,
    allow_duplicates: bool = False,
    restart: bool = False,
    seed: int = 0,
    verbose: bool = True,
) -> Refresh:
    """Train a challenger on what was collected. Called again after it was killed, it goes on with the same rows.

    Wild data are the rows with examples that are not judged known, without those that measure or choose (`is_evidence`,
    `is_choice`). Judged known examples of the rest of the random sample are `fresh`, if there are enough for ten false
    alarms; all other judged known ones are added to `labelled`.

    Where known data has changed since the holdout, nothing of the holdout is used. Judged known examples since the change
    take its place, as `ChangedParts` says, and wild data are the rows since the change.

    Args:
        habitat: with the traffic.
        champion: its champion. The challenger has its method and schedule, its rate of false alarms and its input spec.
        labelled: ID examples with their classes, as for `fit`.
        holdout: `(x, y)` that no classifier was trained on, as for `fit`; it is split as `HoldoutParts` says.
        start: the classifier to start from, which has seen none of the holdout; by default the champion's.
        method: another method than the champion's.
        schedule: another schedule than the champion's.
        alpha: another rate of false alarms than the champion's.
        allow_duplicates: as for `fit`.
        restart: leave an unfinished refresh, and start with the rows of now.
        seed: decides every random draw.
        verbose: show progress.
    """
    seed, parent = check_seed(seed), habitat.champion
    promise = champion.promise or Promise(0.05, 0, unseen=False)
    alpha = promise.alpha if alpha is None else alpha
    method = recorded_method(champion) if method is None else method
    schedule = recorded_schedule(champion, method) if schedule is None else schedule
    model, spec = _start_of(champion, start), champion.classifier.spec
    names = champion.record.get("classes") or list(classes_of(labelled))
    known, unseen = labelled_and_holdout(rows_of(labelled, spec, "labelled"), rows_of(holdout, spec, "holdout"))
    if unseen is None:
        raise InputError("a refresh needs holdout=(x, y) (--holdout) that no classifier was trained on")
    if start is None:
        _refuse_leaks(habitat, parent, unseen)
    directory = habitat.path / RUN
    directory.mkdir(exist_ok=True)
    with verbose_logging(verbose=verbose), locked(directory) as mine:
        if not mine:
            raise InputError(f"another process refreshes {habitat.path}: wait for it")
        rows, wild = _frozen_rows(habitat, champion, parent, alpha, promise.confidence, restart=restart)
        judged = _as_frozen(habitat.store.judged(), rows)
        measured = measured_until(champion)
        is_undone = not rows.since and bool(champion.record.get("habitat", {}).get("forced"))
        if rows.since:
            changed = ChangedParts.of(judged, KnownToday.of(judged, champion), rows.since, alpha, promise.confidence)
            halves, fresh_mask, measured = changed.halves, changed.fresh, changed.measured
            calibrated_on, allow_duplicates = "judged known examples, because known scores have changed", True
        else:
            parts = HoldoutParts.of(unseen)
            halves, calibrated_on = SplitHoldout(unseen, parts.choice.indices, parts.threshold.indices), "holdout"
            with _advising():
                check_holdout_size(len(parts.threshold), alpha, promise.confidence)
            fresh_mask = trains(judged.answer) & (judged.class_ >= 0)
            fresh_mask &= fresh_mask.sum() >= TAIL / alpha
        fresh = known_part(judged, fresh_mask)
        more = known_part(judged, ~fresh_mask & ~is_evidence(judged.answer) & ~is_choice(judged.answer))
        together = known if more is None else _concatenated(known, more)
        with _advising():
            detector = fit(
                model, together, wild, halves, fresh=fresh, method=method, schedule=schedule, alpha=alpha,
                confidence=promise.confidence, by_class=promise.by_class, input=spec, features=_features(champion),
                forward=champion.classifier.call, frozen=bool(champion.record.get("frozen", False)),
                precision=champion.record.get("precision", "float32"), allow_duplicates=allow_duplicates,
                run_dir=directory / "run", seed=seed, verbose=verbose,
            )  # fmt: skip
        _advise(detector.record)
        detector.tokenizer = champion.tokenizer
        detector.record |= {name: champion.record[name] for name in ("text",) if name in champion.record}
        detector.record |= {"classes": list(names)} if names else {}
        about = {"parent": parent, "until": rows.until, "wild": len(rows.wild), "calibrated on": calibrated_on}
        about |= {"start": start is not None, "since": rows.since, "measured": measured}
        detector.record["habitat"] = about
        challenger = habitat.add(detector, parent=parent, trained_until=rows.until)
        _clear(directory)
    return Refresh(
        challenger=challenger,
        champion=parent,
        wild=len(rows.wild),
        unknown=int(np.isin(rows.wild, rows.judged[rows.classes < 0]).sum()),
        until=rows.until,
        fresh=0 if fresh is None else len(fresh),
        labelled=0 if more is None else len(more),
        calibrated_on=calibrated_on,
        promise=detector.promise_text,
        helped=not detector.record.get("assessment", {}).get("start_kept", False),
        warnings=(*warnings_of(detector.record), *((FORCED,) if is_undone else ())),
    )


class _Advised(logging.Filter):
    """Rewords what `fit` logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record, with the advice of a refresh."""
        record.msg, record.args = _advised(record.getMessage()), None
        return True


@contextmanager
def _advising() -> Iterator[None]:
    """What `fit` logs and raises advises what a refresh has: it has fewer options, and its own data."""
    advised = _Advised()
    logger.addFilter(advised)
    try:
        yield
    except InputError as error:
        raise type(error)(_advised(str(error))) from error
    finally:
        logger.removeFilter(advised)


def _advise(record: dict[str, Any]) -> None:
    """Reword the warnings of a record, which the page and the card of the detector show."""
    record |= {name: _advised(record[name]) for name in WARNINGS if name in record}
    if "assessment" in record:
        record["assessment"]["warnings"] = [_advised(text) for text in record["assessment"]["warnings"]]


def _advised(text: str) -> str:
    for of_fit, of_refresh in _ADVICE:
        text = text.replace(of_fit, of_refresh)
    return text


def recorded_method(champion: Detector) -> Method:
    """The method of a detector's record; `Woods()` for one that was not trained by any that ships."""
    record: dict[str, Any] = dict(champion.record.get("method", {}))
    cls: Any = {each.__name__: each for each in METHODS.values()}.get(record.pop("name", ""))
    if cls is None:
        return Woods()
    try:
        method: Method = cls(**check_arguments(record, cls))
    except (SchemaError, TypeError, InputError) as error:
        raise InputError(f"the champion's method cannot be read from its record ({error}): give method=") from error
    return method


def recorded_schedule(champion: Detector, method: Method) -> Schedule:
    """The schedule of a detector's record, if it is of this method; else the method's own."""
    record: dict[str, Any] = champion.record.get("schedule", {})
    if not record or recorded_method(champion) != method:
        return method.schedule()
    names = {each.name for each in fields(Schedule)}
    try:
        schedule = Schedule(**check_arguments({name: each for name, each in record.items() if name in names}, Schedule))
    except (SchemaError, TypeError, InputError) as error:
        raise InputError(f"the champion's schedule cannot be read from its record ({error}): give schedule=") from error
    return schedule


def _refuse_leaks(habitat: "Habitat", champion: str, holdout: Source) -> None:
    """Refuse a holdout of which a part may have trained the champion's classifier, or one that it was trained from.

    What a refresh was given as its holdout has been split by `HoldoutParts`, as it will be again. Elsewhere, `fit` may have
    trained on any third of a holdout; a post-hoc score trains no classifier.
    """
    parents = {each.id: each.parent for each in habitat.detectors()}
    ancestor: str | None = champion
    while ancestor is not None:
        record = read_description(habitat.directory(ancestor))["record"]
        made_here: dict[str, Any] | None = record.get("habitat")  # type: ignore[assignment]
        role = role_of(record, holdout) if "method" in record else ""
        if role and (made_here is None or role not in {"holdout", "threshold"}):
            raise InputError(
                f"the holdout: these examples {role_text(role)} ({ancestor}), and some may have trained its classifier: "
                "give others, or the classifier that it was trained from as start= (--weights)"
            )
        ancestor = None if made_here is None or made_here.get("start") else parents[ancestor]


def _start_of(champion: Detector, start: nn.Module | None) -> nn.Module:
    if start is not None:
        return start
    if champion.classifier.head is not None:
        raise InputError(
            f"the champion's logits are made by a head of its own ({type(champion.classifier.head).__name__}): give the "
            "classifier that it was trained from as start= (--weights)"
        )
    return champion.classifier.model


def _features(champion: Detector) -> str | None:
    """The submodule that the champion's features are the output of, if a user named one."""
    tap = champion.classifier.tap
    return None if tap is None or tap.side == "input" else tap.layer


def _frozen_rows(
    habitat: "Habitat", champion: Detector, parent: str, alpha: float, confidence: float | None, *, restart: bool
) -> tuple[_Rows, MappedSource]:
    """The rows of an unfinished refresh, or those of now, which are frozen; with the examples of the traffic."""
    place = habitat.path / RUN
    rows = None if restart else _Rows.read(place / FROZEN)
    if rows is not None and not _is_done(habitat, rows):
        if rows.parent == parent:
            logger.info("going on with the refresh of %s rows up to answer %d", f"{len(rows.wild):,}", rows.until)
            return rows, open_snapshot(place / TRAFFIC)[1]
        logger.info("the unfinished refresh cannot go on: %s is the champion now, not %s", parent, rows.parent)
    _clear(place)
    judged = habitat.store.judged()
    today = KnownToday.of(judged, champion)
    if today.since:
        ChangedParts.of(judged, today, today.since, alpha, confidence)  # refuses too few before anything is written
    present = habitat.store.rows(after=max(0, today.since - 1), with_examples=True).id
    is_known = np.isin(present, judged.answer[judged.class_ >= 0])
    wild = present[~is_known & ~is_evidence(present) & ~is_choice(present)]
    rows = _Rows(wild, judged.answer, judged.class_, parent, today.since)
    if not len(rows.wild):
        raise InputError(f"{habitat.path} has no traffic with examples to train on: serve with collect='full' first")
    snapshot = take_snapshot(habitat.store, rows.wild, place / TRAFFIC)
    rows.write(place / FROZEN)  # last: it says that the snapshot is whole
    return rows, snapshot


def _clear(place: Path) -> None:
    """Remove an unfinished refresh, or what a finished one left."""
    (place / FROZEN).unlink(missing_ok=True)  # first: without it, nothing goes on
    for name in ("run", TRAFFIC):
        shutil.rmtree(place / name, ignore_errors=True)


def _is_done(habitat: "Habitat", rows: _Rows) -> bool:
    """Whether the refresh was killed only after its challenger was added."""
    return any(each.parent == rows.parent and each.trained_until == rows.until for each in habitat.detectors())


def _as_frozen(judged: Judged, rows: _Rows) -> Judged:
    """The judgements as they were when the refresh started."""
    frozen = np.isin(judged.answer, rows.judged)
    before = dict(zip(rows.judged.tolist(), rows.classes.tolist(), strict=True))
    same = np.array(
        [before.get(answer) == class_ for answer, class_ in zip(judged.answer, judged.class_, strict=True)], bool
    )
    kept = frozen & same
    known = judged.known
    if known is not None:
        places = np.flatnonzero(kept[judged.class_ >= 0])
        labels = None if known.labels is None else np.asarray(known.labels)[places]
        known = replace(known, which=known.which[places], rows=known.rows[places], labels=labels) if len(places) else None
    columns = {name: getattr(judged, name)[kept] for name in ("answer", "answered", "time", "who", "class_")}
    return Judged(**columns, known=known, unknown=None)


def _concatenated(first: Source, second: Source) -> MappedSource:
    """Two labelled sources as one."""
    sources = (first, second)
    which = np.repeat(np.arange(2), [len(first), len(second)])
    rows = np.concatenate([np.arange(len(each)) for each in sources])
    labels = [each.gather(torch.arange(len(each)))[1] for each in sources]
    return MappedSource(sources, which, rows, np.concatenate([each.numpy() for each in labels if each is not None]))
