"""`fit`: a user's classifier and data in, a trained and calibrated detector out."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import nn

from wildood.data.inputs import Spec
from wildood.data.sampling import seeded
from wildood.data.schema import dump, parse
from wildood.data.sources import Source
from wildood.data.streams import is_stream
from wildood.data.validation import all_labels, check_labels, classes_of, has_labels, rows_of
from wildood.data.wild import WildPool
from wildood.detect.assessment import accuracy_lost, aside_scores, assess, benefit_over, training_benefit, training_helped
from wildood.detect.baseline import Baseline, best_start, fitted_ensemble
from wildood.detect.detector import Detector, Promise, versions
from wildood.detect.drift import Drift, measure_drift
from wildood.detect.frozen import check_frozen, freeze, put_back
from wildood.detect.posthoc import choose_score, low_accuracy
from wildood.detect.pretrain import check_augmentation, check_schedule, run_record
from wildood.detect.retrain import is_as_good, is_worthwhile, look_at, train_on_all
from wildood.detect.split import FitSplit, check_fresh_and_judged, check_seed, split_for_fit
from wildood.detect.temperature import divide_logits
from wildood.errors import InputError, TrainingError
from wildood.evaluate.intervals import FEWEST_UNKNOWN
from wildood.evaluate.selection import Comparison
from wildood.evaluate.thresholds import check_alpha, check_confidence
from wildood.methods.objective import Method, Objective, Start, stages_of
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.models.classifier import (
    Classifier,
    Precision,
    check_spec,
    check_trainable,
    copy_classifier,
    plain_name,
    with_features,
)
from wildood.models.features import Call, call_model
from wildood.scores.energy import EnergyScore
from wildood.scores.ensemble import Ensemble
from wildood.scores.score import Score
from wildood.settings import check_callable, check_choice, check_flag, check_path, optional
from wildood.train.callbacks import AddColumns, Callback, OnEpoch
from wildood.train.checkpoint import RunDirectory
from wildood.train.distributed import (
    broadcast,
    check_distributed,
    check_same_on_all_processes,
    this_process,
    training_device,
)
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
    fresh: Any = None,
    judged: Any = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
    alpha: float | None = None,
    confidence: float | None = None,
    by_class: bool = False,
    input: Spec | None = None,  # noqa: A002 - the user's word for it
    features: str | None = None,
    forward: Call | None = None,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
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
        model: any module that maps a batch to logits: a tensor, an output with `.logits` or ["logits"], or a tuple whose
            first item they are. One logit z for each example means two classes with the logits (-z/2, z/2).
        labelled: ID examples with their classes: `(x, y)`, a dataset of pairs, a `DataLoader` (of which the dataset, the
            collate_fn and the workers are used), or the result of `open_images`. Here and everywhere, x is an array or a
            tensor, or a dict, tuple or list of them, also nested: the model is called as model(**x) or model(*x).
        wild: unlabelled traffic, known and unknown mixed: `x`, a dataset, the result of `open_images`, a `WildMixture`, or a
            stream (a generator, an `IterableDataset`), of which memory keeps half a gigabyte, drawn at random. A
            method that trains without it (`Godin`) uses it only to choose a setting of its score.
        holdout: `(x, y)` that neither the model nor this fit has trained on. It calibrates the false-alarm rate. Without it,
            a share of `labelled` is set aside, and the rate is not guaranteed.
        fresh: known examples as they come now, `x` or `(x, y)`, unseen by the model. Training then measures false alarms on
            them as well as on `labelled`, which matters where known data has changed since. Without it, a third of the
            holdout is used so where its features differ from those of `labelled`, if each third holds at least ten examples
            above its threshold (600 examples for 5 %).
        judged: `(x, is_ood)`, wild examples that a person has called known (0) or unknown (1), for `Woods` and `WoodsAlt`.
            They train. Of 20 unknown ones or more, half do not: they bound the share of unknowns like these that is
            caught, `detector.caught`. They may be in `wild`, too; those that measure are then left out there.
        method: what to train with; `Woods()` by default.
        schedule: how long and how fast; by default the method's own (with several stages, that of the first), which for
            `Woods` ends when data set aside shows no more improvement.
        alpha: the false-alarm rate of the deployed threshold; the method's by default.
        confidence: guarantee that rate with this probability over the draw of the holdout, instead of on average.
        by_class: a threshold for each predicted class, so that no class has all the false alarms.
        input: how uint8 images (`InputSpec`) or tables (`TableSpec`) become model input; without it, floats are used as
            they are.
        features: the submodule whose output are the features, for methods and scores that use them; by default the input of
            the last Linear.
        forward: how the model is called, for models that take something else: forward(model, x) returns the logits.
        device: where to train, such as "cuda"; "auto" for a GPU if there is one. By default where the model is.
        precision: "bf16" trains with the forward and backward passes of the model in bfloat16 (autocast), faster on hardware
            that has it. Weights, losses, constraints and multipliers stay in float32, and so does all evaluation.
        frozen: train only the last layer and what the method adds, on features that are computed once and kept in memory.
        keep: "best": the epoch with the lowest wild acceptance on data set aside (no OOD labels), or the start where no
            epoch is shown to help. Of up to 3,000 wild examples, a second training then uses all, also those set aside:
            `detector.trial` is the detector before, and callbacks are not called again. "last": the last epoch.
            "as_published": the released choice, by the whole holdout and `ood`, whatever it costs in accuracy; nothing is
            promised.
        ood: known OOD examples. They choose the epoch in the place of wild data, and are used for nothing else.
        allow_duplicates: accept equal examples in the holdout and in training data, because inputs repeat by nature (few
            distinct rows or token sequences). The promise then says how many are equal. Without it, more equal examples than
            chance explains are refused.
        run_dir: directory for checkpoints and history. Call again with the same arguments to resume a killed run.
        seed: decides every random draw.
        verbose: show progress.
        callbacks: instances of `wildood.Callback`, called while it trains.
        on_epoch: called with each row of the history; the short form of a callback.

    Threads that call it at the same time train one after the other, because they share torch's random generator. Processes
    that torchrun has started train together, and each gets the same detector; save it in the first one only (docs/scale.md).

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
    method = check_method(method)
    check_choice(keep, "keep", get_args(Keep))
    check_choice(precision, "precision", get_args(Precision))  # float16 would need its gradients scaled
    if keep == "as_published" and (ood is None or holdout is None):
        raise InputError("keep='as_published' chooses the epoch by known OOD examples: give ood=x and holdout=(x, y), too")
    flags = {"by_class": by_class, "frozen": frozen, "verbose": verbose, "allow_duplicates": allow_duplicates}
    by_class, frozen, verbose, allow_duplicates = (check_flag(value, name) for name, value in flags.items())
    settings = _Settings(
        method=method,
        schedule=check_schedule(schedule, method.schedule(), has_wild_aside=method.uses_wild and keep == "best"),
        alpha=check_alpha(method.alpha if alpha is None else alpha),
        confidence=optional(check_confidence)(confidence),
        by_class=by_class,
        precision=precision,
        frozen=frozen,
        keep=keep,
        seed=check_seed(seed),
        features=plain_name(features) if isinstance(features, str) else None,  # another type is refused below
    )
    run: Path | None = optional(check_path)(run_dir, "run_dir")
    callbacks = _checked_callbacks(callbacks)
    on_epoch = optional(check_callable)(on_epoch, "on_epoch", {})
    check_spec(input)
    call: Call = call_model if forward is None else check_callable(forward, "forward", model, {})
    choose_device = partial(training_device, device=device)
    check_fresh_and_judged(fresh, judged, method)
    if frozen:
        check_frozen(method, settings.schedule, settings.precision)
    # The caller may be in inference mode.
    with verbose_logging(verbose=verbose), seeded(settings.seed, "fit"), torch.inference_mode(mode=False):
        if run is not None and any(map(is_stream, (labelled, wild, holdout, fresh, ood))):
            logger.info("a run on a stream can be resumed only if the stream gives the same examples again")
        labelled, holdout = rows_of(labelled, input, "labelled"), rows_of(holdout, input, "holdout")
        wild, ood = rows_of(wild, input, "wild", labels=False), rows_of(ood, input, "ood", labels=False)
        fresh = rows_of(fresh, input, "fresh")
        data = split_for_fit(
            labelled, wild, holdout, settings.schedule, settings.alpha, input, keep, settings.seed, settings.confidence, ood,
            uses_wild=method.uses_wild, allow_duplicates=allow_duplicates, fresh=fresh, judged=judged,
            from_holdout=may_use_fresh(method),
        )  # fmt: skip
        copied = partial(
            copy_classifier, source=data.labelled, spec=input, features=features, choose_device=choose_device, call=call,
            uses_features=method.uses_features or frozen,
        )  # fmt: skip
        classifier, classes = copied(model)
        if not frozen:  # then the last layer is trained, whatever requires a gradient
            check_trainable(classifier)
        classifier.train_in(settings.precision)
        check_augmentation(settings.schedule, data.example.shape)
        for part in (data.selection, data.threshold):
            check_labels(all_labels(part), "labelled" if holdout is None else "holdout", classes)
        if data.fresh is not None and has_labels(data.fresh):
            check_labels(all_labels(data.fresh), "fresh", classes)
        notes: dict[str, str] = {}
        if keep == "best" and may_use_fresh(method):
            known = data.labelled, data.selection
            model, classifier, notes = divide_logits(model, classifier, known, lambda divided: copied(divided)[0])
        record = _run_record(classifier, data, settings, classes_of(labelled), has_run_dir=run is not None) | notes
        trained = _train(classifier, data, settings, record, run, callbacks, on_epoch, has_wild=wild is not None)
        deployed = _deploy(model, trained, settings)
        detector = Detector(
            deployed.classifier.eval(),
            deployed.score,
            data.example,
            history=trained.history,
            record=record | deployed.record,
        )
        _calibrate(detector, trained.data, settings, unseen=holdout is not None and keep != "as_published")
        if method.uses_wild and trained.data.wild_aside is not None:
            found = deployed.benefit, deployed.start_score, deployed.like_labelled
            assessment = assess(detector, trained.data, *found, settings.seed, start_kept=deployed.start_kept)
            detector.record["assessment"] = assessment.record()
        detector.record |= accuracy_lost(detector, len(trained.data.selection)) | _judged_record(detector, data)
        _report(detector, keep)
        if deployed.start_kept:
            return detector
        return _trained_on_all(detector, lambda: copied(model)[0], trained, settings)


@dataclass(frozen=True)
class _Settings:
    """The checked arguments of `fit` that decide its outcome."""

    method: Method
    schedule: Schedule
    alpha: float
    confidence: float | None
    by_class: bool
    precision: Precision
    frozen: bool
    keep: Keep
    seed: int
    features: str | None


class _Trained(NamedTuple):
    """The end of training: the classifier, the last stage's objective, the data, all rows, which one was kept, and drift."""

    classifier: Classifier
    objective: Objective
    data: FitSplit
    history: list[Row]
    kept: int
    drift: Drift | None
    run: RunDirectory | None


