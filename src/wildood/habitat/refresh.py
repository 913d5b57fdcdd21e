"""A challenger: `fit` on what the habitat has collected, with the champion's model, method and schedule."""

import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildood.data.files import DAMAGED_ARRAY, locked, write_array_file
from wildood.data.fingerprint import ExampleHashes, role_of, role_text
from wildood.data.mapped import MappedSource
from wildood.data.sampling import generator, permutation
from wildood.data.schema import SchemaError, check_arguments
from wildood.data.sources import Part, Source
from wildood.data.validation import classes_of, labelled_and_holdout, rows_of
from wildood.detect.detector import Detector, Promise, warnings_of
from wildood.detect.fit import fit
from wildood.detect.split import TAIL, check_holdout_size, check_overlap, check_seed
from wildood.detect.storage import read_description
from wildood.errors import InputError
from wildood.evaluate.thresholds import examples_needed
from wildood.habitat.answers import Judged
from wildood.habitat.judged import is_evidence, is_random, known_drift, known_evidence, known_part
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
        calibrated_on: "holdout", or "judged known examples" where known scores have changed.
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
class HoldoutParts:
    """A holdout in three parts, each example by a hash of its content: so it has the same part in every refresh.

    Attributes:
        choice: half: `fit` chooses an epoch and a score with it, and may train on some of it.
        threshold: a quarter: it sets thresholds and does nothing else, so that the promise is exact although a refresh
            starts from the classifier of an earlier one.
        comparison: a quarter: it compares champion and challenger, and no fit sees it.
    """

    choice: Source
    threshold: Source
    comparison: Source

    @classmethod
    def of(cls, holdout: Source) -> "HoldoutParts":
        """Those of a holdout. Examples of a dataset that changes at each reading are split by their number.

        >>> from wildood.data.sources import ArraySource
        >>> parts = HoldoutParts.of(ArraySource(np.arange(800.0)[:, None]))
        >>> len(parts.choice), len(parts.threshold), len(parts.comparison)
        (387, 209, 204)
        """
        hashes = ExampleHashes(holdout)
        if hashes.is_repeatable and hashes.count == len(holdout):
            quarter = hashes.values() % np.uint64(4)
        else:
            order = permutation(len(holdout), generator(0, "habitat-holdout"))
            quarter = np.asarray(order[torch.arange(len(holdout))]).astype(np.uint64) % np.uint64(4)
        masks = (quarter < 2, quarter == 2, quarter == 3)
        return cls(*(Part(holdout, torch.from_numpy(np.flatnonzero(mask))) for mask in masks))


@dataclass(frozen=True)
class _Rows:
    """The rows that a refresh trains on, frozen when it starts.

    Attributes:
        wild: ids of the traffic.
        judged: ids of the answers that were judged, and
        classes: what they were called; -1 for unknown.
        parent: the number of the champion's id.
    """

    wild: Integers
    judged: Integers
    classes: Integers
    parent: str

    @property
    def until(self) -> int:
        """The largest id that the challenger has seen."""
        return int(max(self.wild.max(initial=0), self.judged.max(initial=0)))

    def write(self, path: Path) -> None:
        """Write them to a file."""
        parent = np.frombuffer(self.parent.encode(), np.uint8)
        write_array_file(path, wild=self.wild, judged=self.judged, classes=self.classes, parent=parent)

    @classmethod
    def read(cls, path: Path) -> "_Rows | None":
        """Those of a file; None where there is none that can be read."""
        try:
            with np.load(path, allow_pickle=False) as file:
                wild, judged, classes = (file[name].astype(np.int64) for name in ("wild", "judged", "classes"))
                return cls(wild, judged, classes, file["parent"].tobytes().decode())
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

    Wild data are the rows with examples that are not judged known, and no evidence (`is_evidence`). Judged known examples of
    the other half of the random sample are `fresh`, if there are enough for ten false alarms; all other judged known ones
    are added to `labelled`.

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
    parts = HoldoutParts.of(unseen)
    check_holdout_size(len(parts.threshold), alpha, promise.confidence)
    directory = habitat.path / RUN
    directory.mkdir(exist_ok=True)
    with verbose_logging(verbose=verbose), locked(directory) as mine:
        if not mine:
            raise InputError(f"another process refreshes {habitat.path}: wait for it")
        rows, wild = _frozen_rows(habitat, parent, restart=restart)
        judged = _as_frozen(habitat.store.judged(), rows)
        fresh_mask = is_random(judged.answer) & ~is_evidence(judged.answer)
        fresh = known_part(judged, fresh_mask)
        if fresh is not None and len(fresh) < TAIL / alpha:
            fresh, fresh_mask = None, np.zeros_like(fresh_mask)
        more = known_part(judged, ~fresh_mask & ~is_evidence(judged.answer))
        together = known if more is None else _concatenated(known, more)
        others: dict[str, list[Source]] = {"labelled": [together], "wild": [wild], "fresh": [] if fresh is None else [fresh]}
        caveat = check_overlap(unseen, others, allow_duplicates=allow_duplicates)
        detector = fit(
            model, together, wild, parts.choice, fresh=fresh, method=method, schedule=schedule, alpha=alpha,
            confidence=promise.confidence, by_class=promise.by_class, input=spec, features=_features(champion),
            forward=champion.classifier.call, frozen=bool(champion.record.get("frozen", False)),
            precision=champion.record.get("precision", "float32"), allow_duplicates=allow_duplicates,
            run_dir=directory / "run", seed=seed, verbose=verbose,
        )  # fmt: skip
        promise = Promise(alpha, 0, unseen=True, confidence=promise.confidence, by_class=promise.by_class, caveat=caveat)
        calibrated_on = _calibrate(habitat, champion, detector, parts.threshold, promise)
        detector.tokenizer = champion.tokenizer
        detector.record |= {name: champion.record[name] for name in ("text",) if name in champion.record}
        detector.record |= {"classes": list(names)} if names else {}
        about = {"parent": parent, "until": rows.until, "wild": len(rows.wild), "calibrated on": calibrated_on}
        about |= {"start": start is not None}
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
        warnings=tuple(warnings_of(detector.record)),
    )


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


