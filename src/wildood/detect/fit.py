"""`fit`: a user's classifier and data in, a trained and calibrated detector out."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.data.sampling import seeded
from wildood.data.sources import Source
from wildood.data.validation import all_labels, check_labels
from wildood.detect.assessment import assess, training_benefit
from wildood.detect.checks import (
    check_augmentation,
    check_run_dir,
    check_schedule,
    check_seed,
    check_spec,
    check_trainable,
    copy_classifier,
    run_record,
    versions,
)
from wildood.detect.choose_score import ChosenScore, choose_score
from wildood.detect.detector import Detector
from wildood.detect.frozen import check_frozen, freeze, put_back
from wildood.detect.posthoc import ACCURACY_SAMPLE, warn_of_accuracy
from wildood.detect.promise import Promise
from wildood.detect.split import FitSplit, split_for_fit, subsample
from wildood.errors import InputError
from wildood.evaluate.selection import Comparison
from wildood.evaluate.thresholds import check_alpha, check_confidence
from wildood.methods.objective import Method, Objective, Start, stages_of
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.scores.score import Score
from wildood.settings import check_callable, check_choice, check_flag, optional
from wildood.train.callbacks import AddColumns, Callback, OnEpoch
from wildood.train.checkpoint import RunDirectory
from wildood.train.distributed import broadcast, check_distributed, check_same_on_all_processes, this_process
from wildood.train.history import Row
from wildood.train.loop import train
from wildood.train.monitor import Monitor, measure_start
from wildood.train.progress import logger, verbose_logging
from wildood.train.selection import Keep, SelectEpoch


def fit(
    model: nn.Module,
    labelled: Any,
    wild: Any = None,
    holdout: Any = None,
    *,
    method: Method | None = None,
    schedule: Schedule | Literal["auto"] | None = None,
    alpha: float | None = None,
    confidence: float | None = None,
    by_class: bool = False,
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
    features: str | None = None,
    frozen: bool = False,
    keep: Keep = "best",
    ood: Any = None,
    allow_duplicates: bool = False,
    run_dir: str | Path | None = None,
    seed: int = 0,
    verbose: bool = True,
    callbacks: Sequence[Callback] = (),
    on_epoch: OnEpoch | None = None,
) -> Detector:
    """Teach a classifier to say "unknown" from wild data; the model you pass is copied, never changed.

    Args:
        model: any module that maps a batch to logits (a tensor, or an output with `.logits`).
        labelled: `(x, y)`, a dataset of pairs, or what `open_images` gives: ID examples with their classes.
        wild: `x`, a dataset, or what `open_images` gives: unlabelled traffic, known and unknown mixed; or a `WildMixture`. A
            method that trains without (`Godin`) chooses a setting of its score by it, if there is one to choose.
        holdout: `(x, y)` that neither the model nor this fit has trained on. The promise rests on it: without it, a share of
            `labelled` is set aside and nothing is promised.
        method: what to train with; `Woods()` unless given.
        schedule: how long and how fast; the method's own unless given (of one with several stages, that of the first).
            "auto" ends by itself, when neither wild acceptance nor the constraints improve on data set aside.
        alpha: the false-alarm rate of the deployed threshold; the method's unless given.
        confidence: promise that rate with this probability over the draw of the holdout, instead of on average.
        by_class: a threshold for each predicted class, so that no class bears all false alarms.
        input: how uint8 images become model input; floats go in as they are without it.
        features: the submodule whose output are the features, for methods that use them; found if not given.
        frozen: train only the last layer and what the method adds, on features that are computed once and held in memory:
            fast, and the rest of the model stays as it is.
        keep: the "best" epoch by wild acceptance on data set aside (no OOD labels), or the start where no epoch is shown to
            help; or the "last"; "as_published" is the
            released choice: the whole holdout and `ood` choose, whatever it costs in accuracy, and nothing is promised.
        ood: examples that are known to be OOD, if there are any: they choose the epoch in the place of wild data, and are
            used for nothing else.
        allow_duplicates: equal examples in the holdout and in training data are no leak, because inputs repeat by nature
            (few distinct rows or token sequences). The promise then says how many are equal. Without it, more equal examples
            than chance explains are refused.
        run_dir: where to keep checkpoints and history; called again with the same arguments, a killed run goes on.
        seed: decides every random draw.
        verbose: show progress.
        callbacks: what else to do while it trains: instances of `wildood.Callback`.
        on_epoch: called with each row of the history; the short form of a callback.

    Of several threads that call it, one trains at a time and the others wait: all share torch's random generator.

    Called by every process that torchrun has started, it trains on all of them and gives the same detector to each; save it
    in the first one only (docs/scale.md).

    >>> import numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> rng = np.random.default_rng(0)
    >>> def known(n):
    ...     y = rng.integers(0, 2, n)
    ...     return (rng.normal(size=(n, 2)) + 6 * y[:, None]).astype("float32"), y
    >>> wild = np.concatenate([known(450)[0], rng.normal(size=(50, 2)).astype("float32") + (9, -9)]).astype("float32")
    >>> detector = wildood.fit(MLP(2, 2), known(500), wild, known(200), schedule=wildood.Schedule(steps=20), verbose=False)
    >>> print(detector.promise)
    false-alarm rate <= 5 % on average over holdouts, if the 100 holdout examples are unseen and future ID data has the same
    distribution
    """
    method = _checked_method(method)
    schedule = check_schedule(schedule, method.schedule(), looks=method.uses_wild and keep == "best")
    _check_keep(keep, ood, holdout)
    flags = {"by_class": by_class, "frozen": frozen, "verbose": verbose, "allow_duplicates": allow_duplicates}
    by_class, frozen, verbose, allow_duplicates = (check_flag(value, name) for name, value in flags.items())
    alpha, confidence = check_alpha(method.alpha if alpha is None else alpha), optional(check_confidence)(confidence)
    seed, run_dir, callbacks = check_seed(seed), check_run_dir(run_dir), _checked_callbacks(callbacks)
    on_epoch = optional(check_callable)(on_epoch, "on_epoch", {})
    check_spec(input)
    if frozen:
        check_frozen(method, schedule)
    with verbose_logging(verbose=verbose), seeded(seed, "fit"), torch.inference_mode(mode=False):  # the caller may be in it
        data = split_for_fit(
            labelled, wild, holdout, schedule, alpha, input, keep, seed, confidence, ood,
            uses_wild=method.uses_wild, allow_duplicates=allow_duplicates,
        )  # fmt: skip
        classifier, classes = copy_classifier(
            model, data.labelled, input, features, uses_features=method.uses_features or frozen, trained=True
        )
        _check_network(classifier, schedule, data, classes, "labelled" if holdout is None else "holdout", frozen=frozen)
        how = {**_how(method, labelled, frozen=frozen), "alpha": alpha, "seed": seed, "keep": keep}
        record = run_record(classifier, schedule, data.fingerprints, **how)
        check_same_on_all_processes(
            {**record, "confidence": confidence, "by_class": by_class, "run_dir given": run_dir is not None}
        )
        trained, seen = freeze(classifier, data, schedule, seed) if frozen else (classifier, data)
        start = measure_start(trained, seen.labelled, seed)
        warn_of_accuracy(start.accuracy if method.uses_wild else 1.0, "labelled")
        objective = method.objective(trained, start)
        check_distributed(schedule)
        _check_choice(method, objective, keep, wild)
        data = _with_choice(data, objective, keep, alpha, confidence, seed)
        # After everything is checked: a call that is refused must leave no run behind.
        run = None if run_dir is None else RunDirectory(run_dir, record)
        # A method that trains without wild data keeps its last epoch: its start may know nothing, and guards nothing.
        monitor = Monitor(seen.selection, seen.wild_aside if method.uses_wild else None, alpha)
        common = {"labelled": seen.labelled, "wild": seen.wild, "seed": seed, "callbacks": callbacks, "on_epoch": on_epoch}
        objective, history, kept = _train(method, objective, schedule, start, run, monitor, keep, common)
        if frozen:
            put_back(trained, classifier, tapped=method.uses_features)
        record |= {"derived": objective.derived, "kept_epoch": kept, "versions": versions(), "examples": data.unlabelled}
        record |= {"processes": this_process().world} if this_process().world > 1 else {}
        data = _with_choice(data, objective, keep, alpha, confidence, seed)  # by the score of the last stage
        chosen = _choose(objective, classifier, data, alpha)
        any_choice = bool(chosen.record) or (method.uses_wild and keep != "last")
        record |= _chosen_by(data, ood, any_choice=any_choice) | ({"chosen": chosen.record} if chosen.record else {})
        deployed = _Deployed(classifier, chosen.score)
        if method.uses_wild and data.wild_aside is not None:
            deployed = _trained_or_start(model, deployed, data, alpha, keep, qualified=kept > 0)
        record |= {"kept_epoch": 0, "chosen": {}} if deployed.start_kept else {}
        detector = Detector(deployed.classifier.eval(), deployed.score, data.example, history=history, record=record)
        unseen = holdout is not None and keep != "as_published"
        promise = Promise(alpha, len(data.threshold), unseen, confidence, by_class, data.caveat)
        _calibrate(detector, data.threshold, promise)
        if method.uses_wild and data.wild_aside is not None:
            _assess(detector, deployed, data, data.wild_aside, seed)
        detector.record |= _accuracy_lost(detector, len(data.selection))
        _report(detector, keep)
    return detector


def _checked_method(method: Any) -> Method:
    """The method that was given, `Woods()` where none was."""
    if isinstance(method, type) or not (method is None or hasattr(method, "objective")):
        raise InputError(f"method is {method if isinstance(method, type) else type(method)}: give one such as Woods()")
    checked: Method = Woods() if method is None else method
    return checked


def _checked_callbacks(callbacks: Any) -> list[Callback]:
    """The callbacks that were given, each an instance of `Callback`."""
    if not isinstance(callbacks, list | tuple) or not all(isinstance(each, Callback) for each in callbacks):
        raise InputError("callbacks is not a list of callbacks: give instances of classes that derive from wildood.Callback")
    return list(callbacks)


def _check_keep(keep: Any, ood: Any, holdout: Any) -> None:
    """Refuse a choice of the epoch that is none, or that lacks what it chooses by."""
    check_choice(keep, "keep", get_args(Keep))
    if keep == "as_published" and (ood is None or holdout is None):
        raise InputError("keep='as_published' chooses the epoch by known OOD examples: give ood=x and holdout=(x, y), too")


def _check_network(
    classifier: Classifier, schedule: Schedule, data: FitSplit, classes: int, held: str, *, frozen: bool
) -> None:
    """Refuse a model that cannot be trained on this data."""
    if not frozen:  # where the last layer is trained, whatever the model says
        check_trainable(classifier)
    check_augmentation(schedule, data.example.shape)
    for part in (data.selection, data.threshold):
        check_labels(all_labels(part), held, classes)


def _how(method: Method, labelled: Any, *, frozen: bool) -> dict[str, Any]:
    """The settings that make a run this run, and the names of the classes."""
    how: dict[str, Any] = {"method": {"name": type(method).__name__, **asdict(method)}}  # type: ignore[call-overload]
    if isinstance(labelled, Images) and labelled.classes:
        how["classes"] = list(labelled.classes)
    return how | ({"frozen": True} if frozen else {})


def _check_choice(method: Method, objective: Objective, keep: Keep, wild: Any) -> None:
    """Refuse a setting of the score that nothing is left to choose by; tell of wild data that has nothing to choose."""
    several = len(objective.score.candidates()) > 1
    if wild is not None and not several and not method.uses_wild:
        logger.warning("%s does not use wild data: it trains on labelled data alone", type(method).__name__)
    if keep == "last" and several:
        raise InputError(
            "keep='last' leaves no part of the holdout to choose epsilon by: give epsilon, or keep='best' (--epsilon or "
            "--keep best)"
        )


def _with_choice(
    data: FitSplit, objective: Objective, keep: Keep, alpha: float, confidence: float | None, seed: int
) -> FitSplit:
    """The same, with a half of the holdout to choose by where the score has a setting to choose, as for an epoch."""
    if keep == "as_published" or len(objective.score.candidates()) == 1:
        return data
    return data.with_selection(alpha, confidence, seed, instead="a fixed setting of the score (--epsilon)")


def _choose(objective: Objective, classifier: Classifier, data: FitSplit, alpha: float) -> ChosenScore:
    """The score of the finished detector, with its settings."""
    by = {"ood" if "ood" in data.fingerprints else "wild": data.wild_aside}
    return choose_score(objective.score.eval().candidates(), classifier, data.selection, alpha, **by)


def _chosen_by(data: FitSplit, ood: Any, *, any_choice: bool) -> dict[str, str]:
    """What has chosen, for the record; tell of OOD examples that had nothing to choose."""
    if ood is not None and not any_choice:
        logger.warning("ood has chosen nothing: there was no epoch and no setting to choose")
    holdout = {**data.fingerprints, **data.unlabelled}.get("holdout")
    return {"chosen_by": holdout} if holdout and any_choice else {}


def _train(
    method: Method,
    objective: Objective,
    schedule: Schedule,
    start: Start,
    run: RunDirectory | None,
    monitor: Monitor,
    keep: Keep,
    common: dict[str, Any],
) -> tuple[Objective, list[Row], int]:
    """Each stage of a method on the same classifier: the last one's objective, all rows, and which of them was kept."""
    stages = stages_of(method)
    history: list[Row] = []
    kept = 0
    for number, stage in enumerate(stages, 1):
        if number > 1:  # on what the stage before it has made of the classifier
            objective, schedule = stage.objective(objective.classifier, start), stage.schedule()
        for warning in objective.warnings:
            logger.warning("%s", warning)
        settings = {**common, "run": run}
        if len(stages) > 1:
            settings["run"] = None if run is None else run.stage(number)
            settings["callbacks"] = [AddColumns({"stage": number}), *common["callbacks"]]
        select = SelectEpoch(monitor, keep, only_start=number < len(stages))
        rows, kept_here = train(objective=objective, schedule=schedule, select=select, **settings)
        kept = len(history) + kept_here
        history += rows
    return objective, history, kept


