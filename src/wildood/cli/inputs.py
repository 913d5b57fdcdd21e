"""Models, weights and data that the command line names: shipped or own models; folders, manifests, arrays, named sets."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from wildood.data.archives import Archive, array_archive, open_archive
from wildood.data.catalog import SETS, is_named_set, open_set
from wildood.data.folders import open_images
from wildood.data.images import Framing, Images
from wildood.data.inputs import InputSpec, Spec
from wildood.data.sampling import seeded
from wildood.data.schema import SchemaError, parse
from wildood.data.sources import StructuredSource, blocks
from wildood.data.tables import TABLES_ALONE, TableSpec, is_table_file, read_table
from wildood.data.texts import TextColumns, TextReader, TextTokenizer
from wildood.data.validation import align_classes, rows_of
from wildood.detect.detector import Detector
from wildood.detect.storage import classifier_weights, detector_directory, load, read_description
from wildood.errors import InputError
from wildood.models.shipped import MODELS
from wildood.settings import check_callable, check_integer
from wildood.train.progress import logger

Data = Images | StructuredSource  # of texts
Reader = TableSpec | TextReader  # of files of tables or texts
DataT = TypeVar("DataT", bound=Data)
NAMES = {name.lower(): cls for name, cls in MODELS.items()}
SIDES = {"resnet20": 32, "wideresnet": 32}  # pixels that shipped networks are made for, without --size
KINDS: dict[str, dict[str, Any]] = {  # of data, and the options that are for one alone, with what they are by default
    "images": {"mean": None, "std": None, "size": None, "layout": "NHWC"},
    "tables": {"categorical": None, "ignore": None},
    "texts": {"tokenizer": None, "text_column": None, "tokens": None},
}
# What makes data of one kind that of another.
NEEDED = {("images", "tables"): "--label-column", ("images", "texts"): "--tokenizer", ("tables", "texts"): "--tokenizer"}
OWN_HEAD = (
    "--weights {} is a detector whose logits a head of its own makes{}, not the model's last layer: give the weights of the "
    "classifier that it was made from"
)
MEASURED = 10_000  # images, at most, that the mean and the standard deviation of the channels are computed from


def read_model(text: str, seed: int = 0) -> nn.Module:
    """`resnet20`, `smallcnn:classes=7,width=32`, or `module:function`.

    >>> type(read_model("mlp:inputs=4,classes=3")).__name__
    'MLP'
    """
    name, _, rest = text.partition(":")
    with seeded(seed, "starting weights"):  # a resumed run starts from the same ones
        return _shipped_model(name.lower(), rest) if name.lower() in NAMES else _own_model(name, rest)


def read_detector(options: Any) -> Detector:
    """The saved detector that the options name, with the model of --model and on the --device if there are such."""
    detector = load(options.detector, model=None if options.model is None else read_model(options.model))
    device = getattr(options, "device", None)
    return detector if device is None else detector.to(device)


def read_start(options: Any) -> tuple[Any, Detector | None]:
    """The saved detector that --weights names, and the options with its input spec unless there is one; else None."""
    if options.weights is not None and not options.weights.exists():
        raise InputError(f"--weights {options.weights}: there is no such file or directory")
    directory = None if options.weights is None else detector_directory(options.weights)
    if directory is None:
        return options, None
    pretrained = directory / "weights.safetensors"
    if pretrained.is_file() and not (directory / "detector.json").exists():
        raise InputError(f"--weights {options.weights} holds no detector, but weights of pretrain: give {pretrained}")
    spec = read_description(directory)["input"]
    if options.model is not None and isinstance(spec, TableSpec):
        options = replace(options, model=_sized(options.model, spec))
    start = load(directory, model=None if options.model is None else read_model(options.model, options.seed))
    if start.classifier.head is not None:
        raise InputError(OWN_HEAD.format(options.weights, f" ({type(start.classifier.head).__name__})"))
    if not isinstance(spec, InputSpec) or any(getattr(options, name) != each for name, each in KINDS["images"].items()):
        return options, start
    logger.info("mean, std, layout and size of images: those of %s", directory)
    return replace(options, **spec.to_dict()), start


def _with_classes(text: str, classes: int) -> str:
    """The text of a shipped model, with a number of classes unless it has one."""
    if text.partition(":")[0].lower() not in NAMES or "classes=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}classes={classes}"


def _shipped_model(name: str, settings: str) -> nn.Module:
    try:
        pairs = dict(pair.split("=", 1) for pair in settings.split(",")) if settings else {}
        return NAMES[name](**{key: float(value) if "." in value else int(value) for key, value in pairs.items()})
    except (TypeError, ValueError) as error:
        text = f"{name}:{settings}" if settings else name
        example = "smallcnn:classes=7,width=32 or mlp:inputs=4,classes=3"
        raise InputError(f"--model {text}: {error}; give settings as in {example}") from error


def _own_model(module: str, function: str) -> nn.Module:
    option = f"--model {module}:{function}"
    if not module or not function:
        raise InputError(f"{option.rstrip(':')}: give one of {', '.join(NAMES)}, or module:function for your own")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does: the user's module is in the working directory
    try:
        build = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        hint = ": leave out .py" if module.endswith(".py") else ""
        raise InputError(f"{option}: no module named {error.name!r} here{hint}") from error
    except TypeError as error:
        raise InputError(f"{option}: give module:function without slashes, as in mymodel:build") from error
    except AttributeError as error:
        raise InputError(f"{option}: {module} has no {function!r}") from error
    model = check_callable(build, option)() if callable(build) and not isinstance(build, nn.Module) else build
    if not isinstance(model, nn.Module):
        raise InputError(f"{option} gave a {type(model).__name__}: it must build a torch.nn.Module")
    return model


def read_weights(weights: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights in a file; of a detector's file, those of its classifier, unless the model has such names itself."""
    if not weights.is_file():
        raise InputError(f"--weights {weights}: there is no such file")
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"--weights {weights} cannot be read as safetensors ({error}): "
            "safetensors.torch.save_file(model.state_dict(), FILE) writes such a file"
        ) from error
    own = None if tensors.keys() == model.state_dict().keys() else classifier_weights(tensors)
    if own is not None and any(name.startswith("head.") for name in tensors):
        raise InputError(OWN_HEAD.format(weights, ""))
    return own or tensors


