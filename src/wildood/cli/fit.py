"""`wildood fit`: arrays and a model in, a detector directory out."""

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from wildood.cli.arrays import read_inputs, read_pair
from wildood.cli.models import read_model
from wildood.cli.options import named, parse
from wildood.data.files import write_atomically
from wildood.data.inputs import InputSpec
from wildood.detect.fitting import fit, posthoc
from wildood.errors import InputError
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt
from wildood.report.tables import plots_installed
from wildood.scores.energy import EnergyScore
from wildood.train.progress import logger, shown

METHODS = {"woods": Woods, "woods-alt": WoodsAlt}
METAVARS: dict[Any, str] = {
    float: "NUMBER",
    float | None: "NUMBER",
    int: "N",
    int | None: "N",
    tuple[float, ...]: "NUMBER [NUMBER ...]",
}
REQUIRED = ("labelled", "wild", "model", "out")


@dataclass(frozen=True)
class FitOptions:
    """Teach a classifier to say "unknown" from wild data, and write the detector to a directory.

    Called again with the same options, a run that was cut off goes on.

    Attributes:
        labelled: FILE.npz with x and y (or images and labels, or FILE.npz:x,y): ID examples with their classes.
        wild: FILE.npz or FILE.npy: unlabelled traffic, known and unknown mixed.
        holdout: like labelled: examples that the model was not trained on. The promise rests on them.
        model: resnet20, wideresnet, smallcnn:classes=7, mlp:inputs=4,classes=3, or module:function of your own.
        weights: the model's trained weights, as safetensors.
        out: the directory to write to.
        config: a TOML file with the same names as these options; options on the command line go first.
        method: what to train with.
        as_published: do what the released code does, bugs included.
        mean: of each channel, for uint8 images.
        std: of each channel, for uint8 images.
        layout: where the channels of the images are.
        size: height and width to resize images to.
        features: the submodule whose output are the features, for woods-alt; found if not given.
        keep: the best epoch by wild acceptance on data set aside, or the last.
        seed: decides every random draw.
        quiet: show no progress.
    """

    labelled: Annotated[str | None, named("FILE")] = None
    wild: Annotated[str | None, named("FILE")] = None
    holdout: Annotated[str | None, named("FILE")] = None
    model: Annotated[str | None, named("MODEL")] = None
    weights: Annotated[Path | None, named("FILE")] = None
    out: Annotated[Path | None, named("DIRECTORY")] = None
    config: Annotated[Path | None, named("FILE")] = None
    method: Literal["woods", "woods-alt"] = "woods"
    as_published: bool = False
    mean: Annotated[tuple[float, ...] | None, named("NUMBER [NUMBER ...]")] = None
    std: Annotated[tuple[float, ...] | None, named("NUMBER [NUMBER ...]")] = None
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    size: Annotated[tuple[int, int] | None, named("HEIGHT WIDTH")] = None
    features: Annotated[str | None, named("NAME")] = None
    keep: Literal["best", "last"] = "best"
    seed: int = 0
    quiet: bool = False


def _settings_of(cls: type[Any]) -> list[tuple[str, Any, Any]]:
    """A dataclass's settings as options that are None until given, with the help of its docstring."""
    described = re.findall(r"^ {8}(\w+): ((?:.|\n {12})+)", cls.__doc__ or "", flags=re.MULTILINE)
    help_of = {name: " ".join(text.split()) for name, text in described}

    def option(setting: Field[Any]) -> tuple[str, Any, Any]:
        metavar = METAVARS.get(setting.type, "{" + ",".join(map(str, get_args(setting.type))) + "}")
        alternative = {other.name: other.default for other in fields(WoodsAlt)}.get(setting.name, setting.default)
        default = f"{setting.default}" + (f", woods-alt {alternative}" if alternative != setting.default else "")
        hint = "" if setting.default is None else f"(default: {default})"
        about = named(metavar, hint, help=help_of[setting.name])
        return setting.name, Annotated[setting.type | None, about], field(default=None)  # type: ignore[operator]

    return [option(setting) for setting in fields(cls) if setting.name != "published"]


Options: Any = make_dataclass(
    "Options",
    [*_settings_of(Woods), *_settings_of(Schedule)],
    bases=(FitOptions,),
    frozen=True,
    namespace={"__doc__": FitOptions.__doc__},
)


