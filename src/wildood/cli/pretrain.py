"""`wildood pretrain`: labelled arrays and a model in, trained weights out."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

import numpy as np

from wildood.cli.arrays import Array, read_pair
from wildood.cli.models import read_model
from wildood.cli.options import named
from wildood.cli.training import CommonOptions, as_toml, parse_with_config, require, schedule_of, settings_of, spec_of
from wildood.data.files import dump_tensors, write_array_file, write_atomically
from wildood.data.sampling import generator, split
from wildood.detect.pretraining import pretrain
from wildood.errors import InputError
from wildood.methods.schedule import Schedule


@dataclass(frozen=True)
class PretrainOptions(CommonOptions):
    """Train a classifier with cross-entropy, and write its weights to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        set_aside: the share of labelled that is not trained on: it is written to set_aside.npz, the rest to trained_on.npz,
            which are the --holdout and --labelled of a later wildood fit.
    """

    set_aside: Annotated[float | None, named("SHARE")] = None


Options: Any = make_dataclass(
    "Options",
    settings_of(Schedule, default=Schedule.pretraining(), without=("duals", "epoch")),
    bases=(PretrainOptions,),
    frozen=True,
    namespace={"__doc__": PretrainOptions.__doc__},
)


def run(words: Sequence[str]) -> None:
    """Train as the words say; weights and the effective settings are in the output directory afterwards."""
    options = parse_with_config(Options, "pretrain", words)
    require(options, "pretrain", ("labelled", "model", "out"))
    schedule = schedule_of(options, Schedule.pretraining())
    labelled, aside = _divide(read_pair(options.labelled, "--labelled"), options.set_aside, options.seed)
    rows: list[dict[str, float]] = []
    model = pretrain(
        read_model(options.model, options.weights, options.seed),
        labelled,
        aside,
        schedule=schedule,
        input=spec_of(options),
        run_dir=options.out / "run",
        seed=options.seed,
        verbose=not options.quiet,
        on_epoch=rows.append,
    )
    write_atomically(options.out / "weights.safetensors", dump_tensors(model.state_dict()))
    write_atomically(options.out / "settings.toml", as_toml(options, "pretrain", schedule).encode())
    if aside is not None:
        for name, (x, y) in (("trained_on", labelled), ("set_aside", aside)):
            write_array_file(options.out / f"{name}.npz", x=x, y=y)
    accuracy = f": accuracy {100 * rows[-1]['accuracy']:.1f} % on set_aside.npz" if rows and "accuracy" in rows[-1] else ""
    sys.stdout.write(f"{options.out / 'weights.safetensors'}{accuracy}\n")


def _divide(
    labelled: tuple[Array, Array], share: float | None, seed: int
) -> tuple[tuple[Array, Array], tuple[Array, Array] | None]:
    """What is trained on, and what is not."""
    if share is None:
        return labelled, None
    if not 0 < share < 1 or round(share * len(labelled[1])) == 0:
        raise InputError(f"--set-aside is {share}: give a share of labelled, such as 0.1")
    kept, aside = (part.sort().values.numpy() for part in split(len(labelled[1]), share, generator(seed, "set-aside")))
    return (labelled[0][kept], labelled[1][kept]), (labelled[0][aside], np.asarray(labelled[1])[aside])
