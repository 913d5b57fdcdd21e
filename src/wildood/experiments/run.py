"""One run: an experiment in, a stored result or a recorded failure out."""

import os
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from wildood.data.files import locked, write_array_file
from wildood.data.sources import Source
from wildood.data.validation import all_labels, labelled_source, unlabelled_source
from wildood.data.wild import WildMixture
from wildood.detect.detector import Detector, examples_of, versions
from wildood.detect.fit import fit
from wildood.detect.frozen import features_of, head_of
from wildood.detect.posthoc import posthoc
from wildood.errors import CheckpointError, InputError, WildoodError
from wildood.evaluate.metrics import accuracy, all_metrics, fpr_standard_error
from wildood.experiments.experiment import Experiment
from wildood.experiments.split import Split, load_split
from wildood.experiments.starts import start_is_in_training, starting_classifier, untrained_model
from wildood.experiments.store import KNOWN, Failure, OodMetrics, Result, RunOutcome, RunStore, Scores
from wildood.models.classifier import copy_classifier, model_fingerprint
from wildood.scores.score import Score
from wildood.train.callbacks import OnEpoch
from wildood.train.progress import logger

FEATURES = "passes"  # the folder of computed features in the run directory
MOST_DEATHS = 3  # of the processes that do a run, before it counts as failed
Array = np.ndarray[Any, Any]


class Outcome(NamedTuple):
    """The result of an experiment, the scores of its test examples, and the detector."""

    result: Result
    scores: Scores
    detector: Detector


def run(
    experiment: Experiment, store: RunStore, root: str | Path | None = None, on_epoch: OnEpoch | None = None
) -> RunOutcome | None:
    """Do a run and store its result or its failure; None if another process is at it, or has done it.

    A run that was interrupted resumes from its last checkpoint.
    """
    if start_is_in_training(experiment, store.root):
        return None
    with store.claimed(experiment) as mine:
        if not mine or store.outcome(experiment) is not None:
            return None
        with store.attempt(experiment) as died:
            if died >= MOST_DEATHS:
                return _failed(experiment, store, f"its process died {died} times, perhaps for lack of memory", "")
            do = partial(perform, experiment, store.root, root, store.training(experiment), on_epoch)
            try:
                try:
                    outcome = do()
                except CheckpointError as error:
                    logger.warning("%s starts again from its beginning: %s", experiment.name, error)
                    store.clear_training(experiment)
                    outcome = do()
                _check_readable(outcome.result)
            except Exception as error:  # noqa: BLE001 - recorded as a failure; the other runs go on
                text = " ".join(str(error).split())
                reason = text if isinstance(error, WildoodError) else f"{type(error).__name__}: {text}"
                return _failed(experiment, store, reason, traceback.format_exc())
            store.add(outcome.result, outcome.scores)
            return outcome.result


def perform(
    experiment: Experiment,
    runs: Path,
    root: str | Path | None = None,
    checkpoints: Path | None = None,
    on_epoch: OnEpoch | None = None,
    split: Split | None = None,
) -> Outcome:
    """Train and test: the experiment's method on its starting classifier, which is kept in `runs`.

    `split` replaces the experiment's own, to develop on validation data.
    """
    split = load_split(experiment, root) if split is None else split
    recipe = experiment.recipe()
    if experiment.protocol == "as_published" and experiment.trains and not experiment.uses_wild:
        model = untrained_model(experiment, split.classes)  # the published GODIN is trained from scratch
    else:
        model = starting_classifier(experiment, split, runs, root, on_epoch)
    if isinstance(recipe, Score) and not recipe.needs.gradients:
        model, split = to_features(model, split, runs)
    began = time.monotonic()  # after what is shared with other runs
    detector = _detector(experiment, model, split, checkpoints, on_epoch)
    tests, on_id, scores = measure_detector(detector, split)
    result = Result(
        experiment,
        tests,
        **on_id,
        **(_validation(detector) if experiment.trains else {}),
        chosen=detector.record.get("chosen") or None,
        history=detector.history or (),
        seconds=round(time.monotonic() - began, 2),
        about={**_about(), "split": split.record, "kept_epoch": detector.record.get("kept_epoch")},
    )
    return Outcome(result, scores, detector)


