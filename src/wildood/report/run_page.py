"""The page of one run: what its detector does on each OOD set, how its training went, and how it was made."""

from collections.abc import Mapping
from html import escape
from typing import Any

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import KNOWN, Failure, Result, Scores
from wildood.experiments.tables import id_title, method_title, set_title
from wildood.report.multiples import SAYS, multiples, score_figure
from wildood.report.page import Panel, Section, code, definitions, note, table
from wildood.report.sections import training_panels
from wildood.report.sortable import sortable_page
from wildood.report.tables import settings_text
from wildood.scores.score import Score

NO_SCORES = "the scores are not there: scores.npz in the folder of the run is missing or damaged"
BACK = '<p><a href="../report.html">All runs</a></p>'
_HEADER = ("OOD set", "FPR95 ↓", "AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "accepted ↓", "examples")


def run_title(experiment: Experiment) -> str:
    """A run in one line.

    >>> run_title(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=3))
    'WOODS on CIFAR-10, SVHN in the wild (π = 0.1), seed 3'
    """
    wild = "" if experiment.wild is None else f", {set_title(experiment.wild)} in the wild (π = {experiment.pi:g})"
    return f"{method_title(experiment.method)} on {id_title(experiment.id)}{wild}, seed {experiment.seed}"


def run_link(experiment: Experiment, text: str) -> str:
    """A link from the report to the page of a run.

    >>> energy = Experiment("digits", ("digits",), method="energy")
    >>> run_link(energy, "a & b") == f'<a href="runs/{energy.name}.html">a &amp; b</a>'
    True
    """
    return f'<a href="runs/{escape(experiment.name)}.html">{escape(text)}</a>'


def run_page(result: Result, scores: Scores) -> str:
    """The page of a run that is done; `scores` may lack some sets, or all."""
    sections = [
        Section("What it does on each OOD set", [_metrics(result)], wide=True),
        Section("Scores of the test examples", _histograms(result, scores), wide=True),
        Section("The training", _training(result)),
        Section("How it was made", [_making(result), _settings(result.experiment)], wide=True),
    ]
    return sortable_page(run_title(result.experiment), _lead(result), [each for each in sections if each.panels])


def scores_panel(title: str, drawn: Mapping[str, str]) -> list[Panel]:
    """Figures of scores by what they show; of those that are empty it says that the scores are not there.

    >>> [panel.says for panel in scores_panel("Scores", {"SVHN": ""})]
    ['SVHN: the scores are not there: scores.npz in the folder of the run is missing or damaged.']
    """
    missing = "; ".join(name for name, figure in drawn.items() if not figure)
    told = f"{missing}: {NO_SCORES}." if missing else ""
    if not any(drawn.values()):
        return [Panel(title, told, "")] if drawn else []
    return [Panel(title, SAYS, multiples(list(drawn.values())) + (note(told) if told else ""))]


def failure_page(failure: Failure) -> str:
    """The page of a run that failed."""
    panels = [
        Panel("Traceback", "Where it happened, the last call at the end.", code(failure.traceback)),
        _settings(failure.experiment),
    ]
    lead = f"{BACK}<p><strong>This run failed:</strong> {escape(failure.error)}</p>"
    return sortable_page(run_title(failure.experiment), lead, [Section("What happened", panels, wide=True)])


def _lead(result: Result) -> str:
    caught = [
        f"<strong>{100 * found.fpr95:.1f} %</strong> of {escape(set_title(name))}" for name, found in result.tests.items()
    ]
    return (
        f"{BACK}<p>When 95 % of the ID test examples are accepted, so are {_and(caught)}. The classifier is right on "
        f"{100 * result.accuracy:.1f} % of {result.examples:,} ID test examples.</p>"
    )


def _and(parts: list[str]) -> str:
    """Parts of a sentence: a, b and c.

    >>> _and(["a", "b", "c"]), _and([])
    ('a, b and c', 'none')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts or ["none"])


def _metrics(result: Result) -> Panel:
    rows = [
        [
            set_title(name),
            f"{100 * found.fpr95:.2f} ± {100 * found.fpr95_error:.2f}",
            *(f"{100 * share:.2f}" for share in (found.auroc, found.aupr_in, found.aupr_out, found.accepted)),
            f"{found.examples:,}",
        ]
        for name, found in result.tests.items()
    ]
    chosen_by = (
        "" if result.acceptance is None else f" Of the validation data, {100 * result.acceptance:.2f} % are accepted."
    )
    return Panel(
        "Test numbers",
        "In percent. FPR95 has ID as the positive class; its error is that of the number of test examples.",
        table(_HEADER, rows)
        + note(
            f"“Accepted” is the share of OOD that the deployed threshold lets pass; it rejects "
            f"{100 * result.false_alarms:.2f} % of the {result.examples:,} ID test examples. Accuracy: "
            f"{100 * result.accuracy:.2f} %; lost on the holdout, against the starting classifier: "
            f"{100 * result.accuracy_lost:.2f} %.{chosen_by}"
        ),
    )


def _histograms(result: Result, scores: Scores) -> list[Panel]:
    drawn = [
        score_figure(
            f"scores-{number}",
            scores.get(KNOWN),
            scores.get(name),
            set_title(name),
            f"{escape(set_title(name))}: FPR95 {100 * found.fpr95:.1f}&nbsp;%",
        )
        for number, (name, found) in enumerate(result.tests.items())
    ]
    return scores_panel("ID against each OOD set", dict(zip(map(set_title, result.tests), drawn, strict=True)))


def _training(result: Result) -> list[Panel]:
    if not result.history or not all("step" in row for row in result.history):  # a page is drawn of what a file holds
        return []
    experiment, about = result.experiment, result.about or {}
    recipe = experiment.recipe()
    if isinstance(recipe, Score):  # which is not trained, whatever the file says
        return []
    keep = "as_published" if experiment.protocol == "as_published" and recipe.uses_wild else experiment.keep
    epochs = range(len(result.history))
    kept = epochs[-1] if keep == "last" else about.get("kept_epoch")
    known = isinstance(kept, int) and kept in epochs and all("acceptance" in result.history[each] for each in (0, kept))
    record = {
        "method": {"name": type(recipe).__name__, **experiment.settings},
        "keep": keep,
        "kept_epoch": kept if known else None,
    }
    return training_panels(result.history, record)


def _making(result: Result) -> Panel:
    items = {"run": result.experiment.name, "seconds": f"{result.seconds:,.1f}"}
    if result.chosen:
        items["settings that it chose"] = settings_text(result.chosen)
    items |= {name: _split(value) if name == "split" else _told(value) for name, value in (result.about or {}).items()}
    return Panel("Versions, machine, data", "What was there when it ran.", definitions(items))


def _split(split: Any) -> str:
    """For each OOD set, how many examples each part has, and a hash of which.

    >>> _split({"svhn": {"labelled": {"count": 25000, "hash": "ab"}, "wild_ood": {"count": 300, "hash": "cd"}}})
    'SVHN: labelled 25,000 (ab), wild ood 300 (cd)'
    """
    try:
        return "; ".join(
            f"{set_title(ood)}: "
            + ", ".join(f"{name.replace('_', ' ')} {part['count']:,} ({part['hash']})" for name, part in parts.items())
            for ood, parts in split.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # of another version
        return str(split)


def _told(value: Any) -> str:
    return settings_text(value) if isinstance(value, Mapping) else str(value)


def _settings(experiment: Experiment) -> Panel:
    return Panel("experiment.toml", "All that decides the outcome.", code(experiment.to_toml()))
