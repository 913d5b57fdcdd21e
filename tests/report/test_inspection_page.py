"""What an inspection says, when it says that it cannot say, and its page, which agrees with it."""

import re
from dataclasses import asdict

import numpy as np
import pytest
import torch

import wildood
from wildood.data.images import Images
from wildood.detect.detector import Promise
from wildood.evaluate.intervals import in_percent, percent_digits
from wildood.evaluate.mixture import fpr_by_share, unknown_share
from wildood.evaluate.thresholds import p_values
from wildood.experiments.evaluation import Decisions, SetDecisions
from wildood.models.small import MLP, SmallCNN
from wildood.report.inspection import InspectionReport
from wildood.report.inspection_page import SHARES, inspect_traffic, inspection_page, inspection_record, ranked_examples

RNG = np.random.default_rng(0)
HOLDOUT = RNG.normal(size=400).astype("f")
TRAFFIC = np.append(RNG.normal(size=450), RNG.normal(size=50) + 5)
CLASSES = RNG.integers(0, 2, 500)
COMMAND = 'wildood inspect det --wild "<script>&"'
SPEC = wildood.InputSpec(mean=(0.5,), std=(0.5,))
ANY = ["pictures", "vectors", "id", "by class", "untrusted", "trained on", "clean", "too known"]
EVERY = pytest.mark.parametrize("name", ANY)
LONG_NAME = "monday/<b>-a-name-that-is-too-long-for-a-caption.png"


@pytest.fixture
def detector():
    found = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((400, 1), "f"))
    found.holdout_scores, found.holdout_classes = HOLDOUT, np.arange(400) % 2
    return found.calibrate(alpha=0.05)


def decided(detector, scores=TRAFFIC, classes=None):
    return Decisions.of(detector, scores, CLASSES[: len(scores)] if classes is None else classes)


def reported(detector, found, images, top, command=COMMAND):
    """The inspection with the examples that were inspected."""
    traffic = SetDecisions(**vars(found.traffic), name="wild", source=images)
    return InspectionReport(**vars(found) | {"traffic": traffic}, detector=detector, top=top, command=command)


def test_the_share_of_unknowns_is_tested_against_the_holdout(detector):
    found = inspect_traffic(detector, decided(detector), confidence=0.9)
    assert found.unknown == unknown_share(HOLDOUT, TRAFFIC, 0.9)
    assert found.found
    assert (found.known_name, found.untested) == ("holdout", "")
    assert np.array_equal(found.p_values, p_values(TRAFFIC, HOLDOUT))
    assert found.says == f"{found.unknown}, compared with the holdout; or its known part is no longer like that"
    assert found.says.startswith("at least ")


def test_traffic_like_the_holdout_holds_nothing_unknown(detector):
    found = inspect_traffic(detector, decided(detector, HOLDOUT))
    assert not found.found
    assert found.says == f"{found.unknown}, compared with the holdout"


def test_id_examples_that_are_given_take_the_holdouts_place(detector):
    known = np.linspace(-3, 3, 300)
    found = inspect_traffic(detector, decided(detector), decided(detector, known))
    assert found.unknown == unknown_share(known, TRAFFIC)
    assert found.known_name == "--id"
    assert "300 ID and 500 wild scores" in found.says
    assert "compared with --id" in found.says
    assert np.array_equal(found.p_values, p_values(TRAFFIC, known))


@pytest.mark.parametrize("promise", [None, Promise(alpha=0.05, examples=400, unseen=False)])
def test_a_holdout_that_cannot_be_trusted_is_not_tested_against(detector, promise):
    detector.promise = promise
    found = inspect_traffic(detector, decided(detector))
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert found.says.startswith("whether any of this traffic is unknown was not tested: the classifier may have trained on")
    assert "give some with --id" in found.says
    assert found.promise.verdict == "no promise"
    trusted = inspect_traffic(detector, decided(detector), decided(detector, HOLDOUT))
    assert trusted.found


