"""Tables of results: means and errors by hand, validation data chooses, and nothing looks more complete than it is."""

import math
from dataclasses import replace

import pytest

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import Failure, OodMetrics, Result
from wildood.experiments.tables import AVERAGE, METHOD_TITLES, SET_TITLES, STAND_INS, result_tables
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.scores.shipped import NAMES as SCORES


def measured(fpr95, auroc=0.9, accepted=0.1):
    return OodMetrics(fpr95, 0.01, auroc, 0.9, 0.9, accepted, 100)


def ran(fpr95, method="woods", *, pi=0.1, wild="svhn", seed=0, auroc=0.9, accuracy=0.8, acceptance=0.9, lost=0.0, **more):
    """A run of the stationary kind: `fpr95` on the one set that was in the wild, or on those given by name."""
    found = fpr95 if isinstance(fpr95, dict) else {wild: fpr95}
    tests = {name: measured(value, auroc) for name, value in found.items()}
    setting = {"id": "cifar10", "test": tuple(tests), "wild": wild, "pi": pi, "method": method, "seed": seed} | more
    experiment = Experiment(**setting)
    return Result(experiment, tests, accuracy, 0.05, 100, acceptance=acceptance, accuracy_lost=lost)


def alone(fpr95, method="energy", **more):
    """A run without wild data."""
    return ran(fpr95, method, wild=None, pi=0.0, **{"acceptance": None} | more)


def failed(result):
    return Failure(result.experiment, "it broke", "Traceback")


def only_table(*results, failures=()):
    [table] = result_tables(results, failures)
    return table


def only_row(*results, failures=()):
    [row] = only_table(*results, failures=failures).rows
    return row


def test_mean_and_standard_error_are_over_seeds():
    row = only_row(ran(0.1, seed=0, accuracy=0.7), ran(0.2, seed=1, accuracy=0.8), ran(0.6, seed=2, accuracy=0.9))
    fpr95, auroc = (row.cells["svhn"][metric] for metric in ("fpr95", "auroc"))
    assert fpr95.mean == pytest.approx(0.3)
    assert fpr95.error == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2) / math.sqrt(3))
    assert (auroc.mean, auroc.error) == pytest.approx((0.9, 0.0))
    assert (row.accuracy.mean, row.accuracy.error) == pytest.approx((0.8, 0.1 / math.sqrt(3)))
    assert (row.seeds, fpr95.seeds) == (3, 3)


def test_one_seed_has_no_error():
    row = only_row(ran(0.1))
    assert (row.cells["svhn"]["fpr95"].error, row.accuracy.error, row.seeds) == (None, None, 1)


def test_validation_chooses_the_setting_and_the_test_does_not():
    better_test = ran(0.01, acceptance=0.9, settings={"alpha": 0.05})
    better_validation = ran(0.5, acceptance=0.8, settings={"alpha": 0.1})
    row = only_row(better_test, better_validation)
    assert row.cells["svhn"]["fpr95"].mean == 0.5
    assert row.settings == {"svhn": "alpha 0.1"}
    assert row.runs == (better_validation.experiment.name,)


def test_each_seed_chooses_for_itself_and_the_row_tells_it():
    runs = [
        ran(0.1, seed=seed, acceptance=acceptance, settings={"alpha": alpha})
        for seed, alpha, acceptance in [
            (0, 0.05, 0.7),
            (0, 0.1, 0.8),
            (1, 0.05, 0.7),
            (1, 0.1, 0.8),
            (2, 0.05, 0.8),
            (2, 0.1, 0.7),
        ]
    ]
    row = only_row(*runs)
    assert row.settings == {"svhn": "alpha 0.05 (2 of 3 seeds); alpha 0.1 (1 of 3 seeds)"}
    assert row.runs == tuple(runs[number].experiment.name for number in (0, 2, 5))


def test_each_set_chooses_for_itself():
    runs = [
        ran(fpr95, wild=wild, acceptance=acceptance, settings={"alpha": alpha})
        for wild, alpha, acceptance, fpr95 in [
            ("svhn", 0.05, 0.7, 0.1),
            ("svhn", 0.1, 0.8, 0.2),
            ("textures", 0.05, 0.8, 0.3),
            ("textures", 0.1, 0.7, 0.4),
        ]
    ]
    row = only_row(*runs)
    assert row.settings == {"svhn": "alpha 0.05", "textures": "alpha 0.1"}
    assert row.cells[AVERAGE]["fpr95"].mean == pytest.approx((0.1 + 0.4) / 2)


