"""A run killed with SIGKILL, or stopped with Ctrl-C, and called again ends with the same bits as one that was not."""

import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Dataset

import wildood
from wildood.data.files import dump_state, load_state
from wildood.train.checkpoint import RunDirectory
from wildood.train.history import read_rows

PROGRAM = Path(__file__).parents[1] / "programs" / "resumable_fit.py"
TIMES = {"images_per_second", "seconds_left"}


def start(run_dir: Path, method: str, *, often: str = "often", pause: float = 0.0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(run_dir), often, str(pause), method],
        stderr=subprocess.DEVNULL if pause else None,  # the traceback of one that is stopped
        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )


def result(run_dir: Path) -> tuple[np.ndarray, list[dict[str, float]]]:
    """The detector's weights, bit by bit, and the history without its times."""
    (path,) = run_dir.with_name(f"{run_dir.name}-detector").glob("weights-*.safetensors")
    weights = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in read_rows(run_dir / "history.jsonl")]
    return weights, rows


def wait_for_rows(run_dir: Path, count: int) -> None:
    history = run_dir / "history.jsonl"
    deadline = time.monotonic() + 60
    while not (history.exists() and len(history.read_bytes().splitlines()) >= count):
        assert time.monotonic() < deadline, "the run wrote no history"
        time.sleep(0.01)


def saved_step(run_dir: Path) -> int:
    state: dict[str, int] = load_state((run_dir / "checkpoint.safetensors").read_bytes())["state"]
    return state["step"]


def wait_for_checkpoint(run_dir: Path, process: subprocess.Popen[bytes], before: int) -> None:
    """Until there is a newer one than that of `before`, or nobody who could write it."""
    deadline = time.monotonic() + 60
    while stamp(run_dir) == before and process.poll() is None:
        assert time.monotonic() < deadline, "the run wrote no checkpoint"
        time.sleep(0.001)


def stamp(run_dir: Path) -> int:
    checkpoint = run_dir / "checkpoint.safetensors"
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_here):
    """A function of a method: the result of its run without any interruption."""

    @cache
    def of(method):
        place = tmp_path_factory.mktemp("whole") / method
        run_here(PROGRAM, place, "often", 0.0, method)
        return result(place)

    return of


def assert_same(found, expected):
    (weights, rows), (expected_weights, expected_rows) = found, expected
    assert np.array_equal(weights, expected_weights)
    assert rows == expected_rows
    assert len(rows) == 13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kills"), [("Woods", (5,)), pytest.param("WoodsAlt", (2, 5, 9), marks=pytest.mark.campaign)]
)
def test_killed_run_resumes_to_the_same_bits(tmp_path, whole, run_here, method, kills):
    killed, steps = tmp_path / "killed", [0]
    for rows in kills:
        process = start(killed, method, pause=0.2)
        wait_for_rows(killed, rows)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        steps.append(saved_step(killed))
    assert sorted(set(steps)) == steps
    assert steps[-1] < 48
    run_here(PROGRAM, killed, "often", 0.0, method)
    assert_same(result(killed), whole(method))


@pytest.mark.campaign
def test_kills_at_any_moment_leave_a_run_that_ends_with_the_same_bits(tmp_path, whole, run_here):
    """After delays drawn at random: in a step, between two, in the middle of writing a checkpoint."""
    killed, rng = tmp_path / "killed", np.random.default_rng(0)
    for _ in range(6):
        before, process = stamp(killed), start(killed, "Woods", pause=0.02)
        wait_for_checkpoint(killed, process, before)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
        assert saved_step(killed) > 0
    run_here(PROGRAM, killed, "often", 0.0, "Woods")
    assert_same(result(killed), whole("Woods"))
    assert not list(killed.glob(".*.part"))