def test_traffic_that_a_fit_has_seen_is_not_tested(detector):
    found = inspect_traffic(detector, decided(detector), decided(detector, HOLDOUT), role_of="wild")
    assert (found.unknown, found.p_values, found.fpr(), found.found) == (None, None, None, False)
    assert "was not tested: these examples were the detector's wild data, so they are no sample" in found.says
    assert found.promise.rate is not None  # which does not rest on the traffic
    assert inspect_traffic(detector, decided(detector, HOLDOUT - 9), role_of="wild").promise.verdict == "cannot be told"


def test_the_fpr_is_told_for_each_share_with_a_band_and_a_bound_that_hold_jointly(detector):
    """Each of the two at 97.5 %, for a joint confidence of 95 %; the bound that stands alone stays at 95 %."""
    found = inspect_traffic(detector, decided(detector))
    told, least = found.fpr(), found.least_possible
    assert least == unknown_share(HOLDOUT, TRAFFIC, 0.975).bound < found.unknown.bound
    assert told.share.tolist() == sorted([*SHARES, least])
    expected = fpr_by_share(HOLDOUT, TRAFFIC, detector.threshold, told.share, confidence=0.975)
    for name in ("share", "fpr", "lower", "upper"):
        assert np.array_equal(getattr(told, name), getattr(expected, name))
    assert np.array_equal(told.possible, expected.possible & (told.share >= least))
    assert told.confidence == 0.95
    assert inspect_traffic(detector, decided(detector, HOLDOUT)).fpr().share.tolist() == list(SHARES)  # nothing is found


@pytest.mark.parametrize("count", [5, 50, 400, 2000])
def test_no_share_below_the_bound_is_possible_and_some_above_it_are(detector, count):
    """Unknowns of which some are accepted: the band at the threshold knows less than the bound does."""
    rng = np.random.default_rng(count)
    scores = np.append(rng.normal(size=450), rng.normal(size=count) + 3)
    found = inspect_traffic(detector, decided(detector, scores, np.zeros(len(scores), int)))
    record = inspection_record(reported(detector, found, Images(np.zeros((len(scores), 1))), top=1))
    rows, bound = record["fpr_by_share"], found.least_possible
    assert [row["pi"] for row in rows if row["possible"] and row["pi"] < bound] == []
    possible = [row["pi"] for row in rows if row["possible"]]
    assert len(possible) >= 2
    assert 1.0 in possible
    if bound > 0:
        assert bound in [row["pi"] for row in rows]
    wide = fpr_by_share(HOLDOUT, scores, detector.threshold, np.linspace(0.001, 1, 500), confidence=0.975)
    if count in {50, 400}:  # what this is about: the band alone would call some of them possible
        assert np.any(wide.possible & (wide.share < bound))