@pytest.mark.parametrize(
    ("protocol", "losses", "expected"),
    [
        ("honest", (0.02, 0.01), 0.2),  # the first costs too much accuracy
        ("honest", (0.95 - 0.94, 0.0), 0.1),  # 0.01 as far as floating point can tell
        ("honest", (0.05, 0.03), 0.1),  # none keeps it: all are considered
        ("as_published", (0.02, 0.0), 0.1),  # accuracy does not matter
    ],
)
def test_an_honest_choice_keeps_accuracy_if_it_can(protocol, losses, expected):
    runs = [
        ran(fpr95, acceptance=acceptance, lost=lost, settings={"alpha": alpha}, protocol=protocol)
        for fpr95, acceptance, lost, alpha in zip((0.1, 0.2), (0.5, 0.6), losses, (0.05, 0.1), strict=True)
    ]
    assert only_row(*runs).cells["svhn"]["fpr95"].mean == expected


def test_settings_that_nothing_can_choose_among_are_rows_that_tell_them_apart():
    runs = [
        alone({"svhn": fpr95}, "odin", seed=seed, settings={"temperature": value})
        for value, fpr95 in ((1.0, 0.1), (1000.0, 0.3))
        for seed in (0, 1)
    ]
    broken = failed(alone({"svhn": 0.0}, "odin", seed=2, settings={"temperature": 1000.0}))
    table = only_table(*runs, alone({"svhn": 0.5}), failures=[broken])
    assert [(row.title, row.cells["svhn"]["fpr95"].mean, row.seeds, row.failed) for row in table.rows] == [
        ("ODIN (temperature 1.0)", 0.1, 2, 0),
        ("ODIN (temperature 1000.0)", 0.3, 2, 1),
        ("energy", 0.5, 1, 0),
    ]
    assert [row.settings for row in table.rows] == [{}, {}, {}]


def test_trainings_that_nothing_can_choose_among_are_rows_too():
    runs = [ran(fpr95, settings={"alpha": fpr95}, acceptance=None) for fpr95 in (0.05, 0.1)]
    assert [row.title for row in only_table(*runs).rows] == ["WOODS (alpha 0.05)", "WOODS (alpha 0.1)"]


def test_a_choice_among_fewer_settings_than_other_seeds_have_is_told():
    def grid(seed, alphas, wild="svhn"):
        return [ran(0.1, seed=seed, wild=wild, acceptance=alpha, settings={"alpha": alpha}) for alpha in alphas]

    whole = (0.05, 0.1, 0.2)
    row = only_row(
        *grid(0, whole), *grid(1, whole[:2]), *grid(2, whole[1:2]), *grid(0, whole, "textures"), *grid(1, whole, "textures")
    )
    assert row.incomplete == {"svhn": "seed 1 chose among 2 of 3 settings, seed 2 chose among 1 of 3 settings"}
    assert only_row(*grid(0, whole), *grid(1, whole)).incomplete == {}


def test_runs_of_different_code_or_versions_are_told():
    versions = [{"torch": "2.13.0", "threads": threads} for threads in ("1", "2")] + [{"torch": "2.12.0", "threads": "1"}]
    runs = [
        replace(ran(0.1, seed=seed), about={"code": code, "versions": each})
        for seed, (code, each) in enumerate(zip(("a1", "a1", "b2"), versions, strict=True))
    ]
    assert only_table(*runs).origins == (
        "The runs come from different code: a1 (2 runs), b2 (1 run)",
        "The runs come from different versions of torch: 2.12.0 (1 run), 2.13.0 (2 runs)",
    )
    assert only_table(*runs[:2]).origins == ()
    assert only_table(ran(0.1), ran(0.1, seed=1)).origins == ()
    assert only_table(*runs[:2], ran(0.1, seed=3)).origins == (
        "The runs come from different code: a1 (2 runs), unknown (1 run)",
        "The runs come from different versions of torch: 2.13.0 (2 runs), unknown (1 run)",
    )


