"""What the commands that train share: settings as options, a TOML file for them, and the input spec."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro
from torch import nn

from wildood.cli.models import fits, load_weights, read_model, with_classes
from wildood.cli.options import named, parse
from wildood.cli.sources import colours, side_of
from wildood.data.files import open_plain
from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.errors import InputError
from wildood.experiments.experiment import toml_value
from wildood.methods.schedule import IN_ROUNDS, Schedule
from wildood.train.progress import logger

METAVARS: dict[Any, str] = {
    float: "NUMBER",
    float | None: "NUMBER",
    bool: "{True,False}",
    int: "N",
    int | None: "N",
    tuple[float, ...]: "NUMBER [NUMBER ...]",
}

LABELLED = (
    "ID examples with their classes: a directory with one folder of pictures for each class, a .csv or .jsonl file of paths "
    "and labels, FILE.npz with x and y (or images and labels, or FILE.npz:x,y), or a named set such as cifar10:train."
)
MODEL = "resnet20, wideresnet, smallcnn:classes=7, mlp:inputs=4,classes=3, or module:function of your own."
DATA_ROOT = "of named sets and decoded pictures (default: $WILDOOD_DATA, or the user's cache)."
CONFIG = "a TOML file with the same names as these options; options on the command line go first."


@dataclass(frozen=True)
class CommonOptions:
    """Options of every command that trains."""

    labelled: Annotated[str | None, named("DATA", help=LABELLED)] = None
    model: Annotated[str | None, named("MODEL", help=MODEL)] = None
    weights: Annotated[Path | None, named("FILE", help="weights to start from, as safetensors.")] = None
    out: Annotated[Path | None, named("DIRECTORY", help="the directory to write to.")] = None
    config: Annotated[Path | None, named("FILE", help=CONFIG)] = None
    mean: Annotated[tuple[float, ...] | None, named("NUMBER [NUMBER ...]", help="of each channel, for uint8 images.")] = None
    std: Annotated[tuple[float, ...] | None, named("NUMBER [NUMBER ...]", help="of each channel, for uint8 images.")] = None
    layout: Annotated[Literal["NHWC", "NCHW"], tyro.conf.arg(help="where the channels of the images are.")] = "NHWC"
    size: Annotated[tuple[int, ...] | None, named("HEIGHT [WIDTH]", help="to resize images to.")] = None
    skip_broken: Annotated[bool, tyro.conf.arg(help="leave out pictures that cannot be read, instead of stopping.")] = False
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None
    seed: Annotated[int, tyro.conf.arg(help="decides every random draw.")] = 0
    quiet: Annotated[bool, tyro.conf.arg(help="show no progress.")] = False


def settings_of(*classes: type[Any], default: Any = None, without: Sequence[str] = ()) -> list[tuple[str, Any, Any]]:
    """The settings of dataclasses as options that are None until given, with their help and their defaults.

    The defaults are those of the classes, or of an instance.

    >>> settings_of(Schedule)[0][0]
    'steps'
    """
    options: dict[str, tuple[str, Any, Any]] = {}
    for cls in classes:
        described = re.findall(r"^ {8}(\w+): ((?:.|\n {12})+)", cls.__doc__ or "", flags=re.MULTILINE)
        help_of = {name: " ".join(text.split()) for name, text in described}
        for setting in fields(cls):
            if setting.name not in {"published", *without, *options}:
                hint = (
                    _defaults(setting.name, classes) if default is None else f"(default: {getattr(default, setting.name)})"
                )
                options[setting.name] = _option(setting, help_of[setting.name], hint)
    return list(options.values())


def _option(setting: Field[Any], text: str, hint: str) -> tuple[str, Any, Any]:
    metavar = METAVARS.get(setting.type, "{" + ",".join(map(str, get_args(setting.type))) + "}")
    kind: Any = Annotated[setting.type | None, named(metavar, hint, help=text)]  # type: ignore[operator]
    return setting.name, kind, field(default=None)


def _defaults(name: str, classes: Sequence[type[Any]]) -> str:
    """The default of a setting, and of which class where they differ."""
    found = {
        cls.__name__: setting.default
        for cls in classes
        for setting in fields(cls)
        if setting.name == name and setting.default not in {None, MISSING}
    }
    if len(set(found.values())) == 1:
        return f"(default: {next(iter(found.values()))})"
    return f"(default: {', '.join(f'{value} of {cls}' for cls, value in found.items())})" if found else ""


def given(options: Any, cls: type[Any]) -> dict[str, Any]:
    """Those settings of a dataclass that were given as options."""
    values = {setting.name: getattr(options, setting.name, None) for setting in fields(cls)}
    return {name: value for name, value in values.items() if value is not None}


def schedule_of(options: Any, own: Schedule, *, auto: bool = False) -> Schedule:
    """A method's own schedule, or one that ends by itself, with the settings that were given."""
    settings = given(options, Schedule)
    if "steps" in settings and "epochs" in settings:
        raise InputError("--steps and --epochs: give one of them")
    if "steps" in settings or "epochs" in settings:
        settings = {"steps": None, "epochs": None} | settings
    return replace(own, **((IN_ROUNDS if auto else {}) | settings))


