"""What unlabelled traffic shows: how much of it is unknown, whether the promise still looks true, what to label first.

An inspection becomes `inspection.json` and a page.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from wildood.data.fingerprint import NOT_FRESH, SEEN_HOLDOUT, role_text
from wildood.data.inputs import InputSpec
from wildood.data.sources import Source
from wildood.detect.bulk import json_number
from wildood.detect.detector import Detector, Example, versions
from wildood.evaluate.intervals import Share, in_percent, percent_digits
from wildood.evaluate.mixture import FprByShare, UnknownShare, fpr_by_share, unknown_share
from wildood.evaluate.thresholds import p_values
from wildood.experiments.evaluation import Decisions, PromiseCheck, check_on_known, check_on_traffic
from wildood.report import figures
from wildood.report.evaluation_page import promise_record
from wildood.report.page import Gallery, gallery, is_picture, render
from wildood.report.table import Column, Row, Table
from wildood.settings import settings_text

if TYPE_CHECKING:
    from wildood.report.inspection import InspectionReport

Choice = tuple[int, str]  # the number of an example, and why it was chosen
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)  # the values of pi of the table of FPRs
UNTRUSTED = SEEN_HOLDOUT + ": calibrate it on unseen examples, or give some with {}"
LONGEST = 12  # letters of a file's name below its picture


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting traffic.

    Attributes:
        traffic: the decisions on it.
        known: the decisions on ID examples that nothing has trained on; None if there are none that can be trusted.
        id_option: how such examples are given: "--id", or "id=x" in Python.
        known_name: what these are: "holdout", or else "--id" or "id".
        untested: why the share of unknowns was not tested; empty if it was.
        unknown: bound, estimate and p-value of that share; None if it was not tested.
        least_possible: a lower bound on that share that holds jointly with the band of the FPR: each of the two may fail
            with half of 1 - confidence. It is at most `unknown.bound`, which holds alone.
        rejected: the share of the traffic that is rejected.
        promise: whether the promised false-alarm rate still looks true.
        can_tell_fpr: whether the band of the FPR would hold.
        confidence: of the test for unknowns, and of every limit.
    """

    traffic: Decisions
    known: Decisions | None
    id_option: str
    known_name: str
    untested: str
    unknown: UnknownShare | None
    least_possible: float
    rejected: Share
    promise: PromiseCheck
    can_tell_fpr: bool
    confidence: float

    @property
    def found(self) -> bool:
        """Whether there is OOD at this confidence. Without any OOD, it is true in at most 1 - confidence of all draws."""
        return self.unknown is not None and self.unknown.bound > 0

    @property
    def p_values(self) -> npt.NDArray[np.float64] | None:
        """The conformal p-value of each example, where ID scores can be trusted."""
        if self.unknown is None or self.known is None:
            return None
        return p_values(self.traffic.scores, self.known.scores)

    def fpr(self, shares: npt.ArrayLike | None = None) -> FprByShare | None:
        """The share of OOD accepted for each pi that might be the true one, with its band.

        With probability `confidence` the true pi is possible and its FPR is in the band, both: each of them holds at
        (1 + confidence) / 2. A pi below `least_possible` is refuted, whatever the band would allow. The values of pi are
        `SHARES` and that bound unless others are passed.
        """
        if not self.can_tell_fpr or self.known is None:
            return None
        least = self.least_possible
        if shares is None:
            shares = sorted({*SHARES, *([least] if least > 0 else [])})
        curve = fpr_by_share(self.known.margins, self.traffic.margins, 0.0, shares, (1 + self.confidence) / 2)
        return replace(curve, possible=curve.possible & (curve.share >= least), confidence=self.confidence)

    @property
    def says(self) -> str:
        """What is known about the share of unknowns, in one line."""
        if self.unknown is None:
            return f"whether any of this traffic is unknown was not tested: {self.untested}"
        compared = f"compared with {'the holdout' if self.known_name == 'holdout' else self.known_name}"
        unless = "; or its known part is no longer like that" if self.found else ""
        return f"{self.unknown}, {compared}{unless}"