class _Deployed(NamedTuple):
    """What the detector is made of: what was trained, or the start where training was not shown to help."""

    classifier: Classifier
    score: Score
    benefit: Comparison | None = None
    start_kept: bool = False


def _trained_or_start(
    model: nn.Module, trained: _Deployed, data: FitSplit, alpha: float, keep: Keep, *, qualified: bool
) -> _Deployed:
    """The trained detector, or, of `keep="best"`, the energy of the start unless training is shown to help."""
    assert data.wild_aside is not None  # noqa: S101 - asked before
    start, _ = copy_classifier(model, data.labelled, trained.classifier.spec, None, uses_features=False)
    start = start.to(trained.classifier.device)
    if qualified or keep != "best":
        both = trained.classifier, trained.score
        found = training_benefit(start, both, data.selection, data.wild_aside, alpha)
        # Of several processes, all decide as the first one does: another machine may round otherwise.
        agreed = json.loads(broadcast(json.dumps(asdict(found)).encode()) or b"{}")
        trained = trained._replace(benefit=Comparison(**agreed))
    if keep != "best" or (trained.benefit is not None and trained.benefit.helped):
        return trained
    return _Deployed(start, EnergyScore(), trained.benefit, start_kept=True)


def _assess(detector: Detector, deployed: _Deployed, data: FitSplit, aside: Source, seed: int) -> None:
    """Write what data set aside says of the detector into its record."""
    by_ood = "ood" in data.fingerprints
    trained_on = None
    if data.wild is not None and not deployed.start_kept and not by_ood:
        trained_on = subsample(data.wild.whole(seed), len(aside), seed)
    kind = "OOD" if by_ood else "wild"
    labelled = subsample(data.labelled, ACCURACY_SAMPLE, seed)
    found = assess(detector, aside, trained_on, labelled, deployed.benefit, start_kept=deployed.start_kept, examples=kind)
    detector.record["assessment"] = found.record()


