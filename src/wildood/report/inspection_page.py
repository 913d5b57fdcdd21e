"""The report of an inspection: how much of the traffic is unknown, and which of it a person should look at."""

from collections.abc import Sequence
from html import escape
from pathlib import PurePath
from typing import Any

import numpy as np

from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.detect.detector import Detector
from wildood.evaluate.intervals import in_percent, percent_digits
from wildood.report import figures
from wildood.report.gallery import SHOWN, Pictures, can_be_shown, gallery
from wildood.report.inspection import Inspection
from wildood.report.page import Panel, Section, definitions, note, page, table
from wildood.report.style import INK, UNKNOWN, drawing, percent
from wildood.report.tables import settings_text

LONGEST = 12  # letters of a file's name below its picture


def inspection_page(detector: Detector, found: Inspection, traffic: Images, record: dict[str, Any], command: str) -> str:
    """The page of an inspection.

    Args:
        detector: what looked at the traffic.
        found: what was found.
        traffic: the examples, and their files' names.
        record: what `inspection_record` made of it.
        command: what was typed.
    """
    sections = [
        Section("How much is unknown", [_numbers(found), _promise(detector, found)], wide=True),
        Section("Scores", [*_histogram(detector, found), *_fpr(found)]),
        Section("What to look at", _examples(found, traffic, record, detector.classifier.spec), wide=True),
        Section("How it was made", [_making(detector, found, traffic, command)], wide=True),
    ]
    return page("What is in this traffic", _lead(found, traffic), [section for section in sections if section.panels])


def _lead(found: Inspection, traffic: Images) -> str:
    share, count = found.unknown, f"the {len(found.traffic.scores)} examples from {escape(traffic.where)}"
    if share is None:
        first = f"Whether any of {count} is unknown <strong>was not tested</strong>: {escape(found.untested)}."
    elif found.found:
        first = (
            f"At least <strong>{in_percent(share.bound)}</strong> of {count} are unknown, at "
            f"{100 * share.confidence:g} % confidence; or what is known among them is no longer like the examples that they "
            "are compared with. A look at the examples below tells one from the other."
        )
    else:
        first = f"<strong>No unknowns are found</strong> among {count}, at {100 * share.confidence:g} % confidence."
    return f"<p>{first}</p><p>The detector rejects {in_percent(found.rejected.value)}.</p>"


def _numbers(found: Inspection) -> Panel:
    sure = f"{100 * found.confidence:g} %"
    rows = [["rejected by the detector", in_percent(found.rejected.value), found.rejected.limits]]
    if found.unknown is not None:
        rows = [
            ["unknown, at least", in_percent(found.unknown.bound), f"at {sure} confidence"],
            ["unknown, a guess", in_percent(found.unknown.estimate), "no guarantee"],
            ["p-value of “nothing is unknown”", f"{found.unknown.p_value:.2g}", ""],
            *rows,
        ]
    compared = (
        f"Compared with {found.unknown.holdout} examples of {'the holdout' if found.known_name == 'holdout' else '--id'}, "
        "which are known and which no training has seen, as far as their owner says."
        if found.unknown is not None
        else "The share of unknowns was not tested, for the reason above."
    )
    said = (
        f"The lower bound holds in {sure} of all draws; it counts only what scores higher than the known. The guess assumes "
        "that hardly anything known scores highest; unknowns that look known are in neither. Both speak of this traffic's "
        "unknowns if its known part is drawn like the examples that it is compared with, independently: many "
        "pictures of one scene count as many. "
        if found.unknown is not None
        else ""
    )
    body = table(["", "value", "limits"], rows, strong=0 if found.found else None)
    return Panel(
        "In numbers", compared, body + note(f"{said}Rejected are unknowns that are caught and false alarms together.")
    )


def _promise(detector: Detector, found: Inspection) -> Panel:
    check, says = found.promise, f"{found.promise.says[:1].upper()}{found.promise.says[1:]}."
    items = {}
    if detector.promise is not None:
        items["promised" if detector.promise.unseen else "aimed at"] = f"at most {100 * detector.promise.alpha:g} %"
    if check.rate is not None:
        items["false alarms on --id"] = f"{in_percent(check.rate.value)} ({check.rate.limits})"
    if check.by_luck is not None:
        items["p-value"] = f"{check.by_luck:.2g}, of “these are drawn like the holdout”"
    text = (
        "The examples of --id are taken to be known and unseen: the share of them that is rejected is the false-alarm rate."
        if check.rate is not None
        else "Traffic without labels cannot tell a false alarm from an unknown that is caught. Many rejections say nothing "
        "about the promise, for all of them may be unknown; few do, as long as unknowns are few."
    )
    return Panel("Whether the promised false-alarm rate still looks true", says, definitions(items) + note(text))


def _histogram(detector: Detector, found: Inspection) -> list[Panel]:
    by_class = detector.class_thresholds is not None
    if found.known is not None:
        name, known, traffic = found.known_name, found.known, found.traffic
        groups = (known.margins, traffic.margins) if by_class else (known.scores, traffic.scores)
    elif detector.holdout_scores is not None and not by_class:
        name, groups = "examples of the threshold", (detector.holdout_scores.astype(np.float64), found.traffic.scores)
    else:
        return []
    says = (
        f"{'The score less the threshold of the predicted class: right' if by_class else 'Right'} of the line is rejected. "
    )
    says += (
        "The two need not agree even where nothing is unknown: one of them was seen in training."
        if found.untested
        else "A hump of the traffic that the others do not have is what the numbers above are about."
    )
    if not found.untested and not found.can_tell_fpr:
        says += " How many unknowns get through cannot be told from a holdout that set several thresholds: give --id."
    threshold, axis = (0.0, figures.MARGIN) if by_class else (detector.threshold, figures.SCORE)
    drawn = figures.histogram("scores", *groups, threshold, (name, "traffic"), axis)
    return [Panel("Scores of this traffic", says, drawn)]