def test_the_fpr_below_thresholds_by_class_needs_examples_that_did_not_set_them(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    assert inspect_traffic(detector, decided(detector)).fpr() is None
    known, classes = RNG.normal(size=300), np.arange(300) % 2
    told = inspect_traffic(detector, decided(detector), decided(detector, known, classes)).fpr([0.3])
    rejected = [np.mean(s > detector.class_thresholds[c]) for s, c in ((TRAFFIC, CLASSES), (known, classes))]
    assert told.fpr.item() == pytest.approx(1 - rejected[1] - (rejected[0] - rejected[1]) / 0.3)


def numbers(choices):
    return [number for number, _ in choices]


def margins(*values):
    found = np.array(values)
    return Decisions(found, np.zeros(len(found), int), found > 0, found)


def test_the_highest_scores_come_first_whatever_threshold_they_meet():
    found = Decisions(np.array([3.0, 9.0, 5.0, 9.0]), np.zeros(4, int), np.ones(4, bool), np.array([4.0, 0.5, 1.0, 1.0]))
    assert numbers(ranked_examples(found, 3)["most_ood"]) == [1, 3, 2]
    assert numbers(ranked_examples(found, 2)["borderline"]) == [1, 2]


def test_borderline_examples_come_from_both_sides_in_turn():
    found = margins(-5.0, 3.0, -0.1, 0.2, 0.0, 1.0, -2.0)
    sides = ["just rejected", "just accepted"]
    assert ranked_examples(found, 5)["borderline"] == list(zip([3, 4, 5, 2, 1], [*sides, *sides, sides[0]], strict=True))
    assert numbers(ranked_examples(found, 99)["borderline"]) == [3, 4, 5, 2, 1, 6, 0]
    assert numbers(ranked_examples(margins(-5.0, -1.0, -2.0), 2)["borderline"]) == [1, 2]


def test_what_to_label_first_mixes_both_sides_with_the_highest_and_names_none_twice():
    found = margins(-5.0, 3.0, -0.1, 0.2, 7.0, 1.0, -2.0)
    whys = ["just rejected", "just accepted", "highest score"]
    assert ranked_examples(found, 6)["label_first"] == list(zip([3, 2, 4, 5, 6, 1], whys * 2, strict=True))
    assert sorted(numbers(ranked_examples(found, 99)["label_first"])) == list(range(7))
    assert numbers(ranked_examples(margins(-3.0, -1.0, -2.0), 2)["label_first"]) == [1, 2]


def test_the_record_has_files_where_there_are_some_and_the_classes_names(detector):
    detector.record["classes"] = ["cat", "dog"]
    found = inspect_traffic(detector, decided(detector))
    files = tuple(f"day/{number}.png" for number in range(500))
    images = Images(np.zeros((500, 1)), where="inbox", names=files)
    record = inspection_record(reported(detector, found, images, top=4))
    number = int(np.argmax(TRAFFIC))
    assert record["most_ood"][0] == {
        "example": f"day/{number}.png",
        "number": number,
        "why": "highest score",
        "score": TRAFFIC[number],
        "p_value": pytest.approx(1 / 401),
        "decision": "unknown",
        "class": ["cat", "dog"][CLASSES[number]],
    }
    assert [len(record[kind]) for kind in ("label_first", "most_ood", "borderline")] == [4, 4, 4]
    assert {row["decision"] for row in record["borderline"]} == {"known", "unknown"}
    assert record["rejected"] == asdict(found.rejected)
    assert record["rejected"]["count"] == int(np.sum(detector.threshold < TRAFFIC))
    assert [row["pi"] for row in record["fpr_by_share"]] == sorted([*SHARES, found.least_possible])
    assert record["unknown"] == {
        "says": found.says,
        "tested": True,
        "bound": found.unknown.bound,
        "estimate": found.unknown.estimate,
        "p_value": found.unknown.p_value,
        "compared_with": "holdout",
        "id_examples": 400,
    }


def known_points(rng, count):
    return (rng.normal(size=(count, 2)) + 5).astype("f")


def points_detector(rng, **settings):
    """Its score is high near the origin, where nothing is known."""
    model = MLP(2, 2, hidden=(2,))
    with torch.no_grad():
        model.body[1].weight.copy_(torch.eye(2))
        model.body[1].bias.zero_()
        model.head.weight.copy_(torch.eye(2))
        model.head.bias.zero_()
    return wildood.posthoc(model, wildood.EnergyScore(), **{"holdout": known_points(rng, 200)} | settings)


def pictures_detector(rng):
    torch.manual_seed(0)
    model, holdout = SmallCNN(2, width=4, hidden=8), rng.integers(0, 256, (99, 8, 8, 1), np.uint8)
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, input=SPEC)


@pytest.fixture(scope="module")
def made():
    """By name: the detector, what was found, the traffic, the record and the page."""
    rng = np.random.default_rng(0)
    mixed = np.concatenate([known_points(rng, 180), 0.1 * rng.normal(size=(60, 2)).astype("f")])
    pictures = rng.integers(0, 256, (50, 8, 8, 1), np.uint8)

    def page(detector, x, known=None, top=8, names=(), **settings):
        traffic = Images(x, where="<inbox>", names=names)
        decided = [None if one is None else Decisions.of(detector, *detector.score_and_classify(one)) for one in (x, known)]
        found = reported(detector, inspect_traffic(detector, *decided, **settings), traffic, top)
        return detector, found, traffic, found.to_dict(), inspection_page(found)

    with torch.random.fork_rng():
        return {
            "pictures": page(pictures_detector(rng), pictures, top=20, names=[LONG_NAME] * 50),
            "vectors": page(points_detector(rng), mixed),
            "id": page(points_detector(rng), mixed, known_points(rng, 150), confidence=0.9),
            "by class": page(points_detector(rng, by_class=True), mixed),
            "untrusted": page(points_detector(rng, holdout=None, labelled=known_points(rng, 300)), mixed),
            "trained on": page(points_detector(rng), mixed, role_of="wild"),
            "clean": page(points_detector(rng), known_points(rng, 100)),
            "too known": page(points_detector(rng), known_points(rng, 200) + 2, known_points(rng, 200) - 2),
        }


