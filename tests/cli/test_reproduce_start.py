"""`wildood reproduce --start`: weights that exist in the place of a starting classifier that is trained."""

import hashlib
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from wildood.cli.main import main
from wildood.experiments import grids
from wildood.experiments.grids import GRIDS, Grid
from wildood.experiments.run import run
from wildood.experiments.starts import copy_weights, start_from
from wildood.experiments.store import Failure, RunStore
from wildood.experiments.tables import result_tables
from wildood.models.small import SmallCNN


@pytest.fixture
def energy(small, monkeypatch):
    """A grid of one run that scores the starting classifier, in this process."""
    experiment = grids.replace(small, method="energy", settings={}, wild=None, pi=0.0)
    monkeypatch.setitem(GRIDS, "small", Grid("one", 1, "honest", lambda *_: [experiment]))
    monkeypatch.setattr(
        "wildood.cli.reproduce.run_all",
        lambda experiments, store, root, *_: [run(each, store, root) for each in experiments if not store.is_done(each)],
    )
    monkeypatch.setattr("wildood.experiments.starts.pretrain", lambda *_, **__: pytest.fail("it trains a classifier"))
    return experiment


def weights(path, seed=0, **settings):
    torch.manual_seed(seed)
    save_file(SmallCNN(classes=2, **{"channels": 3, "width": 4, "hidden": 8, **settings}).state_dict(), path)
    return path


def words(tmp_path, small_root, *more):
    return ["reproduce", "small", "--runs", str(tmp_path / "runs"), "--data-root", str(small_root), *map(str, more)]


def test_weights_of_a_file_take_the_place_of_the_pretraining_and_name_the_run(energy, small_root, tmp_path, capsys):
    file = weights(tmp_path / "w.safetensors")
    assert main(words(tmp_path, small_root, "--start", file)) == 0
    assert "1 run, 0 done; about" in capsys.readouterr().out
    (result,) = RunStore(tmp_path / "runs").contents().results
    assert result.experiment.start == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    assert result.experiment.name != energy.name
    moved = file.rename(tmp_path / "elsewhere.safetensors")
    assert main(words(tmp_path, small_root, "--start", moved)) == 0
    assert "1 run, 1 done" in capsys.readouterr().out


def test_results_of_different_starts_are_in_different_runs_and_tables(energy, small_root, tmp_path):
    for seed in (0, 1):
        file = weights(tmp_path / "w.safetensors", seed)  # the same name, other weights
        assert main(words(tmp_path, small_root, "--start", file, "--quiet")) == 0
    results = RunStore(tmp_path / "runs").contents().results
    assert len({each.experiment.start for each in results}) == len(results) == 2
    assert sorted(table.start for table in result_tables(results)) == sorted(each.experiment.start for each in results)
    file.unlink()
    shutil.copytree(tmp_path / "runs" / "starts", tmp_path / "again" / "starts")  # the runs keep what they start from
    for result in results:
        assert run(result.experiment, RunStore(tmp_path / "again"), small_root).tests == result.tests


def test_a_dry_run_with_weights_writes_nothing(energy, small_root, tmp_path, capsys):
    assert main(words(tmp_path, small_root, "--start", weights(tmp_path / "w.safetensors"), "--dry-run")) == 0
    assert "starting classifier" not in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, r"w.safetensors cannot be read \(there is no such file\): give a file of safetensors"),
        (lambda path: path.write_bytes(b"torn"), "cannot be read as safetensors .*: safetensors.torch.save_file"),
        (lambda path: path.mkdir(), r"cannot be read \(there is no such file\)"),
        (os.mkfifo, r"cannot be read \(there is no such file\)"),
        (lambda path: weights(path, width=8), "do not fit SmallCNN: .*size mismatch .*; give those of this network"),
        (lambda path: save_file(nn.Linear(4, 2).state_dict(), path), 'do not fit SmallCNN: Unexpected key.* "weight"; give'),
    ],
)
def test_a_wrong_file_is_told_in_one_line_before_anything_is_run(make, said, energy, small_root, tmp_path, capsys):
    make(tmp_path / "w.safetensors")
    assert main(words(tmp_path, small_root, "--start", tmp_path / "w.safetensors", "--quiet")) == 2
    told = capsys.readouterr().err
    assert re.search(said, told)
    assert told.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_digits_train_their_own_classifier(tmp_path, capsys):
    file = weights(tmp_path / "w.safetensors")
    assert main(["reproduce", "digits", "--seeds", "1", "--runs", str(tmp_path / "runs"), "--start", str(file)]) == 2
    told = capsys.readouterr().err
    assert "give start = 'labelled' (leave out --start)" in told
    assert told.count("\n") == 1


def test_a_file_of_an_experiment_whose_weights_are_not_here_asks_for_them(energy, small_root, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(grids.replace(energy, start="sha256:0123456789abcdef").to_toml())
    given = ["reproduce", str(file), "--runs", str(tmp_path / "runs"), "--data-root", str(small_root)]
    assert main(given) == 2
    assert "the weights sha256:0123456789abcdef are not in" in (told := capsys.readouterr().err)
    assert "give the file with --start" in told
    assert main([*given, "--dry-run"]) == 0


@pytest.mark.parametrize("is_named", [True, False])
def test_weights_that_have_changed_between_two_runs_are_refused(is_named, energy, small_root, tmp_path):
    store, root = RunStore(tmp_path / "runs"), shutil.copytree(small_root, tmp_path / "data")
    file = weights(root / "w.safetensors")
    if is_named:  # by its place below the data root, as in a file of an experiment
        first, changed = grids.replace(energy, start=file.name), file
    else:
        (first,) = start_from([energy], file)
        copy_weights(file, store.root)
        (changed,) = store.root.rglob("weights.safetensors")
    assert not isinstance(run(first, store, root), Failure)
    weights(changed, seed=1)
    refused = run(grids.replace(first, method="max-softmax", settings={}), store, root)
    assert isinstance(refused, Failure)
    assert "--start" in refused.error
    assert ("is not the file that other runs" if is_named else "has been changed") in refused.error