def _fpr(found: Inspection) -> list[Panel]:
    """How much of the unknown gets through: a curve over pi, never one number."""
    bound, told = found.least_possible, found.fpr()
    if told is None:
        return []
    fits = told.possible[told.share <= 0.5].any()
    curve = found.fpr(np.linspace(0.005, 0.5 if bound < 0.25 and fits else 1.0, 200))
    assert curve is not None  # noqa: S101 - as the other
    with drawing("fpr", "Share of unknowns accepted, for each share of unknowns that the traffic may have") as (axes, drawn):
        some = curve.possible
        axes.fill_between(curve.share, curve.lower, curve.upper, where=some.tolist(), color=UNKNOWN, alpha=0.3, linewidth=0)
        axes.plot(curve.share[some], curve.fpr[some], color=UNKNOWN)
        if bound > 0:
            axes.axvline(bound, color=INK, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, curve.share[-1])
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("π: share of the traffic that is unknown")
        axes.set_ylabel("unknowns accepted")
        percent(axes, "x")
        percent(axes, "y")
    rows = [
        [_pi(pi, bound), in_percent(fpr), f"{percent_digits(low)} to {in_percent(high)}"]
        if possible
        else [_pi(pi, bound), "refuted", ""]
        for pi, fpr, low, high, possible in zip(told.share, told.fpr, told.lower, told.upper, told.possible, strict=True)
    ]
    says = (
        "How much of the unknown is accepted depends on how much there is, which nobody knows: one value for each π that "
        "may be the true one" + (", which is right of the dashed line." if bound > 0 else ".")
    )
    if not found.found and not fits:
        # More is accepted than of the known, which only unknowns that are all accepted could explain, and only if many.
        says += " No π up to 50 % fits: known traffic is not like what it is compared with, it seems."
    each = 50 * (1 + told.confidence)
    sure = (
        f"In {100 * told.confidence:g} % of all draws the true π is not refuted and its value is in the band, both: each of "
        f"the two holds at {each:g} % confidence, and so does the lower bound on π in this panel."
    )
    return [Panel("Unknowns that get through", says, drawn.svg + table(["if π is", "accepted", "band"], rows) + note(sure))]


def _pi(share: float, bound: float) -> str:
    """A share of unknowns in the table; the bound itself is told to be it."""
    return f"{100 * share:g} %" if share != bound else f"{in_percent(share)}, the least possible"


def _examples(found: Inspection, traffic: Images, record: dict[str, Any], spec: InputSpec | None) -> list[Panel]:
    panels = [_list(record["label_first"], len(found.traffic.scores))]
    if spec is not None and can_be_shown(traffic.examples.shape[1:], spec):
        below = "Below each: its file or number, the class it would have been given, and the score."
        panels += [
            _sheet("The most unknown", f"The highest scores first. {below}", record["most_ood"], traffic, spec),
            _sheet(
                "Around the threshold",
                f"In turn just rejected and just accepted, the nearest first. {below}",
                record["borderline"],
                traffic,
                spec,
            ),
        ]
    return panels


def _list(rows: Sequence[dict[str, Any]], count: int) -> Panel:
    header = ["", "example", "why", "score", "p-value", "class"]
    cells = [
        [
            str(rank),
            str(row["example"]),
            row["why"],
            f"{float(row['score']):.4g}",
            f"{row['p_value'] or 0:.2g}",
            str(row["class"]),
        ]
        for rank, row in enumerate(rows, 1)
    ]
    meaning = note("The p-value: at most this share of fresh known examples would score as high, on average over holdouts.")
    if rows[0]["p_value"] is None:
        header, cells, meaning = [*header[:4], header[5]], [[*row[:4], row[5]] for row in cells], ""
    says = (
        "In turn: the nearest above the threshold, the nearest below it, the highest score. Labels near the threshold say "
        "whether it lies right; the highest scores show whether what is found is unknown, or known and changed."
    )
    return Panel(f"What to label first: {len(rows)} of {count}", says, table(header, cells) + meaning)


def _sheet(title: str, says: str, rows: Sequence[dict[str, Any]], traffic: Images, spec: InputSpec) -> Panel:
    images = np.asarray(traffic.examples[[row["number"] for row in rows]])
    captions = [f"{_short(row['example'])}: {row['class']}, {float(row['score']):.3g}" for row in rows]
    parts = np.split(np.arange(len(rows)), range(SHOWN, len(rows), SHOWN))
    bodies = [gallery(title, says, Pictures(images, part, captions, spec)).body for part in parts]
    return Panel(title, says, "".join(bodies).replace('</div><div class="pictures">', ""))  # one sheet of any length


def _short(example: Any) -> str:
    """A number, or the end of a file's name."""
    name = PurePath(str(example)).stem
    return name if len(name) <= LONGEST else f"…{name[-LONGEST:]}"


def _making(detector: Detector, found: Inspection, traffic: Images, command: str) -> Panel:
    promise = detector.promise
    items = {
        "command": command,
        "traffic": f"{len(found.traffic.scores)} examples from {traffic.where}",
        "threshold": f"{detector.threshold_text}: {detector.promise_text}",
        **({"assumes": promise.assumption} if promise is not None and promise.unseen else {}),
        "versions": settings_text(detector.record.get("versions", {})),
    }
    return Panel("Detector and traffic", "The same command on the same files gives the same page.", definitions(items))
