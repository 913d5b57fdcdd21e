"""`wildood fit`: arrays and a model in, a detector directory out."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import nn

from wildood.cli.inputs import (
    Data,
    adapt,
    check_colours,
    input_spec,
    read_judged,
    read_labelled,
    read_model,
    read_start,
    read_unlabelled,
    with_reader,
)
from wildood.cli.main import say
from wildood.cli.options import TrainingOptions, as_toml, named, parse_training, require
from wildood.data.files import write_text
from wildood.data.fingerprint import role_of, role_text
from wildood.data.images import Images
from wildood.data.structures import map_structure
from wildood.data.texts import TextReader
from wildood.data.wild import Wild, as_wild
from wildood.detect.detector import Detector
from wildood.detect.fit import fit
from wildood.detect.fit_many import fit_many, split_for_ranking
from wildood.detect.split import split_wild, subsample
from wildood.errors import InputError
from wildood.evaluate.ranking import Ranking
from wildood.methods.objective import Method
from wildood.methods.shipped import METHODS
from wildood.models.classifier import Classifier
from wildood.report.figures import plots_installed
from wildood.report.fit_page import MOST_EXAMPLES, fit_page
from wildood.scores.energy import EnergyScore
from wildood.train.distributed import is_first
from wildood.train.progress import logger, verbose_logging

ALPHA = "the false-alarm rate: of the promise, and of the constraint in training."


@dataclass(frozen=True)
class FitOptions(TrainingOptions):
    """Teach a classifier to say "unknown" from wild data, and write the detector to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        wild: unlabelled traffic, known and unknown mixed: a directory of pictures, a .csv or .jsonl file of paths, FILE.npz,
            FILE.npy, a named set, or a table like labelled.
        holdout: ID examples that the model was not trained on, with their classes: they calibrate the false-alarm rate.
        fresh: known examples as they come now, without classes, for the constraint on false alarms (default: a third of a
            large holdout, where its features differ from those of labelled).
        judged: wild examples that a person has called known or unknown: FILE.npz with x and is_ood (1 for unknown), a
            directory of pictures in known/ and unknown/, or a file whose classes are these (woods and woods-alt).
        method: woods, woods-alt, oe, energy-margin, energy-logistic, godin, csi or separate; wildood fit --method NAME
            --help-all shows the settings of a method.
        as_published: do what the released code does, bugs included (woods, woods-alt and energy-logistic), or have its
            schedule (separate).
        features: the submodule whose output are the features (default: detected), for methods that use them.
        frozen: train only the last layer and what the method adds, on features that are computed once.
        confidence: guarantee that rate with this probability, instead of on average; over the draw of the holdout.
        by_class: a threshold for each predicted class, so that no class bears all false alarms.
        grid: train with each of these values or combinations, as in weight=0.1,0.5,1; keep the one that accepts the
            least wild data (needs --holdout: a third of it ranks, the rest chooses epochs and sets the threshold).
        keep: the best epoch by data set aside, or the last; the best is the start where training is not shown to help.
        allow_duplicates: equal examples in the holdout and in training are no leak, because inputs repeat by nature.
    """

    wild: Annotated[str | None, named("DATA")] = None
    holdout: Annotated[str | None, named("DATA")] = None
    fresh: Annotated[str | None, named("DATA")] = None
    judged: Annotated[str | None, named("DATA")] = None
    method: Annotated[
        Literal["woods", "woods-alt", "oe", "energy-margin", "energy-logistic", "godin", "csi", "separate"],
        named("NAME", None),
    ] = "woods"
    as_published: bool = False
    features: Annotated[str | None, named("NAME")] = None
    frozen: bool = False
    confidence: Annotated[float | None, named("SHARE")] = None
    by_class: bool = False
    grid: Annotated[tuple[str, ...] | None, named("NAME=VALUES ...")] = None
    keep: Literal["best", "last"] = "best"
    allow_duplicates: bool = False


def run(words: Sequence[str]) -> None:
    """Fit a detector; it is in the output directory afterwards, with the effective settings and a page."""
    options: Any = parse_training(FitOptions, "fit", words, method_of, alpha=ALPHA)
    method: Method = options.settings
    with verbose_logging(verbose=not options.quiet):
        options, start = read_start(options)
    needed = ("labelled", *(("wild",) if method.uses_wild else ()), *(() if start else ("model",)), "out")
    require(options, "fit", needed)
    methods = grid_of(method, options.grid) if options.grid else []
    with verbose_logging(verbose=not options.quiet):
        options = with_reader(options, start)
    model = start.classifier.model if start else read_model(options.model, options.seed)
    check_colours(options)  # before pictures are decoded
    with verbose_logging(verbose=not options.quiet):
        labelled = read_labelled(options.labelled, "--labelled", options, start)
        wild = None if options.wild is None else read_unlabelled(options.wild, "--wild", options, labelled)
        holdout = None if options.holdout is None else read_labelled(options.holdout, "--holdout", options, labelled)
        if start and holdout is not None and (role := role_of(start.record, holdout)):
            raise InputError(
                f"--holdout {options.holdout}: these examples {role_text(role)} ({options.weights}), so they promise "
                "nothing about a detector that starts from it: give unseen ones"
            )
        fresh = None if options.fresh is None else read_unlabelled(options.fresh, "--fresh", options, labelled)
        judged = None if options.judged is None else read_judged(options.judged, "--judged", options, labelled)
        options, model = adapt(labelled, options, model, start)
    same = (
        "schedule",
        "features",
        "device",
        "precision",
        "frozen",
        "confidence",
        "by_class",
        "allow_duplicates",
        "keep",
        "seed",
    )
    settings = {name: getattr(options, name) for name in same}
    settings |= {"fresh": fresh, "judged": judged, "input": input_spec(options)}
    settings |= {"run_dir": options.out / "run", "verbose": not options.quiet}
    ranking = None
    if methods:
        fitted = fit_many(model, labelled, wild, holdout, methods=methods, **settings)
        detector, ranking = fitted.best, fitted.ranking
    else:
        detector = fit(model, labelled, wild, holdout, method=method, **settings)
    if not is_first():
        return
    if ranking is not None:
        write_text(options.out / "ranking.json", f"{json.dumps(asdict(ranking), indent=2)}\n")
        say(ranking_text(ranking))
    if isinstance(options.reader, TextReader):
        detector.record["text"] = options.reader.record()
        detector.tokenizer = options.reader.tokenizer.content.encode()
    detector.save(options.out)
    write_text(options.out / "settings.toml", as_toml(options, "fit"))
    say(f"{options.out}: {detector.promise_text}")
    if detector.caught is not None:
        say(str(detector.caught))
    with verbose_logging(verbose=not options.quiet):
        _write_page(options, detector, model, (labelled, wild, holdout), shlex.join(["wildood", "fit", *words]))


def method_of(options: FitOptions) -> Method:
    """The method that the options name, with its own settings."""
    cls: Any = METHODS[options.method]
    if options.as_published and not hasattr(cls, "as_published"):
        which = "woods, woods-alt, energy-logistic and separate"
        raise InputError(f"--as-published is for {which}, not for {options.method}: leave it out")
    method: Method = cls.as_published() if options.as_published else cls()
    return method


def grid_of(method: Method, words: Sequence[str]) -> list[Method]:
    """A method with every combination of the values that the words name.

    >>> from wildood.methods.outlier_exposure import OutlierExposure
    >>> [each.weight for each in grid_of(OutlierExposure(), ["weight=0.1,1"])]
    [0.1, 1.0]
    """
    settings: Any = method
    kinds = {each.name: type(getattr(settings, each.name)) for each in fields(settings) if each.name != "alpha"}
    kinds = {name: kind for name, kind in kinds.items() if kind in {float, int}}
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        if name == "alpha":
            raise InputError(f"--grid {word}: methods are compared at one false-alarm rate: set it with --alpha")
        if name not in kinds or not values:
            known = ", ".join(kinds)
            raise InputError(f"--grid {word}: give settings with their values, as in weight=0.1,1; the method has {known}")
        try:
            axes[name] = [kinds[name](value) for value in values.split(",")]
        except ValueError as error:
            raise InputError(f"--grid {word}: give numbers with commas between them, as in weight=0.1,1") from error
    return [replace(settings, **dict(zip(axes, point, strict=True))) for point in product(*axes.values())]


def ranking_text(ranking: Ranking) -> str:
    """The ranking, one line for each method."""
    rows = [
        f"{place.name}: accepts {100 * place.wild_accepted:.1f} % of wild, accuracy {100 * place.accuracy:.1f} %"
        + ("" if place.eligible else " (too low)")
        for place in ranking.places
    ]
    return "\n".join([*rows, str(ranking)])


def _write_page(
    options: Any, detector: Detector, model: nn.Module, data: tuple[Data, Data | None, Data | None], command: str
) -> None:
    """The page that compares the detector with the energy of the starting classifier, if matplotlib is installed."""
    labelled, wild, holdout = data
    if wild is None:
        logger.info("no page: it shows wild data, and there is none")
        return
    if not plots_installed():
        logger.info("for a page that shows what changed: pip install matplotlib, then the same command again")
        return
    before = Detector(Classifier(model, input_spec(options)), EnergyScore(), detector.example)
    unseen, known = _unseen_wild(wild, options), labelled if holdout is None else holdout
    x = known.examples if isinstance(known, Images) else map_structure(lambda part: part.examples, known.parts)
    examples = map_structure(np.asarray, x), np.asarray(known.labels)
    texts = {"command": command, "settings": as_toml(options, "fit")}
    page = fit_page(detector, before, unseen, examples, is_holdout=holdout is not None, **texts)
    write_text(options.out / "report.html", page)
    logger.info("%s shows what changed", options.out / "report.html")


def _unseen_wild(wild: Data, options: Any) -> Any:
    """Wild examples that training did not see."""
    traffic: Wild = as_wild(wild)
    if options.grid:
        traffic, _ = split_for_ranking(traffic, options.seed)
    uses_wild = options.settings.uses_wild
    unseen = split_wild(traffic, options.keep, options.seed)[1] if uses_wild else traffic.whole(options.seed)
    some = subsample(unseen, MOST_EXAMPLES, options.seed)
    return map_structure(lambda part: part.numpy(), some.gather(torch.arange(len(some)))[0])
