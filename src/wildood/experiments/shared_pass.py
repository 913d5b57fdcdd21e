"""One pass of a starting classifier over its data, kept beside the runs, for all scores that need no more than features."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from wildood.data.files import write_array_file
from wildood.data.given import all_labels, labelled_source, unlabelled_source
from wildood.data.locks import locked
from wildood.data.sources import Source
from wildood.data.wild import WildMixture
from wildood.detect.frozen import features_of, head_of
from wildood.detect.network import copy_classifier, model_fingerprint
from wildood.experiments.division import Division

PASSES = "passes"  # the folder beside the runs

Array = np.ndarray[Any, Any]


def in_features(model: nn.Module, parts: Division, runs: Path) -> tuple[nn.Module, Division]:
    """The classifier's last layer, and the parts as features: to a score that reads logits and features, they are the same.

    >>> import tempfile
    >>> from wildood.experiments.division import divide
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
