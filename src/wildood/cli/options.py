"""Options of a command as a dataclass that tyro parses; a mistake in them is one line, like every other mistake.

For `fit` and `pretrain`, a TOML file gives other defaults, and the settings of method and schedule are options, too: they
are nested dataclasses for tyro, so a new setting needs no change here. Option names are flat: a method's field must not
have the name of a schedule's field or of another option. Nothing here imports torch, which is slow, before it must.
"""

import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, make_dataclass, replace
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import tyro

from wildood.cli.help import NUMBERS, help_of
from wildood.data.files import open_plain
from wildood.data.schema import SchemaError
from wildood.data.schema import check as check_type
from wildood.errors import InputError
from wildood.methods.schedule import Schedule
from wildood.settings import can_be_named, quoted

if TYPE_CHECKING:
    from wildood.methods.objective import Method

Options = TypeVar("Options")
DATA_ROOT = "of named sets and decoded pictures (default: $WILDOOD_DATA, or the user's cache)."


def named(metavar: str, hint: str | None = "", help: str | None = None) -> Any:  # noqa: A002 - tyro's word for it
    """How the help names the value of an option, and what it says of its default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, help=help)


def parse(
    options: type[Options], command: str, words: Sequence[str], *, default: Options | None = None, partial: bool = False
) -> Options:
    """The options (a dataclass) of a command; with a default, each flag has a counterpart such as --no-quiet.

    If `partial`, words that are no option are left out, --help too.

    >>> @dataclass
    ... class Count:
    ...     steps: int = 3
    >>> parse(Count, "count", ["--stepz", "5"])
    Traceback (most recent call last):
    wildood.errors.InputError: count: unrecognized options: --stepz, 5: did you mean --steps? See wildood count --help
    """
    refuse_nul(words, command)
    errors, output = io.StringIO(), io.StringIO()
    nested = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)
    settings: dict[str, Any] = {
        "prog": f"wildood {command}",
        "args": words,
        "default": default,
        "config": (tyro.conf.FlagCreatePairsOff,) if default is None else nested,
        "return_unknown_args": partial,
        "add_help": not partial,
    }
    try:
        # tyro colours its help in a terminal and does not know NO_COLOR.
        with redirect_stderr(errors), redirect_stdout(output if os.environ.get("NO_COLOR") else sys.stdout):
            parsed: Any = tyro.cli(options, **settings)
    except SystemExit as ended:
        sys.stdout.write(output.getvalue())
        if ended.code:
            raise InputError(f"{command}: {_one_line(errors.getvalue())} See wildood {command} --help") from None
        raise
    result: Options = parsed[0] if partial else parsed
    return result


def refuse_nul(words: Iterable[str], command: str) -> None:
    """Refuse what no file name can hold; a shell passes on no NUL, but a file may hold one."""
    odd = next((word for word in words if not can_be_named(word)), None)
    if odd is not None:
        raise InputError(f"{command}: {quoted(odd)} holds a NUL character: leave it out")


def _one_line(boxed: str) -> str:
    """The message in tyro's box: the paragraph below the title, and the nearest of the options that it suggests."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip(" │") for line in boxed.splitlines()]
    rule = re.compile(r"[╭╰].*|[─-]+")
    paragraphs: list[list[str]] = [[]] if lines and lines[0].startswith("╭") else []
    for is_rule, group in groupby(lines, key=lambda line: bool(rule.fullmatch(line))):
        if not is_rule:
            paragraphs.append(list(group))
    if len(paragraphs) < 2:  # another version of tyro
        return " ".join(lines).strip()
    text = re.sub(r"\s+", " ", " ".join(paragraphs[1])).strip()
    text = text.split(". Got errors")[0].removesuffix("(required)").strip(" .")
    if text.startswith("Missing from"):
        text = f"missing: {', '.join(line for line in paragraphs[1] if re.fullmatch('[A-Z:]+', line))}"
    wrong_type = r"no type matching .+? could be instantiated from \[(.+)\]|invalid literal .+: (.+)"
    text = re.sub(f"(?i)error parsing (\\S+): (?:{wrong_type})", r"\1 cannot be \2\3", text)
    text = re.sub(r"[Ii]nvalid choice (\S+) for argument '(\S+)'\. Expected", r"\2 cannot be \1: it is", text)
    text = re.sub(r"it is one of \((.+?)\)", lambda match: f"it is one of {_choices(match.group(1))}", text)
    # tyro's first suggestion need not be the nearest: of --od, it is --model.
    suggested = [line for paragraph in paragraphs[2:] for line in paragraph if line.startswith("--")]
    options = [option for line in suggested for option in re.findall(r"--[\w-]+", line)]
    typed = re.search(r"--[\w-]+", text)
    near = get_close_matches(typed.group(), options, n=1, cutoff=0.0) if typed and typed.group() not in options else []
    return f"{text[:1].lower()}{text[1:]}" + (f": did you mean {near[0]}?" if near else ".")


