"""The paper's Lemma in its corrected form, exact for finite distributions and hard decisions.

R0 is the share of ID rejected, R1 the share of OOD accepted, R_wild = pi R1 + (1 - pi)(1 - R0) the share of wild data
accepted. If some decision h* has the least R1 among those with R0 <= alpha, and R0(h*) = alpha, then for every decision
R1 - R1* = (R_wild - R_wild* + (1 - pi)(R0 - alpha)) / pi. (The paper prints R1* where R_wild* belongs.)
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wildood.evaluate.mixture import fpr_by_share
from wildood.evaluate.ranking import Candidate, rank_candidates

POINTS = 5
WEIGHTS = st.lists(st.integers(0, 6), min_size=POINTS, max_size=POINTS).filter(any)
DECISIONS = st.lists(st.lists(st.booleans(), min_size=POINTS, max_size=POINTS), min_size=1, max_size=12)
SHARES = st.fractions(min_value=Fraction(1, 50), max_value=1, max_denominator=50)


def probabilities(weights):
    return [Fraction(weight, sum(weights)) for weight in weights]


@dataclass(frozen=True)
class World:
    """P_in and P_out on a few points, and the share of P_out in the wild data."""

    known: list[Fraction]
    unknown: list[Fraction]
    pi: Fraction

    def r0(self, rejects):
        return sum(p for p, reject in zip(self.known, rejects, strict=True) if reject)

    def r1(self, rejects):
        return sum(p for p, reject in zip(self.unknown, rejects, strict=True) if not reject)

    def r_wild(self, rejects):
        wild = [self.pi * out + (1 - self.pi) * into for into, out in zip(self.known, self.unknown, strict=True)]
        return sum(p for p, reject in zip(wild, rejects, strict=True) if not reject)

    def least(self, risk, decisions, alpha):
        return min(risk(rejects) for rejects in decisions if self.r0(rejects) <= alpha)

    def reached(self, decisions, budget):
        """An alpha within the budget at which the best decision has exactly that false-alarm rate."""
        allowed = [rejects for rejects in decisions if self.r0(rejects) <= budget]
        return self.r0(min(allowed, key=self.r1)) if allowed else None


WORLDS = st.builds(World, WEIGHTS.map(probabilities), WEIGHTS.map(probabilities), SHARES)


@given(WORLDS, DECISIONS, st.fractions(0, 1, max_denominator=20))
@settings(deadline=None, derandomize=True)
def test_excess_fpr_is_the_excess_of_wild_acceptance_and_false_alarms(world, decisions, budget):
    alpha = world.reached(decisions, budget)
    assume(alpha is not None)
    best_r1, best_wild = (world.least(risk, decisions, alpha) for risk in (world.r1, world.r_wild))
    for rejects in decisions:
        excess = world.r_wild(rejects) - best_wild + (1 - world.pi) * (world.r0(rejects) - alpha)
        assert world.r1(rejects) - best_r1 == excess / world.pi


@given(WORLDS, DECISIONS)
@settings(deadline=None, derandomize=True)
def test_at_equal_false_alarms_less_wild_acceptance_is_less_fpr(world, decisions):
    for first in decisions:
        for second in decisions:
            if world.r0(first) == world.r0(second):
                assert (world.r_wild(first) < world.r_wild(second)) == (world.r1(first) < world.r1(second))


HALVES = World([Fraction(1, 2), Fraction(1, 2)], [Fraction(1, 4), Fraction(3, 4)], Fraction(1, 10))


def test_the_printed_form_is_no_upper_bound():
    decisions = [[False, False], [False, True]]
    world, alpha, rejects = HALVES, Fraction(1, 2), decisions[0]
    excess = world.r1(rejects) - world.least(world.r1, decisions, alpha)
    assert excess == Fraction(3, 4)
    corrected = world.r_wild(rejects) - world.least(world.r_wild, decisions, alpha) - (1 - world.pi) * alpha
    assert corrected / world.pi == excess
    sparse = World([Fraction(1, 2), Fraction(1, 2)], [Fraction(9, 10), Fraction(1, 10)], Fraction(9, 10))
    excess = sparse.r1(rejects) - sparse.least(sparse.r1, decisions, alpha)
    printed = sparse.r_wild(rejects) - sparse.least(sparse.r1, decisions, alpha) - (1 - sparse.pi) * alpha
    assert printed / sparse.pi < excess


def test_the_equality_needs_a_best_decision_that_uses_up_alpha():
    decisions, alpha = [[False, False], [False, True]], Fraction(3, 4)  # no decision has R0 = 3/4
    excess = HALVES.r1(decisions[0]) - HALVES.least(HALVES.r1, decisions, alpha)
    formula = HALVES.r_wild(decisions[0]) - HALVES.least(HALVES.r_wild, decisions, alpha) - (1 - HALVES.pi) * alpha
    assert formula / HALVES.pi != excess


def population(weights, scores, copies):
    """Each score as many times as its weight says."""
    return np.repeat(scores, np.asarray(weights) * copies)


@given(WEIGHTS, WEIGHTS, st.lists(st.integers(0, 9), min_size=POINTS, max_size=POINTS), st.integers(0, 9), st.integers(1, 4))
@settings(deadline=None, derandomize=True)
def test_fpr_by_share_is_the_fpr_where_the_wild_data_is_exactly_the_mixture(known, unknown, scores, threshold, parts):
    """Wild data of `parts` copies of all ID and one of all OOD, where every share is what it is in the distributions."""
    id_scores, ood_scores = (population(weights, scores, 1) for weights in (known, unknown))
    wild = np.concatenate([np.tile(id_scores, parts * len(ood_scores)), np.tile(ood_scores, len(id_scores))])
    found = fpr_by_share(id_scores, wild, threshold, share=1 / (parts + 1))
    assert found.fpr == pytest.approx(np.mean(ood_scores <= threshold), abs=1e-9)
    assert found.lower - 1e-9 <= found.fpr <= found.upper + 1e-9


@given(st.lists(st.permutations(range(20)), min_size=2, max_size=5), st.integers(1, 3))
@settings(deadline=None, derandomize=True)
def test_the_ranking_is_that_of_the_fpr_where_the_wild_data_is_exactly_the_mixture(orders, parts):
    """Candidates order 20 points, each with its own scores; ID is uniform on the first 12, OOD on the last 8."""
    scores = [np.array(order) for order in orders]
    candidates = [
        Candidate(str(number), one[:12], np.concatenate([np.tile(one[:12], 2 * parts), np.tile(one[12:], 3)]), [True] * 12)
        for number, one in enumerate(scores)
    ]
    ranking = rank_candidates(candidates, alpha=0.25)
    fpr = [np.mean(scores[place.index][12:] <= place.threshold) for place in ranking.places]
    assert fpr == sorted(fpr)
