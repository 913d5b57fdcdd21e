"""The page of one run: what its detector does on each OOD set, how its training went, and how it was made."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import KNOWN, Failure, Result, Scores
from wildood.experiments.tables import id_title, method_title, set_title
from wildood.report import figures
from wildood.report.fit_page import training
from wildood.report.page import generator, render
from wildood.report.table import Column, Row, Table, TableCell, percent
from wildood.scores.score import Score
from wildood.settings import settings_text


class ScoreFigure(NamedTuple):
    """A small histogram of ID and OOD scores: its caption, what it shows, and the figure; None if there are no scores."""

    caption: str
    says: str
    svg: Markup | None


def run_title(experiment: Experiment) -> str:
    """A run in one line.

    >>> run_title(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=3))
    'WOODS on CIFAR-10, SVHN in the wild (π = 0.1), seed 3'
    """
    wild = "" if experiment.wild is None else f", {set_title(experiment.wild)} in the wild (π = {experiment.pi:g})"
    return f"{method_title(experiment.method)} on {id_title(experiment.id)}{wild}, seed {experiment.seed}"


def run_page(result: Result, scores: Scores) -> str:
    """The page of a run that is done; `scores` may lack some sets, or all."""
    drawn = [
        score_figure(f"scores-{number}", scores, name, set_title(name), f"{set_title(name)}: {fpr95_text(metrics.fpr95)}")
        for number, (name, metrics) in enumerate(result.tests.items())
    ]
    return render(
        "run.html",
        generator=generator(),
        title=run_title(result.experiment),
        result=result,
        accepted=[(set_title(name), metrics.fpr95) for name, metrics in result.tests.items()],
        metrics=_metrics(result),
        score_figures=drawn,
        provenance=_provenance(result),
        **_training(result),
    )


def failure_page(failure: Failure) -> str:
    """The page of a run that failed."""
    return render("failure.html", generator=generator(), title=run_title(failure.experiment), failure=failure)


def score_figure(name: str, scores: Scores, ood: str, says: str, caption: str) -> ScoreFigure:
    """Scores of ID and of one OOD set, which may be missing."""
    known, other = scores.get(KNOWN), scores.get(ood)
    if known is None or other is None or not len(known) or not len(other):
        return ScoreFigure(caption, says, None)
    return ScoreFigure(caption, says, figures.small_histogram(name, known, other, says))


def fpr95_text(fpr95: float) -> str:
    """FPR95 in a caption."""
    return f"FPR95 {100 * fpr95:.1f}\N{NO-BREAK SPACE}%"


def _metrics(result: Result) -> Table:
    heads = ("FPR95 ↓", "AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "accepted ↓")
    columns = [Column(head, digits=percent(2)) for head in heads]
    rows = []
    for name, metrics in result.tests.items():
        fpr95 = TableCell(metrics.fpr95, metrics.fpr95_error)
        shares = metrics.auroc, metrics.aupr_in, metrics.aupr_out, metrics.accepted
        rows.append(Row.of(set_title(name), fpr95, *shares, metrics.examples))
    return Table([Column("OOD set"), *columns, Column("examples", digits="{:,}".format)], rows)


def _training(result: Result) -> dict[str, Any]:
    """What the template of a training needs; no figures if there was none, or if its file does not hold a history."""
    recipe = result.experiment.recipe()
    if isinstance(recipe, Score) or not result.history or not all("step" in row for row in result.history):
        return {"training": {}}
    experiment, about = result.experiment, result.about or {}
    keep = "as_published" if experiment.protocol == "as_published" and recipe.uses_wild else experiment.keep
    epochs = range(len(result.history))
    kept = epochs[-1] if keep == "last" else about.get("kept_epoch")
    known = isinstance(kept, int) and kept in epochs and all("acceptance" in result.history[each] for each in (0, kept))
    method = {"name": type(recipe).__name__, **experiment.settings}
    return training(result.history, {"method": method, "keep": keep, "kept_epoch": kept if known else None})


def _provenance(result: Result) -> dict[str, str]:
    items = {"run": result.experiment.name, "seconds": f"{result.seconds:,.1f}"}
    if result.chosen:
        items["settings that it chose"] = settings_text(result.chosen)
    for name, value in (result.about or {}).items():
        if name == "split":
            items[name] = _split_text(value)
        else:
            items[name] = settings_text(value) if isinstance(value, Mapping) else str(value)
    return items


def _split_text(split: Any) -> str:
    """For each OOD set, how many examples each part has, and a hash of which."""
    try:
        return "; ".join(
            f"{set_title(ood)}: "
            + ", ".join(f"{name.replace('_', ' ')} {part['count']:,} ({part['hash']})" for name, part in parts.items())
            for ood, parts in split.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # of another version
        return str(split)