@pytest.mark.parametrize(
    ("protocol", "wild", "metrics"),
    [
        ("as_published", "svhn", ("accepted", "auroc")),  # Tables 1 and A1
        ("as_published", "300k", ("fpr95", "auroc")),  # Tables 2 and A2
        ("honest", "svhn", ("fpr95", "auroc")),
        ("honest", "300k", ("fpr95", "auroc")),
    ],
)
def test_a_published_stationary_table_shows_what_is_accepted_at_the_threshold_of_validation(protocol, wild, metrics):
    runs = [
        replace(
            ran({"svhn": fpr95}, "woods", wild=wild, seed=seed, protocol=protocol), tests={"svhn": measured(fpr95, 0.9, got)}
        )
        for seed, (fpr95, got) in enumerate([(0.5, 0.2), (0.5, 0.4)])
    ]
    table = only_table(*runs)
    cells = table.rows[0].cells["svhn"]
    assert (cells["fpr95"].mean, cells["accepted"].mean, cells["accepted"].error) == pytest.approx((0.5, 0.3, 0.1))
    assert table.metrics == metrics
    assert table.shown(table.rows[0], "svhn") == (cells[metrics[0]], cells["auroc"])
    assert table.shown(table.rows[0], "textures") == (None, None)


def test_the_least_accepted_is_best():
    made = [(ran(0.1, method), got) for method, got in (("oe", 0.3), ("woods", 0.2))]
    table = only_table(*[replace(run, tests={"svhn": measured(0.1, accepted=got)}) for run, got in made])
    assert [row.cells["svhn"]["accepted"].best for row in table.rows] == [False, True]


def test_methods_of_a_users_own_have_a_row_each_after_the_papers(monkeypatch):
    for name in ("mine:B", "mine:A"):
        monkeypatch.setitem(METHODS, name, METHODS["woods"])
    table = only_table(ran(0.3, "mine:B"), ran(0.2, "mine:A"), ran(0.1))
    assert [(row.title, row.cells["svhn"]["fpr95"].mean) for row in table.rows] == [
        ("WOODS", 0.1),
        ("mine:A", 0.2),
        ("mine:B", 0.3),
    ]


def test_an_average_is_taken_for_each_seed_over_all_sets():
    runs = [
        ran(fpr95, wild=wild, seed=seed, accuracy=accuracy)
        for seed, wild, fpr95, accuracy in [
            (0, "svhn", 0.1, 0.7),
            (0, "textures", 0.3, 0.9),
            (1, "svhn", 0.2, 0.6),
            (1, "textures", 0.6, 1.0),
            (2, "svhn", 0.9, 0.8),  # its other run is missing
        ]
    ]
    row = only_row(*runs)
    average = row.cells[AVERAGE]["fpr95"]  # of 0.2 and 0.4
    assert (average.mean, average.error, average.seeds) == pytest.approx((0.3, 0.1, 2))
    assert (row.accuracy.mean, row.accuracy.error) == pytest.approx((0.8, 0.0))
    assert row.cells["svhn"]["fpr95"].mean == pytest.approx(0.4)
    assert [row.cells[name]["fpr95"].seeds for name in ("svhn", "textures")] == [3, 2]
    assert row.seeds == 2


def test_a_row_without_all_sets_has_no_average():
    table = only_table(ran(0.1, wild="svhn"), ran(0.1, "oe", wild="svhn"), ran(0.2, "oe", wild="textures"))
    assert [(row.method, sorted(row.cells)) for row in table.rows] == [
        ("oe", [AVERAGE, "svhn", "textures"]),
        ("woods", ["svhn"]),
    ]


def test_a_table_of_one_set_has_no_average():
    assert list(only_row(ran(0.1)).cells) == ["svhn"]


def test_runs_without_wild_data_stand_above_those_with_it():
    table = only_table(ran(0.1), ran(0.2, wild="textures"), alone({"svhn": 0.3, "textures": 0.5}))
    assert [(row.block, row.title, row.pi) for row in table.rows] == [
        ("with P_in only", "energy", None),
        ("with P_in and P_wild", "WOODS", 0.1),
    ]
    assert (table.stationary, table.wild, table.sets) == (True, None, ("svhn", "textures"))
    assert table.rows[0].cells[AVERAGE]["fpr95"].mean == pytest.approx(0.4)