def with_reader(options: Any, start: Detector | None) -> Any:
    """The options with what reads files of tables or texts, if data is in such, and with the sizes that a table's mlp needs.

    Files are read as for the training of the classifier to start from. Where that says nothing, --tokenizer is for texts,
    and --label-column without it for tables.
    """
    reader: Reader | None
    if start is not None:
        reader = detector_reader(start)
    else:
        reader = None if options.weights is None else _spec_of_weights(options.weights)
    is_open = reader is None and (start is None or start.classifier.spec is None)
    if reader is not None:
        kind = "tables" if isinstance(reader, TableSpec) else "texts"
    elif is_open and options.tokenizer is not None:
        kind = "texts"
    else:
        kind = "tables" if is_open and options.label_column is not None else "images"
    _check_kind(options, kind, is_open=is_open)
    if kind == "images":
        return options
    if reader is not None:
        _check_same(options, reader)
        logger.info("%s are read as for the training of %s", kind, options.weights)
    else:
        with _naming_errors(options.labelled, "--labelled"):
            reader = _fit_table(options) if kind == "tables" else _text_reader(options)
    model = _sized(options.model, reader) if options.model and isinstance(reader, TableSpec) else options.model
    return replace(options, reader=reader, model=model)


def _check_kind(options: Any, kind: str, *, is_open: bool) -> None:
    """Refuse options that are for another kind of data, with the option that was forgotten if any kind `is_open`."""
    for other, names in KINDS.items():
        for name, default in names.items():
            if other != kind and getattr(options, name) != default:
                needed = NEEDED.get((kind, other)) if is_open else None
                advice = f": give {needed}, too" if needed else f", not for {kind}: leave it out"
                raise InputError(f"--{name.replace('_', '-')} is for {other}{advice}")
    if kind == "images" and options.label_column is not None:
        raise InputError("--label-column is for tables and texts, not for images: leave it out")
    is_mlp = (options.model or "").lower().partition(":")[0] == "mlp"
    ending = (*TABLES_ALONE, ".csv") if is_mlp and is_open else TABLES_ALONE
    if kind == "images" and (options.labelled or "").lower().endswith(ending):
        raise InputError(f"--labelled {options.labelled} is a table: give the column of its classes, --label-column")


