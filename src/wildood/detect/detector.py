"""`Detector`: a classifier that answers "unknown" where a score is above a threshold."""

import copy
import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import wildood
from wildood.data.fingerprint import NOT_FRESH, SEEN_HOLDOUT, role_of, role_text
from wildood.data.inputs import InputSpec
from wildood.data.schema import Count, Rate
from wildood.data.sources import Source
from wildood.data.structures import Raw, is_structure
from wildood.data.validation import in_order, rows_of, unlabelled_source
from wildood.errors import InputError
from wildood.evaluate.intervals import CaughtBound
from wildood.evaluate.mixture import UnknownShare, unknown_share
from wildood.evaluate.thresholds import (
    check_alpha,
    check_confidence,
    check_finite,
    conformal_threshold,
    p_values,
    thresholds_by_class,
    tied_scores,
)
from wildood.models.classifier import EVAL_BATCH, Classifier, Outputs, chosen_device, each_output
from wildood.scores.score import Score, score_all
from wildood.settings import check_flag, check_path, quoted
from wildood.train.history import Row

UNKNOWN: Final = -1
NOT_COMPARED: Final = "whether they were used in training could not be checked"
Scores = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
if TYPE_CHECKING:
    from wildood.detect.export import DetectorModule

_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Example:
    """The shape and the kind of a raw example, or those of its parts. A detector refuses others.

    Attributes:
        shape: of an array; its parts have their own.
        kind: what numbers an array holds, or "dict" or "tuple" (also of a list) of parts.
        parts: by their names, or by their numbers as text.

    >>> Example.of_batch({"ids": torch.zeros(8, 20, dtype=torch.long)}).parts
    {'ids': Example(shape=(20,), kind='integer', parts={})}
    """

    shape: tuple[Count, ...]
    kind: Literal["float", "uint8", "integer", "bool", "dict", "tuple"]
    parts: dict[str, "Example"] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.parts:
            return f"{self.kind} examples of shape {self.shape}"
        return f"a {self.kind} of " + ", ".join(f"{name} ({part})" for name, part in self.parts.items())

    @classmethod
    def of(cls, source: Source) -> "Example":
        """That of the first example of a source."""
        return cls.of_batch(source.gather(torch.arange(1))[0])

    @classmethod
    def of_batch(cls, batch: Raw) -> "Example":
        """That of the examples of a batch."""
        if isinstance(batch, Tensor):
            kinds: dict[torch.dtype, Any] = {torch.uint8: "uint8", torch.bool: "bool"}
            return cls(tuple(batch.shape[1:]), "float" if batch.is_floating_point() else kinds.get(batch.dtype, "integer"))
        if isinstance(batch, dict):
            return cls((), "dict", {name: cls.of_batch(part) for name, part in batch.items()})
        return cls((), "tuple", {str(number): cls.of_batch(part) for number, part in enumerate(batch)})

    def blank(self, count: int) -> Raw:
        """A batch of such examples, all zero."""
        blanks = {name: part.blank(count) for name, part in self.parts.items()}
        if self.kind in {"dict", "tuple"}:
            return blanks if self.kind == "dict" else tuple(blanks.values())
        dtypes = {"uint8": torch.uint8, "float": torch.float32, "bool": torch.bool}
        return torch.zeros((count, *self.shape), dtype=dtypes.get(self.kind, torch.long))

    def check(self, source: Source, name: str, *, resized: bool = False) -> Source:
        """The source, unless its examples have another kind or shape; images that an input spec resizes may vary in size."""
        self.compare(Example.of(source), name, resized=resized)
        return source

    def compare(self, other: "Example", name: str, *, resized: bool) -> None:
        """Refuse another kind or shape; of parts, sizes may differ, as those of padded texts do."""
        if not self.parts and other.parts:
            pair = other.kind == "tuple" and len(other.parts) == 2
            instead = ", without labels" if pair else ": np.stack makes one" if other.kind == "tuple" else ""
            raise InputError(f"{name} is a {other.kind} of {len(other.parts)}: give x alone, as one array{instead}")
        if self.parts and other.parts.keys() != self.parts.keys():
            expected = f"a {self.kind} of {', '.join(map(repr, self.parts))}"
            found = f"a {other.kind} of {', '.join(map(repr, other.parts))}" if other.parts else "one array"
            raise InputError(f"{name} is {found}, expected {expected}: give the same parts everywhere")
        for part, expected_part in self.parts.items():
            key = repr(part) if self.kind == "dict" else part
            expected_part.compare(other.parts[part], f"{name}[{key}]", resized=True)
        if len(other.shape) != len(self.shape) or (other.shape != self.shape and not resized):
            hint = " (add the batch axis to a single example: x[None])" if other.shape == self.shape[1:] else ""
            hint = " (a batch? give its examples one by one)" if other.shape[1:] == self.shape else hint
            hint = " (another layout?)" if sorted(other.shape) == sorted(self.shape) else hint
            raise InputError(f"{name}: an example has shape {other.shape}, expected {self.shape}{hint}")
        if other.kind != self.kind:
            raise InputError(f"{name} holds {other.kind} values, expected {self.kind}: give the same type everywhere")