def _choices(text: str) -> str:
    """Sorted, and without None, which stands for an option that is not set."""
    return ", ".join(sorted(set(re.findall(r"'(.*?)'", text)) - {"None"}))


@dataclass(frozen=True)
class TrainingOptions:
    """Options of fit and pretrain.

    Attributes:
        labelled: ID examples with classes, from folders, tables, .npz or a named set: a directory with one folder of
            pictures for each class, a .csv or .jsonl file of paths and labels, FILE.npz with x and y (or images and labels,
            or FILE.npz:x,y), or a named set such as cifar10:train; with --label-column, a table: .csv, .csv.gz or .parquet;
            with --tokenizer, texts: .csv or .jsonl.
        label_column: the column of the classes in a table or beside texts (default for texts: label or class).
        categorical: columns of a table whose numbers are codes of categories.
        ignore: columns of a table to leave out, such as identifiers.
        tokenizer: a tokenizer.json, or its directory, for files of texts. The model is called with input_ids and
            attention_mask.
        text_column: the column of the texts (default: text).
        tokens: the length of a text: longer ones are cut, shorter ones padded (default: the longest of labelled, up to 256).
        model: resnet20, smallcnn:classes=7, ..., or module:function of your own; also wideresnet and mlp:inputs=4,classes=3.
        weights: safetensors to start from, or a saved detector: its directory or its file. Its classifier is taken over, and
            its input spec unless --mean and --std are given; --model is needed for a model of your own only.
        out: the directory to write to.
        config: a TOML file with the same names as these options. Command-line options override the file.
        mean: of each channel, for uint8 images (default: measured on labelled, for a network without weights).
        std: of each channel, likewise.
        layout: where the channels of the images are.
        size: to resize images to.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        data_root: the directory of named sets and decoded pictures (default: $WILDOOD_DATA, or the user's cache).
        precision: bf16 trains with forward and backward passes in bfloat16, where the hardware has it.
        device: where to train: cpu, cuda, or auto for a GPU if there is one (default: where the model is made).
        seed: decides every random draw.
        quiet: show no progress.
    """

    labelled: Annotated[str | None, named("DATA")] = None
    label_column: Annotated[str | None, named("NAME")] = None
    categorical: Annotated[tuple[str, ...] | None, named("NAME ...")] = None
    ignore: Annotated[tuple[str, ...] | None, named("NAME ...")] = None
    tokenizer: Annotated[Path | None, named("PATH")] = None
    text_column: Annotated[str | None, named("NAME")] = None
    tokens: Annotated[int | None, named("N")] = None
    model: Annotated[str | None, named("MODEL")] = None
    weights: Annotated[Path | None, named("PATH")] = None
    out: Annotated[Path | None, named("DIRECTORY")] = None
    config: Annotated[Path | None, named("FILE")] = None
    mean: Annotated[tuple[float, ...] | None, named(NUMBERS)] = None
    std: Annotated[tuple[float, ...] | None, named(NUMBERS)] = None
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    size: Annotated[tuple[int, ...] | None, named("HEIGHT [WIDTH]")] = None
    skip_broken: bool = False
    data_root: Annotated[Path | None, named("DIRECTORY")] = None
    precision: Annotated[Literal["float32", "bf16"], named("NAME", None)] = "float32"
    device: Annotated[str | None, named("NAME")] = None
    seed: int = 0
    quiet: bool = False
    settings: tyro.conf.FlagConversionOff[Any] = None
    schedule: tyro.conf.FlagConversionOff[Any] = None
    reader: tyro.conf.Suppress[Any] = None  # what reads files of tables or texts, once it is known