class _Deployed(NamedTuple):
    """What the detector is made of: the trained classifier, or the start if training was not shown to help."""

    classifier: Classifier
    score: Score
    record: dict[str, Any]
    benefit: Comparison | None = None
    start_kept: bool = False
    start_score: str = "EnergyScore"  # that training had to beat
    like_labelled: bool = False  # as in `Baseline`


def check_method(method: Any) -> Method:
    """The method, `Woods()` for None."""
    if isinstance(method, type) or not (method is None or hasattr(method, "objective")):
        raise InputError(f"method is {method if isinstance(method, type) else type(method)}: give one such as Woods()")
    checked: Method = Woods() if method is None else method
    return checked


def may_use_fresh(method: Method) -> bool:
    """Whether a part of the holdout may serve a method as fresh examples: the published variants know none."""
    return method.uses_wild and not getattr(method, "published_schedule", False)


def low_holdout_accuracy(labelled: float, holdout: float | None) -> str:
    """That the start is wrong on the holdout where it is right on labelled data.

    >>> low_holdout_accuracy(0.94, 0.21)
    'the model is right on 94 % of labelled and on 21 % of the holdout: are the labels of the holdout right?'
    """
    if holdout is None or holdout >= labelled / 2:
        return ""
    shares = f"{100 * labelled:.0f} % of labelled and on {100 * holdout:.0f} % of the holdout"
    return f"the model is right on {shares}: are the labels of the holdout right?"


