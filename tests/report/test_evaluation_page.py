"""The page of an evaluation: whole, on its own, and in agreement with the answers it shows."""

import base64
import copy
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.data.images import Images
from wildood.experiments.evaluation import SetDecisions, measure
from wildood.models.small import MLP, SmallCNN
from wildood.report import figures
from wildood.report.evaluation_page import _legend, evaluation_page

NAMES = ["<b>cat</b>", "$dog$", "猫", "_eel", "ox"]
COMMAND = 'wildood evaluate d --id "<script>.npz"'


def pictures(rng, count, brightness=200):
    return rng.integers(0, brightness, (count, 8, 8, 1), dtype=np.uint8)


def measured(detector, known, unknown):
    asked = SetDecisions.asked(detector, "test <1>", known)
    answers = [SetDecisions.asked(detector, name, images) for name, images in unknown.items()]
    return measure(detector, asked, answers, resamples=20)


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cnn, mlp = SmallCNN(5, width=4, hidden=16), MLP(2, 30, hidden=(8,))
    spec = wildood.InputSpec(mean=(0.5,), std=(0.5,))
    holdout = pictures(rng, 150)
    detector = wildood.posthoc(cnn, wildood.MaxSoftmax(), holdout=holdout, input=spec, alpha=0.2)
    detector.record["classes"] = NAMES
    known = Images(pictures(rng, 60), rng.integers(0, 5, 60))
    bright = {name: Images(pictures(rng, 30, 256)) for name in ("_bright & co", "$b$", "c", "d", "e" * 40)}
    by_class = wildood.posthoc(cnn, wildood.EnergyScore(), holdout=holdout, input=spec, alpha=0.2)
    by_class.class_thresholds = np.quantile(by_class.score(known.examples), [0.1, 0.3, 0.5, 0.7, 0.4])
    points = rng.normal(size=(300, 2)).astype("float32")
    vectors = wildood.posthoc(mlp, wildood.EnergyScore(), holdout=points[:50], alpha=0.1)
    vectors.promise = None
    many = Images(points[50:], np.arange(250) % 30)
    return {
        "pictures": measured(detector, known, bright),
        "by class": measured(by_class, Images(known.examples), {"svhn": bright["c"]}),
        "vectors": measured(vectors, many, {"far": Images(points[:20] + 5)}),
    }


@pytest.fixture(scope="module")
def pages(cases):
    return {name: evaluation_page(case, {"command": COMMAND, "detector": "d"}) for name, case in cases.items()}


@pytest.fixture(scope="module")
def trees(pages, parse):
    return {name: parse(html) for name, html in pages.items()}


CASES = ["pictures", "by class", "vectors"]


@pytest.mark.parametrize("case", CASES)
def test_a_page_refers_to_nothing_outside_and_holds_each_id_once(pages, trees, case):
    tree = trees[case]
    assert tree.all("script") == tree.all("link") == []
    sources = [image.attributes["src"] for image in tree.all("img")]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert re.findall(r"https?://(?!www\.w3\.org/)", pages[case]) == []
    ids = tree.ids()
    assert len(ids) == len(set(ids))
    assert tree.references() <= set(ids)


@pytest.mark.parametrize("case", CASES)
def test_the_tables_say_what_was_measured(cases, trees, case):
    evaluation, tree = cases[case].evaluation, trees[case]
    rows = tree.panel("What is caught of each OOD set").rows()
    for result in evaluation.ood:
        assert rows[result.name][0].startswith(f"{100 * result.caught.value:.1f} [")
        assert rows[result.name][2].startswith(f"{100 * result.auroc.value:.1f} [")
    assert ("mean of the sets" in rows) is (len(evaluation.ood) > 1)
    costs = tree.panel("What it costs on ID data").rows()
    assert costs["false alarms ↓"][0].startswith(f"{100 * evaluation.id.false_alarms.value:.1f} [")
    assert ("accuracy ↑" in costs) is (evaluation.id.accuracy is not None)
    assert ("have no labels" in tree.panel("What it costs on ID data").text) is (evaluation.id.accuracy is None)


def test_every_set_has_its_scores_and_a_curve(trees):
    titles = [title.text for title in trees["pictures"].all("h3")]
    assert titles.count("Scores of _bright & co") == 1
    assert len([title for title in titles if title.startswith("Scores of ")]) == 5
    assert [title for title in titles if "at every threshold" in title] == [
        "Caught against cost, at every threshold: sets 1 to 4",
        "Caught against cost, at every threshold: sets 5 to 5",
    ]
    legend = [text.text for text in trees["pictures"].all("text")]
    assert {"1: _bright & co", "2: $b$", "3: c", "4: d", f"5: …{'e' * 27}"} <= set(legend)


def test_names_in_the_legend_have_numbers_only_where_they_need_them(trees):
    assert "svhn" in [text.text for text in trees["by class"].panel("Caught against cost").all("text")]
    assert list(_legend(["a", "b"], [0, 1], numbered=False).values()) == ["a", "b"]
    assert list(_legend(["_a", "b"], [0, 1], numbered=False).values()) == ["1: _a", "2: b"]
    alike = [f"{start}/{'x' * 40}" for start in "ab"]
    assert list(_legend(alike, [4, 5], numbered=False).values()) == [f"{number}: …{'x' * 27}" for number in (5, 6)]


