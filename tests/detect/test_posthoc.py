"""Post-hoc scores: a warning where the model knows too little, and how a setting is chosen (never by test data)."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import wildood
from wildood.data.validation import unlabelled_source
from wildood.detect import posthoc as module
from wildood.detect.posthoc import choose_score
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.scores.score import Score


def untrained(model):
    """The same network, whose classes are those of the trained one in another order."""
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.copy_(parameter.roll(1, 0))
    return model


class Pairs(Dataset):
    def __init__(self, x, y=None):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] if self.y is None else (self.x[index], self.y[index])


def warnings_of(caplog, *call, **given):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="wildood"):
        wildood.posthoc(*call, **given)
    return [record.getMessage() for record in caplog.records if "is right on" in record.getMessage()]


def given_as(toy):
    (x, y), (x_new, y_new) = toy.labelled, toy.holdout
    return {
        "labelled": {"labelled": (x, y), "holdout": x_new},
        "labelled, with a holdout of classes": {"labelled": (x, y), "holdout": (x_new, y_new)},
        "labelled, without a holdout": {"labelled": (x, y)},
        "a dataset": {"labelled": Pairs(x, y), "holdout": x_new},
        "holdout": {"holdout": (x_new, y_new)},
        "holdout, with labelled without classes": {"labelled": x, "holdout": (x_new, y_new)},
        "holdout, with a dataset without classes": {"labelled": Pairs(x), "holdout": (x_new, y_new)},
    }


KINDS = [
    "labelled",
    "labelled, with a holdout of classes",
    "labelled, without a holdout",
    "a dataset",
    "holdout",
    "holdout, with labelled without classes",
    "holdout, with a dataset without classes",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_wrong_on_most_labelled_examples_is_warned_of(toy, trained, caplog, kind):
    given, model = given_as(toy)[kind], untrained(trained())
    (said,) = warnings_of(caplog, model, wildood.EnergyScore(), **given)
    looked_at = "holdout" if kind.startswith("holdout") else "labelled"
    x, y = getattr(toy, looked_at)
    right = np.mean(model(torch.tensor(x)).argmax(1).numpy() == y)
    assert said.startswith(f"the model is right on only {100 * right:.0f} % of {looked_at}: start from a trained one")
    assert warnings_of(caplog, trained(), wildood.EnergyScore(), **given) == []


def test_data_without_usable_classes_is_not_judged_by(toy, trained, caplog):
    x, y = toy.labelled
    for labelled in (x, (x, y.astype(float)), (np.zeros((9, 5), "float32"), np.zeros(9, int)), Pairs(x)):
        given = {"labelled": labelled, "holdout": toy.holdout[0]}
        assert warnings_of(caplog, untrained(trained()), wildood.EnergyScore(), **given) == []


def test_posthoc_warns_with_the_words_of_fit(toy, trained, caplog, schedule):
    given = {"labelled": toy.labelled, "holdout": toy.holdout}
    (said,) = warnings_of(caplog, untrained(trained()), wildood.EnergyScore(), **given)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="wildood"):
        wildood.fit(untrained(trained()), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)
    assert said in [record.getMessage() for record in caplog.records]


def test_a_look_at_a_part_is_enough(toy, trained, caplog, monkeypatch):
    monkeypatch.setattr(module, "ACCURACY_SAMPLE", 40)
    real, counts = module.each_output, []
    monkeypatch.setattr(module, "each_output", lambda *call: counts.append(len(call[1])) or real(*call))
    given = {"labelled": toy.labelled, "holdout": toy.holdout}
    (said,) = warnings_of(caplog, untrained(trained()), wildood.EnergyScore(), **given)
    assert said.startswith("the model is right on only 0 %")
    assert counts == [40, 40]  # for the accuracy, and for outputs that are nearly uniform


def test_the_look_changes_neither_scores_nor_the_threshold(toy, trained, monkeypatch):
    given = {"labelled": toy.labelled, "holdout": toy.holdout}
    looked = wildood.posthoc(trained(), wildood.Mahalanobis(), **given)
    monkeypatch.setattr(module, "_warn_if_untrained", lambda *_: None)
    not_looked = wildood.posthoc(trained(), wildood.Mahalanobis(), **given)
    assert looked.threshold == not_looked.threshold
    assert np.array_equal(looked.score(toy.test[0]), not_looked.score(toy.test[0]))


class Shifted(Score):
    """The first logit, and a shift for examples whose second logit is positive (which only OOD has here)."""

    def __init__(self, shift):
        super().__init__(shift=shift)
        self.shift = shift

    def forward(self, outputs):
        return outputs.logits[:, 0] + self.shift * (outputs.logits[:, 1] > 0)


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)

    def examples(count, *, ood):
        return np.stack([rng.normal(size=count), np.full(count, 1.0 if ood else -1.0)], axis=1).astype("float32")

    known, ood = examples(200, ood=False), examples(40, ood=True)
    wild = np.concatenate([examples(160, ood=False), examples(40, ood=True)])
    return {name: unlabelled_source(x, name) for name, x in (("known", known), ("ood", ood), ("wild", wild))}


CANDIDATES = [Shifted(shift) for shift in (0.0, -5.0, 5.0, 5.5)]


def test_wild_acceptance_finds_the_candidate_that_rejects_the_unknown(parts):
    best, choice = choose_score(CANDIDATES, Classifier(torch.nn.Identity()), parts["known"], 0.05, wild=parts["wild"])
    assert best.shift in {5.0, 5.5}
    assert choice["by"] == "wild acceptance"
    assert [row["shift"] for row in choice["tried"]] == [0.0, -5.0, 5.0, 5.5]
    values = [row["criterion"] for row in choice["tried"]]
    assert values[1] > values[0] > values[2]


def test_of_equal_candidates_the_first_is_taken(parts):
    best, choice = choose_score(CANDIDATES[2:], Classifier(torch.nn.Identity()), parts["known"], 0.05, ood=parts["ood"])
    assert [row["criterion"] for row in choice["tried"]] == [0.0, 0.0]
    assert best.shift == 5.0


def test_ood_labels_choose_if_the_caller_gives_them(parts):
    best, choice = choose_score(
        CANDIDATES[:3], Classifier(torch.nn.Identity()), parts["known"], 0.05, parts["wild"], parts["ood"]
    )
    assert (best.shift, choice["by"]) == (5.0, "OOD labels")


def test_one_candidate_is_not_looked_at(parts):
    class Untouchable(Score):
        def forward(self, _outputs):
            raise AssertionError

    only = Untouchable()
    assert choose_score([only], Classifier(torch.nn.Identity()), parts["known"], 0.05) == (only, {})


def test_a_temperature_cannot_be_chosen_on_id_data_alone(parts):
    with pytest.raises(wildood.InputError, match="temperature cannot be chosen on ID data alone: give it, or wild="):
        choose_score(EnergyScore(None).candidates(), Classifier(torch.nn.Identity()), parts["known"], 0.05)


def linear():
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))
        model.bias.zero_()
    return model


def test_the_half_that_chooses_does_not_set_the_threshold():
    x = np.random.default_rng(0).normal(size=(101, 3)).astype("float32")
    detector = wildood.posthoc(linear(), wildood.Odin(), holdout=x)
    assert detector.record["chosen"]["by"] == "mean score of ID"
    assert detector.promise.examples in {50, 51}
    assert wildood.posthoc(linear(), wildood.Odin(epsilon=0.0), holdout=x).promise.examples == 101
    with pytest.raises(wildood.InputError, match="a part of this holdout chose"):
        detector.calibrate(x, alpha=0.1)


def test_halves_that_are_too_small_are_refused():
    x = np.zeros((37, 3), dtype="float32")
    with pytest.raises(wildood.InputError, match=r"18 examples in each half .* or a fixed setting of the score"):
        wildood.posthoc(linear(), wildood.Odin(), holdout=x)


def test_the_seed_decides_the_halves():
    x = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
    thresholds = {wildood.posthoc(linear(), wildood.Odin(), holdout=x, seed=seed).threshold for seed in (0, 0, 1)}
    assert len(thresholds) == 2


def test_data_of_another_shape_is_refused():
    x = np.zeros((60, 3), dtype="float32")
    for name in ("wild", "ood"):
        with pytest.raises(wildood.InputError, match=rf"{name}: an example has shape \(2,\), expected \(3,\)"):
            wildood.posthoc(linear(), wildood.Odin(), holdout=x, **{name: np.zeros((60, 2), dtype="float32")})


def test_a_mixture_can_choose():
    rng = np.random.default_rng(0)
    known = rng.normal(loc=(3, 0, 0), size=(300, 3)).astype("float32")
    mixture = wildood.WildMixture(id=known[:100], ood=np.zeros((30, 3), dtype="float32"), pi=0.2)
    detector = wildood.posthoc(linear(), wildood.EnergyScore(None), holdout=known[100:], wild=mixture)
    assert detector.record["chosen"]["by"] == "wild acceptance"