def test_several_shares_make_a_block_each_in_ascending_order():
    table = only_table(ran(0.1, pi=1.0), ran(0.1, pi=0.05), ran(0.1, pi=0.1), ran(0.1, "oe", pi=0.1), alone({"svhn": 0.1}))
    assert [(row.block, row.title) for row in table.rows] == [
        ("with P_in only", "energy"),
        ("π = 0.05", "WOODS"),
        ("π = 0.1", "OE"),
        ("π = 0.1", "WOODS"),
        ("π = 1", "WOODS"),
    ]


def test_wild_data_from_another_set_makes_a_table_of_its_own():
    moved = ran({"svhn": 0.2, "300k": 0.3}, wild="300k")
    first, second = result_tables([moved, alone({"svhn": 0.1})])
    assert (first.stationary, first.sets, [row.block for row in first.rows]) == (True, ("svhn",), ["with P_in only"])
    assert (second.stationary, second.wild, second.sets) == (False, "300k", ("svhn", "300k"))
    assert [row.block for row in second.rows] == ["π = 0.1"]


def test_tables_are_apart_where_conditions_are_and_tell_how():
    runs = [
        ran(0.1),
        ran(0.1, keep="best"),
        ran(0.1, model_settings={"depth": 16}),
        ran(0.1, protocol="as_published"),
        ran(0.1, id="cifar100"),
    ]
    tables = result_tables(runs)
    assert [(table.id, table.protocol) for table in tables] == [
        *[("cifar10", "honest")] * 3,
        ("cifar10", "as_published"),
        ("cifar100", "honest"),
    ]
    assert sorted(table.differs for table in tables) == [
        "",
        "",
        "keep best, model_settings depth none",
        "keep last, model_settings depth 16",
        "keep last, model_settings depth none",
    ]
    assert {(table.model, table.start) for table in tables} == {("WideResNet", "labelled")}


def test_tables_of_mixed_directories_are_told_apart_by_few_words():
    small = {"model": "SmallCNN", "mean": (0.5,), "std": (0.5,), "pretraining": Schedule(epochs=40, lr=0.05, factor=0.2)}
    resnet = {"model": "ResNet20", "start": "weights/a.safetensors"}
    tables = result_tables([ran(0.1), ran(0.1, **small), ran(0.1, **resnet), ran(0.1, **resnet, keep="best")])
    assert sorted(table.differs for table in tables) == [
        "model ResNet20, keep best",
        "model ResNet20, keep last",
        "model SmallCNN, keep last",
        "model WideResNet, keep last",
    ]


def test_schedules_of_one_method_are_rows_that_tell_them_apart():
    table = only_table(ran(0.1, schedule=Schedule(steps=100)), ran(0.2, schedule=Schedule(steps=50)), ran(0.3, "oe"))
    assert [(row.title, row.cells["svhn"]["fpr95"].mean) for row in table.rows] == [
        ("OE", 0.3),
        ("WOODS (steps 100)", 0.1),
        ("WOODS (steps 50)", 0.2),
    ]


def bests(table, name="svhn"):
    return [[row.cells[name][metric].best for metric in ("fpr95", "auroc")] for row in table.rows]


def test_best_is_marked_over_both_blocks_of_a_table_with_one_share():
    table = only_table(alone({"svhn": 0.3}, auroc=0.95), ran(0.2, "oe", auroc=0.93), ran(0.1, auroc=0.92))
    assert bests(table) == [[False, True], [False, False], [True, False]]


def test_best_is_marked_within_each_block_of_a_table_with_several_shares():
    runs = [alone({"svhn": 0.3}), alone({"svhn": 0.4}, "max-softmax")]
    runs += [ran(fpr95, method, pi=pi) for fpr95, method, pi in [(0.2, "oe", 0.1), (0.1, "woods", 0.1), (0.05, "oe", 0.5)]]
    table = only_table(*runs, ran(0.09, "woods", pi=0.5))
    assert [row.title for row in table.rows if row.cells["svhn"]["fpr95"].best] == ["energy", "WOODS", "OE"]


