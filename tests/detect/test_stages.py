"""Methods of several stages: trained one after the other on the same classifier, resumed where they were cut off."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import wildood
from wildood.data.files import load_state
from wildood.methods.objective import CrossEntropyObjective, stages_of
from wildood.models.small import MLP
from wildood.scores.max_softmax import MaxSoftmax
from wildood.train.history import read_rows

RNG = np.random.default_rng(0)
Y = np.arange(160) % 2
X = (RNG.normal(size=(160, 3)) + 2 * Y[:, None]).astype("float32")
DATA = {"labelled": (X[:80], Y[:80]), "holdout": (X[80:], Y[80:]), "verbose": False}


class ByMaxSoftmax(CrossEntropyObjective):
    def __init__(self, classifier):
        super().__init__(classifier)
        self.score = MaxSoftmax()


@dataclass(frozen=True)
class Second:
    started_from: ClassVar[list[dict[str, torch.Tensor]]] = []

    def schedule(self):
        return wildood.Schedule(epochs=3, batch=20, lr=0.05)

    def objective(self, classifier, start):
        self.started_from.append({name: value.clone() for name, value in classifier.state_dict().items()})
        return ByMaxSoftmax(classifier)


@dataclass(frozen=True)
class First:
    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = False
    alpha: float = 0.05

    def schedule(self):
        return wildood.Schedule(epochs=2, batch=16, lr=0.1)

    def objective(self, classifier, start):
        return CrossEntropyObjective(classifier)


@dataclass(frozen=True)
class Both(First):
    def later_stages(self):
        return (Second(),)


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP(3, 2, hidden=(4,))


def test_a_method_is_its_own_only_stage_unless_it_says_more():
    assert stages_of(First()) == [First()]
    assert stages_of(wildood.Woods()) == [wildood.Woods()]
    assert stages_of(Both()) == [Both(), Second()]


def test_stages_are_trained_in_order_on_one_classifier_each_with_its_schedule(tmp_path):
    Second.started_from.clear()
    rows = []
    detector = wildood.fit(model(), **DATA, method=Both(), run_dir=tmp_path / "run", on_epoch=rows.append)
    alone = wildood.fit(model(), **DATA, method=First())
    (between,) = Second.started_from
    assert all(torch.equal(value, between[name]) for name, value in alone.classifier.state_dict().items())
    assert [(row["stage"], row["epoch"], row["step"]) for row in detector.history] == [
        *((1, 0, 0), (1, 1, 5), (1, 2, 10)),
        *((2, 0, 0), (2, 1, 4), (2, 2, 8), (2, 3, 12)),
    ]
    assert rows == detector.history
    assert detector.record["kept_epoch"] == 6
    assert isinstance(detector.scorer, MaxSoftmax)
    assert not torch.equal(detector.classifier.model.head.weight, between["model.head.weight"])


def test_a_schedule_that_is_given_is_the_first_stages():
    schedule = wildood.Schedule(epochs=1, batch=40)
    history = wildood.fit(model(), **DATA, method=Both(), schedule=schedule).history
    assert [row["step"] for row in history] == [0, 2, 0, 4, 8, 12]


@dataclass(frozen=True)
class Choosing(First):
    """Its last stage alone has a score with a setting to choose."""

    def later_stages(self):
        return (ChoosingHead(),)


class ChoosingHead(Second):
    def objective(self, classifier, start):
        objective = ByMaxSoftmax(classifier)
        objective.score = wildood.Odin()
        return objective


def test_a_setting_that_only_the_last_stages_score_has_is_chosen_on_a_half_of_the_holdout():
    detector = wildood.fit(model(), **DATA, method=Choosing())
    assert len(detector.record["chosen"]["tried"]) > 1
    assert "chosen_by" in detector.record
    assert detector.promise.examples == 40
    assert wildood.fit(model(), **DATA, method=Both()).promise.examples == 80


def test_each_of_several_stages_has_a_directory_below_the_runs(tmp_path):
    detector = wildood.fit(model(), **DATA, method=Both(), run_dir=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.json", "stage-1", "stage-2"]
    whole, first, second = (
        json.loads((tmp_path / "run" / name / "run.json").read_bytes()) for name in ("", "stage-1", "stage-2")
    )
    assert (first, second) == ({**whole, "stage": 1}, {**whole, "stage": 2})
    rows = [read_rows(tmp_path / "run" / f"stage-{stage}" / "history.jsonl") for stage in (1, 2)]
    assert [*rows[0], *rows[1]] == detector.history


def test_a_single_stage_is_kept_as_before(tmp_path):
    detector = wildood.fit(model(), **DATA, method=First(), run_dir=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["checkpoint.safetensors", "history.jsonl", "run.json"]
    assert "stage" not in json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert not any("stage" in row for row in detector.history)


def test_a_directory_of_other_stages_or_settings_is_refused(tmp_path):
    wildood.fit(model(), **DATA, method=Both(), run_dir=tmp_path / "run")
    with pytest.raises(wildood.CheckpointError, match=r"run belongs to another run: its method\.name is Both, this call's"):
        wildood.fit(model(), **DATA, method=First(), run_dir=tmp_path / "run")
    with pytest.raises(wildood.CheckpointError, match="its seed is 0, this call's is 1"):
        wildood.fit(model(), **DATA, method=Both(), run_dir=tmp_path / "run", seed=1)


PROGRAM = Path(__file__).parents[1] / "programs" / "resumable_csi.py"
TIMES = {"images_per_second", "seconds_left"}


def begin(run, pause=0.0):
    return subprocess.Popen([sys.executable, str(PROGRAM), str(run), str(pause)])


def killed_after(run, stage, rows):
    """Start, and kill as soon as the history of a stage has so many rows; the step of its last checkpoint."""
    process, history = begin(run, pause=0.2), run / f"stage-{stage}" / "history.jsonl"
    while not (history.exists() and len(history.read_bytes().splitlines()) >= rows):
        assert process.poll() is None, "the run ended before it could be killed"
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    assert process.wait() == -signal.SIGKILL
    return load_state((run / f"stage-{stage}" / "checkpoint.safetensors").read_bytes())["state"]["step"]


def outcome(run):
    (weights,) = run.with_name(f"{run.name}-detector").glob("weights-*.safetensors")
    rows = [row for stage in (1, 2) for row in read_rows(run / f"stage-{stage}" / "history.jsonl")]
    return weights.read_bytes(), [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


@pytest.mark.slow
def test_csi_killed_in_each_stage_resumes_to_the_same_bits(tmp_path, run_here):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_here(PROGRAM, whole, 0.0)
    assert 0 < killed_after(killed, stage=1, rows=3) < 20
    assert not (killed / "stage-2").exists()
    step = killed_after(killed, stage=2, rows=3)
    assert 0 < step < 10
    first = (killed / "stage-1" / "checkpoint.safetensors").stat().st_mtime_ns
    run_here(PROGRAM, killed, 0.0)
    assert (killed / "stage-1" / "checkpoint.safetensors").stat().st_mtime_ns == first  # it was not trained again
    assert outcome(killed) == outcome(whole)
    assert len(outcome(whole)[1]) == 12


@pytest.mark.parametrize("keep", ["best", "last"])
def test_only_the_last_stage_can_end_by_itself_and_only_where_wild_data_is_set_aside(keep):
    class TwoWoods(wildood.Woods):
        def schedule(self):
            return wildood.Schedule(batch=16, lr=1e-3)

        def later_stages(self):
            return (TwoSecond(),)

    class TwoSecond(wildood.Woods):
        def schedule(self):
            return wildood.Schedule(batch=16, lr=1e-3)

    detector = wildood.fit(MLP(3, 2), **DATA, wild=X[:60] + 9, method=TwoWoods(), keep=keep)
    last = {stage: max(row["step"] for row in detector.history if row["stage"] == stage) for stage in (1, 2)}
    assert last[1] == 100
    assert last[2] == 100 if keep == "last" else last[2] >= 125
