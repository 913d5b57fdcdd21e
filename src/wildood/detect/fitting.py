"""`fit` and `posthoc`: a user's classifier and data in, a calibrated detector out."""

import copy
import hashlib
import json
import operator
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import wildood
from wildood.data.given import all_labels, check_labels, unlabelled_source
from wildood.data.inputs import InputSpec
from wildood.data.sampling import lent_generator
from wildood.data.sources import Source, memory_of
from wildood.detect.detector import Detector, Example, examples_of
from wildood.detect.preparation import prepare
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.models.outputs import Classifier, tap_features, try_classifier
from wildood.scores.score import Score
from wildood.train.loop import OnEpoch, Training
from wildood.train.monitor import Monitor, start_of
from wildood.train.progress import logger, shown
from wildood.train.run_directory import RunDirectory


def fit(
    model: nn.Module,
    labelled: Any,
    wild: Any,
    holdout: Any = None,
    *,
    method: Method | None = None,
    schedule: Schedule | None = None,
    alpha: float | None = None,
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
    features: str | None = None,
    keep: Literal["best", "last"] = "best",
    run_dir: str | Path | None = None,
    seed: int = 0,
    verbose: bool = True,
    on_epoch: OnEpoch | None = None,
) -> Detector:
    """Teach a classifier to say "unknown" from wild data; the model you pass is copied, never changed.

    Args:
        model: any module that maps a batch to logits (a tensor, or an output with `.logits`).
        labelled: `(x, y)` or a dataset of pairs: ID examples with their classes.
        wild: `x` or a dataset: unlabelled traffic, known and unknown mixed; or a `WildMixture`.
        holdout: `(x, y)` that neither the model nor this fit has trained on. The promise rests on it: without it, a share of
            `labelled` is set aside and nothing is promised.
        method: what to train with; `Woods()` unless given.
        schedule: how long and how fast; the method's own unless given.
        alpha: the false-alarm rate of the deployed threshold; the method's unless given.
        input: how uint8 images become model input; floats go in as they are without it.
        features: the submodule whose output are the features, for methods that use them; found if not given.
        keep: the "best" epoch by wild acceptance on data set aside (no OOD labels), or the "last".
        run_dir: where to keep checkpoints and history; called again with the same arguments, a killed run goes on.
        seed: decides every random draw.
        verbose: show progress.
        on_epoch: called with each row of the history.

    >>> import numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> rng = np.random.default_rng(0)
    >>> def known(n):
    ...     y = rng.integers(0, 2, n)
    ...     return (rng.normal(size=(n, 2)) + 6 * y[:, None]).astype("float32"), y
    >>> wild = np.concatenate([known(450)[0], rng.normal(size=(50, 2)).astype("float32") + (9, -9)]).astype("float32")
    >>> detector = wildood.fit(MLP(2, 2), known(500), wild, known(200), schedule=wildood.Schedule(steps=20), verbose=False)
    >>> detector.promise.alpha, len(detector.history)
    (0.05, 8)
    """
    method = Woods() if method is None else method
    if isinstance(method, type) or not hasattr(method, "objective"):
        raise InputError(f"method is {method if isinstance(method, type) else type(method)}: give one such as Woods()")
    schedule = method.schedule() if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise InputError(f"schedule is {schedule!r}: give a Schedule, such as Schedule(steps=200)")
    if keep not in {"best", "last"}:
        raise InputError(f"keep is {keep!r}: give 'best' or 'last'")
    alpha = check_alpha(method.alpha if alpha is None else alpha)
    seed = _whole_number(seed, "seed")
    _check_spec(input)
    with shown(verbose=verbose), lent_generator(seed, "fit"):
        data = prepare(labelled, wild, holdout, schedule, alpha, input, keep, seed)
        classifier, classes = _classifier(model, data.labelled, input, features, uses_features=method.uses_features)
        if not all(parameter.is_leaf for parameter in classifier.parameters()):
            raise InputError("the model's copy cannot be trained (a traced model?): give the model it was made from")
        if not any(parameter.requires_grad for parameter in classifier.parameters()):
            raise InputError("no parameter of the model requires a gradient: nothing can be trained, unfreeze some of it")
        for part in (data.selection, data.threshold):
            check_labels(all_labels(part), "holdout", classes)
        start = start_of(classifier, data.labelled, seed)
        if start.accuracy < 0.5:
            logger.warning(
                "the model is right on %.0f %% of labelled only: check the labels and input=; start from a trained model",
                100 * start.accuracy,
            )
        record = _record(method, schedule, classifier, data.fingerprints, alpha=alpha, seed=seed, keep=keep)
        training = Training(
            objective=method.objective(classifier, start),
            labelled=data.labelled,
            wild=data.wild,
            schedule=schedule,
            seed=seed,
            monitor=Monitor(data.selection, data.wild_aside, alpha),
            keep=keep,
            # After everything is checked: a call that is refused must leave no run behind.
            run=None if run_dir is None else RunDirectory(Path(run_dir), record),
            on_epoch=on_epoch,
        )
        history = training.train()
        record |= {"kept_epoch": training.kept, "versions": _versions()}
        if keep == "best" and holdout is not None:
            record["chosen_by"] = unlabelled_source(examples_of(holdout), "holdout").fingerprint()
        detector = Detector(classifier.eval(), training.objective.score.eval(), data.example, history=history, record=record)
        detector.calibrate_on(data.threshold, alpha, unseen=holdout is not None)
        _report(detector, training)
    return detector