@dataclass(frozen=True)
class Promise:
    """What the threshold guarantees about false alarms, and from how many examples.

    Attributes:
        alpha: the false-alarm rate.
        examples: how many ID examples the threshold was computed from.
        unseen: whether the caller says that they trained neither the starting classifier nor the detector.
        confidence: the probability, over the draw of the holdout, with which the rate holds; None: on average.
        by_class: whether the rate holds among the examples of each predicted class.
        caveat: what could not be checked about these examples, or what else must hold.

    >>> print(Promise(alpha=0.05, examples=500, unseen=True))
    false-alarm rate <= 5 % on average over holdouts, if the 500 holdout examples are unseen and future ID data has the same
    distribution
    """

    alpha: Rate
    examples: int
    unseen: bool
    confidence: Rate | None = None
    by_class: bool = False
    caveat: str = ""

    @property
    def assumption(self) -> str:
        """What must be true for the promise to hold."""
        return (
            f"future ID data has the same distribution as the {self.examples} examples (is exchangeable with them), and "
            "these trained neither the starting classifier nor the detector and chose nothing"
        )

    def __str__(self) -> str:
        rate = f"{100 * self.alpha:g} %" + (" in each predicted class" if self.by_class else "")
        if not self.unseen:
            return (
                f"no promise: the threshold aims at a false-alarm rate of {rate}, but the model may be trained on the "
                f"{self.examples} examples that set it, so it may reject more fresh data: give an unseen holdout"
            )
        how = "on average over holdouts" if self.confidence is None else f"with probability {100 * self.confidence:g} %"
        condition = f"if the {self.examples} holdout examples are unseen and future ID data has the same distribution"
        return f"false-alarm rate <= {rate} {how}, {condition}" + (f"; {self.caveat}" if self.caveat else "")


