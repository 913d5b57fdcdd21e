"""Candidates are ranked by what they accept of the wild data, and what is said about luck has the values on paper."""

from math import log, sqrt

import numpy as np
import pytest
from scipy import stats

from wildood.errors import InputError
from wildood.evaluate.ranking import Candidate, rank_candidates

ID = np.arange(100.0)  # the threshold for alpha = 0.05 is the 96th: 95
RIGHT = np.ones(100, dtype=bool)


def accepting(name, *accepted, wild=1000, correct=RIGHT, known=ID):
    """A candidate that accepts exactly these of the wild examples."""
    scores = np.full(wild, np.inf)
    scores[np.r_[accepted]] = 0.0
    return Candidate(name, known, scores, correct)


def correct_in(share):
    return np.arange(100) < round(share * 100)


def names(ranking):
    return [place.name for place in ranking.places]


def test_less_wild_acceptance_comes_first():
    ranking = rank_candidates([accepting("c", range(300)), accepting("a", range(100)), accepting("b", range(200))])
    assert names(ranking) == ["a", "b", "c"]
    assert [place.index for place in ranking.places] == [1, 2, 0]
    assert [place.wild_accepted for place in ranking.places] == [0.1, 0.2, 0.3]
    assert {place.threshold for place in ranking.places} == {95.0}


def test_each_candidate_has_its_own_threshold():
    small = Candidate("small", ID / 1000, np.r_[np.zeros(90), np.ones(10)], RIGHT)
    large = Candidate("large", ID * 1000, np.r_[np.zeros(80), np.full(20, 1e6)], RIGHT)
    ranking = rank_candidates([small, large])
    assert [(place.name, place.threshold) for place in ranking.places] == [("large", 95_000.0), ("small", 0.095)]


def test_a_candidate_that_lost_more_than_a_point_of_accuracy_comes_last():
    candidates = [
        accepting("lost", range(10), correct=correct_in(0.88)),
        accepting("best", range(300), correct=correct_in(0.90)),
        accepting("a point less", range(200), correct=correct_in(0.89)),
        accepting("lost more", range(5), correct=correct_in(0.5)),
    ]
    ranking = rank_candidates(candidates)
    assert names(ranking) == ["a point less", "best", "lost more", "lost"]
    assert [place.eligible for place in ranking.places] == [True, True, False, False]
    assert names(rank_candidates(candidates, accuracy_loss=0.02))[0] == "lost"
    assert [place.eligible for place in rank_candidates(candidates, reference=0.91).places] == [True, False, False, False]


def test_no_candidate_that_is_accurate_enough_is_an_error():
    with pytest.raises(InputError, match=r"no candidate reaches an accuracy of 0\.94, the best has 0\.9"):
        rank_candidates([accepting("a", range(5), correct=correct_in(0.9))], reference=0.95)


def test_equal_acceptance_is_decided_by_accuracy_and_then_by_order():
    candidates = [
        accepting(name, range(50), correct=correct_in(share)) for name, share in (("a", 0.9), ("b", 0.905), ("c", 0.9))
    ]
    more = accepting("d", range(50), correct=correct_in(0.91))
    assert names(rank_candidates([*candidates, more])) == ["d", "a", "b", "c"]


def where_thresholds_do_not_matter(name, *accepted, correct=1.0):
    """Accepts exactly these of 1000 wild examples at any threshold that 4000 ID examples may give."""
    return accepting(name, *accepted, known=np.arange(4000.0), correct=np.arange(4000) < round(correct * 4000))


def test_the_p_value_is_that_of_the_paired_sign_test_for_two_orders_and_with_half_of_the_error():
    first = where_thresholds_do_not_matter("first", range(100))
    other = where_thresholds_do_not_matter("other", range(92, 120))  # 92 accepted by the first only, 20 by the other only
    ranking = rank_candidates([first, other])
    assert names(ranking) == ["other", "first"]
    expected = 2 * 2 * stats.binomtest(20, 112, alternative="less").pvalue
    assert [place.p_value for place in ranking.places] == pytest.approx([1.0, expected], rel=1e-9)