def _accuracy_lost(detector: Detector, examples: int) -> dict[str, str]:
    """For the record: that what is deployed is less accurate on data set aside than the start, beyond luck."""
    start, kept = detector.history[0], detector.history[detector.record["kept_epoch"]]
    if "accuracy" not in start or "accuracy" not in kept:
        return {}
    lost, error = start["accuracy"] - kept["accuracy"], math.sqrt(start["accuracy"] * (1 - start["accuracy"]) / examples)
    if lost <= 0.01 + 2 * error:
        return {}
    return {
        "accuracy_lost": f"the classifier is right on {100 * kept['accuracy']:.1f} % of {examples} examples set aside, the "
        f"start on {100 * start['accuracy']:.1f} %"
    }


def _calibrate(detector: Detector, holdout: Source, promise: Promise) -> None:
    """Set the threshold; one for all classes where one for each cannot be had: what was trained must not be lost."""
    try:
        detector.calibrate_on(holdout, promise)
    except InputError as error:
        if not promise.by_class:
            raise
        logger.warning("by class was NOT done, one threshold is for all classes: %s", error)
        detector.calibrate_on(holdout, replace(promise, by_class=False))
        detector.record["not_by_class"] = str(error)


def _report(detector: Detector, keep: Keep) -> None:
    """Say which epoch was kept, what is promised, and what to be warned of."""
    kept, assessment = detector.record["kept_epoch"], detector.record.get("assessment")
    for warning in detector.warnings:
        if warning != detector.record.get("ties"):  # which was said when the threshold was set
            logger.warning("%s", warning)
    if keep == "best" and kept:
        start, chosen = detector.history[0], detector.history[kept]
        what = "epoch" if detector.record["schedule"]["rounds"] is None else "round"
        columns = [name for name in ("accuracy", "acceptance") if name in start and name in chosen]
        told = "".join(f", {name} {100 * start[name]:.1f} -> {100 * chosen[name]:.1f} %" for name in columns)
        of = f" of {assessment['aside']} examples set aside" if assessment is not None else ""
        logger.info("kept %s %d of %d%s%s", what, chosen["epoch"], detector.history[-1]["epoch"], told, of)
    logger.info("threshold %s: %s", detector.threshold_text, detector.promise_text)