def _checked_callbacks(callbacks: Any) -> list[Callback]:
    if not isinstance(callbacks, list | tuple) or not all(isinstance(each, Callback) for each in callbacks):
        raise InputError("callbacks is not a list of callbacks: give instances of classes that derive from wildood.Callback")
    return list(callbacks)


def _run_record(
    classifier: Classifier, data: FitSplit, settings: _Settings, names: Sequence[str], *, has_run_dir: bool
) -> dict[str, Any]:
    """What identifies this run: the same on all processes, and for a run directory."""
    method: Any = settings.method
    record = run_record(
        classifier,
        settings.schedule,
        data.fingerprints,
        method={"name": type(method).__name__, **asdict(method)},
        **({"classes": list(names)} if names else {}),
        **({"frozen": True} if settings.frozen else {}),
        **({} if data.judged is None else {"answers": data.judged.fingerprint()}),
        alpha=settings.alpha,
        seed=settings.seed,
        keep=settings.keep,
    )
    more = {"confidence": settings.confidence, "by_class": settings.by_class, "run_dir given": has_run_dir}
    check_same_on_all_processes(record | more)
    return record


def _check_choice(objective: Objective, settings: _Settings, *, has_wild: bool) -> None:
    """Refuse a setting of the score that nothing is left to choose by; warn of wild data that is not used."""
    several = len(objective.score.candidates()) > 1
    if has_wild and not several and not settings.method.uses_wild:
        logger.warning("%s does not use wild data: it trains on labelled data alone", type(settings.method).__name__)
    if settings.keep == "last" and several:
        instead = "give epsilon, or keep='best' (--epsilon or --keep best)"
        raise InputError(f"keep='last' leaves no part of the holdout to choose epsilon by: {instead}")


