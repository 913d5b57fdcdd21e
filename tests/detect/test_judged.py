"""A person's answers on wild examples: what trains, what measures, what is refused, and which to ask for."""

import numpy as np
import pytest
import torch

import wildood
from wildood.data.judged import UNCHECKED, Judged, without
from wildood.data.sources import ArraySource, Part
from wildood.data.wild import WildMixture, WildPool, as_wild
from wildood.detect.label_plan import LabelPlan
from wildood.detect.split import split_for_fit
from wildood.evaluate.intervals import CaughtBound
from wildood.methods.objective import Batch
from wildood.methods.woods_alt import WoodsAlt
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.small import MLP
from wildood.train.batches import Batches
from wildood.train.monitor import measure_start


def rows(source):
    return {tuple(row) for row in source.gather(torch.arange(len(source)))[0].tolist()}


STEPS = wildood.Schedule(steps=30, batch=32)


def known(count, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    return (rng.normal(size=(count, 2)) + 6 * y[:, None]).astype("float32"), y


def unknown(count, seed):
    return (np.random.default_rng(seed).normal(size=(count, 2)) + np.array([9, -9])).astype("float32")


WILD = np.concatenate([known(360, 1)[0], unknown(80, 2)])
JUDGED = np.concatenate([WILD[:20], WILD[-60:]]), np.repeat([0, 1], [20, 60])


def fit(model=None, **changes):
    torch.manual_seed(0)
    data = {"labelled": known(300, 3), "wild": WILD, "holdout": known(200, 4), "schedule": STEPS, "verbose": False}
    return wildood.fit(MLP(2, 2) if model is None else model, **data | changes)


@pytest.fixture(scope="module")
def detector():
    return fit(judged=JUDGED)


def test_half_of_the_judged_unknowns_bound_what_is_caught(detector, tmp_path):
    judged = detector.record["judged"]
    assert (judged["known"], judged["unknown"], len(judged["scores"])) == (20, 30, 30)
    rejected = np.array(judged["scores"]) > detector.threshold
    assert detector.caught == CaughtBound.of(rejected)
    scores = {round(float(score), 4) for score in detector.score(JUDGED[0][20:])}
    assert {round(score, 4) for score in judged["scores"]} <= scores
    detector.save(tmp_path / "d")
    assert wildood.load(tmp_path / "d").caught == detector.caught
    card = (tmp_path / "d" / "README.md").read_text()
    assert "of unknowns like the judged ones are caught" in card
    assert "How many unknowns are caught is not promised" not in card


def test_the_bound_moves_with_the_threshold(detector):
    before = detector.caught
    detector.threshold, kept = float(max(detector.record["judged"]["scores"])), detector.threshold
    try:
        assert detector.caught == CaughtBound.of((0, 30))
    finally:
        detector.threshold = kept
    assert detector.caught == before


def test_what_measures_is_left_out_of_wild_data():
    data = split_for_fit(known(300, 3), WILD, known(200, 4), STEPS, 0.05, None, "best", 0, judged=JUDGED)
    sources = {"wild": data.wild.source, "aside": data.wild_aside, "measures": data.judged_unknown}
    as_sets = {name: rows(source) for name, source in (sources | {"trains": data.judged.examples}).items()}
    assert len(as_sets["measures"]) == 30
    assert all(not as_sets["measures"] & as_sets[name] for name in ("wild", "aside", "trains"))
    assert len(sources["wild"]) + len(sources["aside"]) == len(WILD) - 30
    assert as_sets["measures"] | as_sets["trains"] == {tuple(row) for row in JUDGED[0].tolist()}


def test_a_run_is_resumed_with_the_same_answers_only(tmp_path):
    again = [fit(judged=JUDGED, run_dir=tmp_path / "run") for _ in range(2)]
    assert again[0].record["judged"] == again[1].record["judged"]
    others = JUDGED[0], np.repeat([1, 0], [40, 40])
    with pytest.raises(wildood.WildoodError, match="answers"):
        fit(judged=others, run_dir=tmp_path / "run")


def test_with_few_judged_unknowns_all_train_and_nothing_is_promised():
    detector = fit(judged=(WILD[-30:], np.repeat([0, 1], [11, 19])))
    assert detector.caught is None
    assert detector.record["judged"] == {"known": 11, "unknown": 19, "scores": [], "classes": []}


def test_copies_of_an_example_are_on_one_side():
    copies = np.repeat(unknown(30, 5), 2, axis=0)
    trains, measures = Judged.of((copies, np.ones(60, bool))).split(seed=0)
    sides = [
        {tuple(row) for row in each.gather(torch.arange(len(each)))[0].tolist()} for each in (trains.examples, measures)
    ]
    assert not sides[0] & sides[1]
    assert len(measures) == 30


def test_a_mixture_that_holds_what_measures_is_refused():
    measures = Part(ArraySource(WILD), torch.arange(400, 420))
    with pytest.raises(wildood.InputError, match="20 examples of the wild mixture are judged unknowns that measure"):
        without(WildMixture(id=WILD[:360], ood=WILD[360:], pi=0.1), measures)
    traffic = WildPool(ArraySource(WILD[:300]))
    assert without(traffic, measures) == (traffic, "")


def test_wild_data_that_changes_at_each_reading_is_said_not_to_be_checked():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            return torch.randn(2)

    assert without(as_wild(Noisy()), ArraySource(WILD[:20]))[1] == UNCHECKED


@pytest.mark.parametrize("method", [wildood.Woods(judged_weight=0.5), WoodsAlt(judged_weight=0.5)])
def test_the_term_is_the_supervised_loss_of_the_answers(method):
    classifier = Classifier(
        torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2)), tap=FeatureTap("1", side="input")
    )
    x, y = (torch.from_numpy(each) for each in known(64, 6))
    objective = method.objective(classifier, measure_start(classifier, ArraySource(x, y), seed=0))
    judged, is_ood = torch.from_numpy(WILD[-4:]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    plain, answered = (objective(Batch(x, y, x + 1, *more)) for more in ((), (judged, is_ood)))
    sign = 2 * is_ood - 1
    if isinstance(method, WoodsAlt):
        term = (1 - sign * objective.score(classifier(judged))).clamp(min=0).mean()
    else:
        term = torch.log1p(torch.exp(-sign * objective.logit(classifier(judged).logits))).mean()
    assert (answered.loss - plain.loss).item() == pytest.approx(0.5 * term.item(), rel=1e-4)
    assert {name: c.item() for name, c in answered.constraints.items()} == {
        name: c.item() for name, c in plain.constraints.items()
    }


def test_judged_examples_join_each_batch_and_change_no_other_draw():
    labelled, classifier = ArraySource(*known(40, 7)), Classifier(torch.nn.Linear(2, 2))
    judged = Judged.of((np.arange(6, dtype="f").repeat(2).reshape(6, 2), [0, 1, 0, 1, 0, 1]))
    same = labelled, WildPool(ArraySource(WILD)), wildood.Schedule(batch=16), 0, classifier
    with_them, without_them = Batches(*same, judged=judged), Batches(*same)
    for _ in range(4):
        batch, plain = with_them.draw(), without_them.draw()
        assert torch.equal(batch.labelled, plain.labelled)
        assert torch.equal(batch.wild, plain.wild)
        assert batch.is_ood.tolist() == (batch.judged[:, 0] % 2).tolist()
        assert len(batch.is_ood) == 2
    state, follows = with_them.state_dict(), with_them.draw()
    again = Batches(*same, judged=judged)
    again.load_state_dict(state)
    assert torch.equal(again.draw().judged, follows.judged)


MISTAKES = {
    "no pair": ({"judged": WILD}, "judged is a ndarray: give judged=(x, is_ood), with one answer for each example"),
    "lengths": ({"judged": (WILD[:9], [1])}, "judged has 9 examples but is_ood has shape (1,): give one for each"),
    "values": ({"judged": (WILD[:2], [1, 2])}, "judged: is_ood is neither true nor false somewhere"),
    "method": ({"judged": JUDGED, "method": wildood.Godin()}, "judged examples are for Woods and WoodsAlt, not for"),
    "shape": ({"judged": (WILD[:3, :1], [0, 1, 1])}, "judged: an example has shape (1,), expected (2,)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(wildood.InputError) as caught:
        fit(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_several_methods_are_not_ranked_with_judged_examples():
    with pytest.raises(wildood.InputError, match="leave judged"):
        wildood.fit_many(MLP(2, 2), known(90, 1), WILD, known(90, 2), methods=[wildood.Woods()], judged=JUDGED)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_plan_finds_where_answers_change(noise):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=4000)
    boundary = np.quantile(scores, 0.9)
    plan = LabelPlan(scores, budget=200, seed=1)
    for number in plan:
        plan.answer(is_ood=bool((scores[number] > boundary) != (rng.random() < noise)))
    assert len(set(plan.numbers.tolist())) == len(plan.is_ood) == 200
    around = np.mean(scores[plan.numbers[100:]] <= boundary)
    assert 0.2 < around < 0.8
    assert 0.85 < np.mean(scores <= np.median(scores[plan.numbers[100:]])) < 0.95


def test_a_plan_ends_with_its_examples_and_waits_for_answers():
    plan = LabelPlan([0.5, 0.1, 0.9], budget=10)
    for number in plan:
        plan.answer(is_ood=number == 2)
    assert sorted(plan.numbers.tolist()) == [0, 1, 2]
    waiting = iter(plan := LabelPlan(np.arange(9.0), budget=2))
    next(waiting)
    with pytest.raises(wildood.InputError, match=r"has no answer: call plan\.answer"):
        next(waiting)
    with pytest.raises(wildood.InputError, match="no example was asked for"):
        LabelPlan([1.0, 2.0], budget=1).answer(is_ood=True)


def test_answers_train_a_frozen_network_too():
    assert fit(frozen=True, judged=JUDGED).caught.examples == 30


def test_answers_may_be_numbers_of_any_kind():
    x = np.zeros((3, 2), np.float32)
    for kind in (bool, np.int8, np.float32):
        assert Judged.of((x, np.array([1, 0, 1], kind))).is_ood.tolist() == [True, False, True]
    with pytest.raises(wildood.InputError, match="neither true nor false"):
        Judged.of((x, np.array([1.0, 0.5, 0.0])))
