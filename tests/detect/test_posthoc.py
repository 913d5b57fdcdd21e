"""A post-hoc score on a model that knows too little: the user is told, at the cost of a few examples."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import wildood
from wildood.detect import posthoc as module


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
    real, counts = module.forward_all, []
    monkeypatch.setattr(module, "forward_all", lambda model, source: counts.append(len(source)) or real(model, source))
    given = {"labelled": toy.labelled, "holdout": toy.holdout}
    (said,) = warnings_of(caplog, untrained(trained()), wildood.EnergyScore(), **given)
    assert said.startswith("the model is right on only 0 %")
    assert counts == [40]


def test_the_look_changes_neither_scores_nor_the_threshold(toy, trained, monkeypatch):
    given = {"labelled": toy.labelled, "holdout": toy.holdout}
    looked = wildood.posthoc(trained(), wildood.Mahalanobis(), **given)
    monkeypatch.setattr(module, "_warn_if_untrained", lambda *_: None)
    not_looked = wildood.posthoc(trained(), wildood.Mahalanobis(), **given)
    assert looked.threshold == not_looked.threshold
    assert np.array_equal(looked.score(toy.test[0]), not_looked.score(toy.test[0]))