def _check_same(options: Any, reader: Reader) -> None:
    """Refuse options that contradict what the classifier to start from was trained with."""
    if isinstance(reader, TableSpec):
        codes = {column.name for column in reader.categorical}
        same = {
            "label-column": options.label_column in {None, reader.label},
            "ignore": set(options.ignore or reader.ignored) == set(reader.ignored),
            "categorical": set(options.categorical or ()) <= codes,
        }
    else:
        same = {
            "label-column": options.label_column in {None, reader.columns.label},
            "text-column": options.text_column in {None, reader.columns.text},
            "tokens": options.tokens in {None, reader.tokenizer.length},
            "tokenizer": options.tokenizer is None or reader.tokenizer.is_of(options.tokenizer),
        }
    for name, agrees in same.items():
        if not agrees:
            raise InputError(f"--{name} is not that of the training of {options.weights}: leave it out")


def _sized(text: str, spec: TableSpec) -> str:
    """The text of a shipped model, with the numbers of inputs and classes that fit a table, unless it has them."""
    if text.lower().partition(":")[0] == "mlp" and "inputs=" not in text:
        text = f"{text}{',' if ':' in text else ':'}inputs={spec.width}"
    return _with_classes(text, len(spec.classes)) if spec.classes else text


def _fit_table(options: Any) -> TableSpec:
    """The input spec of the table that --labelled names."""
    categorical, ignore = options.categorical or (), options.ignore or ()
    table = read_table(options.labelled, [options.label_column, *categorical])
    return TableSpec.fit(table, label=options.label_column, categorical=categorical, ignore=ignore)


def _text_reader(options: Any) -> TextReader:
    """What reads texts; without --tokens, the longest of labelled decides their length."""
    columns = TextColumns(options.text_column or "text", options.label_column)
    tokenizer = TextTokenizer.open(options.tokenizer)
    length = options.tokens
    if length is None:
        length = tokenizer.longest([row.text for row in columns.rows(Path(options.labelled))] or [""])
        logger.info("texts are padded to %d tokens (--tokens)", length)
    tokenizer.set_length(check_integer(length, "--tokens", "a number of tokens from 1 to 65,536", most=1 << 16))
    return TextReader(columns, tokenizer)


def detector_reader(detector: Detector) -> Reader | None:
    """What reads files of tables or texts as the detector was made with them."""
    record: Any = detector.record.get("text")
    if record is not None and detector.tokenizer is not None:
        return TextReader.of_record(record, detector.tokenizer)
    return detector.classifier.spec if isinstance(detector.classifier.spec, TableSpec) else None


def _spec_of_weights(weights: Path) -> TableSpec | None:
    """The input spec that `wildood pretrain` wrote beside the weights of a classifier of tables."""
    try:
        with safe_open(weights, "numpy") as file:
            text = (file.metadata() or {}).get("table")
        spec: TableSpec | None = None if text is None else parse(text.encode(), TableSpec)
    except SchemaError as error:
        raise InputError(f"--weights {weights}: the input spec in it is damaged ({error}): pretrain again") from error
    except (OSError, SafetensorError):  # which reading the weights will tell
        return None
    return spec


def adapt(labelled: Data, options: Any, model: nn.Module, start: Detector | None) -> tuple[Any, nn.Module]:
    """Options and model for labelled data: measured mean and std, the number of named classes, and the weights of --weights.

    Mean and std are measured for a network without weights; a shipped model gets its number of classes unless it has one.
    A detector to start from has all of it.
    """
    if start is not None:
        return options, model
    weights = None if options.weights is None else read_weights(options.weights, model)
    examples = labelled.examples if isinstance(labelled, Images) else None
    is_images = examples is not None and examples.dtype == np.uint8 and examples.ndim == 4 and options.layout == "NHWC"
    if isinstance(labelled, Images) and is_images and weights is None and options.mean is None:
        mean, std = colours(labelled)
        texts = [" ".join(map(str, values)) for values in (mean, std)]
        logger.info("mean %s and std %s of each channel: measured on labelled", *texts)
        options = replace(options, mean=mean, std=std)
    text = _with_classes(options.model, len(labelled.classes)) if labelled.classes else options.model
    if text != options.model and (weights is None or _shapes(weights) != _shapes(model.state_dict())):
        options, model = replace(options, model=text), read_model(text, options.seed)
    if weights is not None:
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            first = shorten(str(error).splitlines()[-1], 300, placeholder=" ...")
            raise InputError(f"--weights {options.weights} do not fit the model: {first}") from error
    return options, model