def _with_selection(data: FitSplit, objective: Objective, settings: _Settings) -> FitSplit:
    """The same data, with half of the holdout to choose by if the score has a setting to choose."""
    if settings.keep == "as_published" or len(objective.score.candidates()) == 1:
        return data
    instead = "a fixed setting of the score (--epsilon)"
    return data.with_selection(settings.alpha, settings.confidence, settings.seed, instead=instead)


def _train(
    classifier: Classifier,
    data: FitSplit,
    settings: _Settings,
    record: dict[str, Any],
    run_dir: Path | None,
    callbacks: Sequence[Callback],
    on_epoch: OnEpoch | None,
    *,
    has_wild: bool,
) -> _Trained:
    """Train the stages of the method, one after the other, on the same classifier."""
    method, schedule, seed = settings.method, settings.schedule, settings.seed
    trained, inputs = freeze(classifier, data, schedule, seed) if settings.frozen else (classifier, data)
    start = measure_start(trained, inputs.labelled, seed, inputs.wild)
    notes = {"missing_classes": data.missing_classes, "repeated_wild": data.repeated_wild, "low_accuracy": ""}
    if method.uses_wild:
        notes["low_accuracy"] = low_accuracy(start.accuracy, "labelled")
        if notes["low_accuracy"]:
            logger.warning("%s", notes["low_accuracy"])
    drift = None
    if inputs.fresh is not None or (may_use_fresh(method) and settings.keep == "best"):
        drift = measure_drift(trained, start, inputs, None if settings.frozen else settings.features)
        if drift.found and inputs.may_train:
            data, inputs = data.with_fresh(seed), inputs.with_fresh(seed)
    inputs, start, kept_wild = _filtered(method, trained, inputs, start)
    objective = method.objective(trained, start)
    objective.derived |= kept_wild
    check_distributed(schedule)
    _check_choice(objective, settings, has_wild=has_wild)
    data = _with_selection(data, objective, settings)
    # After everything is checked: a call that is refused must leave no run behind.
    run = None if run_dir is None else RunDirectory(run_dir, record)
    # A method that trains without wild data keeps its last epoch: there is nothing to choose it by.
    monitor = Monitor(inputs.selection, inputs.wild_aside if method.uses_wild else None, settings.alpha)
    stages, history, kept = stages_of(method), list[Row](), 0
    for number, stage in enumerate(stages, 1):
        if number > 1:
            objective, schedule = stage.objective(objective.classifier, start), stage.schedule()
        if number < len(stages) or not (method.uses_wild and settings.keep == "best"):
            schedule = schedule.fixed()  # nothing is set aside to end it by
        for warning in objective.warnings:
            logger.warning("%s", warning)
        several = len(stages) > 1
        rows, kept_row = train(
            objective,
            inputs.labelled,
            inputs.wild,
            schedule,
            seed,
            fresh=inputs.fresh,
            fresh_share=0.5 if drift is None else drift.fresh_share(inputs),
            judged=inputs.judged,
            select=SelectEpoch(monitor, settings.keep, only_start=number < len(stages)),
            run=run.stage(number) if run is not None and several else run,
            callbacks=[AddColumns({"stage": number}), *callbacks] if several else callbacks,
            on_epoch=on_epoch,
        )
        kept = len(history) + kept_row
        history += rows
    if settings.frozen:
        put_back(trained, classifier, tapped=method.uses_features)
    if method.uses_wild:
        notes["holdout_accuracy"] = low_holdout_accuracy(start.accuracy, history[0].get("accuracy"))
    record |= {name: text for name, text in notes.items() if text}
    return _Trained(classifier, objective, _with_selection(data, objective, settings), history, kept, drift, run)


