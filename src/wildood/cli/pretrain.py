"""`wildood pretrain`: labelled arrays and a model in, trained weights out."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

import numpy as np
import torch

from wildood.cli.models import read_model
from wildood.cli.options import named
from wildood.cli.sources import read_labelled
from wildood.cli.training import (
    CommonOptions,
    as_toml,
    check_colours,
    made_for,
    parse_with_config,
    require,
    schedule_of,
    settings_of,
    spec_of,
)
from wildood.data.files import dump_tensors, write_array_file, write_atomically, write_text
from wildood.data.images import Images
from wildood.data.sampling import generator, split
from wildood.detect.pretrain import train_classifier
from wildood.errors import InputError
from wildood.methods.schedule import Schedule
from wildood.train.distributed import is_first
from wildood.train.progress import verbose_logging


@dataclass(frozen=True)
class PretrainOptions(CommonOptions):
    """Train a classifier with cross-entropy, and write its weights to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        set_aside: the share of labelled that is not trained on: it is written to set_aside.npz, the rest to trained_on.npz,
            which are the --holdout and --labelled of a later wildood fit.
        steps: how many steps to train, instead of --epochs.
        batch: examples in a step.
    """

    set_aside: Annotated[float | None, named("SHARE")] = None
    # Not with the other settings of the schedule, whose help is about a fit: 100 steps, and wild examples beside.
    steps: Annotated[int | None, named("N")] = None
    batch: Annotated[int | None, named("N", f"(default: {Schedule.pretraining().batch})")] = None


Options: Any = make_dataclass(
    "Options",
    settings_of(Schedule, default=Schedule.pretraining(), without=("steps", "batch", "duals", "epoch", "rounds")),
    bases=(PretrainOptions,),
    frozen=True,
    namespace={"__doc__": PretrainOptions.__doc__},
)


def run(words: Sequence[str]) -> None:
    """Train as the words say; weights and the effective settings are in the output directory afterwards."""
    options = parse_with_config(Options, "pretrain", words)
    require(options, "pretrain", ("labelled", "model", "out"))
    schedule = schedule_of(options, Schedule.pretraining())
    model = read_model(options.model, options.seed)
    check_colours(options)  # a mistake is told before pictures are decoded
    with verbose_logging(verbose=not options.quiet):
        given = read_labelled(options.labelled, "--labelled", options)
        options, model = made_for(given, options, model)
    labelled, aside = _divide(given, options.set_aside, options.seed)
    run_dir, spec = options.out / "run", spec_of(options)
    trained = train_classifier(model, labelled, aside, schedule, spec, run_dir, options.seed, verbose=not options.quiet)
    if not is_first():
        return
    write_atomically(options.out / "weights.safetensors", dump_tensors(trained.model.state_dict()))
    write_text(options.out / "settings.toml", as_toml(options, "pretrain", schedule))
    if aside is not None:
        classes = {"classes": np.array(given.classes)} if given.classes else {}
        for name, (x, y) in (("trained_on", labelled), ("set_aside", aside)):
            write_array_file(options.out / f"{name}.npz", x=x, y=y, **classes)
    measured = "set_aside.npz" if aside is not None else f"{trained.examples} examples that it was trained on"
    sys.stdout.write(f"{options.out / 'weights.safetensors'}: accuracy {100 * trained.accuracy:.1f} % on {measured}\n")


def _divide(given: Images, share: float | None, seed: int) -> tuple[Any, Any]:
    """What is trained on, and what is not."""
    if share is None:
        return given, None
    x, y = np.asarray(given.examples), np.asarray(given.labels)
    if not 0 < share < 1 or round(share * len(y)) == 0:
        raise InputError(f"--set-aside is {share}: give a share of labelled, such as 0.1")
    parts = split(len(y), share, generator(seed, "set-aside"))
    kept, aside = (np.sort(part[torch.arange(len(part))].numpy()) for part in parts)
    return (x[kept], y[kept]), (x[aside], y[aside])
