"""One run: an experiment with a seed in, a stored result or a recorded failure out."""

import hashlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from wildood.data.files import locked, write_array_file
from wildood.data.sources import Source
from wildood.data.validation import all_labels, labelled_source, unlabelled_source
from wildood.data.wild import WildMixture
from wildood.detect.checks import copy_classifier, model_fingerprint, versions
from wildood.detect.detector import Detector, examples_of
from wildood.detect.fit import fit
from wildood.detect.frozen import features_of, head_of
from wildood.detect.posthoc import posthoc
from wildood.errors import CheckpointError, InputError, WildoodError
from wildood.evaluate.metrics import accuracy, all_metrics, fpr_standard_error
from wildood.experiments.experiment import Experiment
from wildood.experiments.results import Failure, OnOod, Result, result_json, result_of
from wildood.experiments.split import Division, divide
from wildood.experiments.starts import start_is_busy, starting_classifier, untrained_model
from wildood.experiments.store import KNOWN, RunStore, Scores
from wildood.methods.objective import Method
from wildood.scores.score import Score
from wildood.train.callbacks import OnEpoch
from wildood.train.progress import logger

PASSES = "passes"  # the folder beside the runs

Array = np.ndarray[Any, Any]


def in_features(model: nn.Module, parts: Division, runs: Path) -> tuple[nn.Module, Division]:
    """The classifier's last layer, and the parts as features: to a score that reads logits and features, they are the same.

    >>> import tempfile
    >>> from wildood.experiments.split import divide
    >>> from wildood.experiments.experiment import Experiment
    >>> from wildood.models.small import SmallCNN
    >>> parts = divide(Experiment("digits", ("digits",), method="energy"))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     head, found = in_features(SmallCNN(classes=7), parts, Path(place))
    >>> found.test_id[0].shape, head(torch.from_numpy(found.test_id[0])).shape
    ((214, 64), torch.Size([214, 7]))
    """
    source = labelled_source(parts.labelled, "labelled")
    classifier, _ = copy_classifier(model, source, parts.spec, None, uses_features=True)
    head = head_of(classifier, source.gather(torch.arange(2))[0])
    known = f"{model_fingerprint(classifier.model)} {parts.spec}"  # what decides the features, besides the images

    def features(data: Source) -> Array:
        return _kept(runs, f"{known}/{data.fingerprint()}", lambda: features_of(classifier, data))

    def labelled(data: Any, name: str) -> tuple[Array, Array]:
        examples = labelled_source(data, name)
        return features(examples), all_labels(examples).numpy()

    tests: Mapping[str, Array] = {name: features(unlabelled_source(test, name)) for name, test in parts.tests.items()}
    validation, wild = parts.validation_ood, parts.wild
    return head.model.eval(), replace(
        parts,
        labelled=labelled(parts.labelled, "labelled"),
        holdout=labelled(parts.holdout, "holdout"),
        test_id=labelled(parts.test_id, "test"),
        tests=tests,
        validation_ood=None if validation is None else features(unlabelled_source(validation, "validation")),
        spec=None,
        wild=None if wild is None else WildMixture(id=features(wild.id), ood=features(wild.ood), pi=wild.pi),
    )


def _kept(runs: Path, what: str, make: Callable[[], Array]) -> Array:
    """An array that is made once, by whichever process comes first."""
    path = runs / PASSES / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), waiting="another process makes a pass that is needed here: waiting for it"):
        if not path.exists():
            write_array_file(path, features=make())
    with np.load(path) as file:
        return np.asarray(file["features"])


MOST_DEATHS = 3  # of the process that does a run, before it counts as failed


def run(
    experiment: Experiment, store: RunStore, root: str | Path | None = None, on_epoch: OnEpoch | None = None
) -> Result | Failure | None:
    """Do a run and keep what it found, or why it failed; None if another process is at it, or has done it.

    A run that was cut off goes on from its last checkpoint.
    """
    if start_is_busy(experiment, store.root):
        return None  # which another process trains: there may be other things to do
    with store.claimed(experiment) as mine:
        if not mine or store.is_done(experiment) or store.failure(experiment) is not None:
            return None
        with store.attempt(experiment) as died:
            if died >= MOST_DEATHS:
                return _failed(experiment, store, f"its process died {died} times, perhaps for lack of memory", "")
            try:
                try:
                    result, scores = _perform(experiment, store, root, on_epoch)
                except CheckpointError as error:
                    logger.warning("%s starts again from its beginning: %s", experiment.name, error)
                    store.clear_training(experiment)
                    result, scores = _perform(experiment, store, root, on_epoch)
                _check_readable(result)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other runs go on, and it is told
                return _failed(experiment, store, _in_one_line(error), traceback.format_exc())
            store.add(result, scores)
            return result


