"""`pretrain`: a classifier and labelled data in, a trained classifier out; and the checks that `fit` makes, too."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from wildood.data.inputs import Spec
from wildood.data.sampling import seeded
from wildood.data.sources import Source
from wildood.data.tables import TableSpec
from wildood.data.validation import all_labels, check_labels, labelled_and_holdout, rows_of
from wildood.detect.detector import Example
from wildood.detect.split import check_seed, subsample
from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_cdf
from wildood.methods.objective import CrossEntropyObjective
from wildood.methods.schedule import Schedule
from wildood.models.classifier import (
    Classifier,
    Precision,
    check_spec,
    check_trainable,
    copy_classifier,
    evaluating,
    forward_all,
    model_fingerprint,
)
from wildood.settings import check_callable, check_choice, check_flag, check_path, optional, quoted
from wildood.train.callbacks import OnEpoch
from wildood.train.checkpoint import RunDirectory
from wildood.train.distributed import check_distributed, check_same_on_all_processes, training_device
from wildood.train.loop import train
from wildood.train.monitor import Monitor
from wildood.train.progress import logger, verbose_logging
from wildood.train.selection import SelectEpoch

ACCURACY_SAMPLE = 10_000  # labelled examples, at most, that measure the accuracy where there is no holdout
SIGNIFICANCE = 0.05  # of the test that the classifier is better than a constant answer


def pretrain(
    model: nn.Module,
    labelled: Any,
    holdout: Any = None,
    *,
    schedule: Schedule | None = None,
    input: Spec | None = None,  # noqa: A002 - the user's word for it
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    run_dir: str | Path | None = None,
    seed: int = 0,
    verbose: bool = True,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a classifier with cross-entropy; the model you pass is copied, never changed.

    A warning is given if the result is no better than always answering the most frequent class.

    Args:
        model: any module that maps a batch to logits.
        labelled: `(x, y)` or a dataset of pairs. Leave some examples out: a detector needs a holdout that its classifier was
            not trained on.
        holdout: `(x, y)` to show the accuracy on after each epoch; it chooses nothing and stays unseen.
        schedule: how long and how fast; `Schedule.pretraining()`, the recipe of the paper, by default;
            for tables without its flips and crops.
        input: how uint8 images (`InputSpec`) or tables (`TableSpec`) become model input; without it, floats are used as
            they are.
        device: where to train, as `fit` does.
        precision: "bf16" trains with the model's forward and backward passes in bfloat16, as `fit` does.
        run_dir: directory for checkpoints and history. Call again with the same arguments to resume a killed run.
        seed: decides every random draw.
        verbose: show progress.
        on_epoch: called with each row of the history.

    Threads that call it at the same time train one after the other, because they share torch's random generator.

    >>> import numpy as np, torch, wildood
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 256)
    >>> x = (rng.normal(size=(256, 2)) + 4 * y[:, None]).astype("float32")
    >>> start, schedule = torch.nn.Linear(2, 2), wildood.Schedule(epochs=20, batch=32, lr=0.1)
    >>> trained = wildood.pretrain(start, (x, y), schedule=schedule, verbose=False)
    >>> bool((trained(torch.from_numpy(x)).argmax(1).numpy() == y).mean() > 0.9)
    True
    """
    settings: dict[str, Any] = {"device": device, "precision": precision, "on_epoch": on_epoch, "verbose": verbose}
    return train_classifier(model, labelled, holdout, schedule, input, run_dir, seed, **settings).model


class TrainedClassifier(NamedTuple):
    """A trained model, in evaluation mode, and its accuracy on the holdout or, without one, on some labelled examples."""

    model: nn.Module
    accuracy: float
    examples: int