def _frozen_rows(habitat: "Habitat", parent: str, *, restart: bool) -> tuple[_Rows, MappedSource]:
    """The rows of an unfinished refresh, or those of now, which are frozen; with the examples of the traffic."""
    place = habitat.path / RUN
    rows = None if restart else _Rows.read(place / FROZEN)
    if rows is not None and not _is_done(habitat, rows):
        if rows.parent == parent:
            logger.info("going on with the refresh of %s rows up to answer %d", f"{len(rows.wild):,}", rows.until)
            return rows, open_snapshot(place / TRAFFIC)[1]
        logger.info("the unfinished refresh cannot go on: %s is the champion now, not %s", parent, rows.parent)
    _clear(place)
    judged, present = habitat.store.judged(), habitat.store.rows(with_examples=True).id
    is_known = np.isin(present, judged.answer[judged.class_ >= 0])
    rows = _Rows(present[~is_known & ~is_evidence(present)], judged.answer, judged.class_, parent)
    if not len(rows.wild):
        raise InputError(f"{habitat.path} has no traffic with examples to train on: serve with collect='full' first")
    wild = take_snapshot(habitat.store, rows.wild, place / TRAFFIC)
    rows.write(place / FROZEN)  # last: it says that the snapshot is whole
    return rows, wild


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


def _calibrate(habitat: "Habitat", champion: Detector, detector: Detector, threshold: Source, promise: Promise) -> str:
    """Set the threshold by examples that no classifier has seen; gives which.

    Where known scores have changed, these are the newest judged known evidence, at most as many as make ten false alarms.
    """
    trained = next(each.trained_until for each in habitat.detectors() if each.id == habitat.champion)
    fresh, source, name = known_evidence(habitat.store.judged(), trained), threshold, "holdout"
    needed, most = examples_needed(promise.alpha, promise.confidence), round(TAIL / promise.alpha)
    if fresh is not None and len(fresh) >= needed and champion.holdout_scores is not None:  # noqa: SIM102 - it takes time
        if known_drift(champion.holdout_scores, champion.score(fresh)).found:
            source = Part(fresh.source, fresh.indices[torch.arange(len(fresh))[-max(needed, most) :]])
            name = "judged known examples, because known scores have changed"
    promise = replace(promise, examples=len(source))
    try:
        detector.calibrate_on(source, promise)
    except InputError as error:
        if not promise.by_class:
            raise
        logger.warning("by class was NOT done, one threshold is for all classes: %s", error)
        detector.calibrate_on(source, replace(promise, by_class=False))
        detector.record["not_by_class"] = str(error)
    return name