@dataclass(eq=False, repr=False)
class Detector:
    """Model, input spec, score and threshold. An example is rejected where its score is above the threshold.

    Made by `wildood.fit`, `wildood.posthoc` or `wildood.load`. Any number of threads may use one detector: only `calibrate`
    changes it, and it replaces threshold, promise and holdout scores atomically.

    Attributes:
        classifier: the model with its input spec.
        scorer: the score, higher = more OOD.
        example: the shape and kind of a raw example.
        threshold: scores above it are rejected; NaN before calibration.
        class_thresholds: the threshold of each predicted class, if the detector was calibrated by class.
        promise: what the threshold guarantees.
        holdout_scores: the scores that the threshold was computed from.
        holdout_classes: the predicted classes of the same examples.
        history: one row for each epoch of the training.
        record: how it was made: method, schedule, seed, versions.
        tokenizer: the `tokenizer.json` that it reads texts with on the command line, if it was made there from texts.
        trial: the detector that `fit` had before it trained again on all wild data, also what was set aside: what the record
            says about that data is the trial's. It is not saved.

    >>> import wildood
    >>> rng = np.random.default_rng(0)
    >>> holdout = rng.normal(size=(100, 2)).astype("float32"), rng.integers(0, 3, 100)
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=holdout)
    >>> detector.predict(holdout[0][:4]).shape
    (4,)
    >>> bool(np.mean(detector.predict(holdout[0]) == wildood.UNKNOWN) <= 0.05)
    True
    """

    classifier: Classifier
    scorer: Score
    example: Example
    _: KW_ONLY
    threshold: float = float("nan")
    class_thresholds: npt.NDArray[np.float64] | None = None
    promise: Promise | None = None
    holdout_scores: Scores | None = None
    holdout_classes: Classes | None = None
    history: list[Row] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    tokenizer: bytes | None = None
    trial: "Detector | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.scorer.to(self.classifier.device)

    def score(self, x: Any) -> Scores:
        """One number for each example, higher = more OOD; +inf where the score or the largest logit is not finite."""
        return self.score_and_classify(x)[0]

    def classify(self, x: Any) -> Classes:
        """The class of each example, even where it would be rejected."""
        return self._each(x, lambda outputs: outputs.logits.argmax(1))

    def score_and_classify(self, x: Any) -> tuple[Scores, Classes]:
        """What `score` and `classify` return, from one pass over the examples."""
        pairs = [score_all(self.classifier, source, self.scorer) for source in self._in_order(x)]
        scores, classes = (np.concatenate(each) for each in zip(*pairs, strict=True))
        return scores, classes

    def predict(self, x: Any) -> Classes:
        """The class of each example, or UNKNOWN (-1) where it is rejected or where its score or logits are not finite."""
        scores, classes = self.score_and_classify(x)
        return np.where(self.accepts(scores, classes), classes, UNKNOWN)

    def predict_proba(self, x: Any) -> Scores:
        """The classifier's softmax probabilities, (examples, classes), even where an example would be rejected."""
        return self._each(x, lambda outputs: outputs.logits.softmax(1))

    def class_name(self, number: int) -> str | int:
        """The name of a class, or its number: a model may have more classes than there are names."""
        names = self.record.get("classes", ())
        return str(names[number]) if number < len(names) else int(number)

    def accepts(self, scores: Scores, classes: Classes) -> npt.NDArray[np.bool_]:
        """Which examples with these scores and predicted classes are accepted; none whose score is not finite."""
        now = copy.copy(self)  # both thresholds of one moment: another thread may calibrate
        if np.isnan(now.threshold):
            raise InputError("this detector has no threshold: call detector.calibrate(holdout, alpha) first")
        arrays = isinstance(scores, np.ndarray) and isinstance(classes, np.ndarray) and scores.shape == classes.shape
        if not arrays or scores.dtype.kind not in "fiu" or classes.dtype.kind not in "iu":
            raise InputError("scores and classes are not two arrays of one length: give what score_and_classify(x) returns")
        threshold = now.threshold if now.class_thresholds is None else now.class_thresholds[classes]
        return np.isfinite(scores) & (scores <= threshold)

    def p_value(self, x: Any) -> npt.NDArray[np.float64]:
        """The conformal p-value of each example against the holdout's scores: small = looks unknown.

        If the promise's assumption holds, at most a share p of fresh ID examples has a p-value of p or less, on average over
        holdouts and over all classes. `predict` rejects exactly where p <= alpha if the detector has one threshold without
        a confidence. A confidence makes the threshold higher; thresholds by class reject other examples.
        """
        return p_values(self.score(x), self._holdout()[0])

    def unknown_share(self, wild: Any, confidence: float = 0.95) -> UnknownShare:
        """How much of this traffic is OOD, without labels: its scores are compared with those of the holdout.

        The traffic must be fresh and the holdout unseen (see `wildood.unknown_share`). Data that the detector was made from
        is refused where it is recognised: as a whole, not in slices. `confidence` is that of the lower bound.

        >>> import wildood
        >>> x, model = np.random.default_rng(0).normal(size=(400, 1)).astype("float32"), torch.nn.Linear(1, 2)
        >>> _ = torch.nn.init.ones_(model.weight)  # energy falls with x
        >>> detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x[:200])
        >>> print(detector.unknown_share(np.concatenate([x[200:], x[:50] - 9])))
        at least 14.6 % of the wild data is OOD at 95 % confidence (estimate 22.2 %, p = 1.5e-14; 200 ID and 250 wild scores)
        """
        source = self.source_of(wild)
        if role := role_of(self.record, source):
            raise InputError(NOT_FRESH.format(role_text(role)))
        known = self._holdout()[0]
        if self.promise is None or not self.promise.unseen:
            raise InputError(f"{SEEN_HOLDOUT}: call detector.calibrate(holdout) with unseen examples first")
        return unknown_share(known, self.score(source), confidence)

    def calibrate(
        self,
        holdout: Any = None,
        alpha: float | None = None,
        *,
        confidence: float | Literal["average"] | None = None,
        by_class: bool | None = None,
        unseen: bool = True,
    ) -> "Detector":
        """Set the threshold for a false-alarm rate of at most alpha; returns the detector itself. None keeps a setting.

        Args:
            holdout: ID examples `(x, y)` or `x`; labels are not used. None for the present holdout.
            alpha: the false-alarm rate; 0.05 the first time.
            confidence: guarantee the rate with this probability over the draw of the holdout; "average" (as the first time)
                for a guarantee on average over holdouts.
            by_class: a threshold for each predicted class, so that no class has all the false alarms.
            unseen: whether these examples trained nothing, the starting classifier included, and chose nothing. Otherwise
                the false-alarm rate is not guaranteed. Data that the detector was made from is refused where it is
                recognised: as a whole, with labels or without.
        """
        before = self.promise or Promise(0.05, 0, unseen=False)
        alpha = check_alpha(before.alpha if alpha is None else alpha)
        if confidence is None:
            confidence = before.confidence
        else:
            average = isinstance(confidence, str) and confidence == "average"
            confidence = None if average else check_confidence(confidence)
        by_class = before.by_class if by_class is None else check_flag(by_class, "by_class")
        unseen = check_flag(unseen, "unseen")
        if holdout is None:
            scores, classes = self._holdout()
            promise = Promise(alpha, len(scores), before.unseen, confidence, by_class, before.caveat)
            return self._calibrate(scores, classes, promise)
        source = self.source_of(examples_of(holdout, self.example))
        if unseen:
            self._refuse_used(source)  # such examples can set a threshold, but guarantee nothing
        caveat = NOT_COMPARED if unseen else ""
        return self.calibrate_on(source, Promise(alpha, len(source), unseen, confidence, by_class, caveat))

    def _refuse_used(self, source: Source) -> None:
        role = role_of(self.record, source)
        if role == "holdout" and "chosen_by" in self.record:
            raise InputError(
                "a part of this holdout chose the epoch or a setting, or fitted the score, so the whole of it promises "
                "nothing: calibrate(alpha=...) uses the other part; or give other examples"
            )
        if role not in {"", "holdout", "threshold"}:
            raise InputError(
                f"these examples {role_text(role)}, so they promise nothing about fresh ones: give unseen ID examples, or "
                "unseen=False for a threshold without a promise"
            )

    def calibrate_on(self, source: Source, promise: Promise) -> "Detector":
        """`calibrate` with a source and the promise to be made."""
        scores, classes = self.score_and_classify(source)
        data = {**self.record.get("data", {}), "threshold": source.fingerprint()}
        return self._calibrate(scores, classes, promise, data=data)

    def _calibrate(self, scores: Scores, classes: Classes, promise: Promise, **recorded: Any) -> "Detector":
        check_finite(scores)
        threshold, class_thresholds = conformal_threshold(scores, promise.alpha, promise.confidence), None
        if promise.by_class:
            count = self.predict_proba(self.example.blank(1)).shape[1]
            class_thresholds = thresholds_by_class(scores, classes, count, promise.alpha, promise.confidence)
        record = {name: value for name, value in self.record.items() if name not in {"not_by_class", "ties"}} | recorded
        if ties := _ties(scores, classes, promise):
            _LOGGER.warning("%s", ties)
            record["ties"] = ties
        vars(self).update(  # at once: no other thread sees a part of it
            threshold=threshold,
            class_thresholds=class_thresholds,
            promise=promise,
            record=record,
            holdout_scores=scores,
            holdout_classes=classes,
        )
        return self

    def _holdout(self) -> tuple[Scores, Classes]:
        if self.holdout_scores is None or self.holdout_classes is None:
            raise InputError("this detector has no holdout scores: call detector.calibrate(holdout, alpha) first")
        return self.holdout_scores, self.holdout_classes

    def save(self, directory: str | Path) -> Path:
        """Write the detector to a directory, as safetensors and JSON (no pickle), for `wildood.load`.

        Several threads and processes may write to one directory: it always holds one whole detector.
        """
        from wildood.detect.storage import save_detector  # noqa: PLC0415 - storage builds detectors, and so imports this

        return save_detector(self, check_path(directory, "the directory"))

    def push_to_hub(self, repo: str, *, private: bool | None = None, message: str = "Save a detector of wildood") -> str:
        """Save to a model repository of the Hugging Face Hub, "user/name", for `wildood.load("hf://user/name")`.

        Needs the extra `[hf]`, and a login (`hf auth login`, or HF_TOKEN). The repository is made if there is none; without
        `private`, the Hub's default decides who sees it. One commit holds the new files and removes the weights of an older
        detector. Returns the address of that commit.
        """
        from wildood.detect.hub import push  # noqa: PLC0415 - it saves detectors

        return push(self, repo, private, message)

    @property
    def warnings(self) -> list[str]:
        """What to know before this detector is deployed, one sentence each."""
        return warnings_of(self.record)

    @property
    def threshold_text(self) -> str:
        """The threshold as text; where each predicted class has its own, their number and range."""
        return threshold_text(self.threshold, self.class_thresholds)

    @property
    def promise_text(self) -> str:
        """The promise as text, with a note where a promise for each class was asked for but could not be made."""
        if self.promise is None:
            return "not calibrated"
        return str(self.promise) + (" (over all classes: by class was NOT done)" if "not_by_class" in self.record else "")

    @property
    def caught(self) -> CaughtBound | None:
        """At least how many unknowns like the judged ones are rejected at the threshold; None where too few were judged."""
        now = copy.copy(self)
        return caught_at(now.record, now.threshold, now.class_thresholds)

    def __repr__(self) -> str:
        model, score = type(self.classifier.model).__name__, type(self.scorer).__name__
        return f"Detector({model}, {score}, threshold: {self.threshold_text}; {self.promise_text})"

    def source_of(self, x: Any) -> Source:
        """The user's examples, checked to have the shape and kind that the detector was made with."""
        return self._checked(unlabelled_source(self._rows(x), "x"))

    def _rows(self, x: Any) -> Any:
        return rows_of(x, self.classifier.spec, "x", labels=False)

    def _checked(self, source: Source) -> Source:
        resized = isinstance(self.classifier.spec, InputSpec) and self.classifier.spec.size is not None
        return self.example.check(source, "x", resized=resized)

    def _in_order(self, x: Any) -> Iterator[Source]:
        """The user's examples as one source; of a stream, all of them in their order, a batch at a time."""
        return map(self._checked, in_order(self._rows(x), "x", EVAL_BATCH))

    def _each(self, x: Any, take: Callable[[Outputs], Tensor]) -> npt.NDArray[Any]:
        """What `take` makes of the outputs for every example."""
        return np.concatenate([each_output(self.classifier, source, take).numpy() for source in self._in_order(x)])

    def to(self, device: str | torch.device) -> "Detector":
        """The detector itself, moved to a device, such as "cuda"; "auto" for a GPU if there is one.

        >>> import wildood
        >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=np.ones((40, 2), np.float32))
        >>> detector.to("cpu") is detector
        True
        """
        place = chosen_device(device)
        self.classifier.to(place)
        self.scorer.to(place)
        return self

    def to_module(self) -> "DetectorModule":
        """The detector as an `nn.Module`: raw examples in; class or -1, score, known and p-value out."""
        from wildood.detect.export import DetectorModule  # noqa: PLC0415 - it is made of a detector

        return DetectorModule(self)

    def export(self, path: str | Path, examples: Any = None) -> Path:
        """Write the detector for other runtimes: by `torch.export` (model.pt2) or as ONNX (model.onnx).

        The file takes raw examples in batches of any size, and returns class or -1, score, known and p-value. It is tried on
        `examples` (by default blank ones) before it is written: scores must equal those of the detector to 1e-4.
        """
        from wildood.detect.export import export  # noqa: PLC0415 - it is made of a detector

        return export(self, check_path(path, "the path"), examples)