def test_ties_to_two_decimals_of_percent_are_all_best():
    table = only_table(
        ran(0.10001, "oe", accuracy=0.90001), ran(0.10004, accuracy=0.90004), ran(0.1002, "woods-alt", accuracy=0.8999)
    )
    assert [fpr95 for fpr95, _ in bests(table)] == [True, True, False]
    assert [row.accuracy.best for row in table.rows] == [True, True, False]


def test_a_number_without_another_to_compare_with_is_not_best():
    table = only_table(ran(0.1), ran(0.2, "oe"), ran(0.1, "oe", wild="textures"))
    oe, woods = table.rows
    assert [cell.best for cell in oe.cells["textures"].values()] == [False, False, False]
    assert woods.cells["svhn"]["fpr95"].best


def test_averages_have_a_best_too():
    runs = [
        ran(fpr95, method, wild=wild) for method, fpr95 in (("oe", 0.2), ("woods", 0.1)) for wild in ("svhn", "textures")
    ]
    assert [fpr95 for fpr95, _ in bests(only_table(*runs), AVERAGE)] == [False, True]


def test_failures_are_counted_in_their_row():
    done = ran(0.1, seed=0)
    row = only_row(done, failures=[failed(ran(0.1, seed=1)), failed(ran(0.1, seed=2))])
    assert (row.failed, row.seeds, row.runs) == (2, 1, (done.experiment.name,))


def test_a_row_of_failures_only_has_no_cells():
    table = only_table(ran(0.1), failures=[failed(ran(0.1, "oe"))])
    oe = table.rows[0]
    assert (oe.title, oe.cells, oe.accuracy, oe.seeds, oe.failed, oe.runs) == ("OE", {}, None, 0, 1, ())
    assert table.rows[1].cells["svhn"]["fpr95"].best is False


def test_a_set_on_which_all_runs_failed_is_missed_in_the_average():
    table = only_table(ran(0.1), ran(0.2, wild="textures"), failures=[failed(ran(0.1, wild="places365"))])
    assert table.sets == ("svhn", "textures", "places365")
    assert AVERAGE not in table.rows[0].cells


def test_columns_are_in_the_papers_order_by_what_files_stand_in_for():
    names = [
        "mine.npz",
        "isun",
        "random_images.npz",
        "places.npz",
        "textures.npz",
        "rooms_crop.npz",
        "rooms_resize.npz",
        "svhn",
    ]
    table = only_table(alone(dict.fromkeys(names, 0.1)))
    assert table.sets == (*reversed(names[2:]), "isun", "mine.npz")


def test_rows_are_in_the_papers_order_whatever_that_of_the_runs():
    table = only_table(
        *[ran(0.1, method) for method in METHODS if METHODS[method].uses_wild],
        *[alone({"svhn": 0.1}, method) for method in SCORES],
    )
    assert [row.method for row in table.rows] == [
        *("max-softmax", "temperature-scaling", "max-logit", "odin", "energy", "gen", "kl-matching", "gradnorm"),
        *("mahalanobis", "relative-mahalanobis", "knn", "nnguide", "she", "fdbd", "nci", "react", "scale", "ash", "dice"),
        *("vim", "ensemble", "oe", "energy-margin", "energy-logistic", "woods", "woods-alt", "separate"),
    ]


def test_every_method_has_a_title_and_every_stand_in_stands_for_a_named_set():
    assert {*METHODS, *SCORES} <= set(METHOD_TITLES)
    assert set(STAND_INS.values()) <= set(SET_TITLES)


def test_runs_that_test_other_sets_share_a_row():
    parts = [alone({"svhn": 0.1}), alone({"textures": 0.3})]
    assert only_row(*parts).cells[AVERAGE]["fpr95"].mean == pytest.approx(0.2)


def test_the_order_of_the_runs_does_not_matter():
    runs = [ran(0.1, seed=0), ran(0.3, seed=1), ran(0.2, "oe"), alone({"svhn": 0.4})]
    equal = [replace(ran(0.5, settings={"alpha": alpha}, seed=2), acceptance=0.7) for alpha in (0.05, 0.1)]
    assert result_tables([*runs, *equal]) == result_tables([*equal[::-1], *runs[::-1]])
