"""A run of a method with two stages, from the experiment to its result and its page."""

from dataclasses import replace

from wildood.experiments.results import Result
from wildood.experiments.run import run
from wildood.experiments.store import RunStore
from wildood.methods.schedule import Schedule
from wildood.report.run_page import run_page


def test_csi_runs_as_an_experiment_and_its_page_shows_both_stages(small, small_root, tmp_path):
    schedule = Schedule(epochs=1, batch=64, lr=1.0, decay="cosine", weight_decay=1e-6)
    experiment = replace(
        small,
        method="csi",
        settings={"head_epochs": 1},
        schedule=schedule,
        wild=None,
        pi=0.0,
        test=("grey.npz", "white.npz"),
    )
    store = RunStore(tmp_path)
    result = run(experiment, store, small_root)
    assert isinstance(result, Result), result
    assert [(row["stage"], row["epoch"]) for row in result.history] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert result.accuracy_lost == result.history[0]["accuracy"] - result.history[3]["accuracy"]
    assert set(result.tests) == {"grey.npz", "white.npz"}
    assert not store.training(experiment).exists()  # of both stages, once it is done
    page = run_page(result, store.scores(experiment))
    assert "The loss of stage 1" in page
    assert "The loss of stage 2" in page