def require(options: Any, command: str, names: Sequence[str]) -> None:
    """Refuse options without which a command cannot work."""
    missing = [name for name in names if getattr(options, name) is None]
    if missing:
        raise InputError(f"{command} needs --{' and --'.join(missing)}: give them here, or in the file of --config")


def spec_of(options: Any) -> InputSpec | None:
    """The input spec that --mean, --std, --layout and --size describe."""
    check_colours(options)
    if options.mean is None:
        for name, default in (("layout", "NHWC"), ("size", None)):
            if getattr(options, name) != default:
                raise InputError(f"--{name} is for images: give --mean and --std, too")
        return None
    return InputSpec(layout=options.layout, mean=options.mean, std=options.std, size=side_of(options.size))


def check_colours(options: Any) -> None:
    """Refuse half of a spec."""
    if (options.mean is None) != (options.std is None):
        raise InputError("--mean and --std belong together: give both, one number for each channel")


def made_for(labelled: Images, options: Any, model: nn.Module) -> tuple[Any, nn.Module]:
    """Options and model for some data: a network that has yet to learn gets its colours, a shipped one its named classes."""
    is_images = labelled.examples.dtype == np.uint8 and labelled.examples.ndim == 4 and options.layout == "NHWC"
    if is_images and options.weights is None and options.mean is None:
        mean, std = colours(labelled)
        said = [" ".join(map(str, values)) for values in (mean, std)]
        logger.info("mean %s and std %s of each channel: measured on labelled", *said)
        options = replace(options, mean=mean, std=std)
    text = with_classes(options.model, len(labelled.classes)) if labelled.classes else options.model
    if text != options.model and (options.weights is None or not fits(model, options.weights)):
        options, model = replace(options, model=text), read_model(text, options.seed)
    if options.weights is not None:
        load_weights(model, options.weights)
    return options, model


def parse_with_config(cls: Any, command: str, words: Sequence[str], bound: Sequence[type[Any]] = ()) -> Any:
    """The options that the words give, and before them those of the file that --config names.

    The file's settings of a method (`bound`) belong to its method: they are left out where the words name another.
    """
    options = parse(cls, command, words, negated=True)
    if options.config is None:
        return options
    content = _read_toml(options.config, {option.name for option in fields(cls)} - {"config"}, command)
    spoken = {word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
    spoken |= {name for name, value in content.items() if value is True and f"no_{name}" in spoken}
    other = "method" in spoken and options.method != content.get("method", "woods")
    if other or "as_published" in spoken:
        spoken |= {setting.name for kind in bound for setting in fields(kind)}
    if spoken & {"steps", "epochs", "auto"}:  # how long is one question
        spoken |= {"steps", "epochs", "auto", "rounds"}
    kept = {name: value for name, value in content.items() if name not in spoken}
    return parse(cls, command, [*_as_words(kept, cls), *words], negated=True)


def _read_toml(path: Path, known: set[str], command: str) -> dict[str, Any]:
    try:
        with open_plain(path) as file:
            content = {name.replace("-", "_"): value for name, value in tomllib.load(file).items()}
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"--config {path} is not TOML: {error}") from error
    unknown = sorted(set(content) - known)
    if unknown:
        raise InputError(f"--config {path}: no option is named {unknown[0]!r}; see wildood {command} --help")
    return content


def _as_words(content: dict[str, Any], cls: Any) -> list[str]:
    """Settings of a file as they would be typed, so that the same checks hold for both."""
    flags = {option.name for option in fields(cls) if option.default is False}
    words: list[str] = []
    for name, value in content.items():
        option = f"--{name.replace('_', '-')}"
        if name in flags:
            if not isinstance(value, bool):
                raise InputError(f"--config: {name} is {value!r}: give true or false")
            words += [option] if value else []
        else:
            words += [option, *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def as_toml(options: Any, command: str, *settings: Any) -> str:
    """The effective settings, to be read and passed back with --config."""
    effective = asdict(options)
    for setting in settings:
        effective |= {name: value for name, value in asdict(setting).items() if name in effective}
    lines = [
        f"{name} = {toml_value(str(value) if isinstance(value, Path) else value)}"
        for name, value in effective.items()
        if value is not None and name != "config"
    ]
    return f"# wildood {command} --config THIS FILE\n" + "\n".join(lines) + "\n"