def caught_at(
    record: Mapping[str, Any], threshold: float, class_thresholds: npt.NDArray[Any] | None = None
) -> CaughtBound | None:
    """The bound on what is caught, by judged unknowns of a fit's record that trained nothing; None without such.

    >>> print(caught_at({"judged": {"scores": [1.0] * 18 + [0.0] * 2, "classes": [0] * 20}}, threshold=0.5))
    at least 71.7 % of unknowns like the judged ones are caught, at 95 % confidence (18 of 20 judged unknowns)
    """
    judged = record.get("judged", {})
    scores = np.asarray(judged.get("scores", ()), np.float64)
    if not len(scores) or np.isnan(threshold):
        return None
    return CaughtBound.of(scores > (threshold if class_thresholds is None else class_thresholds[judged["classes"]]))


def threshold_text(threshold: float, class_thresholds: npt.ArrayLike | None = None) -> str:
    """A threshold, or the number and the range of the thresholds of predicted classes."""
    if class_thresholds is None:
        return f"{threshold:.6g}"
    each = np.asarray(class_thresholds)
    return f"one for each of {len(each)} predicted classes, from {each.min():.6g} to {each.max():.6g}"


def _ties(scores: Scores, classes: Classes, promise: Promise) -> str:
    """Why a threshold, of all or of a predicted class, rejects no holdout example although alpha allows it."""
    if not promise.by_class:
        return tied_scores(scores, promise.alpha, promise.confidence)
    for number in np.unique(classes):
        if text := tied_scores(scores[classes == number], promise.alpha):
            return f"predicted class {number}: {text}"
    return ""