def _filtered(
    method: Method, classifier: Classifier, inputs: FitSplit, start: Start
) -> tuple[FitSplit, Start, dict[str, int]]:
    """The wild examples that the method's filter keeps, if it has one, and their number for the record."""
    kept: Callable[[Classifier, Start, Source], Source] | None = getattr(method, "kept", None)
    if kept is None or inputs.wild is None:
        return inputs, start, {}
    whole = inputs.wild.whole(start.seed)
    part = kept(classifier, start, whole)
    logger.info("the filter keeps %d of %d wild examples to train on", len(part), len(whole))
    return inputs._replace(wild=WildPool(part)), start._replace(wild=len(part)), {"kept_wild": len(part), "wild": len(whole)}


def _deploy(model: nn.Module, trained: _Trained, settings: _Settings) -> _Deployed:
    """Choose the settings of the score, and between the trained classifier and the start."""
    data, objective = trained.data, trained.objective
    aside = {"ood" if "ood" in data.fingerprints else "wild": data.wild_aside}
    candidates = objective.score.eval().candidates()
    score, choice = choose_score(candidates, trained.classifier, data.selection, settings.alpha, **aside)
    any_choice = bool(choice) or (settings.method.uses_wild and settings.keep != "last")
    if "ood" in data.fingerprints and not any_choice:
        logger.warning("ood has chosen nothing: there was no epoch and no setting to choose")
    holdout = {**data.fingerprints, **data.unlabelled}.get("holdout")
    record = {
        "derived": objective.derived,
        "kept_epoch": trained.kept,
        "versions": versions(),
        "examples": data.unlabelled,
        **({} if trained.drift is None else {"drift": trained.drift.record()}),
        **({"processes": this_process().world} if this_process().world > 1 else {}),
        **({"chosen_by": holdout} if holdout and any_choice else {}),
        **({"chosen": choice} if choice else {}),
    }
    deployed = _Deployed(trained.classifier, score, record)
    if not settings.method.uses_wild or data.wild_aside is None:
        return deployed
    return _trained_or_start(model, deployed, data, settings, qualified=trained.kept > 0)


