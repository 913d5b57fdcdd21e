import json
import re

import pytest

from wildood.cli.main import main
from wildood.experiments import grids
from wildood.experiments.grids import GRIDS, Grid
from wildood.experiments.run import run
from wildood.experiments.store import RunStore
from wildood.methods.shipped import METHODS


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        pytest.param("cifar100-stationary", 520, marks=pytest.mark.slow),
        pytest.param("cifar10-pi", 450, marks=pytest.mark.slow),
        ("digits", 150),
    ],
)
def test_dry_run_prints_the_plan_and_runs_nothing(name, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wildood.experiments.plan.TIMED_IMAGES", 2)  # images, of a network that is slow here
    assert main(["reproduce", name, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert f"{runs} runs, 0 done" in printed
    assert not (tmp_path / "runs").exists()
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if re.match(r" [a-z]+\S* +(-|\S+) ", line)]
    assert sum(int(row[4]) for row in rows if row[4].isdecimal()) == runs


def test_a_plan_of_one_run_speaks_of_one(small, small_root, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(small.to_toml())
    words = ["reproduce", str(file), "--dry-run", "--runs", str(tmp_path / "runs"), "--data-root", str(small_root)]
    assert main([*words, "--workers", "8"]) == 0
    printed = capsys.readouterr().out
    assert "time each" in printed
    said = r"^1 run, 0 done, 1 starting classifier to train first; about \d+ s left with 1 at a time, by measured steps$"
    assert re.search(said, printed, re.MULTILINE)


@pytest.mark.slow
def test_plan_of_table_1_has_every_method_on_every_set(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("wildood.experiments.plan.TIMED_IMAGES", 2)
    main(["reproduce", "cifar100-stationary", "--dry-run", "--runs", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Table 1" in printed
    for ood in grids.PAPER_SETS:
        for method in grids.TRAINED:
            assert re.search(rf"{method} +{ood} +0\.1 +{ood}", printed), (method, ood)
    assert re.search(r"woods +textures .* 30 +0 +2,100", printed)  # 21 batches in an epoch, 100 epochs, 6 settings, 5 seeds


@pytest.mark.slow
def test_what_is_done_is_skipped_and_the_report_comes_next(small, small_root, tmp_path, capsys, monkeypatch):
    given = Grid("two runs", 2, "honest", lambda _, seed: [grids.replace(small, seed=seed)])
    monkeypatch.setitem(GRIDS, "small", given)
    words = ["reproduce", "small", "--runs", str(tmp_path), "--data-root", str(small_root), "--workers", "2"]
    assert main([*words, "--only", "seed=1"]) == 0
    assert len(RunStore(tmp_path).contents().results) == 1
    assert f"wildood report {tmp_path}" in capsys.readouterr().out
    assert main(words) == 0
    told = capsys.readouterr()
    assert "2 runs, 1 done" in told.out
    assert told.err.count("FPR95 %") == 1
    assert main(words) == 0
    assert "2 runs, 2 done" in capsys.readouterr().out


@pytest.mark.slow
def test_a_failed_run_is_told_and_gives_exit_code_4(small, small_root, tmp_path, capsys, monkeypatch):
    wrong = grids.replace(small, test=("none.npz",), wild="none.npz")
    monkeypatch.setitem(GRIDS, "small", Grid("one good, one bad", 1, "honest", lambda *_: [small, wrong]))
    monkeypatch.setattr("wildood.cli.reproduce.plan", _without_looking)
    monkeypatch.setattr("wildood.cli.reproduce.check_sets", lambda *_: None)
    words = ["reproduce", "small", "--runs", str(tmp_path), "--data-root", str(small_root), "--workers", "2", "--quiet"]
    assert main(words) == 4
    told = capsys.readouterr().err
    assert "failed: seed 0  woods  none at pi = 0.2" in told
    assert "none.npz is not there" in told
    assert "1 of 2 runs failed; called again, they are tried again" in told
    assert RunStore(tmp_path).is_done(small)


def _without_looking(experiments, *_):
    """A plan that has not noticed that a file is missing: it may go away later."""
    from wildood.experiments.plan import Plan, PlanRow  # noqa: PLC0415

    return Plan(tuple(PlanRow(each, 1, 0, 0, 6, 1.0) for each in experiments), ())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cifar11"], "no experiments are named 'cifar11'"),
        (["cpu", "--only", "method=wood"], "no method is 'wood' here"),
        (["digits", "--seeds", "0"], "--seeds is 0"),
        (["digits", "--workers", "0"], "--workers is 0"),
        (["digits", "--runs", "bare.toml"], "--runs bare.toml is a file: give a directory"),
        (["digits", "--protocol", "as_published"], "no released protocol"),
        (["digits", "--cpus", "2"], "give --ray local"),
        (["none.toml"], "none.toml: No such file"),
        (["bare.toml"], "mean has 3 numbers, which do not fit the images of digits"),
        (["digits", "--method", "mine"], "give module:Class"),
        (["digits", "--method", "nowhere:Mine"], "No module named 'nowhere'"),
        (["digits", "--method", "os:path"], "it is of type module, no class"),
        (["cpu", "--data-root", "nowhere"], "is not there: give the directory"),
    ],
)
def test_a_mistake_is_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.toml").write_text('id = "digits"\ntest = ["digits"]\nmethod = "energy"')
    assert main(["reproduce", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_an_experiment_of_a_file_is_run(small, small_root, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(small.to_toml())
    words = ["reproduce", str(file), "--runs", str(tmp_path / "runs"), "--data-root", str(small_root)]
    assert main([*words, "--seeds", "2", "--dry-run"]) == 0
    assert "2 runs, 0 done" in capsys.readouterr().out
    assert main([*words, "--workers", "2"]) == 0
    assert RunStore(tmp_path / "runs").is_done(small)


@pytest.mark.slow
def test_a_method_of_ones_own_is_run_wherever_woods_is(small, small_root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(GRIDS, "small", Grid("one", 1, "honest", lambda *_: [small]))
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport wildood\n\n"
        "@dataclass(frozen=True)\nclass Mine(wildood.OutlierExposure):\n    weight: float = 0.25\n"
        "    def schedule(self):\n        return wildood.Schedule(steps=3, batch=16)\n"
    )
    words = ["reproduce", "small", "--method", "mine:Mine", "--runs", "runs", "--data-root", str(small_root)]
    try:
        assert main([*words, "--workers", "2"]) == 0
        found = {each.experiment.method: each for each in RunStore(tmp_path / "runs").contents().results}
    finally:
        METHODS.pop("mine:Mine", None)
    assert set(found) == {"woods", "mine:Mine"}
    assert found["mine:Mine"].experiment.settings["weight"] == 0.25
    assert [row["step"] for row in found["mine:Mine"].history] == [0, 6]  # as many as woods, not its own 3
    line = "mine:Mine: 6 steps of 16 + 16 examples, as woods has here (its own schedule: 3 steps of 16 + 16 examples)\n"
    assert line in capsys.readouterr().out
    left_out = RunStore(tmp_path / "runs").contents().left_out  # no code is imported because a file says so
    assert [why for _, why in left_out if "name it with --method mine:Mine" in why]


@pytest.mark.slow
def test_a_damaged_result_is_run_again_by_the_next_call_which_says_so(small, small_root, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(GRIDS, "small", Grid("one", 1, "honest", lambda *_: [small]))
    words = ["reproduce", "small", "--runs", str(tmp_path), "--data-root", str(small_root), "--workers", "2"]
    assert main(words) == 0
    file = RunStore(tmp_path).place(small) / "result.json"
    whole = json.loads(file.read_text())
    file.write_text("torn")
    capfd.readouterr()
    assert main(words) == 0
    told = capfd.readouterr()
    assert "1 run, 0 done" in told.out
    assert "result.json cannot be read: it is kept as result.json.damaged, and made again" in told.err
    assert file.with_name("result.json.damaged").read_text() == "torn"
    assert json.loads(file.read_text())["tests"] == whole["tests"]


def test_a_dry_run_lists_the_data_that_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wildood.experiments.plan.TIMED_IMAGES", 2)
    assert (
        main(["reproduce", "cifar10-pi", "--dry-run", "--seeds", "1", "--data-root", str(tmp_path), "--only", "pi=.1"]) == 0
    )
    missing = ["cifar10", "300k", *grids.PAPER_SETS]
    told = (
        f"not below the data root: {', '.join(missing)}: without them, nothing is run; wildood data get {' '.join(missing)} "
    )
    assert told in capsys.readouterr().out


def test_a_dry_run_without_the_files_lists_all_of_them_and_makes_no_plan(tmp_path, capsys):
    assert main(["reproduce", "cpu", "--dry-run", "--data-root", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("not below the data root: cifar10.npz, ")
    assert {"svhn.npz", "weights/resnet20-cifar10.safetensors"} <= set(told.split(": ")[1].split(", "))


def test_what_is_done_asks_for_no_data_and_its_experiment_is_mended(small, small_root, tmp_path, capsys):
    file, store = tmp_path / "mine.toml", RunStore(tmp_path / "runs")
    file.write_text(small.to_toml())
    run(small, store, small_root)
    words = ["reproduce", str(file), "--runs", str(store.root), "--data-root", str(tmp_path / "gone")]
    (store.place(small) / "experiment.toml").write_text("id =")
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "1 run, 1 done" in told
    assert "data root" not in told
    assert main(words) == 0
    assert (store.place(small) / "experiment.toml").read_text() == small.to_toml()


def test_a_dry_run_of_what_is_all_there_speaks_of_nothing_missing(capsys, tmp_path):
    assert main(["reproduce", "digits", "--dry-run", "--seeds", "1", "--runs", str(tmp_path)]) == 0
    assert "data root" not in capsys.readouterr().out


def test_weights_that_are_missing_are_told_before_anything_is_run(small, small_root, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(grids.replace(small, start="none.safetensors").to_toml())
    words = ["reproduce", str(file), "--runs", str(tmp_path / "runs"), "--data-root", str(small_root)]
    assert main([*words, "--dry-run"]) == 0
    assert "not below the data root: none.safetensors: without them" in capsys.readouterr().out
    assert main(words) == 2
    assert "none.safetensors is not there" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_missing_sets_are_told_before_anything_is_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wildood.experiments.plan.TIMED_IMAGES", 2)
    assert main(["reproduce", "cifar10-pi", "--runs", str(tmp_path / "runs"), "--data-root", str(tmp_path)]) == 2
    assert "wildood data get cifar10" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))
