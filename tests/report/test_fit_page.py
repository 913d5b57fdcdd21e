"""The page of a fit: whole, on its own, and in agreement with the detectors it shows."""

import copy
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wildood
from wildood.detect.detector import Detector
from wildood.evaluate.intervals import in_percent
from wildood.models.small import MLP, SmallCNN
from wildood.report import fit_page as fit_pages
from wildood.report.fit_page import fit_page

SETTINGS = 'wild = "<script>"\n'
COMMAND = 'wildood fit --wild "<script>&.npz"'
SCHEDULE = wildood.Schedule(steps=12, batch=32)
SPEC = wildood.InputSpec(mean=(0.5,), std=(0.5,))
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
TRAINING = [
    "The constraint on false alarms over the steps, with its limit alpha",
    "Cross-entropy minus its limit tau over the steps",
    "The multipliers of the two constraints over the steps",
    "The slope w over the steps",
    "Wild data accepted and accuracy over the steps, with the epoch that was kept",
]
SLOPE = TRAINING[3]
ANY_FIT = ["images", "vectors", "no holdout", "woods-alt", "last"]
SLOW_FITS = [pytest.param(name, marks=pytest.mark.slow) for name in ANY_FIT if name != "vectors"]
EVERY = pytest.mark.parametrize("name", ["vectors", *SLOW_FITS])


