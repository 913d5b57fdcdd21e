"""`pretrain`: a classifier and labelled data in, a trained classifier out."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from wildood.data.inputs import InputSpec
from wildood.data.sampling import seeded
from wildood.data.sources import Source
from wildood.data.validation import all_labels, check_labels, labelled_source, numbered_like
from wildood.detect.checks import (
    check_augmentation,
    check_run_dir,
    check_schedule,
    check_seed,
    check_spec,
    check_trainable,
    copy_classifier,
    run_record,
)
from wildood.detect.detector import Example
from wildood.detect.split import at_most
from wildood.evaluate.binomial import binomial_cdf
from wildood.methods.cross_entropy import CrossEntropyObjective
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, evaluating, forward_all
from wildood.settings import check_callable, check_flag, optional
from wildood.train.callbacks import OnEpoch
from wildood.train.checkpoint import RunDirectory
from wildood.train.distributed import check_distributed, check_same_on_all_processes
from wildood.train.loop import train
from wildood.train.monitor import Monitor
from wildood.train.progress import logger, verbose_logging
from wildood.train.selection import SelectEpoch

MEASURED = 10_000  # labelled examples, at most, that the accuracy is measured on where there is no holdout
BY_LUCK = 0.05  # the p-value above which the accuracy may be that of one answer for all


def pretrain(
    model: nn.Module,
    labelled: Any,
    holdout: Any = None,
    *,
    schedule: Schedule | None = None,
    input: InputSpec | None = None,  # noqa: A002 - the user's word for it
    run_dir: str | Path | None = None,
    seed: int = 0,
    verbose: bool = True,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a classifier with cross-entropy; the model you pass is copied, never changed.

    A warning says so if the result is no better than always answering the most frequent class.

    Args:
        model: any module that maps a batch to logits.
        labelled: `(x, y)` or a dataset of pairs. Keep some examples out of it: the promise of a detector needs examples that
            its classifier was not trained on.
        holdout: `(x, y)` to show the accuracy on after each epoch; it chooses nothing and stays unseen.
        schedule: how long and how fast; `Schedule.pretraining()`, the recipe of the paper, unless given.
        input: how uint8 images become model input; floats go in as they are without it.
        run_dir: where to keep checkpoints and history; called again with the same arguments, a killed run goes on.
        seed: decides every random draw.
        verbose: show progress.
        on_epoch: called with each row of the history.

    Of several threads that call it, one trains at a time and the others wait: all share torch's random generator.

    >>> import numpy as np, torch, wildood
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 256)
    >>> x = (rng.normal(size=(256, 2)) + 4 * y[:, None]).astype("float32")
    >>> start, schedule = torch.nn.Linear(2, 2), wildood.Schedule(epochs=20, batch=32, lr=0.1)
    >>> trained = wildood.pretrain(start, (x, y), schedule=schedule, verbose=False)
    >>> bool((trained(torch.from_numpy(x)).argmax(1).numpy() == y).mean() > 0.9)
    True
    """
    return train_classifier(model, labelled, holdout, schedule, input, run_dir, seed, on_epoch, verbose=verbose).model


class TrainedClassifier(NamedTuple):
    """A trained classifier, and how often it is right: on the holdout, or without one on what it was trained on.

    Attributes:
        model: in evaluation mode.
        accuracy: the share of these examples that it classifies correctly.
        examples: how many they are; of `labelled` at most `MEASURED`.
    """

    model: nn.Module
    accuracy: float
    examples: int


def train_classifier(
    model: nn.Module,
    labelled: Any,
    holdout: Any,
    schedule: Schedule | None,
    spec: InputSpec | None,
    run_dir: str | Path | None,
    seed: int,
    on_epoch: OnEpoch | None = None,
    *,
    verbose: bool,
) -> TrainedClassifier:
    """`pretrain`, which gives the accuracy as well."""
    check_spec(spec)
    schedule = check_schedule(schedule, Schedule.pretraining(), looks=False)
    seed, run_dir, on_epoch = check_seed(seed), check_run_dir(run_dir), optional(check_callable)(on_epoch, "on_epoch", {})
    verbose = check_flag(verbose, "verbose")
    with verbose_logging(verbose=verbose), seeded(seed, "pretrain"), torch.inference_mode(mode=False):
        known = labelled_source(labelled, "labelled")
        holdout = numbered_like(labelled, holdout, "holdout")
        unseen = None if holdout is None else Example.of(known).check(labelled_source(holdout, "holdout"), "holdout")
        classifier, classes = copy_classifier(model, known, spec, None, uses_features=False, trained=True)
        check_trainable(classifier)
        for name, source in (("labelled", known), ("holdout", unseen)):
            if source is not None:
                check_labels(all_labels(source), name, classes)
        check_augmentation(schedule, Example.of(known).shape)
        objective = CrossEntropyObjective(classifier)
        check_distributed(schedule)
        record = run_record(classifier, schedule, {"labelled": known.fingerprint()}, seed=seed)
        watched = {"data.holdout": None if unseen is None else unseen.fingerprint()}
        check_same_on_all_processes({**record, **watched, "run_dir given": run_dir is not None})
        run = None if run_dir is None else RunDirectory(run_dir, record)
        monitor = None if unseen is None else Monitor(unseen, None, alpha=0.05)
        select = None if monitor is None else SelectEpoch(monitor, "last")
        train(objective, known, None, schedule, seed, select=select, run=run, on_epoch=on_epoch)
        name, looked_at = ("labelled", at_most(known, MEASURED, seed)) if unseen is None else ("the holdout", unseen)
        accuracy = _accuracy(classifier, looked_at, name)
    trained: nn.Module = classifier.model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    return TrainedClassifier(trained, accuracy, len(looked_at))


def _accuracy(classifier: Classifier, source: Source, name: str) -> float:
    """On these examples, with a warning if it may be that of a classifier that always gives one answer (a sign test)."""
    answers, labels = [], []
    with evaluating(classifier):
        for outputs, truth in forward_all(classifier, source):
            assert truth is not None  # noqa: S101 - labelled
            answers.append(outputs.logits.argmax(1).cpu())
            labels.append(truth.cpu())
    right, is_frequent = torch.cat(answers) == torch.cat(labels), torch.cat(labels) == torch.cat(labels).mode().values
    accuracy, frequent = float(right.double().mean()), float(is_frequent.double().mean())
    only_it, only_frequent = int((right & ~is_frequent).sum()), int((~right & is_frequent).sum())
    if binomial_cdf(only_frequent, only_it + only_frequent, 0.5) > BY_LUCK:
        better = "no better than" if accuracy <= frequent else f"on {len(source)} examples not shown to be better than"
        logger.warning(
            "the classifier is right on %.1f %% of %s, %s always answering the most frequent class (%.1f %%): train longer "
            "(--epochs), change the learning rate (--lr), or check the labels and the scaling of the inputs",
            100 * accuracy,
            name,
            better,
            100 * frequent,
        )
    return accuracy
