"""`evaluate`: a detector and test data in; its metrics out, as an object that shows itself and writes its files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from wildood.data.catalog import is_named_set
from wildood.data.files import write_text
from wildood.data.fingerprint import same_examples
from wildood.data.hugging_face import check_same_classes, named_classes
from wildood.data.images import Images
from wildood.data.inputs import Spec
from wildood.data.sources import Source, StructuredSource
from wildood.data.tables import TableSpec
from wildood.data.validation import align_classes, id_source, rows_of, unlabelled_source
from wildood.detect.detector import Detector, check_detector
from wildood.detect.split import check_seed
from wildood.errors import InputError, as_utf8
from wildood.experiments.evaluation import (
    CONFIDENCE,
    RESAMPLES,
    Evaluation,
    PromiseCheck,
    SetDecisions,
    check_on_known,
    class_names,
    evaluate_decisions,
)
from wildood.report.evaluation_page import (
    all_tables,
    evaluation_latex,
    evaluation_markdown,
    evaluation_page,
    metrics_record,
    not_promised,
    promise_text,
    shared_examples,
    used_before,
)
from wildood.report.page import check_directory, save_page
from wildood.report.table import to_html, to_text
from wildood.settings import check_flag, check_integer, quoted
from wildood.train.progress import logger


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport(Evaluation):
    """What `wildood.evaluate` returns: every number, with the decisions behind it.

    Attributes:
        id: accuracy and false alarms on the ID set.
        ood: the metrics on each OOD set.
        average: their mean over the OOD sets.
        shifted: as `id`, on known classes that look different; None without such a set.
        promise: whether the promised false-alarm rate holds.
        detector: what was evaluated.
        known: its decisions on the ID set.
        unknown: its decisions on each OOD set.
        shifted_known: its decisions on the shifted set, if there is one.
        classes: the names of its classes.
        command: what was typed; empty in Python.
        directory: where the detector is saved; empty if that is not known.
    """

    _: KW_ONLY
    promise: PromiseCheck
    detector: Detector
    known: SetDecisions
    unknown: Sequence[SetDecisions]
    classes: Sequence[str]
    shifted_known: SetDecisions | None = None
    command: str = ""
    directory: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data: the content of `metrics.json`."""
        return metrics_record(self)

    def page(self) -> str:
        """The page with figures and pictures, as HTML. It needs matplotlib."""
        return evaluation_page(self)

    def save(self, directory: str | Path, *, page: bool = True) -> Path:
        """Write `metrics.json`, `table.md`, `table.tex` and, if matplotlib is installed, `report.html` to a directory.

        Returns the directory. Without `page`, `report.html` is not written.
        """
        place = check_directory(directory)
        write_text(place / "metrics.json", json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        write_text(place / "table.md", evaluation_markdown(self, self.promise))
        write_text(place / "table.tex", evaluation_latex(self, self.promise))
        if check_flag(page, "page"):
            save_page(self.page, place)
        return place

    def __repr__(self) -> str:
        return "\n\n".join([*map(to_text, all_tables(self)), "\n".join(self._notes())])

    def _repr_html_(self) -> str:
        """The same as HTML, which notebooks show."""
        return to_html(all_tables(self), self._notes())

    def _notes(self) -> list[str]:
        units = f"In percent, with {100 * CONFIDENCE:g} % intervals in brackets."
        notes = [units, promise_text(self.promise), not_promised(self), *used_before(self), shared_examples(self)]
        return list(filter(None, notes))


def evaluate(
    detector: Detector,
    id: Any,  # noqa: A002 - the field's own word
    ood: Any,
    *,
    shifted: Any = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    command: str = "",
    directory: str | Path = "",
) -> EvaluationReport:
    """Measure a detector on test data: what it catches of each OOD set, and what it costs on ID data.

    A warning names a set that the detector was made from, and an OOD set with examples that are in the ID set, too.

    Args:
        detector: what `fit`, `posthoc` or `load` returned.
        id: ID examples that nobody has trained on: `(x, y)`, or `x` without labels; also a dataset, or the result of
            `open_images` or `open_set`. Classes with names are matched with the detector's by name.
        ood: OOD examples `x`, or a dict of several sets by their names; labels are ignored. A dict with all columns of the
            detector's table is one set.
        shifted: known classes that look different from those of the training (another camera, noise), as `id`: their
            accuracy and false alarms. No rate is promised for them.
        resamples: of the bootstrap, which the intervals of FPR95 and AUROC come from.
        seed: of the bootstrap.
        command: what was typed, if a command line calls this: the files record it, and messages name options.
        directory: where the detector is saved, which the files record.

    >>> import numpy as np, torch, wildood
    >>> x, model = np.random.default_rng(0).normal(size=(300, 1)).astype("float32"), torch.nn.Linear(1, 2)
    >>> _ = torch.nn.init.ones_(model.weight)  # energy falls with x
    >>> detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x[:200])
    >>> evaluation = wildood.evaluate(detector, id=x[200:], ood={"far": x[:50] - 9})
    >>> evaluation
    OOD set              caught ↑          FPR95 ↓                AUROC ↑   AUPR-in ↑   AUPR-out ↑   examples
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    far       100.0 [92.9, 100.0]   0.0 [0.0, 7.1]   100.0 [100.0, 100.0]       100.0        100.0         50
    <BLANKLINE>
    ID set: id                 share   examples
    ───────────────────────────────────────────
    false alarms ↓   5.0 [1.6, 11.3]        100
    <BLANKLINE>
    In percent, with 95 % intervals in brackets.
    False alarms: 5 of 100 (5.0 %; 1.6 to 11.3 % at 95 % confidence) of the ID examples are rejected: nothing speaks against
    the promise of at most 5 %.
    >>> evaluation.ood[0].auroc.value
    1.0
    >>> evaluation.promise.verdict
    'not contradicted'
    """
    option = "--{}".format if command else str
    check_detector(detector)
    resamples = check_integer(resamples, option("resamples"), "at least 1, at most 1,000,000", most=10**6)
    seed = check_seed(seed, option("seed"))
    name, known = _known_source(detector, id, "id", option("id"))
    changed = None if shifted is None else _known_source(detector, shifted, "shifted", option("shifted"))
    if changed is not None and same_examples(known, changed[1]):
        raise InputError(f"{option('id')} and {option('shifted')} hold the same examples: give each set once")
    sets = _ood_sources(ood, detector.classifier.spec, option("ood"))
    decisions = SetDecisions.asked(detector, name, known)
    unknown = [SetDecisions.asked(detector, each, source, labelled=False) for each, source in sets.items()]
    on_shifted = None if changed is None else SetDecisions.asked(detector, *changed)
    report = measure(detector, decisions, unknown, resamples, seed, on_shifted)
    for sentence in used_before(report):
        logger.warning("%s", sentence)
    if shared := shared_examples(report):
        logger.warning("%s An example cannot be both ID and OOD.", shared)
    return replace(report, command=command, directory=str(directory))


def measure(
    detector: Detector,
    known: SetDecisions,
    unknown: Sequence[SetDecisions],
    resamples: int = RESAMPLES,
    seed: int = 0,
    shifted: SetDecisions | None = None,
) -> EvaluationReport:
    """The metrics of decisions on an ID set, several OOD sets and a shifted set, and the check of the promise."""
    by_class = detector.promise is not None and detector.promise.by_class
    numbers = evaluate_decisions(known, unknown, resamples, seed, by_predicted=by_class, shifted=shifted)
    unmatched = bool(known.label_names) and not detector.record.get("classes")
    numbers = replace(numbers, id=replace(numbers.id, unmatched_names=unmatched))
    return EvaluationReport(
        **vars(numbers),
        promise=check_on_known(detector, known, CONFIDENCE, known.role_of),
        detector=detector,
        known=known,
        unknown=unknown,
        classes=class_names(detector, known),
        shifted_known=shifted,
    )


def set_name(where: str) -> str:
    """What a set is called: a named set by its name, a file or a folder by the last part of its path.

    >>> set_name("cifar10:test"), set_name("data/svhn.npz")
    ('cifar10:test', 'svhn.npz')
    """
    return where if is_named_set(where) else as_utf8(Path(where).name or where)


def _known_source(detector: Detector, data: Any, name: str, option: str) -> tuple[str, Source]:
    """The name of a set of known examples, and its examples, with their classes as the detector numbers them."""
    name = (set_name(data.where) if isinstance(data, Images | StructuredSource) else "") or name
    known = id_source(rows_of(data, detector.classifier.spec, option), name)
    names = tuple(detector.record.get("classes") or ())
    if isinstance(known, Images | StructuredSource) and known.classes and names:
        known = align_classes(replace(known, where="the detector", classes=names), known, option)
    check_same_classes(option, named_classes(data), names, "the detector")
    return name, known


def _ood_sources(ood: Any, spec: Spec | None, option: str) -> dict[str, Source]:
    """The OOD sets by their names; the same examples under two names are refused: they would count twice in the mean."""
    example = "ood={'svhn': x}"
    if isinstance(ood, tuple | list):
        kind = f"{option} is a {type(ood).__name__} of {len(ood)}"
        raise InputError(f"{kind}: give one x, or a dict with a name for each set, as in {example}")
    columns = {each.name for each in spec.columns} if isinstance(spec, TableSpec) else None
    if not isinstance(ood, Mapping) or (columns is not None and columns <= set(map(str, ood))):
        ood = {(set_name(ood.where) if isinstance(ood, Images | StructuredSource) else "") or "ood": ood}
    if not ood:
        raise InputError(f"{option} is an empty dict: give at least one set, as in {example}")
    sources: dict[str, Source] = {}
    for name, x in ood.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"{option}: a set is called {quoted(name)}: give it a name, as in {example}")
        source = unlabelled_source(rows_of(x, spec, name, labels=False), name)
        for other, earlier in sources.items():
            if same_examples(earlier, source):
                raise InputError(f"{option}: {other} and {name} hold the same examples: give each set once")
        sources[name] = source
    return sources