def _check_readable(result: Result) -> None:
    """Refuse what could be written and not be read: the run would count as not done, and be done again without end."""
    try:
        result_of(result.experiment, result_json(result))
    except (InputError, TypeError) as error:
        raise InputError(f"what {result.experiment.method} found cannot be kept ({error}): mend the method") from error


def _failed(experiment: Experiment, store: RunStore, error: str, trace: str) -> Failure:
    failure = Failure(experiment, error, trace, _about())
    store.add_failure(failure)
    return failure


def _perform(
    experiment: Experiment,
    store: RunStore,
    root: str | Path | None,
    on_epoch: OnEpoch | None,
) -> tuple[Result, Scores]:
    parts = divide(experiment, root)
    recipe = experiment.recipe()
    if experiment.protocol == "as_published" and experiment.trains and not experiment.uses_wild:
        model = untrained_model(experiment, parts.classes)  # the published GODIN is trained from scratch
    else:
        model = starting_classifier(experiment, parts, store.root, root, on_epoch)
    if isinstance(recipe, Score) and not recipe.needs.gradients:
        model, parts = in_features(model, parts, store.root)
    began = time.monotonic()  # what is shared with other runs is not this one's
    detector = _detector(experiment, recipe, model, parts, store.training(experiment), on_epoch)
    tests, known, scores = _measured(detector, parts)
    return Result(
        experiment,
        tests,
        **known,
        **(_at_end(detector) if experiment.trains else {}),
        chosen=detector.record.get("chosen") or None,
        history=detector.history or (),
        seconds=round(time.monotonic() - began, 2),
        about={**_about(), "split": parts.record, "kept_epoch": detector.record.get("kept_epoch")},
    ), scores


def _detector(
    experiment: Experiment, recipe: Method | Score, model: nn.Module, parts: Division, place: Path, on_epoch: OnEpoch | None
) -> Detector:
    """What the method makes of the starting classifier, by the rules of the protocol."""
    published = experiment.protocol == "as_published"
    given: dict[str, Any] = {"labelled": parts.labelled, "wild": parts.wild, "holdout": parts.holdout, "input": parts.spec}
    if isinstance(recipe, Score):
        return posthoc(model, recipe, **given, ood=parts.validation_ood if published else None, seed=experiment.seed)
    chooses = published and experiment.uses_wild
    return fit(
        model,
        **given,
        method=recipe,
        schedule=experiment.schedule,
        # Without wild data the last epoch is kept in any case, and "best" lets half of the holdout choose an epsilon.
        keep="as_published" if chooses else experiment.keep if experiment.uses_wild else "best",
        ood=parts.validation_ood if chooses else None,
        run_dir=place,
        seed=experiment.seed,
        verbose=False,
        on_epoch=on_epoch,
    )


def _at_end(detector: Detector) -> dict[str, Any]:
    """What may choose among settings: what data set aside said of the weights that were kept."""
    start, kept = detector.history[0], detector.history[detector.record["kept_epoch"]]
    found = {"accuracy_lost": start["accuracy"] - kept["accuracy"]}
    return found | ({"acceptance": kept["acceptance"]} if "acceptance" in kept else {})


def _measured(detector: Detector, parts: Division) -> tuple[dict[str, OnOod], dict[str, Any], Scores]:
    """Every number, and every score, on the test examples."""
    id_scores, classes = detector.score_and_classify(examples_of(parts.test_id))
    labels = all_labels(labelled_source(parts.test_id, "test")).numpy()
    tests, scores = {}, {KNOWN: id_scores.astype(np.float32)}
    for name, test in parts.tests.items():
        ood_scores, ood_classes = detector.score_and_classify(test)
        found = all_metrics(id_scores, ood_scores)
        tests[name] = OnOod(
            fpr95=found.fpr_at_tpr,
            fpr95_error=fpr_standard_error(id_scores, ood_scores),
            auroc=found.auroc,
            aupr_in=found.aupr_in,
            aupr_out=found.aupr_out,
            accepted=float(np.mean(detector.accepts(ood_scores, ood_classes))),
            examples=len(ood_scores),
        )
        scores[name] = ood_scores.astype(np.float32)
    known = {
        "accuracy": accuracy(classes, labels),
        "false_alarms": float(np.mean(~detector.accepts(id_scores, classes))),
        "examples": len(id_scores),
    }
    return tests, known, scores


def _about() -> dict[str, Any]:
    """What else decided the numbers, or may explain them: versions, hardware, time."""
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
    """A hash of the source of wildood, which says more than a version number while it is being developed.

    >>> len(code_version())
    12
    """
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _in_one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, WildoodError) else f"{type(error).__name__}: {said}"