def _shapes(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.shape for name, value in state.items()}


def colours(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation of each channel of uint8 images in NHWC, on a scale from 0 to 1."""
    some = images.examples[:: -(-len(images) // MEASURED)]
    channels = some.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)  # how often each channel has each value: exact, and small
    for _, block in blocks(some):
        pixels = np.asarray(block).reshape(-1, channels)
        counts += np.stack([np.bincount(pixels[:, channel], minlength=256) for channel in range(channels)])
    values = np.arange(256) / 255
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares @ values**2 - mean**2).clip(min=0))
    return tuple(mean.round(4).tolist()), tuple(std.round(4).clip(min=0.01).tolist())


def input_spec(options: Any) -> Spec | None:
    """The input spec of a table, or that of --mean, --std, --layout and --size."""
    check_colours(options)
    if isinstance(options.reader, TableSpec):
        return options.reader
    if options.mean is None:
        for name, default in (("layout", "NHWC"), ("size", None)):
            if getattr(options, name) != default:
                raise InputError(f"--{name} is for images: give --mean and --std, too")
        return None
    return InputSpec(layout=options.layout, mean=options.mean, std=options.std, size=_side_of(options.size))


def check_colours(options: Any) -> None:
    """Refuse --mean without --std, and --std without --mean."""
    if (options.mean is None) != (options.std is None):
        raise InputError("--mean and --std belong together: give both, one number for each channel")


def _side_of(size: tuple[int, ...] | None) -> tuple[int, int] | None:
    """The height and width of --size; one number is both."""
    if size is None:
        return None
    if len(size) not in {1, 2}:
        raise InputError(f"--size has {len(size)} numbers: give a height and a width, or one number for both")
    return size[0], size[-1]


def read_labelled(text: str, option: str, options: Any, like: Data | Detector | None = None) -> Data:
    """The examples that an option names, refused without labels; named classes are numbered as in `like`."""
    spec = like.classifier.spec if isinstance(like, Detector) else None
    other_size = isinstance(spec, InputSpec) and spec.size != options.size
    images = _read(text, option, options, None if other_size else like)
    if images.labels is None:
        advice = "name the column of the classes with --label-column"
        if isinstance(images, Images):
            advice = images.unlabelled or "give an array y of integers beside x"
        raise InputError(f"{option}: {text} has no labels: {advice}")
    if isinstance(like, Detector) and "classes" in like.record:
        where = "the detector of --weights" if getattr(options, "weights", None) else "the detector"
        like = replace(images, where=where, classes=tuple(like.record["classes"]))
    return _logged(align_classes(like, images, option) if isinstance(like, Data) else images, option)


def read_unlabelled(text: str, option: str, options: Any, like: Data | Detector) -> Data:
    """The examples that an option names, in the shape of other examples or of a detector's, without labels."""
    return _logged(replace(_read(text, option, options, like, labels=False), labels=None, classes=()), option)


def read_judged(text: str, option: str, options: Any, like: Data | Detector) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Wild examples, and which of them a person has called unknown."""
    if text.endswith(".npz"):
        with _naming_errors(text, option), np.load(text) as file:
            if not {"x", "is_ood"} <= set(file.files):
                has = ", ".join(file.files) or "nothing"
                raise InputError(f"{option}: {text} has {has}: give x, and is_ood with 1 for unknown and 0 for known")
            examples, is_ood = file["x"], file["is_ood"]
        logger.info("%s: %d examples from %s", option.lstrip("-"), len(examples), text)
        return examples, is_ood
    judged = _logged(_read(text, option, options, like), option)
    if judged.labels is None or set(judged.classes) != {"known", "unknown"}:
        has = ", ".join(map(str, judged.classes)) or "numbers"
        raise InputError(f"{option}: the classes of {text} are {has}: call them known and unknown")
    answers = np.asarray(judged.labels) == judged.classes.index("unknown")
    return replace(judged, labels=None, classes=()), answers


def read_test(text: str, option: str, options: Any, detector: Detector) -> Data:
    """As `read_unlabelled`, with labels if there are any."""
    images = _read(text, option, options, detector)
    if images.classes and not detector.record.get("classes"):
        message = "%s: the detector has no names for its classes, those of %s are numbered in their order"
        logger.info(message, option.lstrip("-"), images.where)
    return _logged(images, option)


@contextmanager
def open_unlabelled(text: str, option: str, options: Any, detector: Detector) -> Iterator[Archive]:
    """As `read_unlabelled`, chunk by chunk: no picture is decoded before its turn, and none is kept."""
    with ExitStack() as stack:
        with _naming_errors(text, option):
            reader = _reader(options, detector)
            if isinstance(reader, TextReader):
                archive = reader.archive(Path(text))
            elif reader is not None and _is_of_rows(text):
                rows = _read_rows(text, reader, labels=False)
                archive = array_archive(np.asarray(rows.examples), (), text, f"{text} {rows.fingerprint()}")
            elif is_named_set(text) and not Path(text).exists():
                images = open_set(text, options.data_root)
                archive = array_archive(np.asarray(images.examples), images.names, text, f"{text} {images.fingerprint()}")
            else:
                size, channels = _picture_shape(options, detector)
                framing = Framing(size, channels=channels)
                archive = stack.enter_context(open_archive(text, framing, skip_broken=options.skip_broken))
        yield archive


def _read(text: str, option: str, options: Any, like: Data | Detector | None, *, labels: bool = True) -> Data:
    """The examples of a path, or else of a named set; of a table or of texts, the classes only if `labels`."""
    with _naming_errors(text, option):
        reader = _reader(options, like)
        if isinstance(reader, TextReader):
            return reader.read(Path(text), option.lstrip("-"), with_labels=labels)
        if reader is not None and _is_of_rows(text):
            return _read_rows(text, reader, labels=labels)
        if is_named_set(text) and not Path(text).exists():
            return open_set(text, options.data_root, as_published=getattr(options, "as_published", False))
        size, channels = _picture_shape(options, like)
        return open_images(text, size, channels=channels, skip_broken=options.skip_broken, cache=options.data_root)


def _reader(options: Any, like: Data | Detector | None) -> Reader | None:
    """What reads files of tables or texts: to train, that of the options, and else that of the detector."""
    if isinstance(like, Detector) and not hasattr(options, "reader"):
        return detector_reader(like)
    reader: Reader | None = options.reader
    return reader


def _is_of_rows(text: str) -> bool:
    """Whether a path is read as a table where data is in tables, or refused as none, and not read as arrays."""
    return is_table_file(text) or text.lower().endswith(".jsonl")


def _read_rows(text: str, spec: TableSpec, *, labels: bool) -> Images:
    rows: Images = rows_of(read_table(text, spec.text_columns), spec, text, labels=labels)
    return replace(rows, where=text)


@contextmanager
def _naming_errors(text: str, option: str) -> Iterator[None]:
    """Begin errors with the option, and end them with the named set that was perhaps meant."""
    try:
        yield
    except InputError as error:
        elsewhere = Path(text).exists() or is_named_set(text)
        near = [] if elsewhere else get_close_matches(text.partition(":")[0].lower(), SETS, n=1)
        hint = f" (or did you mean the named set {near[0]}? See wildood data list)" if near else ""
        raise InputError(f"{option}: {error}{hint}") from error


def _picture_shape(options: Any, like: Data | Detector | None) -> tuple[Any, Any]:
    """The size and channels of pictures: those of other examples, or those of the options."""
    shape = like.example.shape if isinstance(like, Detector) else like.examples.shape[1:] if isinstance(like, Images) else ()
    if len(shape) == 3 and shape[-1] in {1, 3}:
        return shape[:2], shape[-1]
    if isinstance(like, Detector):
        return None, 3
    size = _side_of(options.size) or SIDES.get((options.model or "").partition(":")[0].lower())
    return size, 1 if options.mean is not None and len(options.mean) == 1 else 3


def _logged(images: DataT, option: str) -> DataT:
    """The images; the log says how many examples of how many classes they are."""
    classes = f" of {len(np.unique(images.labels))} classes" if images.labels is not None else ""
    logger.info("%s: %d examples%s from %s", option.lstrip("-"), len(images), classes, images.where)
    return images