WARNINGS = (
    *("low_accuracy", "holdout_accuracy", "missing_classes", "repeated_wild", "temperature"),
    *("accuracy_lost", "uniform", "ties", "not_by_class"),
)  # keys of a record


def warnings_of(record: Mapping[str, Any]) -> list[str]:
    """The warnings in a detector's record: of its assessment, and of what was found about its data, model and threshold."""
    more = [record[name] for name in WARNINGS if name in record]
    return [*record.get("assessment", {}).get("warnings", []), *more]


def check_detector(detector: Any) -> Detector:
    """The detector; anything else is refused.

    >>> check_detector("detector/")
    Traceback (most recent call last):
    wildood.errors.InputError: detector is a str: give what fit, posthoc or load returned, such as wildood.load('detector/')
    """
    if isinstance(detector, Detector):
        return detector
    such_as = f", such as wildood.load({quoted(str(detector))})" if isinstance(detector, str | Path) else ""
    raise InputError(f"detector is a {type(detector).__name__}: give what fit, posthoc or load returned{such_as}")


def examples_of(holdout: Any, example: Example | None = None) -> Any:
    """The x of `(x, y)`, or x itself, which may be a pair as well if such an `example` is."""
    is_pair = isinstance(holdout, tuple | list) and len(holdout) == 2
    is_x = example is not None and example.kind == "tuple" and not is_structure(holdout[0])
    return holdout[0] if is_pair and not is_x else holdout


def versions() -> dict[str, str]:
    """Of the libraries that made a detector, and the number of torch's threads."""
    libraries = {"wildood": wildood.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return libraries | {"python": platform.python_version(), "threads": str(torch.get_num_threads())}
