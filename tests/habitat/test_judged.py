"""The random sample of judged answers, and the drift of known scores that it shows."""

import numpy as np
import pytest
from scipy import stats

from wildood.habitat.answers import Judged
from wildood.habitat.judged import JudgedCounts, is_choice, is_evidence, is_random


def test_a_tenth_of_answers_is_random_and_has_three_parts():
    ids = np.arange(1, 200_001)
    assert is_random(ids).mean() == pytest.approx(0.1, abs=0.003)
    assert is_evidence(ids).mean() == pytest.approx(0.05, abs=0.002)
    assert is_choice(ids).mean() == pytest.approx(0.025, abs=0.002)
    assert not np.any((is_evidence(ids) | is_choice(ids)) & ~is_random(ids))
    assert not np.any(is_evidence(ids) & is_choice(ids))


def test_the_random_sample_has_no_rhythm():
    """Answers of a batch, a client or an hour are in it as often as others."""
    chosen = is_random(np.arange(1, 100_001))
    for period in (2, 7, 16, 100):
        by_phase = [chosen[phase::period].mean() for phase in range(period)]
        assert stats.chisquare([len(chosen) / period * rate for rate in by_phase]).pvalue > 1e-3


def test_the_same_answers_are_in_it_for_ever():
    assert np.flatnonzero(is_random(np.arange(60))).tolist() == [2, 18, 29, 30, 31, 43]


def test_counts_say_what_judgements_serve():
    ids = np.arange(1, 400)
    evidence, choice, fresh, chosen = (
        ids[is_evidence(ids)][:2],
        ids[is_choice(ids)][:1],
        ids[is_random(ids) & ~is_evidence(ids) & ~is_choice(ids)][:3],
        ids[~is_random(ids)][:4],
    )
    answer = np.concatenate([evidence, choice, fresh, chosen])
    classes = np.array([1, -1, 1, 0, 0, -1, 2, 2, 2, -1])
    columns = {"answered": np.arange(10.0), "time": np.zeros(10), "who": np.full(10, "ann")}
    judged = Judged(answer=answer, class_=classes, known=None, unknown=None, **columns)
    counts = JudgedCounts.of(judged)
    assert counts == JudgedCounts(evidence=1, choice=1, fresh=2, chosen=3, unknown=3, random_unknown=2, newest=4.0)
    assert counts.random == 4
    assert JudgedCounts.of(judged, since=400).random == 0