def posthoc(
    model: nn.Module,
    score: Score,
    *,
    labelled: Any = None,
    holdout: Any = None,
    alpha: float = 0.05,
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
) -> Detector:
    """A detector from an unchanged classifier and a post-hoc score.

    Args:
        model: any module that maps a batch to logits; copied.
        score: such as `EnergyScore()` or `MaxSoftmax()`.
        labelled: what the model was trained on, `(x, y)` or `x`: without a holdout it sets the threshold, with no promise.
        holdout: ID examples the model has not trained on, `(x, y)` or `x`: the threshold and its promise rest on them.
        alpha: the false-alarm rate of the threshold.
        input: how uint8 images become model input; floats go in as they are without it.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1).promise.examples
    50
    """
    if not isinstance(score, Score):
        raise InputError(f"score is a {type(score).__name__}: give a score such as EnergyScore()")
    _check_spec(input)
    if holdout is None and labelled is None:
        raise InputError("a threshold needs ID examples: give holdout=(x, y) that the model was not trained on")
    source = (
        unlabelled_source(examples_of(labelled), "labelled")
        if holdout is None
        else unlabelled_source(examples_of(holdout), "holdout")
    )
    classifier, _ = _classifier(model, source, input, None, uses_features=score.uses_features)
    record = {"score": type(score).__name__, "model": _model_fingerprint(classifier.model), "versions": _versions()}
    detector = Detector(classifier.eval(), copy.deepcopy(score).eval(), Example.of(source), record=record)
    return detector.calibrate_on(source, alpha, unseen=holdout is not None)


def _classifier(
    model: nn.Module, source: Source, spec: InputSpec | None, features: str | None, *, uses_features: bool
) -> tuple[Classifier, int]:
    """A copy of the user's model that is known to work on the data, and the number of its classes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module")
    try:
        network = copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the model cannot be copied: {error}") from error
    few = source.gather(torch.arange(min(2, len(source))))[0]
    classes = try_classifier(network, few, spec)
    tap = tap_features(network, few, spec, features) if uses_features or features is not None else None
    if spec is not None:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Classifier(network, spec, tap if uses_features else None), classes


def _check_spec(spec: Any) -> None:
    if spec is not None and not isinstance(spec, InputSpec):
        raise InputError(f"input is a {type(spec).__name__}: give an InputSpec")


def _whole_number(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} is {value!r}: give a whole number") from error


def _model_fingerprint(model: nn.Module) -> str:
    """A hash of the starting weights."""
    content = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    for name, value in model.state_dict().items():
        content.update(f"{name} {getattr(value, 'dtype', '')} {tuple(getattr(value, 'shape', ()))}".encode())
        content.update(memory_of(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    return content.hexdigest()


def _record(
    method: Method, schedule: Schedule, classifier: Classifier, data: dict[str, str], **settings: Any
) -> dict[str, Any]:
    """What makes this run this run, as JSON would give it back."""
    spec, tap = classifier.spec, classifier.tap
    record = {
        "method": {"name": type(method).__name__, **asdict(method)},  # type: ignore[call-overload]
        "schedule": asdict(schedule),
        **settings,
        "input": None if spec is None else spec.to_dict(),
        "data": data,
        "model": _model_fingerprint(classifier.model),
        "features": None if tap is None else asdict(tap),
    }
    restored: dict[str, Any] = json.loads(json.dumps(record))
    return restored


def _versions() -> dict[str, str]:
    return {
        "wildood": wildood.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _report(detector: Detector, training: Training) -> None:
    """Say which epoch was kept, and what is promised."""
    if training.keep == "best" and training.kept == 0:
        logger.warning(
            "no epoch accepted less wild data without losing more than 1 point of accuracy: the starting weights are kept; "
            "try a smaller lr or more data"
        )
    elif training.keep == "best":
        logger.info("kept epoch %d of %d", training.kept, len(detector.history) - 1)
    logger.info("threshold %.4g: %s", detector.threshold, detector.promise)
