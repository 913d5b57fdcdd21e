"""`wildood fit`: arrays and a model in, a detector directory out."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from wildood.cli.grid import grid_of, ranking_lines
from wildood.cli.models import read_model
from wildood.cli.options import named
from wildood.cli.printing import say
from wildood.cli.sources import read_labelled, read_wild
from wildood.cli.training import (
    CommonOptions,
    as_toml,
    check_colours,
    given,
    made_for,
    parse_with_config,
    require,
    schedule_of,
    settings_of,
    spec_of,
)
from wildood.data.files import write_text
from wildood.data.images import Images
from wildood.data.wild import Wild, as_wild
from wildood.detect.detector import Detector
from wildood.detect.fit import fit
from wildood.detect.fit_many import fit_many, rank_wild
from wildood.detect.split import at_most, set_aside_wild
from wildood.errors import InputError
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS as TRAINING_METHODS
from wildood.models.classifier import Classifier
from wildood.report.figures import plots_installed
from wildood.report.fit_page import MOST_EXAMPLES, fit_page
from wildood.scores.energy import EnergyScore
from wildood.train.distributed import is_first
from wildood.train.progress import logger, verbose_logging

METHODS: dict[str, Any] = dict(TRAINING_METHODS)


@dataclass(frozen=True)
class FitOptions(CommonOptions):
    """Teach a classifier to say "unknown" from wild data, and write the detector to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        wild: unlabelled traffic, known and unknown mixed: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz,
            FILE.npy or a named set.
        holdout: like labelled: examples that the model was not trained on. The promise rests on them.
        method: what to train with.
        as_published: do what the released code does, bugs included (woods, woods-alt and energy-logistic).
        features: the submodule whose output are the features, for methods that use them; found if not given.
        frozen: train only the last layer and what the method adds, on features that are computed once.
        confidence: promise the false-alarm rate with this probability over the draw of the holdout, instead of on average.
        by_class: a threshold for each predicted class, so that no class bears all false alarms.
        auto: train in rounds of 50, 100, 200 and more steps, until one improves neither the share of wild data that is
            accepted nor the constraints.
        grid: train with each of these values, or each combination, as in weight=0.1,0.5,1; keep the one that accepts the
            least wild data (needs --holdout, of which a third each ranks, chooses epochs and sets the threshold).
        keep: the best epoch by wild acceptance on data set aside, or the start where none is shown to help; or the last.
        allow_duplicates: equal examples in the holdout and in training data are no leak, because inputs repeat by nature.
    """

    wild: Annotated[str | None, named("DATA")] = None
    holdout: Annotated[str | None, named("DATA")] = None
    method: Literal["woods", "woods-alt", "oe", "energy-margin", "energy-logistic", "godin", "csi"] = "woods"
    as_published: bool = False
    features: Annotated[str | None, named("NAME")] = None
    frozen: bool = False
    confidence: Annotated[float | None, named("SHARE")] = None
    by_class: bool = False
    auto: bool = False
    grid: Annotated[tuple[str, ...] | None, named("SETTING=VALUE,VALUE [...]")] = None
    keep: Literal["best", "last"] = "best"
    allow_duplicates: bool = False


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
    grid = grid_of(method, options.grid) if options.grid else []
    schedule = schedule_of(options, method.schedule(), auto=options.auto)
    model = read_model(options.model, options.seed)
    check_colours(options)  # a mistake is told before pictures are decoded
    with verbose_logging(verbose=not options.quiet):
        labelled = read_labelled(options.labelled, "--labelled", options)
        wild = None if options.wild is None else read_wild(options.wild, "--wild", options, labelled)
        holdout = None if options.holdout is None else read_labelled(options.holdout, "--holdout", options, labelled)
        options, model = made_for(labelled, options, model)
    settings: dict[str, Any] = {
        "schedule": schedule,
        "input": spec_of(options),
        "features": options.features,
        "frozen": options.frozen,
        "confidence": options.confidence,
        "by_class": options.by_class,
        "allow_duplicates": options.allow_duplicates,
        "seed": options.seed,
        "run_dir": options.out / "run",
        "verbose": not options.quiet,
    }
    if grid:
        made = fit_many(model, labelled, wild, holdout, methods=grid, keep=options.keep, **settings)
        detector = made.best
    else:
        detector = fit(model, labelled, wild, holdout, method=method, keep=options.keep, **settings)
    if not is_first():
        return
    if grid:
        write_text(options.out / "ranking.json", f"{json.dumps(asdict(made.ranking), indent=2)}\n")
        say(ranking_lines(made.ranking))
    detector.save(options.out)
    written = as_toml(options, "fit", method, schedule)
    write_text(options.out / "settings.toml", written)
    say(f"{options.out}: {detector.promise_text}")
    if wild is None:
        with verbose_logging(verbose=not options.quiet):
            logger.info("no page: it shows wild data, and none was given")
    else:
        before = Detector(Classifier(model, spec_of(options)), EnergyScore(), detector.example)
        known = labelled if holdout is None else holdout
        unseen = _unseen_wild(wild, method, options, in_grid=bool(grid))
        examples = np.asarray(known.examples), np.asarray(known.labels)
        texts = {"command": shlex.join(["wildood", "fit", *words]), "settings": written}
        page = partial(fit_page, detector, before, unseen, examples, is_holdout=holdout is not None, **texts)
        with verbose_logging(verbose=not options.quiet):
            _write_page(options.out, page)


def _unseen_wild(wild: Images, method: Method, options: Any, *, in_grid: bool) -> npt.NDArray[Any]:
    """Wild examples that training did not see, for the page."""
    traffic: Wild = as_wild(wild)
    if in_grid:
        traffic, _ = rank_wild(traffic, options.seed)
    unseen = set_aside_wild(traffic, options.keep, options.seed)[1] if method.uses_wild else traffic.whole(options.seed)
    some = at_most(unseen, MOST_EXAMPLES, options.seed)
    return some.gather(torch.arange(len(some)))[0].numpy()


def _write_page(out: Path, page: Callable[[], str]) -> None:
    """The report, if what it needs is there."""
    if not plots_installed():
        logger.info("for a page that shows what changed: pip install matplotlib, then the same command again")
        return
    write_text(out / "report.html", page())
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
        raise InputError(
            f"--as-published is for woods, woods-alt and energy-logistic, not for {options.method}: leave it out"
        )
    method: Method = replace(cls.as_published() if options.as_published else cls(), **given(options, cls))
    return method
