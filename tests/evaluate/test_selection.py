import numpy as np

from wildood.evaluate.selection import Selection

ALL = np.ones(1000, dtype=bool)


def share(part: float, *, examples: int = 1000, offset: int = 0) -> np.ndarray:
    """A mask that is true for this share of the examples, from a place on."""
    return np.roll(np.arange(examples) < round(part * examples), offset)


def kept(*epochs: tuple[np.ndarray, np.ndarray]) -> int:
    selection = Selection()
    for accepted, correct in epochs:
        selection.see(accepted, correct)
    return selection.kept


def test_a_clearly_smaller_acceptance_wins_over_a_later_epoch():
    assert kept((share(0.95), ALL), (share(0.80), ALL), (share(0.90), ALL)) == 1


def test_among_epochs_that_cannot_be_told_apart_the_longest_trained_is_kept():
    # 0.86 against 0.85, but on 200 examples the verdict changed: twice the error is 2 sqrt(200) / 1000 = 0.028
    assert kept((share(0.95), ALL), (share(0.850), ALL), (share(0.86, offset=100), ALL)) == 2


def test_a_small_difference_counts_when_few_verdicts_changed():
    # twenty examples more are accepted and nothing else has changed: twice the error is 2 sqrt(20) / 1000 = 0.009
    assert kept((share(0.95), ALL), (share(0.85), ALL), (share(0.87), ALL)) == 1


def test_an_epoch_that_lost_more_than_a_point_of_accuracy_is_never_kept():
    assert kept((share(0.95), share(0.90)), (share(0.85), share(0.895)), (share(0.50), share(0.85))) == 1


def test_accuracy_has_the_grace_of_its_paired_error_and_no_more():
    # of 100 examples two are lost: 2 points, of which 1 is allowed and 1.4 is the error; four lost are too many
    small = [share(part, examples=100) for part in (0.95, 0.5, 0.4)]
    right = [share(part, examples=100) for part in (1.0, 0.98, 0.96)]
    assert kept((small[0], right[0]), (small[1], right[1])) == 1
    assert kept((small[0], right[0]), (small[1], right[1]), (small[2], right[2])) == 1


def test_the_start_is_kept_when_every_epoch_lost_accuracy():
    assert kept((share(0.95), ALL), (share(0.2), share(0.9)), (share(0.1), share(0.8))) == 0


def test_the_start_is_kept_when_every_epoch_accepts_clearly_more():
    assert kept((share(0.70), ALL), (share(0.84), ALL), (share(0.90), ALL)) == 0


def test_noise_alone_does_not_stop_the_training_early():
    """Epochs of equal quality, each with verdicts of its own: the last is kept about as often as the error allows."""
    rng = np.random.default_rng(0)
    last = [kept(*[(rng.random(200) < 0.86, np.ones(200, dtype=bool)) for _ in range(5)]) == 4 for _ in range(400)]
    assert np.mean(last) > 0.8


def test_released_choice_is_the_first_least_whatever_it_costs_in_accuracy():
    selection = Selection(as_published=True)
    for accepted, correct in ((0.95, 0.9), (0.80, 0.9), (0.50, 0.2), (0.50, 0.9), (0.51, 0.9)):
        selection.see(share(accepted), share(correct))
    assert selection.kept == 2


def test_released_choice_never_keeps_the_start():
    selection = Selection(as_published=True)
    for accepted in (0.4, 0.6, 0.55):
        selection.see(share(accepted), ALL)
    assert selection.kept == 2