@pytest.fixture(scope="module")
def trees(made, parse):
    return {name: parse(each[-1]) for name, each in made.items()}


@EVERY
def test_a_page_is_one_whole_document_that_asks_nobody_for_anything(name, trees, made):
    tree = trees[name]  # whose tags balance
    for tag in ("html", "head", "body", "main", "title", "h1"):
        assert len(tree.all(tag)) == 1
    assert {element.tag for element in tree.all()} & {"script", "link", "iframe", "object", "embed", "form", "b"} == set()
    for element in tree.all():
        for attribute, value in element.attributes.items():
            if attribute in {"src", "href", "xlink:href"}:
                assert value.startswith(("#", "data:image/png;base64,"))
    ids = tree.ids()
    assert len(ids) == len(set(ids))
    assert tree.references() <= set(ids)
    assert re.findall(r"&(?!#?\w+;)", made[name][-1]) == []


@EVERY
def test_every_panel_has_a_heading_and_a_sentence(name, trees):
    for panel in trees[name].all("div", cls="panel"):
        assert len(panel.one("h3").text) > 5
        assert panel.one("p", cls="says").text.endswith(".")


@EVERY
def test_the_lead_says_what_was_found_or_why_nothing_was_tested(name, trees, made):
    _, found, traffic, *_ = made[name]
    lead = trees[name].one("div", cls="lead").text
    assert f"the {len(traffic)} examples from <inbox>" in lead
    assert f"The detector rejects {in_percent(found.rejected.value)}." in lead
    strong = trees[name].one("div", cls="lead").one("strong").text
    if name in {"untrusted", "trained on"}:
        assert strong == "was not tested"
        assert found.untested in lead
    elif found.found:
        assert strong == in_percent(found.unknown.bound)
        assert "no longer like the examples" in lead
    else:
        assert strong == "No unknowns are found"
    assert found.found == (name in {"vectors", "id", "by class"})


@EVERY
def test_the_numbers_are_those_that_were_found(name, trees, made):
    _, found, *_ = made[name]
    rows = trees[name].panel("In numbers").rows()
    assert rows["rejected by the detector"] == [in_percent(found.rejected.value), found.rejected.limits]
    assert ("unknown, at least" in rows) == (found.unknown is not None)
    if found.unknown is not None:
        sure = "90 %" if name == "id" else "95 %"
        assert rows["unknown, at least"] == [in_percent(found.unknown.bound), f"at {sure} confidence"]
        assert rows["unknown, a guess"][0] == in_percent(found.unknown.estimate)
        assert rows["p-value of “nothing is unknown”"][0] == f"{found.unknown.p_value:.2g}"


@EVERY
def test_the_fpr_is_a_table_and_a_curve_over_pi_or_is_not_there(name, trees, made):
    told, tree = made[name][1].fpr(), trees[name]
    if told is None:
        assert name in {"by class", "untrusted", "trained on"}
        assert "Accepted unknowns" not in " ".join(heading.text for heading in tree.all("h3"))
        return
    rows = tree.panel("Accepted unknowns").rows()
    bound = made[name][1].least_possible
    least = [f"{in_percent(bound)}, the least possible"] if bound > 0 else []
    assert [each for each in rows if "least" in each] == least
    assert [each for each in rows if each not in least] == ["1 %", "2 %", "5 %", "10 %", "20 %", "50 %", "75 %", "100 %"]
    expected = [
        [in_percent(fpr), f"{percent_digits(low)} to {in_percent(high)}"] if possible else ["refuted", ""]
        for fpr, low, high, possible in zip(told.fpr, told.lower, told.upper, told.possible, strict=True)
    ]
    assert list(rows.values()) == expected
    assert len(tree.panel("Accepted unknowns").all("svg")) == 1
    jointly, each = ("90 %", "95 %") if name == "id" else ("95 %", "97.5 %")
    says = tree.panel("Accepted unknowns").text
    assert f"In {jointly} of all draws the true π is not refuted and its value is in the band, both" in says
    assert f"each of the two holds at {each} confidence" in says