def inspect_traffic(
    detector: Detector,
    traffic: Decisions,
    known: Decisions | None = None,
    *,
    confidence: float = 0.95,
    role_of: str = "",
    id_option: str = "--id",
) -> Inspection:
    """Inspect the decisions of a detector on traffic.

    Args:
        detector: it has a threshold, and the scores of its holdout.
        traffic: the decisions on it.
        known: those on ID examples that nothing has trained on; the holdout by default, if its examples were unseen.
        confidence: of the test for unknowns, and of every limit.
        role_of: the role of this very traffic in making the detector (`wildood.data.fingerprint`); empty if none.
        id_option: how messages say that `known` is given: "id=x" in Python.

    >>> import torch, wildood
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((99, 1), dtype="f"))
    >>> detector.holdout_scores, detector.threshold = np.arange(99, dtype="f"), 94.0
    >>> scores, classes = np.append(np.arange(99), [200] * 40), np.zeros(139, int)
    >>> print(inspect_traffic(detector, Decisions.of(detector, scores, classes)).says)
    at least ... % of the wild data is OOD at 95 % confidence (estimate ...; 99 ID and 139 wild scores), compared with
    the holdout; or its known part is no longer like that
    """
    reference = known if known is not None else _unseen_holdout(detector)
    rejected = Share.of(traffic.rejected, confidence)
    if known is None:
        promise = check_on_traffic(detector.promise, None if role_of else rejected, confidence, id_option)
    else:
        promise = check_on_known(detector, known, confidence)
    untested = (
        NOT_FRESH.format(role_text(role_of)) if role_of else "" if reference is not None else UNTRUSTED.format(id_option)
    )
    unknown, least = None, 0.0
    if reference is not None and not untested:
        unknown = unknown_share(reference.scores, traffic.scores, confidence)
        least = unknown_share(reference.scores, traffic.scores, (1 + confidence) / 2).bound
    return Inspection(
        traffic=traffic,
        known=reference,
        id_option=id_option,
        known_name="holdout" if known is None else id_option.removesuffix("=x"),
        untested=untested,
        unknown=unknown,
        least_possible=least,
        rejected=rejected,
        promise=promise,
        # The share accepted below thresholds of several classes is no order statistic of the holdout that set them.
        can_tell_fpr=unknown is not None and (known is not None or detector.class_thresholds is None),
        confidence=confidence,
    )


def ranked_examples(decided: Decisions, top: int) -> dict[str, list[Choice]]:
    """The examples to look at, the most useful first, at most `top` of each kind.

    `label_first` takes in turn the nearest above the threshold, the nearest below it, and the highest score. A label near
    the threshold says whether the threshold is right, and is worth most to the next fit; a few of the highest scores say
    whether they are unknown, or known data that has changed. `most_ood` has the highest scores, `borderline` both sides
    of the threshold in turn.

    >>> margins = np.array([-9.0, 0.1, -0.2, 4.0])
    >>> ranked_examples(Decisions(margins, np.zeros(4, int), margins > 0, margins), top=3)["label_first"]
    [(1, 'just rejected'), (2, 'just accepted'), (3, 'highest score')]
    """
    rising, falling, highest = (
        np.argsort(key, kind="stable") for key in (decided.margins, -decided.margins, -decided.scores)
    )
    orders = {
        "just rejected": rising[decided.rejected[rising]],
        "just accepted": falling[decided.accepted[falling]],
        "highest score": highest,
    }
    above, below, highest_scores = ([(number, why) for number in order[:top].tolist()] for why, order in orders.items())
    return {
        "label_first": _in_turn(above, below, highest_scores)[:top],
        "most_ood": highest_scores,
        "borderline": _in_turn(above, below)[:top],
    }


