"""How a setting of a score is chosen: on one half of the holdout, and never by test data."""

import numpy as np
import pytest
import torch

import wildood
from wildood.data.validation import unlabelled_source
from wildood.detect.choose_score import choose_score
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.scores.score import Score


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
    chosen = choose_score(CANDIDATES, Classifier(torch.nn.Identity()), parts["known"], 0.05, wild=parts["wild"])
    assert chosen.score.shift in {5.0, 5.5}
    assert chosen.record["by"] == "wild acceptance"
    assert [row["shift"] for row in chosen.record["tried"]] == [0.0, -5.0, 5.0, 5.5]
    values = [row["criterion"] for row in chosen.record["tried"]]
    assert values[1] > values[0] > values[2]


def test_of_equal_candidates_the_first_is_taken(parts):
    chosen = choose_score(CANDIDATES[2:], Classifier(torch.nn.Identity()), parts["known"], 0.05, ood=parts["ood"])
    assert [row["criterion"] for row in chosen.record["tried"]] == [0.0, 0.0]
    assert chosen.score.shift == 5.0


def test_ood_labels_choose_if_the_caller_gives_them(parts):
    chosen = choose_score(CANDIDATES[:3], Classifier(torch.nn.Identity()), parts["known"], 0.05, parts["wild"], parts["ood"])
    assert (chosen.score.shift, chosen.record["by"]) == (5.0, "OOD labels")


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
    with pytest.raises(wildood.InputError, match="half of this holdout chose"):
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