Training = TypeVar("Training", bound=TrainingOptions)


def parse_training(
    cls: type[Training],
    command: str,
    words: Sequence[str],
    method_of: "Callable[[Training], Method | None]" = lambda _: None,
    hidden: Iterable[str] = (),
    **texts: str,
) -> Training:
    """The options, method and schedule of a command that trains: defaults, then the file of --config, then the words.

    Args:
        cls: the options; their `settings` and `schedule` become the method and its schedule.
        command: its name.
        words: of the command line.
        method_of: the method that the options name; None for pretraining.
        hidden: settings of the schedule that are no options of this command.
        texts: other help for settings of the method and the schedule.
    """
    typed = {word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
    options = parse(cls, command, words, default=cls(), partial=True)
    file = {} if options.config is None else _read_config(options, command, typed)
    default = replace(cls(), **{name: value for name, value in file.items() if name in _names(cls)})
    options = parse(cls, command, words, default=default, partial=True)
    method = method_of(options)
    _check_names(file, typed, options, method, {*_names(Schedule)} - {*hidden}, command)
    try:
        shown = _recipe(method, file)
    except InputError as error:
        raise InputError(f"--config {options.config}: {error}" if file else str(error)) from error
    default = replace(default, settings=_as_options(shown[0]), schedule=_as_options(shown[1], hidden))
    if {"-h", "--help", "--help-all"} & {*words}:
        shown_method = getattr(options, "method", "")
        parse(help_of(default, shown_method, hidden, texts, in_full="--help-all" in words), command, ["--help"])
    options = parse(cls, command, words, default=default)
    parts = [part for part in (options.settings, options.schedule) if part is not None]
    values = {name: getattr(part, name) for part in parts for name in _names(type(part)) if name in typed}
    method, schedule = _recipe(method, file, values)
    return replace(options, settings=method, schedule=schedule)


def _read_config(options: Any, command: str, typed: set[str]) -> dict[str, Any]:
    """The settings in the file of --config, without those that the typed options make void.

    The file's settings belong to its method: another --method voids them. Steps and epochs are one setting, the length
    of the training: each voids both.
    """
    try:
        with open_plain(options.config) as file:
            content = {name.replace("-", "_"): value for name, value in tomllib.load(file).items()}
    except OSError as error:
        raise InputError(f"--config {options.config}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"--config {options.config} is not TOML: {error}") from error
    refuse_nul([value for value in content.values() if isinstance(value, str)], command)
    kinds = {name: kind for name, kind in get_type_hints(type(options)).items() if name in _names(type(options))}
    for name, value in content.items():
        if name in kinds:
            content[name] = _typed(value, kinds[name], name, options)
        elif value == "None":
            content[name] = None
    typed = typed | {name for name, value in content.items() if value is True and f"no_{name}" in typed}
    void: set[str] = set()
    if "as_published" in typed or ("method" in typed and getattr(options, "method", None) != content.get("method", "woods")):
        void = content.keys() - kinds.keys()
    if typed & {"steps", "epochs"}:
        void |= {"steps", "epochs"}
    return {name: value for name, value in content.items() if name not in void}


def _typed(value: Any, kind: Any, name: str, options: Any) -> Any:
    """A value of the file as the option has it."""
    is_path = kind == Path | None
    try:
        check_type(value, str if is_path else kind, name)
    except SchemaError as error:
        raise InputError(f"--config {options.config}: {error}") from error
    if is_path:
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def _check_names(
    file: Mapping[str, Any], typed: set[str], options: Any, method: "Method | None", schedule: set[str], command: str
) -> None:
    """Refuse settings of other methods, and names in the file that are no options. tyro refuses what is typed."""
    from wildood.methods.shipped import METHODS  # noqa: PLC0415 - slow to import

    offered = {*_names(type(options))} | schedule
    if method is not None:
        offered |= {*_names(type(method))}
        others = {name for other in METHODS.values() for name in _names(other)} - offered
        for name in sorted(others & (typed | file.keys())):
            raise InputError(f"--{name.replace('_', '-')} is not a setting of {options.method}: leave it out")
    for name in sorted(file.keys() - offered):
        raise InputError(f"--config {options.config}: no option is named {name!r}; see wildood {command} --help")


def _names(cls: type[Any]) -> list[str]:
    """The names of a dataclass's settings, or of the options that a file may hold."""
    return [each.name for each in fields(cls) if each.name not in {"config", "settings", "schedule", "reader"}]


def _recipe(method: Any, *layers: Mapping[str, Any]) -> tuple[Any, Schedule]:
    """The method and its schedule, with the settings of each layer: those of the file, those of the words."""
    for values in layers:
        method = None if method is None else _with_settings(method, values)
    schedule = Schedule.pretraining() if method is None else method.schedule()
    for values in layers:
        schedule = _with_settings(schedule, values)
    return method, schedule


def _with_settings(settings: Any, values: Mapping[str, Any]) -> Any:
    """A method or a schedule with those of the values that are its own; steps and epochs replace each other."""
    own = {name: values[name] for name in _names(type(settings)) if name in values}
    if "steps" in own and "epochs" in own:
        raise InputError("--steps and --epochs: give one of them")
    if "steps" in own or "epochs" in own:
        own = {"steps": None, "epochs": None} | own
    return replace(settings, **own)


def _as_options(settings: Any, hidden: Iterable[str] = ()) -> Any:
    """A frozen dataclass as options: the same names, types and values, without its checks."""
    if settings is None:
        return None
    cls, kinds = type(settings), get_type_hints(type(settings), include_extras=True)
    options = [
        (each.name, Annotated[kinds[each.name], tyro.conf.Suppress] if each.name in hidden else kinds[each.name],
         field(default=getattr(settings, each.name)))
        for each in fields(cls)
    ]  # fmt: skip
    about = {"__post_init__": lambda _: None}
    return make_dataclass(cls.__name__, options, bases=(cls,), frozen=True, namespace=about)()


def require(options: Any, command: str, names: Sequence[str]) -> None:
    """Refuse to go on without some options."""
    missing = [name for name in names if getattr(options, name) is None]
    if missing:
        raise InputError(f"{command} needs --{' and --'.join(missing)}: give them here, or in the file of --config")


def as_toml(options: Any, command: str, hidden: Iterable[str] = ()) -> str:
    """The effective settings, to be read and passed back with --config; "None" where that is not the default."""
    from wildood.experiments.experiment import toml_value  # noqa: PLC0415 - slow to import

    lines = [f"# wildood {command} --config THIS FILE"]
    for part in filter(None, (options, options.settings, options.schedule)):
        defaults = {each.name: each.default for each in fields(part)}
        for name in _names(type(part)):
            value = getattr(part, name)
            if name not in hidden and not (value is None and defaults[name] is None):
                lines.append(f"{name} = {toml_value(str(value) if value is None or isinstance(value, Path) else value)}")
    return "\n".join(lines) + "\n"