def test_p_values_account_for_every_pair_of_an_eligible_candidate_and_another():
    best, same = (where_thresholds_do_not_matter(name, range(100)) for name in ("best", "same"))
    more = [where_thresholds_do_not_matter(str(place), range(100), range(200 + place, 212 + place)) for place in (0, 20, 40)]
    found = {place.name: place.p_value for place in rank_candidates([best, *more, same]).places}
    assert [found[place] for place in ("0", "20", "40")] == pytest.approx([2 * 5 * 4 * 2**-12] * 3)
    assert (found["best"], found["same"]) == (1.0, 1.0)
    wrong = where_thresholds_do_not_matter("wrong", range(100), range(300, 312), correct=0.5)  # it cannot come first
    found = {place.name: place.p_value for place in rank_candidates([best, same, wrong]).places}
    assert found["wrong"] == pytest.approx(2 * 2 * 2 * 2**-12)


def test_p_values_are_those_of_thresholds_on_the_safe_side():
    """The definition, with scipy: the smallest 2 a at which limits and sign test, each with its part of a, both hold."""
    rng, n, m, count = np.random.default_rng(0), 500, 800, 3
    known, wild = rng.normal(size=(count, n)), rng.normal(size=(count, m)) + np.array([1.0, 2.0, 1.5])[:, None]
    ranking = rank_candidates([Candidate(str(i), known[i], wild[i], np.ones(n, dtype=bool)) for i in range(count)], 0.1)
    known.sort(axis=1)
    assert names(ranking) == ["1", "2", "0"]
    for place in ranking.places[1:]:
        expected = []
        for a in 0.5 ** np.arange(1, 40):
            low = int(stats.binom.ppf(a / (2 * count), n, 0.9))  # fewer than this many below the quantile: too seldom
            high = n + 1 - int(stats.binom.ppf(a / (2 * count), n, 0.1))
            ours = wild[1] <= np.append(known[1], np.inf)[high - 1]
            theirs = wild[place.index] <= np.append(-np.inf, known[place.index])[low]
            test = stats.binomtest(int(np.sum(ours & ~theirs)), int(np.sum(ours != theirs)), alternative="less").pvalue
            expected.append(2 * max(a, count * (count - 1) * test))
        assert place.p_value == pytest.approx(min(1.0, *expected), rel=1e-9)
    assert ranking.places[2].p_value < 1e-3 < ranking.places[1].p_value


def test_too_few_id_examples_to_bound_the_thresholds_leave_a_p_value_of_1():
    few = [Candidate(name, np.arange(20.0), np.full(500, score), RIGHT[:20]) for name, score in (("a", 99.0), ("b", 0.0))]
    assert [place.p_value for place in rank_candidates(few).places] == [1.0, 1.0]


def test_candidates_that_are_not_accurate_enough_do_not_weigh_on_the_separation():
    known, right = np.arange(4000.0), np.ones(4000, dtype=bool)
    best, far = (
        accepting(name, range(count), wild=4000, known=known, correct=right)
        for name, count in (("best", 3000), ("far", 3300))
    )
    wrong = [accepting(str(number), range(2999), wild=4000, known=known, correct=known < 2000) for number in range(9)]
    ranking = rank_candidates([best, far, *wrong])
    assert names(ranking)[:2] == ["best", "far"]
    assert ranking.separated


def test_excess_fpr_is_the_corollary_with_its_constants():
    ranking = rank_candidates([accepting(str(number), range(number)) for number in range(1, 4)], confidence=0.9)
    wild_error, id_error = (sqrt(log(4 * 3 / 0.1) / (2 * count)) for count in (1000, 100))
    expected = [2 * (wild_error + (1 - pi) * id_error) / pi for pi in (0.8, 1.0)]
    np.testing.assert_allclose(ranking.excess_fpr([0.8, 1.0]), expected)
    assert ranking.excess_fpr(0.01) == 1.0


def test_ties_on_the_id_side_add_to_the_excess():
    tied = np.where(ID >= 90, 90.0, ID)  # its threshold accepts all 100, the others' 96
    plain, uneven = accepting("plain", range(10)), accepting("tied", range(20), known=tied)
    even = rank_candidates([plain, accepting("b", range(20))])
    ranking = rank_candidates([plain, uneven])
    assert ranking.uneven == pytest.approx(0.04)
    np.testing.assert_allclose(ranking.excess_fpr(0.95), even.excess_fpr(0.95) + 0.05 * 0.04 / 0.95)
    # Where the first is the one that accepts more of ID, nothing is added.
    assert rank_candidates([accepting("a", range(20)), accepting("tied", range(10), known=tied)]).uneven == 0


