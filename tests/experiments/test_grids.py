from collections import Counter
from itertools import count

import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import (
    CPU_SETS,
    GRIDS,
    PAPER_SETS,
    PIS,
    TRAINED,
    add_own_methods,
    budget_texts,
    grid,
    only,
    register,
)
from wildood.methods.shipped import METHODS
from wildood.scores.shipped import NAMES as SCORES

NUMBERS = count()  # a module of another name for each text: Python imports one name once
METHOD = """
from dataclasses import dataclass, field
from wildood import OutlierExposure, Schedule
@dataclass(frozen=True)
class Mine:
    uses_wild, uses_features = True, False
    alpha: float = 0.05
    def schedule(self):
        return Schedule(steps=3)
    def objective(self, classifier, start):
        return OutlierExposure().objective(classifier, start)
"""
SCORE = """
from wildood.scores.score import Score
class Mine(Score):
    def __init__(self, k=3):
        super().__init__(k=k)
    def forward(self, outputs):
        return outputs.logits.sum(1)
"""


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


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A function from the text of a module to the name of its class Mine."""
    monkeypatch.chdir(tmp_path)
    made = []

    def write(text):
        made.append(f"mine_{next(NUMBERS)}")
        (tmp_path / f"{made[-1]}.py").write_text(text)
        return f"{made[-1]}:Mine"

    yield write
    for name in made:
        METHODS.pop(f"{name}:Mine", None)
        SCORES.pop(f"{name}:Mine", None)


def test_a_method_and_a_score_that_keep_the_contract_can_be_named(named):
    method, score = named(METHOD), named(SCORE)
    register([method, score])
    assert METHODS[method]().alpha == 0.05
    assert SCORES[score]().settings == {"k": 3}


def test_settings_may_be_numbers_texts_truth_values_none_and_lists(named):
    kinds = "0.05\n    a: int | None = None\n    b: str = 'x'\n    c: bool = True\n    d: tuple = (1, 'y', float('inf'))"
    name = named(METHOD.replace("0.05", kinds))
    register([name])
    experiment = Experiment("a.npz", ("b.npz",), "b.npz", 0.1, name)
    assert Experiment.from_toml(experiment.to_toml()).name == experiment.name


def test_every_score_and_method_of_wildood_keeps_the_contract():
    for name, cls in {**METHODS, **SCORES}.items():
        register([f"{cls.__module__}:{cls.__name__}"])
        assert (METHODS if name in METHODS else SCORES).pop(f"{cls.__module__}:{cls.__name__}") is cls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            METHOD.replace("alpha: float = 0.05", "alpha: float"),
            "cannot be made with no arguments .*give every setting a def",
        ),
        (METHOD.replace("alpha: float = 0.05", "beta: float = 1.0"), "Mine lacks alpha, which a method needs"),
        (METHOD.replace("uses_wild, uses_features", "wild, features"), "Mine lacks uses_wild, uses_features"),
        (METHOD.replace("def objective", "def goal"), "Mine lacks objective"),
        (METHOD.replace("def schedule", "schedule = 3\n    def steps"), r"Mine lacks schedule\(\)"),
        (METHOD.replace("return Schedule(steps=3)", "return 3"), r"schedule\(\) of Mine gives no wildood.Schedule"),
        (
            METHOD.replace("@dataclass(frozen=True)\n", ""),
            r"Mine is no frozen dataclass: write @dataclass\(frozen=True\) above it",
        ),
        (METHOD.replace("float = 0.05", "object = object()"), "Mine has the setting alpha = .*, which is not plain data"),
        (
            METHOD.replace("0.05", "0.05\n    more: object = field(default_factory=dict)"),
            "more = {}, which is not plain data",
        ),
        (METHOD.replace("0.05", "0.05\n    more: object = field(default_factory=lambda: [None])"), r"more = \[None\]"),
        (METHOD.replace("frozen=True", "frozen=False"), r"no frozen dataclass: write @dataclass\(frozen=True\)"),
        ("from wildood import Woods\nclass Mine(Woods):\n    weight: float = 0.3", r"no frozen dataclass: write"),
        (
            METHOD.replace("def schedule", "def steps").replace("alpha:", "schedule: object\n    alpha:"),
            r"Mine lacks schedule\(\), which a method needs",
        ),
        (
            SCORE.replace("super().__init__(k=k)", "super().__init__()"),
            "Mine keeps k to itself, .*: hand all settings to super",
        ),
        (SCORE.replace("def forward", "def backward"), "Mine lacks forward, which a score needs"),
        (SCORE.replace("k=3", "k"), "cannot be made with no arguments .missing 1 required .*'k'"),
        (SCORE.replace("k=k", "k=k, wind=k"), "cannot be made with its settings .* hand all of them to super"),
        ("class Mine: pass", "Mine is neither a Score nor a method such as Woods"),
        ("Mine = 3", "it is of type int, no class"),
        ("class Mine(", "was never closed"),
        ("class Other: pass", "has no attribute 'Mine'"),
    ],
)
def test_what_is_missing_is_told_in_one_line(text, said, named):
    name = named(text)
    with pytest.raises(InputError, match=said) as refused:
        register([name])
    assert "\n" not in str(refused.value)
    assert name not in {*METHODS, *SCORES}


def test_a_method_trains_as_long_as_woods_in_each_cell_with_its_own_learning_rate(named):
    name = named(METHOD.replace("Schedule(steps=3)", "Schedule(steps=3, batch=8, lr=0.5)"))
    register([name])
    experiments = add_own_methods(grid("cifar10-stationary", seeds=1), [name])
    woods, mine = ([each for each in experiments if each.method == method] for method in ("woods", name))
    assert len({each.wild for each in mine}) == len(mine) == 5
    for each in mine:
        assert each.schedule.lr == 0.5
        lengths = [other.schedule.length(25_000, [17_500, 2_763]) for other in (each, woods[0])]
        assert lengths == [(21, 2100), (21, 2100)]
        assert each.schedule.batch == woods[0].schedule.batch == 128
    said = "100 epochs of 128 + 128 examples, as woods has here (its own schedule: 3 steps of 8 + 8 examples)"
    assert budget_texts(experiments, [name]) == [f"{name}: {said}"]


def test_a_method_without_wild_data_keeps_its_schedule_and_a_score_has_none(named):
    alone, score = named(METHOD.replace("True, False", "False, False")), named(SCORE)
    register([alone, score])
    experiments = add_own_methods(grid("cifar10-stationary", seeds=1), [alone, score])
    assert {each.schedule.steps for each in experiments if each.method == alone} == {3}
    assert {each.schedule for each in experiments if each.method == score} == {None}
    said = "3 steps of 256 examples, its own schedule: it trains without wild data"
    assert budget_texts(experiments, [alone, score]) == [f"{alone}: {said}"]


@pytest.mark.parametrize("name", ["mymethod.py:Mine", "there/mymethod.py:Mine", "there/mymethod:Mine"])
def test_a_file_in_the_place_of_a_module_is_answered_with_what_to_type(name):
    with pytest.raises(InputError, match=r"not its file: --method mymethod:Mine, called in the directory of mymethod\.py"):
        register([name])


@pytest.mark.parametrize("name", ["..own:Mine", ".:Mine", "nowhere:Mine", ":Mine", "own:"])
def test_a_module_that_is_none_is_told_in_one_line(name):
    with pytest.raises(InputError, match=f"^--method {name}: ") as refused:
        register([name])
    assert "\n" not in str(refused.value)