def train_classifier(
    model: nn.Module,
    labelled: Any,
    holdout: Any,
    schedule: Schedule | None,
    spec: Spec | None,
    run_dir: str | Path | None,
    seed: int,
    *,
    device: str | torch.device | None = None,
    precision: Precision,
    verbose: bool,
    on_epoch: OnEpoch | None = None,
) -> TrainedClassifier:
    """`pretrain`, with the accuracy of the result."""
    check_spec(spec)
    own = Schedule.pretraining(augment=not isinstance(spec, TableSpec))
    schedule = check_schedule(schedule, own, has_wild_aside=False)
    check_choice(precision, "precision", get_args(Precision))
    seed, path = check_seed(seed), optional(check_path)(run_dir, "run_dir")
    on_epoch, verbose = optional(check_callable)(on_epoch, "on_epoch", {}), check_flag(verbose, "verbose")
    with verbose_logging(verbose=verbose), seeded(seed, "pretrain"), torch.inference_mode(mode=False):
        labelled, holdout = rows_of(labelled, spec, "labelled"), rows_of(holdout, spec, "holdout")
        known, unseen = labelled_and_holdout(labelled, holdout)
        example = Example.of(known)
        choose_device = partial(training_device, device=device)
        classifier, classes = copy_classifier(model, known, spec, None, uses_features=False, choose_device=choose_device)
        check_trainable(classifier)
        classifier.train_in(precision)
        for name, source in (("labelled", known), ("holdout", unseen)):
            if source is not None:
                check_labels(all_labels(example.check(source, name)), name, classes)
        check_augmentation(schedule, example.shape)
        objective = CrossEntropyObjective(classifier)
        check_distributed(schedule)
        record = run_record(classifier, schedule, {"labelled": known.fingerprint()}, seed=seed)
        watched = {"data.holdout": None if unseen is None else unseen.fingerprint()}
        check_same_on_all_processes({**record, **watched, "run_dir given": path is not None})
        run = None if path is None else RunDirectory(path, record)
        select = None if unseen is None else SelectEpoch(Monitor(unseen, None, alpha=0.05), "last")
        train(objective, known, None, schedule, seed, select=select, run=run, on_epoch=on_epoch)
        name, measured_on = (
            ("labelled", subsample(known, ACCURACY_SAMPLE, seed)) if unseen is None else ("the holdout", unseen)
        )
        accuracy = _accuracy(classifier, measured_on, name)
    trained: nn.Module = classifier.model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    return TrainedClassifier(trained, accuracy, len(measured_on))


def _accuracy(classifier: Classifier, source: Source, name: str) -> float:
    """The accuracy, with a warning if it may be that of always answering the most frequent class (a sign test)."""
    with evaluating(classifier):
        batches = [(outputs.logits.argmax(1).cpu(), labels.cpu()) for outputs, labels in forward_all(classifier, source)]  # type: ignore[union-attr]
    predicted, labels = map(torch.cat, zip(*batches, strict=True))
    correct, is_frequent = predicted == labels, labels == labels.mode().values
    accuracy, frequent = float(correct.double().mean()), float(is_frequent.double().mean())
    only_correct, only_frequent = int((correct & ~is_frequent).sum()), int((~correct & is_frequent).sum())
    if binomial_cdf(only_frequent, only_correct + only_frequent, 0.5) > SIGNIFICANCE:
        better = "no better than" if accuracy <= frequent else f"on {len(source)} examples not shown to be better than"
        text = (
            f"the classifier is right on {100 * accuracy:.1f} % of {name}, {better} always answering the most frequent "
            f"class ({100 * frequent:.1f} %): train longer (--epochs), change the learning rate (--lr), or check the labels "
            "and the scaling of the inputs"
        )
        logger.warning("%s", text)
    return accuracy


def check_schedule(schedule: Any, own: Schedule, *, has_wild_aside: bool) -> Schedule:
    """The schedule, for None the method's own; of a fixed length where no wild data is set aside to end it by."""
    schedule = own if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise InputError(f"schedule is {quoted(schedule)}: give a Schedule, such as Schedule(steps=100), or leave it out")
    return schedule if has_wild_aside else schedule.fixed()


def check_augmentation(schedule: Schedule, shape: tuple[int, ...]) -> None:
    """Refuse augmentation of examples that are no images."""
    if schedule.augment and len(shape) != 3:
        raise InputError(
            f"the schedule's augment is for images, but an example has shape {shape}: give "
            "Schedule.pretraining(augment=False) in Python, --augment False on the command line"
        )


def run_record(classifier: Classifier, schedule: Schedule, data: dict[str, str], **settings: Any) -> dict[str, Any]:
    """What identifies a run, as JSON would give it back."""
    spec, tap = classifier.spec, classifier.tap
    record = {
        **settings,
        "schedule": asdict(schedule),
        "input": None if spec is None else spec.to_dict(),
        "data": data,
        "model": model_fingerprint(classifier.model),
        "features": None if tap is None else asdict(tap),
        **({} if classifier.precision == "float32" else {"precision": classifier.precision}),
    }
    restored: dict[str, Any] = json.loads(json.dumps(record))
    return restored