class Lazy(dict):
    """Values that are made when they are first needed."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, name):
        self[name] = self.make(name)
        return self[name]


class Data(NamedTuple):
    """The examples of a page: wild ones, and known ones with their classes."""

    wild: np.ndarray
    known: np.ndarray
    classes: np.ndarray
    is_holdout: bool


class Fit(NamedTuple):
    """A fit as its page is made from it, and the page."""

    detector: Detector
    before: Detector
    data: Data
    html: str


def page_of(detector, before, data):
    known = data.known, data.classes
    texts = {"command": COMMAND, "settings": SETTINGS}
    return fit_page(detector, before, data.wild, known, is_holdout=data.is_holdout, **texts)


def known_points(count, rng):
    y = rng.integers(0, 3, count)
    return (CENTRES[y] + rng.normal(size=(count, 2))).astype("float32"), y


def known_images(count, rng):
    """Noise that is brighter on the left, or on the right."""
    y = rng.integers(0, 2, count)
    x = rng.integers(0, 120, (count, 8, 8, 1))
    x[y == 0, :, :4] += 120
    x[y == 1, :, 4:] += 120
    return x.astype("uint8"), y


def trained(model, x, y):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(model(x), torch.tensor(y)).backward()
        optimiser.step()
    return model


@pytest.fixture(scope="module")
def fits():
    rng = np.random.default_rng(0)
    points, images = ([draw(count, rng) for count in (200, 180, 120)] for draw in (known_points, known_images))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mlp = trained(MLP(2, 3, hidden=(16,)), torch.tensor(points[0][0]), points[0][1])
        cnn = trained(SmallCNN(2, width=4, hidden=16), SPEC(torch.tensor(images[0][0])), images[0][1])
    between = (0.5 * rng.normal(size=(20, 2)) + 3).astype("float32")
    bright = rng.integers(100, 256, (20, 8, 8, 1)).astype("uint8")

    def made(model, data, unknown, *, holdout=True, **settings):
        labelled, (wild, _), unseen = data
        wild = np.concatenate([wild, unknown])
        settings = {"schedule": SCHEDULE, "verbose": False} | settings
        detector = wildood.fit(model, labelled, wild, unseen if holdout else None, **settings)
        before = wildood.posthoc(
            model,
            wildood.EnergyScore(),
            labelled=labelled,
            holdout=unseen if holdout else None,
            input=settings.get("input"),
        )
        examples = Data(wild, *(unseen if holdout else labelled), is_holdout=holdout)
        return Fit(detector, before, examples, page_of(detector, before, examples))

    settings = {
        "vectors": {},
        "no holdout": {"holdout": False},
        "woods-alt": {"method": wildood.WoodsAlt()},
        "last": {"keep": "last", "method": wildood.Woods(alpha=0.1, tau=0.5)},
    }

    def fitted(name):
        if name == "images":
            return made(cnn, images, bright, input=SPEC, seed=7)
        return made(mlp, points, between, **settings[name])

    return Lazy(fitted)


@pytest.fixture(scope="module")
def pages(fits):
    return Lazy(lambda name: fits[name].html)


@pytest.fixture(scope="module")
def trees(pages, parse):
    return Lazy(lambda name: parse(pages[name]))


def percent(share):
    return f"{100 * share:.1f}"


def unknown_share(detector, x):
    return float(np.mean(detector.predict(x) == wildood.UNKNOWN))


def settings_of(tree):
    making = tree.panel("Settings, seeds, versions")
    return dict(zip([term.text for term in making.all("dt")], [text.text for text in making.all("dd")], strict=True))


def figures_of(tree):
    return [svg.attributes["aria-label"] for svg in tree.all("svg")]


@EVERY
def test_a_page_is_one_whole_document(name, trees, pages):
    tree = trees[name]  # whose tags balance
    assert pages[name].startswith('<!doctype html>\n<html lang="en">')
    for tag in ("html", "head", "body", "main", "title", "h1"):
        assert len(tree.all(tag)) == 1
    for paragraph in tree.all("p"):  # a browser would end the paragraph before these
        assert {element.tag for element in paragraph.all()} <= {"strong", "em", "code"}


@EVERY
def test_no_id_is_there_twice_and_every_reference_finds_one(name, trees):
    ids = trees[name].ids()
    assert len(ids) == len(set(ids)) > 100
    assert trees[name].references()
    assert trees[name].references() <= set(ids)


@EVERY
def test_a_page_asks_nobody_for_anything(name, trees):
    tree = trees[name]
    assert {element.tag for element in tree.all()} & {"script", "link", "iframe", "object", "embed", "base", "form"} == set()
    for element in tree.all():
        for attribute, value in element.attributes.items():
            assert not attribute.startswith("on")
            if attribute in {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}:
                assert value.startswith(("#", "data:image/png;base64,"))
            assert re.findall(r"url\((?!#)", value) == []
    for style in tree.all("style"):
        assert re.findall(r"@import|@font-face|url\(|http|//", style.text) == []


@EVERY
def test_text_that_looks_like_a_tag_is_escaped(name, pages):
    assert re.findall(r".{20}<(?![a-zA-Z/!]).{20}", pages[name]) == []
    assert re.findall(r"&(?!#?\w+;)", pages[name]) == []


@EVERY
def test_a_page_is_small_enough_for_an_e_mail(name, pages):
    assert len(pages[name].encode()) < 3_000_000


@EVERY
def test_a_page_is_for_phones_for_the_night_and_for_paper(name, trees):
    tree = trees[name]
    assert tree.one("meta", name="viewport").attributes["content"] == "width=device-width, initial-scale=1"
    style = tree.one("head").one("style").text
    assert "@media (prefers-color-scheme: dark)" in style
    assert "@media print" in style


@EVERY
def test_numbers_come_before_pictures(name, trees):
    tags = [element.tag for element in trees[name].all()]
    assert tags.index("p") < tags.index("table") < tags.index("svg")


@EVERY
def test_every_panel_has_a_heading_and_a_sentence(name, trees):
    panels = trees[name].all("div", cls="panel")
    assert len(panels) >= 8
    for panel in panels:
        assert len(panel.one("h3").text) > 5
        assert panel.one("p", cls="says").text.endswith(".")


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(fits, pages):
    assert page_of(*fits["images"][:3]) == pages["images"]


@EVERY
def test_a_fit_shows_its_scores_before_and_after_and_its_training(name, trees):
    known = "labelled" if name == "no holdout" else "holdout"
    scores = f"Scores of {known} and wild, with the threshold"
    training = [figure for figure in TRAINING if figure != SLOPE or name != "woods-alt"]  # which has a head instead
    assert figures_of(trees[name]) == [scores, scores, *training]


@EVERY
def test_a_fits_table_is_what_its_detectors_do_at_one_share_of_known_data(name, trees, fits):
    detector, before, data, _ = fits[name]
    before = copy.copy(before)
    accepted = int(np.sum(detector.score(data.known) <= detector.threshold))
    before.threshold = float(np.sort(before.score(data.known))[accepted - 1])
    expected = {
        label: [
            percent(unknown_share(each, data.wild)),
            percent(unknown_share(each, data.known)),
            percent(np.mean(each.classify(data.known) == data.classes)),
        ]
        for label, each in (
            ("before: its energy", before),
            ("after: Woods" if name == "last" else "after: start kept", detector),
        )
    }
    panel = trees[name].panel("What is rejected")
    known = "holdout" if data.is_holdout else "labelled"
    assert panel.rows() == expected
    assert [cell.text for cell in panel.all("th", scope="col")] == [
        "",
        "wild rejected",
        f"{known} rejected",
        f"{known} accuracy",
    ]
    assert panel.one("tr", cls="strong").one("th").text.startswith("after")
    says = f"In percent, on {len(data.wild)} wild examples set aside and {len(data.known)} {known} examples."
    assert panel.one("p", cls="says").text == says


@EVERY
def test_a_fits_lead_says_what_is_rejected_and_promised(name, trees, fits):
    detector, _, data, _ = fits[name]
    lead = trees[name].one("div", cls="lead")
    warnings, (headline,) = lead.all("strong")[:-1], lead.all("strong")[-1:]
    assert headline.text == in_percent(unknown_share(detector, data.wild))
    assert [warning.text for warning in warnings] == ["Warning:"] * len(detector.warnings)
    assert all(text in lead.text for text in detector.warnings)
    assert f"Its threshold: {detector.promise}." in lead.text


@EVERY
def test_a_fit_says_how_it_was_made(name, trees, fits):
    settings = settings_of(trees[name])
    detector = fits[name].detector
    assert settings["command"] == COMMAND
    assert settings["seed"] == ("7" if name == "images" else "0")
    assert settings["method"].startswith(
        {"woods-alt": "WoodsAlt: alpha 0.05, tol", "last": "Woods: alpha 0.1, tau 0.5, tol"}.get(
            name, "Woods: alpha 0.05, tol"
        )
    )
    assert settings["schedule"].startswith("steps 12, batch 32, lr 0.03")
    assert settings["threshold"] == f"{detector.threshold:.6g}: {detector.promise}"
    assert settings["versions"].startswith(
        f"wildood {wildood.__version__}, torch {torch.__version__}, numpy {np.__version__}"
    )


@pytest.mark.slow
def test_without_a_holdout_the_page_says_that_the_labelled_data_was_trained_on(trees):
    sentence = "The labelled examples were trained on: fresh data is rejected more often."
    said = {name: sentence in trees[name].panel("What is rejected").text for name in ANY_FIT}
    assert said == {name: name == "no holdout" for name in ANY_FIT}
    assert "no promise" in trees["no holdout"].one("div", cls="lead").text


@pytest.mark.parametrize("name", ["vectors", *SLOW_FITS[1:]])
def test_examples_that_are_no_images_have_no_gallery(name, trees):
    assert trees[name].all("img") == []
    assert "Single examples" not in [heading.text for heading in trees[name].all("h2")]


@pytest.mark.slow
def test_images_are_shown_by_what_the_detector_does_with_them(trees, fits):
    detector, _, data, _ = fits["images"]
    tree = trees["images"]
    wild, known = detector.score(data.wild), detector.score(data.known)
    rejected, accepted, alarms = (
        np.flatnonzero(mask) for mask in (wild > detector.threshold, wild <= detector.threshold, known > detector.threshold)
    )
    assert min(len(rejected), len(accepted), len(alarms)) > 0
    for title, scores, chosen, classes in (
        ("Wild and rejected", wild, rejected, detector.classify(data.wild)),
        ("Wild and just accepted", wild, accepted, detector.classify(data.wild)),
        ("False alarms", known, alarms, data.classes),
    ):
        panel = tree.panel(title)
        count = f"{title}: {len(chosen)} of {len(scores)}"
        assert panel.one("h3").text == count + (", 16 are shown" if len(chosen) > 16 else "")
        highest = sorted(chosen, key=lambda number: -scores[number])[:16]
        assert [caption.text for caption in panel.all("figcaption")] == [
            f"{classes[number]}, {scores[number]:.3g}" for number in highest
        ]


@pytest.mark.slow
def test_the_gallery_stands_between_the_training_and_the_settings(trees):
    headings = [heading.text for heading in trees["images"].all("h2")]
    assert headings == ["What changed", "Scores", "The training", "Single examples", "How it was made"]


def test_a_large_fit_is_looked_at_in_evenly_spaced_examples(fits, parse, monkeypatch, undrawn):
    monkeypatch.setattr(fit_pages, "MOST_EXAMPLES", 50)
    detector, before, data, _ = fits["vectors"]
    fewer = Data(data.wild[:197], data.known[:99], data.classes[:99], is_holdout=True)
    panel = parse(page_of(detector, before, fewer)).panel("What is rejected")
    wild, known, classes = data.wild[:197:4], data.known[:99:2], data.classes[:99:2]
    assert len(wild) == len(known) == 50
    assert panel.one("p", cls="says").text == "In percent, on 50 wild examples set aside and 50 holdout examples."
    assert panel.rows()["after: start kept"] == [
        percent(unknown_share(detector, wild)),
        percent(unknown_share(detector, known)),
        percent(np.mean(detector.classify(known) == classes)),
    ]


@EVERY
def test_the_epoch_that_was_kept_is_the_detectors(name, trees, fits):
    detector = fits[name].detector
    kept = detector.history[detector.record["kept_epoch"]]
    says = trees[name].panel("Which epoch was kept").one("p", cls="says").text
    if detector.record["kept_epoch"] == 0:
        assert says.startswith("No epoch was shown to be better than the start, so the start was kept.")
    else:
        assert f"{percent(kept['acceptance'])} % are accepted at the epoch that was kept (step {kept['step']})" in says
        assert f"{percent(detector.history[0]['acceptance'])} % at the start" in says


def test_a_fit_that_kept_the_start_says_so(fits, parse, undrawn):
    detector, before, data, _ = fits["vectors"]
    record = detector.record
    detector.record = record | {"kept_epoch": 0}
    try:
        tree = parse(page_of(detector, before, data))
    finally:
        detector.record = record
    says = tree.panel("Which epoch was kept").one("p", cls="says").text
    assert says.startswith("No epoch was shown to be better than the start, so the start was kept.")


@pytest.mark.parametrize(
    ("drift", "given", "start", "said"),
    [(True, {}, False, True), (True, {}, True, False), (True, {"fresh": "f"}, False, False), (False, {}, False, False)],
)
def test_a_holdout_of_which_a_third_was_trained_on_is_not_shown_as_unseen(fits, parse, undrawn, drift, given, start, said):
    detector, before, data, _ = fits["vectors"]
    record = detector.record
    changed = {"drift": {"found": drift}, "assessment": record["assessment"] | {"start_kept": start}}
    detector.record = record | changed | {"data": record["data"] | given}
    try:
        tree = parse(page_of(detector, before, data))
    finally:
        detector.record = record
    assert ("A third of it was trained on" in tree.panel("What is rejected").text) == said


@pytest.mark.slow
def test_tau_is_called_twice_the_starting_loss_only_where_it_is(trees):
    said = {
        name: "twice the cross-entropy" in trees[name].panel("The constraint on classification").text for name in ANY_FIT
    }
    assert said == {name: name != "last" for name in ANY_FIT}  # which was data its tau
