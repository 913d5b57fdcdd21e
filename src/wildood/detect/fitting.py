"""`fit` and `posthoc`: a user's classifier and data in, a calibrated detector out."""

import copy
import hashlib
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.sampling import generator, split
from wildood.data.sources import Part, Source, all_labels, labelled_source, unlabelled_source
from wildood.data.wild import Wild, WildMixture, WildPool, as_wild
from wildood.detect.detector import Detector, check_examples
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha, examples_needed
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.models.outputs import Classifier, tap_features, try_classifier
from wildood.scores.score import Score
from wildood.train.loop import OnEpoch, Training
from wildood.train.monitor import Monitor, check_labels, start_of
from wildood.train.progress import logger, shown
from wildood.train.run_directory import RunDirectory

ASIDE = 0.1  # the share of wild data, and of labelled data without a holdout, that training does not see


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
    schedule = method.schedule() if schedule is None else schedule
    alpha = check_alpha(method.alpha if alpha is None else alpha)
    if keep not in {"best", "last"}:
        raise InputError(f"keep is {keep!r}: give 'best' or 'last'")
    with shown(verbose=verbose):
        data = _prepare(labelled, wild, holdout, schedule, alpha, input, keep, seed)
        classifier, classes = _classifier(model, data.labelled, input, features, uses_features=method.uses_features)
        if not any(parameter.requires_grad for parameter in classifier.parameters()):
            raise InputError("no parameter of the model requires a gradient: nothing can be trained, unfreeze some of it")
        record = {
            "method": {"name": type(method).__name__, **asdict(method)},  # type: ignore[call-overload]
            "schedule": asdict(schedule),
            "alpha": alpha,
            "seed": seed,
            "keep": keep,
            "input": None if input is None else input.to_dict(),
            "data": data.fingerprints,
            "model": _model_fingerprint(classifier.model),
        }
        run = None if run_dir is None else RunDirectory(Path(run_dir), record)
        for part in (data.selection, data.threshold):
            check_labels(all_labels(part), "holdout", classes)
        start = start_of(classifier, data.labelled, classes, seed)
        training = Training(
            objective=method.objective(classifier, start),
            labelled=data.labelled,
            wild=data.wild,
            schedule=schedule,
            seed=seed,
            monitor=Monitor(data.selection, data.wild_aside, alpha),
            keep=keep,
            run=run,
            on_epoch=on_epoch,
        )
        history = training.train()
        detector = Detector(
            classifier.eval(),
            training.objective.score.eval(),
            data.example_shape,
            history=history,
            record=record | {"kept_epoch": training.kept, "versions": _versions()},
        )
        detector.calibrate_on(data.threshold, alpha, unseen=holdout is not None)
        _report(detector, training)
    return detector


def posthoc(
    model: nn.Module,
    score: Score,
    *,
    holdout: Any,
    alpha: float = 0.05,
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
) -> Detector:
    """A detector from an unchanged classifier and a post-hoc score.

    Args:
        model: any module that maps a batch to logits; copied.
        score: such as `EnergyScore()` or `MaxSoftmax()`.
        holdout: ID examples the model has not trained on, `(x, y)` or `x`: the threshold and its promise rest on them.
        alpha: the false-alarm rate of the threshold.
        input: how uint8 images become model input; floats go in as they are without it.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1).promise.examples
    50
    """
    x = holdout[0] if isinstance(holdout, tuple | list) else holdout
    source = unlabelled_source(x, "holdout")
    classifier, _ = _classifier(model, source, input, None, uses_features=score.uses_features)
    shape = tuple(source.gather(torch.arange(1))[0].shape[1:])
    record = {"score": type(score).__name__, "model": _model_fingerprint(classifier.model), "versions": _versions()}
    detector = Detector(classifier.eval(), copy.deepcopy(score).eval(), shape, record=record)
    return detector.calibrate_on(source, alpha, unseen=True)


class _Data(NamedTuple):
    """What a fit trains on and what it does not look at."""

    labelled: Source
    wild: Wild
    wild_aside: Source
    selection: Source  # chooses the epoch
    threshold: Source  # sets the threshold
    example_shape: tuple[int, ...]
    fingerprints: dict[str, str]


