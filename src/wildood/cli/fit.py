"""`wildood fit`: arrays and a model in, a detector directory out."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from wildood.cli.models import read_model
from wildood.cli.options import named
from wildood.cli.sources import read_labelled, read_wild
from wildood.cli.training import (
    CommonOptions,
    as_toml,
    given,
    made_for,
    parse_with_config,
    require,
    schedule_of,
    settings_of,
    spec_of,
)
from wildood.data.files import write_atomically
from wildood.detect.detector import Detector
from wildood.detect.fitting import fit
from wildood.errors import InputError
from wildood.methods.energy_logistic import EnergyLogistic
from wildood.methods.energy_margin import EnergyMargin
from wildood.methods.godin import Godin
from wildood.methods.objective import Method
from wildood.methods.outlier_exposure import OutlierExposure
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt
from wildood.models.outputs import Classifier
from wildood.report.given import Given
from wildood.report.tables import plots_installed
from wildood.scores.energy import EnergyScore
from wildood.train.progress import logger, shown

METHODS: dict[str, Any] = {
    "woods": Woods,
    "woods-alt": WoodsAlt,
    "oe": OutlierExposure,
    "energy-margin": EnergyMargin,
    "energy-logistic": EnergyLogistic,
    "godin": Godin,
}


@dataclass(frozen=True)
class FitOptions(CommonOptions):
    """Teach a classifier to say "unknown" from wild data, and write the detector to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        wild: unlabelled traffic, known and unknown mixed: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz,
            FILE.npy or a named set.
        holdout: like labelled: examples that the model was not trained on. The promise rests on them.
        method: what to train with.
        as_published: do what the released code does, bugs included (woods and woods-alt).
        features: the submodule whose output are the features, for methods that use them; found if not given.
        keep: the best epoch by wild acceptance on data set aside, or the last.
    """

    wild: Annotated[str | None, named("DATA")] = None
    holdout: Annotated[str | None, named("DATA")] = None
    method: Literal["woods", "woods-alt", "oe", "energy-margin", "energy-logistic", "godin"] = "woods"
    as_published: bool = False
    features: Annotated[str | None, named("NAME")] = None
    keep: Literal["best", "last"] = "best"


Options: Any = make_dataclass(
    "Options",
    settings_of(*METHODS.values()) + settings_of(Schedule),
    bases=(FitOptions,),
    frozen=True,
    namespace={"__doc__": FitOptions.__doc__},
)


def run(words: Sequence[str]) -> None:
    """Fit as the words say; the detector and the effective settings are in the output directory afterwards."""
    options = parse_with_config(Options, "fit", words, (*METHODS.values(), Schedule))
    require(options, "fit", ("labelled", *(("wild",) if METHODS[options.method].uses_wild else ()), "model", "out"))
    method = method_of(options)
    schedule = schedule_of(options, method.schedule())
    model = read_model(options.model, options.weights, options.seed)
    spec_of(options)  # a mistake in it is told before pictures are decoded
    with shown(verbose=not options.quiet):
        labelled = read_labelled(options.labelled, "--labelled", options)
        wild = None if options.wild is None else read_wild(options.wild, "--wild", options, labelled)
        holdout = None if options.holdout is None else read_labelled(options.holdout, "--holdout", options, labelled)
        if options.weights is None:
            options, model = made_for(labelled, options, model)
    detector = fit(
        model,
        labelled,
        wild,
        holdout,
        method=method,
        schedule=schedule,
        input=spec_of(options),
        features=options.features,
        keep=options.keep,
        seed=options.seed,
        run_dir=options.out / "run",
        verbose=not options.quiet,
    )
    detector.save(options.out)
    settings = as_toml(options, "fit", method, schedule)
    write_atomically(options.out / "settings.toml", settings.encode())
    sys.stdout.write(f"{options.out}: {detector.promise}\n")
    sys.stdout.flush()  # the result before the page: a page that cannot be written must not hide it
    if wild is None:
        with shown(verbose=not options.quiet):
            logger.info("no page: it shows wild data, and none was given")
    else:
        before = Detector(Classifier(model, spec_of(options)), EnergyScore(), detector.example)
        known = labelled if holdout is None else holdout
        wild_x, known_x, known_y = map(np.asarray, (wild.examples, known.examples, known.labels))
        given_data = Given(wild_x, known_x, known_y, is_holdout=holdout is not None)
        with shown(verbose=not options.quiet):
            _write_page(options.out, detector, before, given_data, shlex.join(["wildood", "fit", *words]), settings)


def _write_page(out: Path, detector: Detector, before: Detector, data: Given, command: str, settings: str) -> None:
    """The report, if what it needs is there."""
    if not plots_installed():
        logger.info("for a page that shows what changed: pip install matplotlib, then the same command again")
        return
    from wildood.report.fit_page import fit_page  # noqa: PLC0415 - matplotlib is an extra

    write_atomically(out / "report.html", fit_page(detector, before, data, command, settings).encode())
    logger.info("%s shows what changed", out / "report.html")


def method_of(options: Any) -> Method:
    """The method, with the settings that were given.

    >>> method_of(Options(method="woods-alt", gamma=2.0)).gamma
    2.0
    """
    cls = METHODS[options.method]
    own = {setting.name for setting in fields(cls)}
    others = {name for other in METHODS.values() for name in given(options, other)} - own
    if others:
        raise InputError(f"--{min(others).replace('_', '-')} is not a setting of {options.method}: leave it out")
    if options.as_published and not hasattr(cls, "as_published"):
        raise InputError(f"--as-published is for woods and woods-alt, not for {options.method}: leave it out")
    method: Method = replace(cls.as_published() if options.as_published else cls(), **given(options, cls))
    return method