def test_the_line_of_alpha_is_drawn_only_where_it_is_promised(cases, monkeypatch, parse):
    limits = []
    monkeypatch.setattr(figures, "by_class", lambda _name, _bars, limit: limits.append(limit) or "")
    case = cases["by class"]
    promised = case._replace(detector=copy.copy(case.detector))
    promised.detector.promise = replace(case.detector.promise, by_class=True)
    page = parse(evaluation_page(promised, {}))
    for other in (case, cases["pictures"], cases["vectors"]):
        evaluation_page(other, {})
    assert limits == [0.2, None, None, None]
    assert "Classes are what the classifier predicts: a rate is promised for each of these." in page.text
    assert "A rate is promised for each predicted class, none for the true ones." in page.text


def test_classes_that_could_not_be_matched_by_name_are_told(cases, trees, parse):
    told = "the detector has no names for its classes, so those of the labels are numbered in their order."
    assert told not in trees["vectors"].text
    case = cases["vectors"]
    found = replace(case.evaluation, id=replace(case.evaluation.id, unmatched_names=True))
    assert told in parse(evaluation_page(case._replace(evaluation=found), {})).panel("What it costs on ID data").text


def test_classes_with_odd_names_are_shown_by_them(trees):
    rows = trees["pictures"].panel("The same in numbers").rows()
    assert set(rows) == set(NAMES)
    drawn = [text.text for text in trees["pictures"].panel("Who bears the false alarms").all("text")]
    assert set(NAMES) <= set(drawn)


def test_a_long_list_of_classes_is_cut_where_it_is_least_interesting(cases, trees):
    rows = trees["vectors"].panel("The same in numbers").rows()
    assert len(rows) == 20
    shown = [float(cells[0].split(" ")[0]) for cells in rows.values()]
    assert shown == sorted(shown, reverse=True)
    highest = max(share.value for share in cases["vectors"].evaluation.id.false_alarms_by_class.values())
    assert shown[0] == pytest.approx(100 * highest, abs=0.05)
    assert "metrics.json has the other 10, too" in trees["vectors"].panel("Who bears the false alarms").text


def test_the_most_confident_mistakes_are_the_pictures(cases, trees):
    case = cases["pictures"]
    answers = case.unknown[0]
    panel = trees["pictures"].panel("_bright & co, accepted")
    source = panel.all("img")[0].attributes["src"].removeprefix("data:image/png;base64,")
    worst = int(np.argmin(np.where(answers.accepted, answers.scores, np.inf)))
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
    assert np.array_equal(picture, answers.images.examples[worst, :, :, 0])
    assert panel.all("figcaption")[0].text == f"{NAMES[answers.classes[worst]]}, {answers.scores[worst]:.3g}"
    alarm = int(np.argmax(np.where(case.known.accepted, -np.inf, case.known.scores)))
    panel = trees["pictures"].panel("test <1>, rejected")
    assert panel.all("figcaption")[0].text == f"{NAMES[case.known.images.labels[alarm]]}, {case.known.scores[alarm]:.3g}"


def test_what_is_no_picture_is_not_shown_as_one(trees):
    assert trees["vectors"].all("img") == []
    assert "The most confident mistakes" not in [title.text for title in trees["vectors"].all("h2")]
    assert "The most confident mistakes" in [title.text for title in trees["by class"].all("h2")]


def test_thresholds_of_classes_are_told(trees):
    assert "Each class has its own threshold" in trees["by class"].panel("Scores of svhn").text
    assert "Each class has its own threshold" not in trees["pictures"].panel("Scores of c").text
    assert "the dot may lie beside the curve" in trees["by class"].panel("Caught against cost").text
    assert "the dot may lie beside the curve" not in trees["vectors"].panel("Caught against cost").text


def test_scores_are_shown_by_their_distance_from_the_threshold_of_their_class(cases, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "histogram", lambda *given: drawn.append(given) or "")
    monkeypatch.setattr(figures, "roc", lambda *_, points, **__: drawn.append(points) or "")
    case = cases["by class"]
    evaluation_page(case, {})
    (_, known, unknown, threshold, _, axis), points = drawn
    assert (threshold, axis) == (0, "score - threshold of the predicted class")
    assert np.array_equal(known > 0, ~case.known.accepted)
    assert np.array_equal(unknown > 0, ~case.unknown[0].accepted)
    found = case.evaluation
    assert points == {"svhn": (found.id.false_alarms.value, found.ood[0].caught.value)}
    assert found.id.false_alarms.value != np.mean(case.known.scores > case.detector.threshold)


@pytest.mark.parametrize("case", CASES)
def test_the_lead_says_what_becomes_of_the_promise(cases, trees, case):
    assert f"False alarms: {cases[case].promise.says}." in trees[case].one("div", cls="lead").text


def test_a_set_that_set_the_threshold_is_said_to_be_so(cases, trees, parse):
    assert "is not new" not in trees["vectors"].text
    case = cases["vectors"]
    far = case._replace(evaluation=replace(case.evaluation, ood=(replace(case.evaluation.ood[0], role_of="threshold"),)))
    panel = parse(evaluation_page(far, {})).panel("What it costs on ID data")
    assert "far: these examples set the detector's threshold: what is measured here is not new." in panel.text


def test_the_page_says_how_it_was_made(trees):
    made = trees["pictures"].panel("Command, detector, versions").text
    assert COMMAND in made
    assert "MaxSoftmax, higher = more OOD" in made
    assert "false-alarm rate <= 20 % on average over holdouts, if the 150 holdout examples are unseen" in made
    assert "nothing is promised" in trees["vectors"].panel("Command, detector, versions").text
