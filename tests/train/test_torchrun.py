"""Several processes at one run, on loopback: what one process gives, to 1e-5, and the same bits on each of them."""

import json
import os
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from wildood.data.files import load_state
from wildood.train.history import read_rows

PROGRAMS = Path(__file__).parents[1] / "programs"
FITS, CUT_OFF = PROGRAMS / "torchrun_fits.py", PROGRAMS / "torchrun_fit.py"
pytestmark = pytest.mark.slow

EXACT = ("woods", "woods, duals by epoch", "energy-logistic", "frozen", "pretrain")
TIMES = {"images_per_second", "seconds_left"}


def without_times(history):
    return [{name: value for name, value in row.items() if name not in TIMES} for row in history]


THREE = pytest.param(3, marks=pytest.mark.campaign)


@pytest.fixture(scope="module")
def found(tmp_path_factory, torchrun, run_here):
    """A function of the number of processes: what each of them found."""

    @cache
    def on(world):
        place = tmp_path_factory.mktemp(f"on{world}")
        if world == 1:
            run_here(FITS, place)
        else:
            with torchrun(world, FITS, place) as process:
                errors = process.communicate()[1].decode()
            assert process.returncode == 0, errors
            assert "Warning" not in errors
        assert (place / "csi").exists() == (world == 1)
        return [json.loads((place / f"found-{rank}.json").read_text()) for rank in range(world)]

    return on


@pytest.mark.parametrize("world", [2, THREE])
@pytest.mark.parametrize("case", EXACT)
def test_losses_multipliers_and_weights_are_those_of_one_process(found, case, world):
    history, threshold, weights, rows = found(1)[0][case]
    for process, (its_history, its_threshold, its_weights, its_rows) in enumerate(each[case] for each in found(world)):
        assert its_weights == pytest.approx(weights, abs=1e-5)
        assert its_threshold == pytest.approx(threshold, abs=1e-5)
        for row, its_row in zip(without_times(history), without_times(its_history), strict=True):
            assert its_row == pytest.approx(row, abs=1e-5)
        assert its_rows == (rows if process == 0 else 0)


def test_the_cases_are_worth_comparing(found):
    """Multipliers that moved, a constraint that was violated and one that was not, rows enough."""
    history = found(1)[0]["woods"][0]
    assert len(history) == 5
    assert history[-1]["beta_false_alarm"] > 1
    assert history[-1]["classification"] < 0
    assert 0 < history[-1]["lambda_false_alarm"] != history[0]["lambda_false_alarm"]
    assert found(1)[0]["woods, duals by epoch"][0][-1]["lambda_false_alarm"] > 0


@pytest.mark.parametrize("world", [2, THREE])
@pytest.mark.parametrize("case", [*EXACT, "noisy", "godin", "moved", "rounded"])
def test_all_processes_have_the_same_bits(found, case, world):
    first, *others = (each[case] for each in found(world))
    for other in others:
        assert without_times(other[0]) == without_times(first[0])
        assert other[1:3] == first[1:3]


def test_what_cannot_be_shared_is_refused_by_every_process(found):
    coupled = "Csi compares the examples of a batch with each other, so that 2 processes cannot share one: "
    assert [each["csi"] for each in found(2)] == 2 * [f"{coupled}start it without torchrun, in one process"]
    too_few = "the schedule's batch is 3, for 2 processes: give at least 4, or start fewer"
    assert [each["small"] for each in found(2)] == 2 * [too_few]
    assert found(1)[0]["csi"] is found(1)[0]["small"] is None


def test_a_loss_that_is_not_finite_in_one_process_ends_all_of_them(found):
    for each in found(2):
        assert each["nan"].startswith("the loss became nan at step 0")
    assert found(1)[0]["nan"] is None


@pytest.mark.parametrize("world", [2, THREE])
def test_processes_that_were_given_different_things_are_refused_by_all_of_them(found, world):
    text = "every process must be given the same data, model and settings, but {} differ between the processes: give the "
    for each in found(world):
        assert each["shards"].startswith(text.format("the labelled data, the starting weights"))
        assert each["pretrained shards"].startswith(text.format("the labelled data"))
        assert each["run_dir"].startswith(text.format("run_dir given"))
    assert found(1)[0]["shards"] is found(1)[0]["pretrained shards"] is found(1)[0]["run_dir"] is None


@pytest.mark.parametrize("world", [1, 2, THREE])
def test_weights_that_are_not_finite_end_all_processes_where_one_is_to_save(found, world):
    for each in found(world):
        assert each["doomed"].startswith("the weights became infinite or NaN at step 3 (lr ")
        assert each["doomed"].endswith("/doomed/checkpoint.safetensors")


@pytest.mark.parametrize("world", [1, 2, THREE])
def test_an_empty_checkpoint_is_said_to_be_damaged_by_every_process(found, world):
    for each in found(world):
        assert "/doomed/checkpoint.safetensors is damaged (" in each["emptied"]


def saved_state(run: Path):
    return load_state((run / "checkpoint.safetensors").read_bytes())["state"]


def wait_for_rows(run: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    history, deadline = run / "history.jsonl", time.monotonic() + 180
    while not (history.exists() and len(history.read_bytes().splitlines()) >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run wrote no history"
        time.sleep(0.01)


def test_a_run_whose_process_is_killed_goes_on_with_three_and_after_ctrl_c_with_one(tmp_path, torchrun, run_here):
    run, whole = tmp_path / "run", tmp_path / "whole"
    with torchrun(2, CUT_OFF, run, "0.3", "often") as process:
        wait_for_rows(run, 4, process)
        os.kill(int(Path(f"{run}-pid-1").read_text()), signal.SIGKILL)
        said = process.communicate()[1].decode()
    assert process.returncode != 0
    assert "wildood.errors.TrainingError: another process of this run ended" in said
    killed_at = saved_state(run)["step"]
    assert 0 < killed_at < 48

    with torchrun(3, CUT_OFF, run, "0.3", "seldom") as process:
        wait_for_rows(run, len(saved_state(run)["history"]) + 2, process)
        os.kill(
            int(Path(f"{run}-pid-2").read_text()), signal.SIGINT
        )  # to one of them: all agree to stop, and the first saves
        said = process.communicate()[1].decode()
    assert process.returncode != 0
    assert "[rank2]: KeyboardInterrupt" in said
    assert "TrainingError" not in said
    assert killed_at < saved_state(run)["step"] < 48

    for directory in (run, whole):
        run_here(CUT_OFF, directory, "0", "often")
    rows, expected = without_times(read_rows(run / "history.jsonl")), without_times(read_rows(whole / "history.jsonl"))
    assert len(rows) == 13
    for row, its_row in zip(expected, rows, strict=True):
        assert its_row == pytest.approx(row, abs=1e-5)
    for name, value in saved_state(whole)["objective"].items():
        assert np.allclose(saved_state(run)["objective"][name].numpy(), value.numpy(), atol=1e-5)