def _trained_or_start(
    model: nn.Module, trained: _Deployed, data: FitSplit, settings: _Settings, *, qualified: bool
) -> _Deployed:
    """The trained detector; with `keep="best"`, the start with its best score unless training is shown to help."""
    assert data.wild_aside is not None  # noqa: S101 - the caller has checked
    only_energy = settings.keep != "best"
    same: dict[str, Any] = {"features": settings.features, "only_energy": only_energy}
    start = best_start(model, trained.classifier, data, settings.alpha, settings.seed, **same)
    trained = trained._replace(start_score=type(start.score).__name__, like_labelled=start.like_labelled)
    if qualified or settings.keep != "best":
        benefit = training_benefit(start, (trained.classifier, trained.score), data, settings.alpha)
        # All processes decide as the first one does: another machine may round otherwise.
        trained = trained._replace(benefit=parse(broadcast(dump(benefit)) or b"", Comparison))
    if settings.keep != "best":
        return trained
    if qualified and isinstance(trained.score, EnergyScore):
        trained = _with_ensemble(trained, start, data, settings)
    if trained.benefit is not None and training_helped(trained.benefit):
        return trained
    record = trained.record | {"kept_epoch": 0, "chosen": {}}
    classifier = start.classifier.to(trained.classifier.device)
    return trained._replace(classifier=classifier, score=start.score, record=record, start_kept=True)


def _with_ensemble(trained: _Deployed, start: Baseline, data: FitSplit, settings: _Settings) -> _Deployed:
    """The trained classifier with its ensemble score, if that accepts less wild data by a standard error."""
    tapped = with_features(trained.classifier, data.labelled, settings.features)
    score = None if tapped is None else fitted_ensemble(tapped, data, settings.seed)
    if tapped is not None and score is not None:
        energies = start._replace(aside=aside_scores(trained.classifier, trained.score, data))
        scores = aside_scores(tapped, score, data)
        gain, benefit = (benefit_over(each, scores, settings.alpha) for each in (energies, start))
        gain, benefit = (parse(broadcast(dump(each)) or b"", Comparison) for each in (gain, benefit))
        if gain.is_larger_than_its_error:
            return trained._replace(classifier=tapped, score=score, benefit=benefit)
    if tapped is not None and tapped is not trained.classifier:
        tapped.untap()
    return trained


def _trained_on_all(trial: Detector, copied: Callable[[], Classifier], trained: _Trained, settings: _Settings) -> Detector:
    """The detector trained again on all wild data, where much was set aside; it keeps the trial, which has not seen that."""
    data, traffic, seed = trained.data, trained.data.traffic, settings.seed
    trains_once = settings.keep != "best" or settings.frozen or not is_worthwhile(settings.method, settings.schedule, data)
    if trains_once or traffic is None or trial.promise is None:
        return trial
    stop, steps = (int(trained.history[row]["step"]) for row in (trained.kept, -1))
    logger.info("training again, %d steps on all wild data, with what was set aside", stop)
    classifier = copied()
    classifier.train_in(settings.precision)
    start = look_at(classifier, EnergyScore(), data, seed)
    fresh_share = 0.5 if trained.drift is None else trained.drift.fresh_share(data)
    same: dict[str, Any] = {"stop": stop, "steps": steps, "fresh_share": fresh_share, "seed": seed, "run": trained.run}
    try:
        objective = train_on_all(classifier, data, settings.method, settings.schedule, **same)
        score: Score | None = objective.score.eval()
        if isinstance(trial.scorer, Ensemble):
            classifier = with_features(classifier, data.labelled, settings.features) or classifier
            score = fitted_ensemble(classifier, data, seed)
        if score is None:
            return trial
        first, second = look_at(trial.classifier, trial.scorer, data, seed), look_at(classifier, score, data, seed)
        again = {"steps": stop, "wild": sum(map(len, traffic.pools)), "accuracy": float(second.correct.mean())}
        record = trial.record | {"derived": objective.derived, "retrained": again}
        record.pop("accuracy_lost", None)
        detector = Detector(classifier.eval(), score, trial.example, history=trained.history, record=record, trial=trial)
        _calibrate(detector, data, settings, unseen=trial.promise.unseen)
    except (TrainingError, InputError) as error:
        logger.warning("the second training failed, and the first one is kept: %s", error)
        return trial
    if not is_as_good(first, second, start, settings.alpha):
        logger.info("the second training is not as good as the first one, which is kept")
        return trial
    detector.record |= accuracy_lost(detector, len(data.selection)) | _judged_record(detector, data)
    logger.info("after the second training, which is deployed:")
    _log_promises(detector)
    return detector