def to_features(model: nn.Module, split: Split, runs: Path) -> tuple[nn.Module, Split]:
    """The last layer of a classifier, and the split as its features, which are computed once for all scores."""
    source = labelled_source(split.labelled, "labelled")
    classifier, _ = copy_classifier(model, source, split.spec, None, uses_features=True)
    head = head_of(classifier, source.gather(torch.arange(2))[0])
    network = f"{model_fingerprint(classifier.model)} {split.spec}"

    def features(data: Source) -> Array:
        return _computed_once(runs, f"{network}/{data.fingerprint()}", lambda: features_of(classifier, data))

    def labelled(data: Any, name: str) -> tuple[Array, Array]:
        examples = labelled_source(data, name)
        return features(examples), all_labels(examples).numpy()

    validation, wild = split.validation_ood, split.wild
    return head.model.eval(), replace(
        split,
        labelled=labelled(split.labelled, "labelled"),
        holdout=labelled(split.holdout, "holdout"),
        test_id=labelled(split.test_id, "test"),
        tests={name: features(unlabelled_source(test, name)) for name, test in split.tests.items()},
        validation_ood=None if validation is None else features(unlabelled_source(validation, "validation")),
        spec=None,
        wild=None if wild is None else WildMixture(id=features(wild.id), ood=features(wild.ood), pi=wild.pi),
    )


def _computed_once(runs: Path, key: str, compute: Callable[[], Array]) -> Array:
    """An array that is computed by whichever process comes first."""
    path = runs / FEATURES / f"{sha256(key.encode()).hexdigest()[:16]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), waiting="another process computes features that are needed here: waiting for it"):
        if not path.exists():
            write_array_file(path, features=compute())
    with np.load(path) as file:
        return np.asarray(file["features"])


def _detector(
    experiment: Experiment, model: nn.Module, split: Split, checkpoints: Path | None, on_epoch: OnEpoch | None
) -> Detector:
    """The method on the starting classifier, by the rules of the protocol."""
    recipe, published = experiment.recipe(), experiment.protocol == "as_published"
    data: dict[str, Any] = {"labelled": split.labelled, "wild": split.wild, "holdout": split.holdout, "input": split.spec}
    if isinstance(recipe, Score):
        return posthoc(model, recipe, **data, ood=split.validation_ood if published else None, seed=experiment.seed)
    chooses = published and experiment.uses_wild
    return fit(
        model,
        **data,
        method=recipe,
        schedule=experiment.schedule,
        # Without wild data the last epoch is kept in any case, and "best" lets half of the holdout choose an epsilon.
        keep="as_published" if chooses else experiment.keep if experiment.uses_wild else "best",
        ood=split.validation_ood if chooses else None,
        run_dir=checkpoints,
        seed=experiment.seed,
        verbose=False,
        on_epoch=on_epoch,
    )


def _validation(detector: Detector) -> dict[str, Any]:
    """What may choose among settings: the metrics of the kept weights on validation data."""
    start, kept = detector.history[0], detector.history[detector.record["kept_epoch"]]
    return {"accuracy_lost": start["accuracy"] - kept["accuracy"], "acceptance": kept.get("acceptance")}


def measure_detector(detector: Detector, split: Split) -> tuple[dict[str, OodMetrics], dict[str, Any], Scores]:
    """The metrics on each OOD test set and on the ID test set, and the scores of all test examples."""
    id_scores, classes = detector.score_and_classify(examples_of(split.test_id))
    labels = all_labels(labelled_source(split.test_id, "test")).numpy()
    tests, scores = {}, {KNOWN: id_scores.astype(np.float32)}
    for name, test in split.tests.items():
        ood_scores, ood_classes = detector.score_and_classify(test)
        metrics = all_metrics(id_scores, ood_scores)
        tests[name] = OodMetrics(
            fpr95=metrics.fpr_at_tpr,
            fpr95_error=fpr_standard_error(id_scores, ood_scores),
            auroc=metrics.auroc,
            aupr_in=metrics.aupr_in,
            aupr_out=metrics.aupr_out,
            accepted=float(np.mean(detector.accepts(ood_scores, ood_classes))),
            examples=len(ood_scores),
        )
        scores[name] = ood_scores.astype(np.float32)
    on_id = {
        "accuracy": accuracy(classes, labels),
        "false_alarms": float(np.mean(~detector.accepts(id_scores, classes))),
        "examples": len(id_scores),
    }
    return tests, on_id, scores


def _check_readable(result: Result) -> None:
    """Raise an error if the result could be written but not read: the run would be repeated for ever."""
    try:
        Result.from_json(result.experiment, result.to_json())
    except (InputError, TypeError) as error:
        raise InputError(
            f"the result of {result.experiment.method} cannot be stored ({error}): correct the method"
        ) from error


def _failed(experiment: Experiment, store: RunStore, error: str, trace: str) -> Failure:
    failure = Failure(experiment, error, trace, _about())
    store.add_failure(failure)
    return failure


def _about() -> dict[str, Any]:
    """What else may explain the numbers: versions, hardware, time."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "code": code_version(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(terse=True),
            "processors": os.cpu_count(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        },
    }


@cache
def code_version() -> str:
    """A hash of the source of wildood: more precise than a version number during development."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