def _in_turn(*queues: list[Choice]) -> list[Choice]:
    """One of each queue after the other, no example twice."""
    chosen: dict[int, str] = {}
    for turn in zip_longest(*queues):
        for number, why in filter(None, turn):
            chosen.setdefault(number, why)
    return list(chosen.items())


def _unseen_holdout(detector: Detector) -> Decisions | None:
    scores, classes = detector.holdout_scores, detector.holdout_classes
    if detector.promise is None or not detector.promise.unseen or scores is None:
        return None
    return Decisions.of(detector, scores, np.zeros(len(scores), np.int64) if classes is None else classes)


def inspection_record(report: "InspectionReport") -> dict[str, Any]:
    """The content of `inspection.json`: all results, and `top` examples of each kind."""
    share, ranked = report.unknown, ranked_examples(report.traffic, report.top)
    return {
        "wild": report.traffic.where,
        "examples": len(report.traffic.scores),
        "confidence": report.confidence,
        "found": report.found,
        "unknown": {
            "says": report.says,
            "tested": share is not None,
            "bound": share and share.bound,
            "estimate": share and share.estimate,
            "p_value": share and share.p_value,
            "compared_with": share and report.known_name,
            "id_examples": share and share.holdout,
        },
        "rejected": asdict(report.rejected),
        "promise": promise_record(report.detector, report.promise),
        "fpr_by_share": _fpr_rows(report.fpr()),
        **{kind: _examples(choices, report) for kind, choices in ranked.items()},
        "versions": versions(),
    }


def inspection_page(report: "InspectionReport") -> str:
    """The page of an inspection."""
    detector, traffic, record = report.detector, report.traffic, report.to_dict()
    promise, spec = detector.promise, detector.classifier.spec
    sheets = {}
    if is_picture(spec, Example.of(traffic.source).shape):
        sheets = {kind: _sheet(record[kind], traffic.source, spec) for kind in ("most_ood", "borderline")}
    provenance = {
        **({"command": report.command} if report.command else {}),
        "traffic": f"{len(traffic.scores)} examples from {traffic.where}",
        "threshold": f"{detector.threshold_text}: {detector.promise_text}",
        **({"assumes": promise.assumption} if promise is not None and promise.unseen else {}),
        "versions": settings_text(detector.record.get("versions", {})),
    }
    return render(
        "inspection.html",
        title="What is in this traffic",
        inspection=report,
        count=len(traffic.scores),
        where=traffic.where,
        confidence=f"{100 * report.confidence:g} %",
        numbers=_numbers(report),
        promise=_promise(detector, report),
        by_class=detector.class_thresholds is not None,
        histogram=_histogram(detector, report),
        **_accepted_unknowns(report),
        label_first=_label_first(record["label_first"]),
        sheets=sheets,
        provenance=provenance,
    )


def _fpr_rows(curve: FprByShare | None) -> list[dict[str, Any]] | None:
    if curve is None:
        return None
    columns = {"pi": curve.share, "fpr": curve.fpr, "low": curve.lower, "high": curve.upper, "possible": curve.possible}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(each.tolist() for each in columns.values()), strict=True)]


def _examples(choices: Sequence[Choice], report: "InspectionReport") -> list[dict[str, Any]]:
    """The chosen examples; `example`, `score`, `decision` and `class` are those of `wildood score`."""
    decided, files, p_values = report.traffic, report.traffic.files, report.p_values
    return [
        {
            "example": files[number] if files else number,
            "number": number,
            "why": why,
            "score": json_number(float(decided.scores[number])),
            "p_value": None if p_values is None else float(p_values[number]),
            "decision": "unknown" if decided.rejected[number] else "known",
            "class": report.detector.class_name(decided.classes[number]),
        }
        for number, why in choices
    ]