def run(words: Sequence[str]) -> None:
    """Fit as the words say; the detector and the effective settings are in the output directory afterwards."""
    options = parse(Options, "fit", words)
    if options.config is not None:
        options = parse(Options, "fit", words, default=_with_config(options.config))
    missing = [name for name in REQUIRED if getattr(options, name) is None]
    if missing:
        raise InputError(f"fit needs --{' and --'.join(missing)}: give them here, or in the file of --config")
    model, spec = read_model(options.model, options.weights), _spec_of(options)
    labelled, wild = read_pair(options.labelled, "--labelled"), read_inputs(options.wild, "--wild")
    holdout = None if options.holdout is None else read_pair(options.holdout, "--holdout")
    detector = fit(
        model,
        labelled,
        wild,
        holdout,
        method=method_of(options),
        schedule=schedule_of(options),
        input=spec,
        features=options.features,
        keep=options.keep,
        seed=options.seed,
        run_dir=options.out / "run",
        verbose=not options.quiet,
    )
    detector.save(options.out)
    write_atomically(options.out / "settings.toml", _as_toml(options).encode())
    with shown(verbose=not options.quiet):
        if plots_installed():
            from wildood.report.fit_page import Given, fit_page  # noqa: PLC0415 - matplotlib is an extra

            alpha = method_of(options).alpha
            before = posthoc(model, EnergyScore(), labelled=labelled, holdout=holdout, alpha=alpha, input=spec)
            given = Given(wild, *(labelled if holdout is None else holdout), is_holdout=holdout is not None)
            content = fit_page(detector, before, given, " ".join(["wildood fit", *words]))
            write_atomically(options.out / "report.html", content.encode())
            logger.info("%s shows what changed", options.out / "report.html")
        else:
            logger.info("for a page that shows what changed: pip install 'wildood[plots]', then the same command again")
    sys.stdout.write(f"{options.out}: {detector.promise}\n")


def method_of(options: Any) -> Woods:
    """The method, with the settings that were given.

    >>> method_of(Options(method="woods-alt", gamma=2.0)).gamma
    2.0
    """
    cls = METHODS[options.method]
    return replace(cls.as_published() if options.as_published else cls(), **_given(options, Woods))


def schedule_of(options: Any) -> Schedule:
    """The method's own schedule, with the settings that were given.

    >>> schedule_of(Options(epochs=3)).steps is None
    True
    """
    given = _given(options, Schedule)
    if "steps" in given and "epochs" in given:
        raise InputError("--steps and --epochs: give one of them")
    if "steps" in given or "epochs" in given:
        given = {"steps": None, "epochs": None} | given
    return replace(method_of(options).schedule(), **given)


def _given(options: Any, cls: type[Any]) -> dict[str, Any]:
    values = {setting.name: getattr(options, setting.name, None) for setting in fields(cls)}
    return {name: value for name, value in values.items() if value is not None}


def _spec_of(options: Any) -> InputSpec | None:
    if options.mean is None and options.std is None:
        return None
    if options.mean is None or options.std is None:
        raise InputError("--mean and --std belong together: give both, one number for each channel")
    return InputSpec(layout=options.layout, mean=options.mean, std=options.std, size=options.size)


def _with_config(path: Path) -> Any:
    """The options that a TOML file gives."""
    try:
        given = {name.replace("-", "_"): value for name, value in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path} is not TOML: {error}") from error
    known = {option.name for option in fields(Options)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InputError(f"--config {path}: no option is named {unknown[0]!r}; see wildood fit --help")
    paths = {name: Path(value) for name, value in given.items() if name in {"weights", "out"}}
    tuples = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return Options(**given | paths | tuples)


def _as_toml(options: Any) -> str:
    """The effective settings, to be read and passed back with --config; JSON's scalars and lists are TOML's, too."""
    effective = asdict(options) | asdict(method_of(options)) | asdict(schedule_of(options))
    lines = [
        f"{name} = {json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in effective.items()
        if value is not None and name not in {"config", "published"}
    ]
    return "# wildood fit --config THIS FILE\n" + "\n".join(lines) + "\n"