def test_paired_excess_is_that_of_the_exact_limits():
    ranking = rank_candidates([accepting("a", range(100)), accepting("b", range(90, 200))], confidence=0.95)
    only_a, only_b = stats.beta.isf(0.0125, 91, 910), stats.beta.ppf(0.0125, 100, 901)
    tpr = stats.beta.isf(0.05 / 8, 97, 4) - stats.beta.ppf(0.05 / 8, 96, 5)
    for pi in (0.3, 0.9, 1.0):
        expected = (only_a - only_b + (1 - pi) * tpr) / pi
        assert ranking.paired_excess_fpr(pi) == pytest.approx(expected, rel=1e-6)


def test_paired_excess_is_tighter_than_the_uniform_one():
    rng = np.random.default_rng(0)
    shared, noise = rng.random(8000), rng.normal(size=(6, 8000)) * 0.01
    candidates = [
        Candidate(str(i), (shared + e)[:4000], (shared + e)[4000:], np.ones(4000, dtype=bool)) for i, e in enumerate(noise)
    ]
    ranking = rank_candidates(candidates)
    shares = np.array([0.3, 0.5, 1.0])
    assert np.all(ranking.paired_excess_fpr(shares) < 0.6 * ranking.excess_fpr(shares))


def test_separated_is_said_where_no_luck_of_thresholds_explains_the_difference():
    known, right = np.arange(4000.0), np.ones(4000, dtype=bool)
    best, close, far = (
        accepting(name, range(count), wild=4000, known=known, correct=right)
        for name, count in (("best", 3000), ("close", 3030), ("far", 3300))
    )
    ranking = rank_candidates([best, close])
    assert not ranking.separated
    assert ranking.places[1].p_value < 1e-6  # at one rate less is accepted, but the thresholds may have other rates by luck
    assert ranking.paired_excess_fpr(0.1) > 0
    ranking = rank_candidates([best, far])
    assert ranking.separated
    assert ranking.paired_excess_fpr([1e-6, 0.1, 1.0]).tolist() == [0, 0, 0]


def test_a_single_candidate_is_its_own_best():
    ranking = rank_candidates([accepting("only", range(10))])
    assert not ranking.separated
    assert ranking.paired_excess_fpr([0.1, 1.0]).tolist() == [0, 0]
    assert str(ranking) == "only is the only candidate: it accepts 1.0 % of the wild data"
    wrong = accepting("wrong", range(5), correct=correct_in(0.1))
    assert "only is the only candidate that is accurate enough" in str(
        rank_candidates([accepting("only", range(10)), wrong])
    )


def test_what_it_says_names_the_first_and_the_second():
    ranking = rank_candidates([accepting("a", range(10)), accepting("b", range(12)), accepting("c", range(500))])
    assert str(ranking) == (
        "a accepts the least of the wild data, 1.0 %; next is b with 1.2 %: luck may explain it (95 % confidence)"
    )


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "no candidate"),
        ([Candidate("a", ID, ID, RIGHT[:50])], "a: `correct` is no mask"),
        ([Candidate("a", ID, ID, np.ones(100))], "a: `correct` is no mask"),
        ([Candidate("a", ID, [], RIGHT)], "a: wild scores have shape"),
        ([Candidate("a", ID * np.nan, ID, RIGHT)], "a: ID scores contain NaN"),
        ([Candidate("a", ID[:10], ID, RIGHT[:10])], "10 holdout examples cannot promise"),
        ([accepting("a", range(5)), accepting("b", range(5), wild=900)], "b has .* score the same examples"),
    ],
)
def test_unusable_candidates_are_refused_by_name(candidates, message):
    with pytest.raises(InputError, match=message):
        rank_candidates(candidates)


def test_a_share_or_confidence_outside_its_range_is_refused():
    ranking = rank_candidates([accepting("a", range(5))])
    for bound in (ranking.excess_fpr, ranking.paired_excess_fpr):
        with pytest.raises(InputError, match="share is"):
            bound(0)
    with pytest.raises(InputError, match="confidence is 2"):
        rank_candidates([accepting("a", range(5))], confidence=2)
