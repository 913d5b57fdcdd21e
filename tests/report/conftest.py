"""A page as a tree, read strictly: what a browser would mend in silence is an error here; and runs to report."""

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import Markup

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import Failure, OodMetrics, Result, RunStore
from wildood.report import figures
from wildood.report.runs_page import Runs, runs_page

SETS = ("svhn", "places365")
EVIL = '<b>&"evil"'
FPR95 = {"energy": 0.6, "max-softmax": 0.7, "oe": 0.4, "woods": 0.2}
SPLIT = {"svhn": {"labelled": {"count": 2500, "hash": "ab"}, "wild_ood": {"count": 30, "hash": "cd"}}}
ABOUT = {"kept_epoch": 2, "versions": {"torch": "2.13.0"}, "code": "<code>", "split": SPLIT}
VOID = {"meta", "img", "br", "hr", "link", "input"}  # elements without an end tag


@dataclass
class Element:
    """One element: its attributes, and its children and texts in their order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    content: list["Element | str"] = field(default_factory=list)

    def all(self, tag=None, **attributes):
        """Every element in it with this tag and these attributes, in document order; `cls` is the class."""
        wanted = {name.replace("cls", "class").replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.content:
            if isinstance(child, Element):
                if tag in {None, child.tag} and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def one(self, tag=None, **attributes):
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def raw_text(self):
        return "".join(child if isinstance(child, str) else child.raw_text for child in self.content)

    @property
    def text(self):
        """As a browser shows it: spaces and line ends between words are one space, except in code."""
        if self.tag in {"code", "pre", "script", "style", "title"}:
            return self.raw_text
        return re.sub(r"[ \n]+", " ", self.raw_text).strip(" ")

    def panel(self, title):
        """The panel whose heading begins so."""
        (found,) = (panel for panel in self.all("div", cls="panel") if panel.one("h3").text.startswith(title))
        return found

    def section(self, title):
        """The panels of the section with this heading."""
        (found,) = (each for each in self.all("section") if each.one("h2").text == title)
        return found.all("div", cls="panel")

    def figures(self):
        """What is said of each figure to those who cannot see it."""
        return [svg.attributes["aria-label"] for svg in self.all("svg")]

    def rows(self):
        """The cells of the one table in it, by the name of their row."""
        body = self.one("tbody").all("tr")
        return {row.one("th").text: [cell.text for cell in row.all("td")] for row in body}

    def references(self):
        """The ids that something in it refers to."""
        values = [value for element in self.all() for value in element.attributes.values()]
        links = [
            element.attributes[name]
            for element in self.all()
            for name in ("href", "xlink:href")
            if name in element.attributes
        ]
        return {link.removeprefix("#") for link in links} | set(re.findall(r"url\(#([^)]*)\)", " ".join(values)))

    def ids(self):
        return [element.attributes["id"] for element in self.all() if "id" in element.attributes]


class Reader(HTMLParser):
    """Builds the tree; refuses a tag that is not closed, closed twice or closed out of order."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.open = [Element("document")]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute is there twice: <{tag} {attrs}>"
        element = Element(tag, dict(attrs))
        self.open[-1].content.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> where <{self.open[-1].tag}> is open"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].content.append(data)

    def handle_entityref(self, name):
        self.open[-1].content.append(unescape(f"&{name};"))

    def handle_charref(self, name):
        self.open[-1].content.append(unescape(f"&#{name};"))


@pytest.fixture(scope="session")
def parse():
    """A function from HTML to its tree."""

    def parsed(text):
        reader = Reader()
        reader.feed(text)
        reader.close()
        assert [element.tag for element in reader.open] == ["document"]
        return reader.open[0]

    return parsed


@pytest.fixture
def undrawn(monkeypatch):
    """Figures that only say what they show, for tests of the texts around them: drawing takes most of a page's time."""
    monkeypatch.setattr(figures, "_inline", lambda _figure, _name, says: Markup('<svg aria-label="{}"></svg>').format(says))


def history(method, seed):
    if method == "oe":
        return [{"epoch": n, "step": 5 * n, "loss": 1 / (n + 1), "accuracy": 0.9, "acceptance": 0.8} for n in range(4)]
    start = {"epoch": 0, "step": 0, "accuracy": 0.9, "acceptance": 0.9, "holdout_false_alarm": 0.3}
    later = {"accuracy": 0.9, "acceptance": 0.8, "w": -1.0, "lambda_false_alarm": 1.0, "lambda_classification": 1.0}
    rows = [
        {"epoch": n, "step": 5 * n, "false_alarm": 0.2 / n + 0.02 * seed, "classification": -0.1, **later} for n in (1, 2, 3)
    ]
    return [start, *rows]


def made_result(experiment, shift=0.0, **more):
    rng = np.random.default_rng(experiment.seed)
    scores = {"id": rng.normal(size=60).astype("float32")}
    scores |= {name: (rng.normal(size=40) + 2).astype("float32") for name in experiment.test}
    fpr95 = FPR95.get(experiment.method, 0.3) + shift + 0.02 * experiment.seed
    tests = {name: OodMetrics(fpr95, 0.01, 0.9, 0.91, 0.92, 0.123, 40) for name in experiment.test}
    rows = history(experiment.method, experiment.seed) if experiment.trains else ()
    found = {"accuracy": 0.94, "false_alarms": 0.05, "examples": 60, "history": rows, "seconds": 12.5, "about": ABOUT}
    return Result(experiment, tests, **found | {"acceptance": 0.5 if experiment.trains else None} | more), scores


@pytest.fixture(scope="session")
def result():
    """A function from an experiment to a result of it, and its scores."""
    return made_result


@pytest.fixture(scope="session")
def many_runs(tmp_path_factory):
    """A directory of both shapes of tables, of a set with a hostile name, a run that failed and one that has not ended."""
    made = RunStore(tmp_path_factory.mktemp("runs"))
    for seed in (0, 1):
        for method in ("energy", "max-softmax"):
            made.add(*made_result(Experiment("cifar10", SETS, method=method, seed=seed)))
        for method in ("oe", "woods"):
            for name in SETS:
                made.add(*made_result(Experiment("cifar10", (name,), name, 0.1, method, seed=seed)))
            for pi in (0.05, 0.1, 0.5):
                made.add(*made_result(Experiment("cifar10", SETS, "300k", pi, method, seed=seed), shift=pi / 10))
    made.add(*made_result(Experiment("own.npz", (f"{EVIL}.npz",), f"{EVIL}.npz", 0.2, "woods")))
    wrong, error = Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=2), "ValueError: <i>no</i>"
    with made.claimed(wrong):
        made.add_failure(Failure(wrong, error, f"Traceback:\n  <module>\n{error}\n"))
    with made.claimed(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=3)):
        pass
    return made


@pytest.fixture(scope="session")
def runs(many_runs):
    return Runs.read(many_runs)


@pytest.fixture(scope="session")
def html(runs):
    return runs_page(runs, {"command": "wildood report '<runs>'"})


@pytest.fixture(scope="session")
def tree(html, parse):
    return parse(html)


@pytest.fixture(scope="session")
def woods(runs):
    return next(each for each in runs.results if each.experiment.wild == "300k" and each.experiment.method == "woods")
