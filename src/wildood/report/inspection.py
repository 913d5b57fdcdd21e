"""`inspect`: a detector and traffic in; how much of it is unknown and what to label first out, as an object."""

import json
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from wildood.data.files import write_text
from wildood.data.fingerprint import role_of, role_text, same_examples
from wildood.data.images import Images
from wildood.data.sources import Source
from wildood.data.validation import rows_of, unlabelled_source
from wildood.data.wild import WildMixture
from wildood.detect.detector import Detector, check_detector, examples_of
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_confidence
from wildood.experiments.evaluation import SetDecisions
from wildood.report.inspection_page import Inspection, inspect_traffic, inspection_page, inspection_record
from wildood.report.page import check_directory, save_page
from wildood.report.table import Column, Row, Table, to_html
from wildood.settings import check_flag, check_integer

NAMED = 5  # examples to label first that are named in the summary
TOP = 16  # examples of each kind that are listed and shown


@dataclass(frozen=True, eq=False, repr=False)
class InspectionReport(Inspection):
    """What `wildood.inspect` returns: the inspection, with the examples to look at.

    Attributes:
        traffic: the decisions on the traffic, with its examples.
        detector: what made them.
        top: how many examples are listed and shown, of each kind.
        command: what was typed; empty in Python.
    """

    traffic: SetDecisions
    _: KW_ONLY
    detector: Detector
    top: int = TOP
    command: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data: the content of `inspection.json`."""
        return deepcopy(self._record)

    @cached_property
    def _record(self) -> dict[str, Any]:
        return inspection_record(self)

    @property
    def summary(self) -> dict[str, str]:
        """The result in four lines, by what they are about."""
        first = [str(row["example"]) for row in self._record["label_first"]]
        return {
            "traffic": f"{self.rejected.text(self.confidence)} of {self.traffic.where} are rejected",
            "unknown": self.says,
            "promise": self.promise.says,
            "label first": ", ".join([*first[:NAMED], *(["..."] if len(first) > NAMED else [])]),
        }

    def page(self) -> str:
        """The page with figures and pictures, as HTML. It needs matplotlib."""
        return inspection_page(self)

    def save(self, directory: str | Path, *, page: bool = True) -> Path:
        """Write `inspection.json` and, if matplotlib is installed, `report.html` to a directory.

        Returns the directory. Without `page`, `report.html` is not written.
        """
        place = check_directory(directory)
        write_text(place / "inspection.json", json.dumps(self._record, indent=1) + "\n")
        if check_flag(page, "page"):
            save_page(self.page, place)
        return place

    def __repr__(self) -> str:
        return "\n".join(f"{name:12} {text}" for name, text in self.summary.items())

    def _repr_html_(self) -> str:
        """The same as HTML, which notebooks show."""
        rows = [Row.of(name, text) for name, text in self.summary.items()]
        return to_html([Table([Column("about"), Column("result")], rows)])


def inspect(
    detector: Detector,
    wild: Any,
    id: Any = None,  # noqa: A002 - the field's own word
    *,
    confidence: float = 0.95,
    top: int = TOP,
    command: str = "",
) -> InspectionReport:
    """Look at traffic: how much of it is unknown, whether the promised false-alarm rate looks true, what to label first.

    Traffic that the detector was made from is not tested for unknowns; `result.untested` says so.

    Args:
        detector: what `fit`, `posthoc` or `load` returned.
        wild: the traffic, unlabelled: `x`, a dataset, or the result of `open_images` or `open_set`; labels are ignored.
        id: recent examples that are known to be ID and that no training has seen, like `wild`; labels are not needed. The
            traffic is compared with them instead of the holdout, and the false-alarm rate is measured on them.
        confidence: of the test for unknowns, and of every limit.
        top: how many examples to list and to show, of each kind.
        command: what was typed, if a command line calls this: the page shows it, and messages name options.

    >>> import numpy as np, torch, wildood
    >>> x, model = np.random.default_rng(0).normal(size=(400, 1)).astype("float32"), torch.nn.Linear(1, 2)
    >>> _ = torch.nn.init.ones_(model.weight)  # energy falls with x
    >>> detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x[:200])
    >>> inspection = wildood.inspect(detector, wild=np.concatenate([x[200:], x[:50] - 9]))
    >>> inspection
    traffic      59 of 250 (23.6 %; 18.5 to 29.4 % at 95 % confidence) of wild are rejected
    unknown      at least 14.6 % of the wild data is OOD at 95 % confidence (estimate 22.2 %, p = 1.5e-14; 200 ID and 250
    wild scores), compared with the holdout; or its known part is no longer like that
    promise      whether the promise of at most 5 % still holds cannot be told from unlabelled traffic: give recent ID
    examples with id=x
    label first  ...
    >>> inspection.found, round(inspection.unknown.bound, 3)
    (True, 0.146)
    """
    option = "--{}".format if command else str
    check_detector(detector)
    confidence = check_confidence(confidence)
    top = check_integer(top, option("top"), "a number of examples to show, at least 1")
    spec = detector.classifier.spec
    wild, id = rows_of(wild, spec, option("wild"), labels=False), rows_of(id, spec, option("id"), labels=False)  # noqa: A001
    traffic = wild.whole(seed=0) if isinstance(wild, WildMixture) else unlabelled_source(wild, option("wild"))
    known = None if id is None else unlabelled_source(examples_of(id), option("id"))
    if known is not None:
        _refuse_known(detector, known, traffic, option("id"))
    decided = SetDecisions.asked(detector, option("wild"), traffic, labelled=False)
    reference = None if known is None else SetDecisions.asked(detector, option("id"), known, labelled=False)
    id_option = "--id" if command else "id=x"
    found = inspect_traffic(
        detector, decided, reference, confidence=confidence, role_of=decided.role_of, id_option=id_option
    )
    return InspectionReport(**vars(found), detector=detector, top=top, command=command)


def _refuse_known(detector: Detector, known: Source, traffic: Source, name: str) -> None:
    """Refuse ID examples that had a role in making the detector, or that are the traffic itself."""
    named = f"{name}: {known.where}" if isinstance(known, Images) and known.where else name
    if used := role_of(detector.record, known):
        raise InputError(f"{named}: these examples {role_text(used)}: give ID examples that nothing has seen")
    if same_examples(known, traffic):
        raise InputError(f"{named} is the traffic itself: give other examples, known to be ID")
