"""`wildood pretrain`: labelled arrays and a model in, trained weights out."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch

from wildood.cli.inputs import (
    Data,
    adapt,
    check_colours,
    input_spec,
    read_labelled,
    read_model,
    read_start,
    with_reader,
)
from wildood.cli.options import TrainingOptions, as_toml, named, parse_training, require
from wildood.data.files import dump_tensors, write_array_file, write_atomically, write_text
from wildood.data.images import Images
from wildood.data.sampling import generator, split
from wildood.data.tables import TableSpec
from wildood.detect.pretrain import train_classifier
from wildood.errors import InputError
from wildood.train.distributed import is_first
from wildood.train.progress import verbose_logging

HIDDEN = ("duals", "epoch", "normalisation")  # settings of a schedule that need multipliers or wild data


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """Train a classifier with cross-entropy, and write its weights to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        set_aside: the share of labelled that is not trained on: it is written to set_aside.npz, the rest to trained_on.npz,
            which are the --holdout and --labelled of a later wildood fit.
    """

    set_aside: Annotated[float | None, named("SHARE")] = None


def run(words: Sequence[str]) -> None:
    """Train a classifier; its weights and the effective settings are in the output directory afterwards."""
    options: Any = parse_training(
        PretrainOptions,
        "pretrain",
        words,
        hidden=HIDDEN,
        steps="how many steps to train, instead of --epochs.",
        epochs="how many epochs to train.",
        batch="examples in a step.",
    )
    with verbose_logging(verbose=not options.quiet):
        options, start = read_start(options)
    require(options, "pretrain", ("labelled", *(() if start else ("model",)), "out"))
    with verbose_logging(verbose=not options.quiet):
        options = with_reader(options, start)
    if options.reader is not None:  # rows and texts are neither flipped nor cropped
        options = replace(options, schedule=replace(options.schedule, augment=False))
    model = start.classifier.model if start else read_model(options.model, options.seed)
    check_colours(options)  # before pictures are decoded
    with verbose_logging(verbose=not options.quiet):
        images = read_labelled(options.labelled, "--labelled", options, start)
        options, model = adapt(images, options, model, start)
    labelled, aside = _split(images, options.set_aside, options.seed)
    run_dir, spec, verbose = options.out / "run", input_spec(options), not options.quiet
    settings: dict[str, Any] = {"device": options.device, "precision": options.precision, "verbose": verbose}
    trained = train_classifier(model, labelled, aside, options.schedule, spec, run_dir, options.seed, **settings)
    if not is_first():
        return
    weights = options.out / "weights.safetensors"
    table = {"table": json.dumps(spec.to_dict())} if isinstance(spec, TableSpec) else None
    write_atomically(weights, dump_tensors(trained.model.state_dict(), table))
    write_text(options.out / "settings.toml", as_toml(options, "pretrain", HIDDEN))
    if aside is not None:
        classes = {"classes": np.array(images.classes)} if images.classes else {}
        for name, (x, y) in (("trained_on", labelled), ("set_aside", aside)):
            write_array_file(options.out / f"{name}.npz", x=x, y=y, **classes)
    measured = "set_aside.npz" if aside is not None else f"{trained.examples} examples that it was trained on"
    sys.stdout.write(f"{weights}: accuracy {100 * trained.accuracy:.1f} % on {measured}\n")


def _split(images: Data, share: float | None, seed: int) -> tuple[Any, Any]:
    """What is trained on, and what is set aside."""
    if share is None:
        return images, None
    if not isinstance(images, Images):
        raise InputError("--set-aside is not for texts: keep some lines of the file for yourself")
    x, y = np.asarray(images.examples), np.asarray(images.labels)
    if not 0 < share < 1 or round(share * len(y)) == 0:
        raise InputError(f"--set-aside is {share}: give a share of labelled, such as 0.1")
    parts = split(len(y), share, generator(seed, "set-aside"))
    kept, aside = (np.sort(part[torch.arange(len(part))].numpy()) for part in parts)
    return (x[kept], y[kept]), (x[aside], y[aside])