@pytest.mark.slow
def test_a_run_stopped_with_ctrl_c_goes_on_from_the_step_where_it_was(tmp_path, whole, run_here):
    """Without a checkpoint every ten seconds: the one that is there is the one that Ctrl-C wrote."""
    stopped = tmp_path / "stopped"
    process = start(stopped, "Woods", often="seldom", pause=0.3)
    wait_for_rows(stopped, 4)
    assert not (stopped / "checkpoint.safetensors").exists()
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
    step, rows = saved_step(stopped), read_rows(stopped / "history.jsonl")
    assert step - 4 < rows[-1]["step"] <= step
    run_here(PROGRAM, stopped, "seldom", 0.0, "Woods")
    assert_same(result(stopped), whole("Woods"))
    assert read_rows(stopped / "history.jsonl")[: len(rows)] == rows  # their times, too: none was trained again


@pytest.mark.slow
def test_a_finished_run_called_again_gives_the_same_detector_without_training(tmp_path, run_here):
    run_here(PROGRAM, tmp_path / "run", "seldom", 0.0, "Woods")
    weights, rows = result(tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns
    run_here(PROGRAM, tmp_path / "run", "seldom", 0.0, "Woods")
    assert (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns == before
    assert np.array_equal(weights, result(tmp_path / "run")[0])
    assert rows == result(tmp_path / "run")[1]


RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(120, 3)).astype("float32"), RNG.integers(0, 2, 120)
SETTINGS = {
    "labelled": (X[:60], Y[:60]),
    "wild": X[60:80],
    "holdout": (X[80:], Y[80:]),
    "schedule": wildood.Schedule(epochs=2, batch=16),
    "alpha": 0.1,
    "verbose": False,
}


def model(seed: int = 0):
    import torch  # noqa: PLC0415 - only this function needs it

    from wildood.models.small import MLP  # noqa: PLC0415

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(3, 2, hidden=(4,))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, r"its seed is 0, this call's is 1: give"),
        ({"method": wildood.Woods(gamma=2.0)}, r"its method\.gamma is 1\.1, this call's is 2\.0: give"),
        ({"schedule": wildood.Schedule(epochs=3, batch=16)}, r"its schedule\.epochs is 2, this call's is 3: give"),
        ({"alpha": 0.2}, r"its alpha is 0\.1, this call's is 0\.2: give"),
        ({"labelled": (X[:60], 1 - Y[:60])}, "the labelled data differs: give"),
        ({"wild": X[60:80] + 1}, "the wild data differs: give"),
        ({"holdout": (X[81:], Y[81:])}, "the holdout data differs: give"),
        ({"holdout": None}, "the holdout data differs: give"),
        ({"keep": "last"}, "its keep is best, this call's is last: give"),
        ({"seed": 1, "wild": X[60:80] + 1}, r"its seed is 0, this call's is 1 \(different, too: the wild data\): give"),
    ],
)
def test_other_arguments_are_named_and_refused(tmp_path, change, named):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    with pytest.raises(wildood.CheckpointError, match=f"belongs to another run: {named} the same ones"):
        wildood.fit(model(), **SETTINGS | change, run_dir=tmp_path / "run")


def test_other_starting_weights_are_named_and_refused(tmp_path):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    with pytest.raises(wildood.CheckpointError, match="belongs to another run: the starting weights differ: give"):
        wildood.fit(model(seed=1), **SETTINGS, run_dir=tmp_path / "run")


@pytest.mark.parametrize("keep_bytes", [0, 7, 1000, -1])
def test_a_torn_checkpoint_is_named_and_refused(tmp_path, keep_bytes):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:keep_bytes])
    with pytest.raises(wildood.CheckpointError, match=r"checkpoint.safetensors is damaged .* remove it to start"):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")


def files(place: Path) -> dict[str, bytes]:
    """Of a run, but for the times in its history and checkpoint."""
    found = {str(path.relative_to(place)): path for path in sorted(place.rglob("*")) if path.is_file()}
    return {name: b"" if path.suffix in {".jsonl", ".safetensors"} else path.read_bytes() for name, path in found.items()}


