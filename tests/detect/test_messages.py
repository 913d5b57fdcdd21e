"""What `fit` tells a person, and what becomes of it where nobody listens."""

import numpy as np

import wildood


class NobodyReads:
    """Standard error whose reader has gone."""

    def write(self, _text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError

    def isatty(self):
        return False


def test_training_goes_on_where_nobody_reads_its_lines(toy, trained, schedule, monkeypatch):
    data = toy.labelled, toy.wild, toy.holdout
    expected = wildood.fit(trained(), *data, schedule=schedule, verbose=False)
    monkeypatch.setattr("sys.stderr", NobodyReads())
    found = wildood.fit(trained(), *data, schedule=schedule)
    assert found.threshold == expected.threshold


def test_few_wild_examples_that_choose_the_epoch_are_told_of(toy, trained, schedule, caplog):
    wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)
    assert "only" not in caplog.text
    wildood.fit(trained(), toy.labelled, toy.wild[:8], toy.holdout, schedule=schedule, verbose=False)
    assert "only 4 wild examples choose the epoch" in caplog.text


def test_line_on_the_kept_epoch_says_by_how_many_examples(toy, trained, schedule, caplog):
    caplog.set_level("INFO", "wildood")
    unknown = np.random.default_rng(0).normal(5, 0.5, (40, 2)).astype(np.float32)  # of which the start accepts most
    wild = np.concatenate([toy.wild, toy.test[0][:160], unknown, unknown + 0.1])
    wildood.fit(trained(), toy.labelled, wild, toy.holdout, schedule=wildood.Schedule(steps=60, batch=64))
    assert " % of 170 examples set aside" in caplog.text
