"""What a directory of runs holds: each is counted once, and what cannot be read is told."""

import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import TOML, RunStore
from wildood.report.runs import Runs
from wildood.report.runs_page import runs_page


def test_the_runs_are_counted_once_each(runs):
    assert (len(runs.results), len(runs.failures), runs.unfinished) == (25, 1, 1)
    assert runs.told() == "27 runs: 25 are done, 1 failed, 1 has not ended."


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda place: RunStore(place / "none"), "none is no directory"),
        (RunStore, "holds no runs"),
    ],
)
def test_a_directory_without_runs_is_refused(make, says, tmp_path):
    with pytest.raises(InputError, match=says):
        Runs.read(make(tmp_path))


def test_runs_that_have_all_not_ended_are_refused(tmp_path):
    store = RunStore(tmp_path)
    with store.claimed(Experiment("digits", ("digits",), method="energy")):
        pass
    with pytest.raises(InputError, match="holds one run that has not ended yet: call report again when one has"):
        Runs.read(store)


def test_folders_that_cannot_be_read_are_left_out_and_told(tmp_path, parse, result):
    store = RunStore(tmp_path)
    store.add(*result(Experiment("cifar10", ("svhn",), method="energy")))
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / TOML).write_text("id = <b>")
    runs = Runs.read(store)
    assert (len(runs.results), [name for name, _ in runs.left_out]) == (1, list("abcd"))
    why = runs.left_out[0][1]
    assert runs.told_left_out() == f"4 folders left out: a, b, c, and 1 more: {why}"
    page = parse(runs_page(runs, {}))
    assert page.one("div", cls="lead").text.count(runs.told_left_out()) == 1
    (panel,) = page.section("Folders left out")
    assert [item.text for item in panel.all("li")] == [f"a, b, c, d: {why}"]
    assert runs.told() == "1 run: 1 is done, none failed; 4 folders left out."


def test_a_directory_of_unreadable_folders_is_refused_with_the_reason(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / TOML).write_text("id =")
    with pytest.raises(InputError, match=r"holds no runs that can be read: 1 folder left out: a: .*remove the folder$"):
        Runs.read(RunStore(tmp_path))