def _calibrate(detector: Detector, data: FitSplit, settings: _Settings, *, unseen: bool) -> None:
    """Set the threshold. If one for each class is impossible, set one for all: what was trained must not be lost."""
    examples = len(data.threshold)
    promise = Promise(settings.alpha, examples, unseen, settings.confidence, settings.by_class, data.caveat)
    try:
        detector.calibrate_on(data.threshold, promise)
    except InputError as error:
        if not promise.by_class:
            raise
        logger.warning("by class was NOT done, one threshold is for all classes: %s", error)
        detector.calibrate_on(data.threshold, replace(promise, by_class=False))
        detector.record["not_by_class"] = str(error)


def _judged_record(detector: Detector, data: FitSplit) -> dict[str, Any]:
    """How many judged examples trained, and the scores of the unknown ones that did not: `detector.caught` reads them."""
    if data.judged is None:
        return {}
    unknown = int(data.judged.is_ood.sum())
    record: dict[str, Any] = {"known": len(data.judged.is_ood) - unknown, "unknown": unknown, "scores": [], "classes": []}
    if data.judged_unknown is not None:
        scores, classes = detector.score_and_classify(data.judged_unknown)
        scores = np.where(np.isfinite(scores), scores, np.finfo(np.float32).max)  # rejected, whatever the threshold
        record |= {"scores": scores.tolist(), "classes": classes.tolist(), "caveat": data.judged_caveat}
    return {"judged": record}


def _report(detector: Detector, keep: Keep) -> None:
    """Log the warnings, the epoch that was kept, and the promise."""
    kept, assessment = detector.record["kept_epoch"], detector.record.get("assessment")
    names = ("low_accuracy", "missing_classes", "temperature", "ties", "not_by_class")
    logged = {detector.record.get(name) for name in names}
    for warning in detector.warnings:
        if warning not in logged:
            logger.warning("%s", warning)
    if keep == "best" and kept:
        start, chosen = detector.history[0], detector.history[kept]
        what = "step" if detector.record["schedule"]["epochs"] is None else "epoch"
        columns = [name for name in ("accuracy", "acceptance") if name in start and name in chosen]
        changes = "".join(f", {name} {100 * start[name]:.1f} -> {100 * chosen[name]:.1f} %" for name in columns)
        of = f" of {assessment['aside']} examples set aside" if assessment is not None else ""
        logger.info("kept %s %d of %d%s%s", what, chosen[what], detector.history[-1][what], changes, of)
    _log_promises(detector)


def _log_promises(detector: Detector) -> None:
    logger.info("threshold %s: %s", detector.threshold_text, detector.promise_text)
    if detector.caught is not None:
        logger.info("%s", detector.caught)
    elif "judged" in detector.record:
        unknown, least = detector.record["judged"]["unknown"], 2 * FEWEST_UNKNOWN
        logger.info("no bound on the share of unknowns that is caught: %d of %d unknown answers are there", unknown, least)