def _prepare(
    labelled: Any,
    wild: Any,
    holdout: Any,
    schedule: Schedule,
    alpha: float,
    spec: InputSpec | None,
    keep: str,
    seed: int,
) -> _Data:
    """Check everything the user gave, and divide it."""
    known = labelled_source(labelled, "labelled")
    traffic = as_wild(wild)
    unseen = None if holdout is None else labelled_source(holdout, "holdout")
    shape = _same_examples(known, traffic, unseen, spec)
    fingerprints = {"labelled": known.fingerprint(), "wild": "+".join(pool.fingerprint() for pool in traffic.pools)}
    if isinstance(traffic, WildMixture):
        fingerprints["wild"] += f" at pi = {traffic.pi}"
    if unseen is None:
        known, unseen = _set_aside_labelled(known, alpha, keep, schedule.batch, seed)
    else:
        fingerprints["holdout"] = unseen.fingerprint()
    if len(known) < schedule.batch:
        raise InputError(
            f"labelled has {len(known)} examples to train on, fewer than a batch of {schedule.batch}: give more, or a "
            "smaller batch, as in schedule=Schedule(steps=200, batch=32)"
        )
    kept, aside = traffic.set_aside(ASIDE, seed)
    if len(aside) == 0 or any(len(pool) == 0 for pool in kept.pools):
        raise InputError("wild is too small to set a tenth of it aside: give at least 10 examples of each kind")
    selection = threshold = unseen
    if keep == "best":
        first, second = split(len(unseen), 0.5, generator(seed, "holdout"))
        selection, threshold = Part(unseen, first), Part(unseen, second)
    for part in (selection, threshold):
        if len(part) < examples_needed(alpha):
            halves = " in each half (one chooses the epoch, one sets the threshold)" if keep == "best" else ""
            raise InputError(
                f"the holdout has {len(part)} examples{halves}, but a false-alarm rate of {alpha} needs at least "
                f"{examples_needed(alpha)}: give a larger holdout, a larger alpha, or keep='last'"
            )
    return _Data(known, kept, aside, selection, threshold, shape, fingerprints)


def _set_aside_labelled(known: Source, alpha: float, keep: str, batch: int, seed: int) -> tuple[Source, Source]:
    """Without a holdout: part of the labelled data takes its place, and the user is told what that means."""
    least = examples_needed(alpha) * (2 if keep == "best" else 1) + 1
    wanted = max(round(ASIDE * len(known)), least)
    if len(known) - wanted < batch:
        raise InputError(
            f"labelled has {len(known)} examples: too few to set {wanted} aside for the threshold and train on batches of "
            f"{batch}: give holdout=(x, y)"
        )
    kept, aside = split(len(known), wanted / len(known), generator(seed, "labelled-aside"))
    logger.warning(
        "no holdout: %d labelled examples are set aside for the threshold. If the model was trained on them, the "
        "false-alarm rate on fresh data will be higher than alpha; give holdout= for a promise",
        len(aside),
    )
    return Part(known, kept), Part(known, aside)


def _same_examples(
    known: Source, traffic: WildPool | WildMixture, unseen: Source | None, spec: InputSpec | None
) -> tuple[int, ...]:
    """The shape of a raw example, the same in every source; so is its type, lest one be scaled and another not."""
    first = known.gather(torch.arange(1))[0]
    shape = tuple(first.shape[1:])
    if first.dtype == torch.uint8 and spec is None:
        raise InputError(
            "labelled holds uint8 examples: pass input=InputSpec(mean=..., std=...) with the values that the model was "
            "trained with, or floats as the model expects them"
        )
    others = [("wild", pool) for pool in traffic.pools] + ([] if unseen is None else [("holdout", unseen)])
    for name, source in others:
        check_examples(source, name, shape, resized=False)
        dtype = source.gather(torch.arange(1))[0].dtype
        if (dtype == torch.uint8) != (first.dtype == torch.uint8):
            raise InputError(f"{name} holds {dtype} but labelled holds {first.dtype}: give both the same type")
    return shape


def _classifier(
    model: nn.Module, source: Source, spec: InputSpec | None, features: str | None, *, uses_features: bool
) -> tuple[Classifier, int]:
    """A copy of the user's model that is known to work on the data, and the number of its classes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module")
    network = copy.deepcopy(model)
    few = source.gather(torch.arange(min(2, len(source))))[0]
    classes = try_classifier(network, few, spec)
    tap = tap_features(network, few, spec, features) if uses_features else None
    if spec is not None:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Classifier(network, spec, tap), classes


def _model_fingerprint(model: nn.Module) -> str:
    """A hash of the starting weights."""
    content = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        content.update(name.encode())
        content.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return content.hexdigest()


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
