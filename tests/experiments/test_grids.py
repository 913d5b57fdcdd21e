from collections import Counter

import pytest

from wildood.errors import InputError
from wildood.experiments.grids import CPU_SETS, GRIDS, PAPER_SETS, PIS, TRAINED, grid, only


@pytest.mark.parametrize("name", ["cifar10-stationary", "cifar100-stationary"])
def test_stationary_grid_has_all_rows_and_the_published_settings(name):
    experiments = grid(name)
    assert {each.seed for each in experiments} == set(range(5))
    first = [each for each in experiments if each.seed == 0]
    assert Counter((each.method, each.wild) for each in first if each.trains and each.wild) == {
        (method, ood): count
        for ood in PAPER_SETS
        for method, count in (("oe", 3), ("energy-logistic", 3), ("woods", 6), ("woods-alt", 6))
    }
    assert {each.method for each in first} >= {"max-softmax", "odin", "energy", "mahalanobis", "godin", "csi"}
    woods = [each for each in first if each.method == "woods" and each.wild == "svhn"]
    assert {(each.settings["mu2"], each.settings["gamma"]) for each in woods} == {
        (mu2, gamma) for mu2 in (0.1, 1.0, 2.0) for gamma in (1.1, 1.5)
    }
    assert all(each.settings["published_schedule"] and each.schedule.epochs == 100 and each.pi == 0.1 for each in woods)
    assert all(each.protocol == "as_published" and each.model == "WideResNet" for each in experiments)


@pytest.mark.parametrize("name", ["cifar10-pi", "cifar100-pi"])
def test_grid_of_pi_has_300k_random_images_in_the_wild_and_six_test_sets(name):
    experiments = grid(name, seeds=1)
    assert {each.pi for each in experiments} == set(PIS)
    assert {each.wild for each in experiments} == {"300k"}
    assert {each.test for each in experiments} == {(*PAPER_SETS, "300k")}
    assert {each.schedule.epochs for each in experiments} == {50}
    assert {each.method for each in experiments} == set(TRAINED)


def test_cpu_grid_has_both_shapes_with_one_setting_of_each_method():
    experiments = grid("cpu")
    trained = [each for each in experiments if each.wild is not None]
    assert len({each.cell for each in experiments}) == len(experiments)
    assert {(each.method, each.wild) for each in trained if each.stationary} == {
        (method, ood) for method in TRAINED for ood in CPU_SETS
    }
    assert {(each.method, each.pi) for each in trained if not each.stationary} == {(m, pi) for m in TRAINED for pi in PIS}
    assert all(each.schedule.steps == 200 for each in experiments if each.trains)


def test_honest_protocol_starts_from_the_labelled_half_and_as_published_from_all():
    assert {each.start for each in grid("cifar10-stationary", 1, "honest")} == {"labelled"}
    assert {each.start for each in grid("cifar10-stationary", 1)} == {"all"}


def test_no_grid_has_an_experiment_twice():
    for name in GRIDS:
        names = [each.name for each in grid(name)]
        assert len(set(names)) == len(names)


def test_only_takes_those_that_every_word_names():
    experiments = grid("cpu")
    found = only(experiments, ["method=woods,oe", "ood=svhn", "pi=0.1", "wild=svhn"])
    assert {(each.method, each.wild) for each in found} == {("woods", "svhn.npz"), ("oe", "svhn.npz")}
    assert only(experiments, []) == experiments
    assert only(experiments, ["pi=.1,0.50"]) == only(experiments, ["pi=0.1,0.5"])


@pytest.mark.parametrize(
    ("word", "said"),
    [("metod=woods", "method="), ("method", "method="), ("method=wood", "woods-alt"), ("pi=0.3", "0.05"), ("seed=7", "0")],
)
def test_only_refuses_a_word_that_names_nothing_and_says_what_there_is(word, said):
    with pytest.raises(InputError, match="--only") as refused:
        only(grid("cpu"), [word])
    assert said in str(refused.value)


def test_unknown_grid_and_unknown_protocol_are_refused():
    with pytest.raises(InputError, match="cifar10-stationary"):
        grid("cifar11")
    with pytest.raises(InputError, match="no released protocol"):
        grid("digits", protocol="as_published")