def test_a_refuted_share_is_called_so(trees):
    assert trees["vectors"].panel("Accepted unknowns").rows()["1 %"] == ["refuted", ""]


def test_known_traffic_that_scores_lower_than_it_should_is_noticed(trees):
    """More of it is accepted than of the ID examples, by more than unknowns that are all accepted explain."""
    panel = trees["too known"].panel("Accepted unknowns")
    refuted = [name for name, cells in panel.rows().items() if cells == ["refuted", ""]]
    assert refuted[:6] == ["1 %", "2 %", "5 %", "10 %", "20 %", "50 %"]
    assert "No π up to 50 % fits: known traffic does not seem to be like the examples that it is compared with" in panel.text
    assert all("No π up to" not in tree.text for name, tree in trees.items() if name != "too known")


@EVERY
def test_what_to_label_first_is_the_records_list(name, trees, made):
    *_, record, _ = made[name]
    cells = list(trees[name].panel("What to label first").rows().values())
    assert [row[:2] for row in cells] == [[str(row["example"]), row["why"]] for row in record["label_first"]]
    tested = name not in {"untrusted", "trained on"}
    assert {len(row) for row in cells} == {5 if tested else 4}
    if tested:
        assert [row[3] for row in cells] == [f"{row['p_value']:.2g}" for row in record["label_first"]]


def test_pictures_are_shown_in_one_sheet_of_each_kind_with_short_names(trees, made):
    _, found, *_ = made["pictures"]
    for title, first in (("The most unknown", int(np.argmax(found.traffic.scores))), ("Around the threshold", None)):
        panel = trees["pictures"].panel(title)
        assert len(panel.all("div", cls="pictures")) == 1
        assert len(panel.all("img")) == 20
        caption = panel.all("figcaption")[0].text
        assert caption.startswith("…or-a-caption: ")
        if first is not None:
            assert caption.endswith(f": {found.traffic.classes[first]}, {found.traffic.scores[first]:.3g}")


@pytest.mark.parametrize("name", [name for name in ANY if name != "pictures"])
def test_examples_that_are_no_pictures_are_listed_only(name, trees):
    assert trees[name].all("img") == []


def test_the_promise_is_told_with_its_rate_where_id_examples_were_given(trees, made):
    for name, (detector, found, *_) in made.items():
        panel = trees[name].panel("Whether the promised")
        says = panel.one("p", cls="says").text
        assert says[1:] == f"{found.promise.says[1:]}."
        terms = [term.text for term in panel.all("dt")]
        assert terms[0] == ("aimed at" if name == "untrusted" else "promised")
        assert ("false alarms on --id" in terms) == (name in {"id", "too known"})
        assert panel.all("dd")[0].text == f"at most {100 * detector.promise.alpha:g} %"


def test_scores_by_class_are_shown_from_their_thresholds(trees):
    assert "less the threshold of the predicted class" in trees["by class"].panel("Scores of").text
    assert "less the threshold" not in trees["vectors"].panel("Scores of").text
    axes = {name: [text.text for text in trees[name].panel("Scores of").all("text")] for name in ("by class", "vectors")}
    assert "score - threshold of the predicted class" in axes["by class"]
    assert "score (higher = more unknown)" in axes["vectors"]
    assert "seen in training" in trees["untrusted"].panel("Scores of").text


def test_the_same_inspection_gives_the_same_page(made):
    _, found, *_, before = made["pictures"]
    assert inspection_page(found) == before
    assert "<dd>wildood inspect det --wild &#34;&lt;script&gt;&amp;&#34;</dd>" in before
