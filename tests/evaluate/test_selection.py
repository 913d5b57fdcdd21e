from itertools import pairwise

import numpy as np
import pytest

from wildood.evaluate.selection import Selection

ALL = np.ones(1000, dtype=bool)
KNOWN = np.linspace(0, 1, 100)


def share(part: float, *, examples: int = 1000, offset: int = 0) -> np.ndarray:
    """A mask that is true for this share of the examples, from a place on."""
    return np.roll(np.arange(examples) < round(part * examples), offset)


def scores(accepted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of known and of wild examples: at every threshold, these of the latter are accepted."""
    return KNOWN, np.where(accepted, -1.0, 2.0)


def selected(*epochs: tuple[np.ndarray, np.ndarray]) -> Selection:
    """A selection that has seen epochs: which wild examples they accept, and which known ones they classify correctly."""
    selection = Selection()
    for accepted, correct in epochs:
        selection.see(scores(accepted), correct)
    return selection


def kept(*epochs: tuple[np.ndarray, np.ndarray]) -> int:
    return selected(*epochs).kept


def improvements(*accepted: np.ndarray) -> list[bool]:
    selection, found = Selection(), []
    for each in accepted:
        selection.see(scores(each), ALL)
        found.append(selection.improved)
    return found


def test_a_clearly_smaller_acceptance_wins_over_a_later_epoch():
    assert kept((share(0.95), ALL), (share(0.80), ALL), (share(0.90), ALL)) == 1


def test_the_least_acceptance_wins_however_many_verdicts_changed():
    # 0.86 against 0.85, on 200 examples the verdict changed
    assert kept((share(0.95), ALL), (share(0.850), ALL), (share(0.86, offset=100), ALL)) == 1
    assert kept((share(0.95), ALL), (share(0.86), ALL), (share(0.850, offset=100), ALL)) == 2


def test_a_small_difference_counts_when_few_verdicts_changed():
    # twenty examples more are accepted and nothing else has changed
    assert kept((share(0.95), ALL), (share(0.85), ALL), (share(0.87), ALL)) == 1


def test_of_epochs_with_the_same_acceptance_the_first_is_kept():
    assert kept((share(0.95), ALL), (share(0.85), ALL), (share(0.85, offset=100), ALL)) == 1
    assert kept((share(0.85), ALL), (share(0.85, offset=100), ALL)) == 0


def test_an_epoch_that_lost_more_than_half_a_point_of_accuracy_is_never_kept():
    assert kept((share(0.95), share(0.90)), (share(0.85), share(0.895)), (share(0.50), share(0.85))) == 1


def test_accuracy_has_the_grace_of_its_paired_error_and_no_more():
    # of 100 examples one is lost: 1 point, of which 0.5 is allowed and 1 is the error; three lost are too many
    small = [share(part, examples=100) for part in (0.95, 0.5, 0.4)]
    right = [share(part, examples=100) for part in (1.0, 0.99, 0.97)]
    assert kept((small[0], right[0]), (small[1], right[1])) == 1
    assert kept((small[0], right[0]), (small[1], right[1]), (small[2], right[2])) == 1


def test_the_start_is_kept_when_every_epoch_lost_accuracy():
    assert kept((share(0.95), ALL), (share(0.2), share(0.9)), (share(0.1), share(0.8))) == 0


def test_the_start_is_kept_when_every_epoch_accepts_clearly_more():
    assert kept((share(0.70), ALL), (share(0.84), ALL), (share(0.90), ALL)) == 0


def test_acceptance_is_its_mean_over_all_false_alarm_rates_up_to_alpha():
    rng = np.random.default_rng(0)
    known, wild = rng.normal(size=200), rng.normal(size=300) + 1
    selection = Selection(alpha=0.1)
    selection.see((known, wild), ALL)
    thresholds = np.sort(known)[::-1][:20]  # with 0, 1 ... 19 of 200 false alarms
    assert selection.least == pytest.approx(np.mean([np.mean(wild <= threshold) for threshold in thresholds]))


def test_a_score_that_is_not_finite_is_a_rejection():
    wild = np.where(share(0.5), -1.0, 2.0)
    for strange in (np.nan, np.inf, -np.inf):
        selection = Selection()
        selection.see((KNOWN, wild), ALL)
        selection.see((KNOWN, np.where(share(0.3), strange, wild)), ALL)
        assert selection.least == pytest.approx(0.2)
        assert selection.kept == 1


def test_an_improvement_is_larger_than_its_standard_error():
    # Of 1000 examples, 10 fewer are accepted: no other verdict changed, or 200 did, with an error of about 0.014.
    assert improvements(share(0.95), share(0.94)) == [False, True]
    assert improvements(share(0.90), share(0.89, offset=105)) == [False, False]
    assert improvements(share(0.90), share(0.91)) == [False, False]


def test_improvements_are_counted_from_the_last_one_so_that_small_ones_add_up():
    # From epoch to epoch, 5 of 1000 examples fewer are accepted, and 55 verdicts change: after three, 15 are more than
    # sqrt(165).
    epochs = [share(0.90 - 0.005 * number, offset=30 * number) for number in range(5)]
    assert not any(improvements(first, second)[1] for first, second in pairwise(epochs))
    assert improvements(*epochs) == [False, False, False, True, False]
    assert improvements(share(0.9), share(0.8), share(0.85), share(0.8)) == [False, True, False, False]


def test_an_epoch_that_lost_accuracy_is_no_improvement():
    selection = selected((share(0.95), ALL), (share(0.2), share(0.9)))
    assert not selection.improved
    selection.see(scores(share(0.9)), ALL)
    assert selection.improved  # in comparison with the start


def test_noise_alone_is_an_improvement_about_as_often_as_one_standard_error_allows():
    """Epochs of equal quality, each with scores of its own: the probability is that of a normal value above 1, 0.16."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        selection = Selection(alpha=0.1)
        for _epoch in range(2):
            selection.see((rng.normal(size=500), rng.normal(size=500)), ALL)
        found.append(selection.improved)
    assert np.mean(found) == pytest.approx(0.16, abs=0.04)


@pytest.mark.parametrize("as_published", [False, True])
def test_a_selection_that_goes_on_from_its_state_chooses_the_same(as_published):
    epochs = [share(part) for part in (0.95, 0.9, 0.85, 0.87, 0.8, 0.8)]
    whole = Selection(as_published=as_published)
    for number, accepted in enumerate(epochs):
        before = Selection(as_published=as_published)
        before.load_state_dict(whole.state_dict())
        for each in (before, whole):
            each.see(scores(accepted), ALL)
        assert (before.kept, before.seen, before.improved) == (whole.kept, whole.seen, whole.improved)
        assert whole.seen == number + 1
    assert whole.kept == 4


def test_released_choice_is_the_first_least_whatever_it_costs_in_accuracy():
    selection = Selection(as_published=True)
    for accepted, correct in ((0.95, 0.9), (0.80, 0.9), (0.50, 0.2), (0.50, 0.9), (0.51, 0.9)):
        selection.see(scores(share(accepted)), share(correct))
    assert selection.kept == 2


def test_released_choice_never_keeps_the_start():
    selection = Selection(as_published=True)
    for accepted in (0.4, 0.6, 0.55):
        selection.see(scores(share(accepted)), ALL)
    assert selection.kept == 2


def test_released_choice_is_by_acceptance_at_the_threshold_of_alpha_alone():
    # In the last epoch, 40 examples are always accepted; 60 are rejected at alpha, but not with 2 of 100 false alarms.
    last = np.where(share(0.4, examples=100), -1.0, KNOWN[97])
    for as_published, expected in ((True, 2), (False, 1)):
        selection = Selection(alpha=0.05, as_published=as_published)
        for wild in (np.full(100, -1.0), np.where(share(0.5, examples=100), -1.0, 2.0), last):
            selection.see((KNOWN, wild), ALL)
        assert selection.kept == expected