def _numbers(inspection: Inspection) -> Table:
    unknown, rejected = inspection.unknown, inspection.rejected
    rows = []
    if unknown is not None:
        sure = f"at {100 * inspection.confidence:g} % confidence"
        rows = [
            Row.of("unknown, at least", in_percent(unknown.bound), sure, strong=inspection.found),
            Row.of("unknown, a guess", in_percent(unknown.estimate), "no guarantee"),
            Row.of("p-value of “nothing is unknown”", f"{unknown.p_value:.2g}", ""),
        ]
    rows.append(Row.of("rejected by the detector", in_percent(rejected.value), rejected.limits))
    return Table([Column(""), Column("value"), Column("limits")], rows)


def _promise(detector: Detector, inspection: Inspection) -> dict[str, str]:
    check, items = inspection.promise, {}
    if detector.promise is not None:
        items["promised" if detector.promise.unseen else "aimed at"] = f"at most {100 * detector.promise.alpha:g} %"
    if check.rate is not None:
        items[f"false alarms on {inspection.known_name}"] = f"{in_percent(check.rate.value)} ({check.rate.limits})"
    if check.by_luck is not None:
        items["p-value"] = f"{check.by_luck:.2g}, of “these are drawn like the holdout”"
    return items


def _histogram(detector: Detector, inspection: Inspection) -> Markup | None:
    by_class, known, traffic = detector.class_thresholds is not None, inspection.known, inspection.traffic
    if known is not None:
        name = inspection.known_name
        groups = (known.margins, traffic.margins) if by_class else (known.scores, traffic.scores)
    elif detector.holdout_scores is not None and not by_class:
        name, groups = "examples of the threshold", (detector.holdout_scores.astype(np.float64), traffic.scores)
    else:
        return None
    threshold, axis = (0.0, figures.MARGIN) if by_class else (detector.threshold, figures.SCORE)
    return figures.histogram("scores", *groups, threshold, (name, "traffic"), axis)


def _accepted_unknowns(inspection: Inspection) -> dict[str, Any]:
    """How much of the unknown is accepted: a curve and a table over pi, never one number."""
    bound, rows = inspection.least_possible, _fpr_rows(inspection.fpr())
    if rows is None:
        return {"fpr_table": None}
    fits = any(row["possible"] for row in rows if row["pi"] <= 0.5)
    curve = inspection.fpr(np.linspace(0.005, 0.5 if bound < 0.25 and fits else 1.0, 200))
    assert curve is not None  # noqa: S101 - as the rows
    cells = []
    for row in rows:
        pi = f"{in_percent(bound)}, the least possible" if row["pi"] == bound else f"{100 * row['pi']:g} %"
        band = in_percent(row["fpr"]), f"{percent_digits(row['low'])} to {in_percent(row['high'])}"
        cells.append(Row.of(pi, *(band if row["possible"] else ("refuted", ""))))
    return {
        "fpr_table": Table([Column("if π is"), Column("accepted"), Column("band")], cells),
        "fpr_figure": figures.accepted_unknowns("fpr", curve, bound),
        "fpr_fits": fits,
        "each_confidence": f"{50 * (1 + inspection.confidence):g} %",
    }


def _label_first(rows: Sequence[dict[str, Any]]) -> Table:
    tested = rows[0]["p_value"] is not None
    heads = ["", "example", "why", "score", *(["p-value"] if tested else []), "class"]
    cells = []
    for rank, row in enumerate(rows, 1):
        p_value = [f"{row['p_value']:.2g}"] if tested else []
        score = f"{float(row['score']):.4g}"
        cells.append(Row.of(rank, str(row["example"]), row["why"], score, *p_value, str(row["class"])))
    return Table(list(map(Column, heads)), cells)


def _sheet(rows: Sequence[dict[str, Any]], traffic: Source, spec: InputSpec) -> Gallery:
    captions = {row["number"]: f"{_short(row['example'])}: {row['class']}, {float(row['score']):.3g}" for row in rows}
    return gallery(traffic, np.array(list(captions), dtype=np.intp), captions, spec, most=len(rows))


def _short(example: Any) -> str:
    """A number, or the end of a file's name."""
    name = PurePath(str(example)).stem
    return name if len(name) <= LONGEST else f"…{name[-LONGEST:]}"