def test_a_run_whose_record_is_gone_goes_on_by_what_its_checkpoint_says(tmp_path):
    run = tmp_path / "run"
    wildood.fit(model(), **SETTINGS, run_dir=run)
    before, checkpoint = files(run), (run / "checkpoint.safetensors").stat().st_mtime_ns
    (run / "run.json").unlink()
    with pytest.raises(wildood.CheckpointError, match=r"checkpoint.safetensors belongs to another run: remove it to start"):
        wildood.fit(model(), **SETTINGS, run_dir=run, seed=1)
    assert not (run / "run.json").exists()
    wildood.fit(model(), **SETTINGS, run_dir=run)
    assert files(run) == before
    assert (run / "checkpoint.safetensors").stat().st_mtime_ns == checkpoint  # nothing was trained again


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_directory_that_vanishes_while_the_run_trains_is_written_again(tmp_path, epoch):
    """By the next row, or by the checkpoint: the run ends as it would have, and can be called again."""
    whole = wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "kept")
    rows, run = [], tmp_path / "gone" / "run"

    def vanish(row: dict[str, float]) -> None:
        rows.append(row)
        if row["epoch"] == epoch:
            shutil.rmtree(tmp_path / "gone")

    ended = wildood.fit(model(), **SETTINGS, run_dir=run, on_epoch=vanish)
    assert len(rows) == len(whole.history) == 3
    assert files(run) == files(tmp_path / "kept")
    assert read_rows(run / "history.jsonl") == rows
    again = wildood.fit(model(), **SETTINGS, run_dir=run)
    assert np.array_equal(ended.holdout_scores, whole.holdout_scores)
    assert np.array_equal(again.holdout_scores, whole.holdout_scores)


def test_a_stage_writes_the_record_of_the_whole_run_again(tmp_path):
    stage = RunDirectory(tmp_path / "run", {"seed": 0}).stage(1)
    before = files(tmp_path)
    shutil.rmtree(tmp_path / "run")
    stage.save({"step": 5})
    assert files(tmp_path) == before | {"run/stage-1/checkpoint.safetensors": b""}
    assert RunDirectory(tmp_path / "run", {"seed": 0}).stage(1).checkpoint() == {"step": 5}


@pytest.mark.parametrize("state", [[], {"run": 3, "state": {}}, {"run": "x"}, {"run": "x", "state": []}])
def test_a_checkpoint_that_is_none_is_refused_though_its_checksum_agrees(tmp_path, state):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(dump_state(state))
    with pytest.raises(wildood.CheckpointError, match=r"checkpoint.safetensors is damaged \(.*\): remove it to start"):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_named_and_refused(tmp_path, content):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(content)
    with pytest.raises(wildood.CheckpointError, match=r"run\.json is damaged \(.*\): remove .* or use another run_dir"):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / name, seed=seed)
    (tmp_path / "b" / "checkpoint.safetensors").write_bytes((tmp_path / "a" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(wildood.CheckpointError, match=r"checkpoint\.safetensors belongs to another run"):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "b", seed=1)


def test_other_features_are_named_and_refused(tmp_path):
    settings = SETTINGS | {"method": wildood.WoodsAlt(), "run_dir": tmp_path / "run"}
    wildood.fit(model(), **settings, features="body.1")
    with pytest.raises(wildood.CheckpointError, match=r"its features\.layer is body\.1"):
        wildood.fit(model(), **settings, features="body.2")


def test_a_dataset_with_other_content_is_refused(tmp_path):
    class Examples(Dataset):
        def __init__(self, x: np.ndarray) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> np.ndarray:
            return self.x[index]

    wildood.fit(model(), **SETTINGS | {"wild": Examples(X[60:80])}, run_dir=tmp_path / "run")
    with pytest.raises(wildood.CheckpointError, match="the wild data differs"):
        wildood.fit(model(), **SETTINGS | {"wild": Examples(X[40:60])}, run_dir=tmp_path / "run")


def test_a_changed_byte_in_the_checkpoint_is_refused(tmp_path):
    wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-5] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(wildood.CheckpointError, match="checksum"):
        wildood.fit(model(), **SETTINGS, run_dir=tmp_path / "run")
