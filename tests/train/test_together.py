"""Several processes at one run, on loopback: what one process gives, to 1e-5, and the same bits on each of them."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from wildood.data.files import load_state
from wildood.detect import fit as fitting
from wildood.experiments.pool import using_threads
from wildood.train.history import read_rows

TRAINED = """
import torch

def trained(model, x, y):
    # From weights that know nothing, rounding grows faster than from those that `fit` is made for.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    return model
"""

FITS = """
import functools, json, os, sys
import numpy as np, torch, wildood
import wildood.detect.fit as fitting
from wildood.errors import WildoodError
from wildood.models.small import MLP, SmallCNN

class FrozenBatchNorm(torch.nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)

class Poisoned(MLP):
    def forward(self, x):
        return super().forward(x) * (torch.nan if self.training and os.environ.get("RANK") == "1" else 1.0)

class Moved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("once", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.seen += len(x)
            if self.seen > 100:
                self.once.fill_(len(x))
        return x - self.mean

class Doomed(MLP):
    def __init__(self, *shape, **settings):
        super().__init__(*shape, **settings)
        self.register_buffer("steps", torch.zeros(1))
    def forward(self, x):
        if self.training:
            self.steps += 1 if self.steps < 2 else torch.inf
        return super().forward(x)

def network(kind, seed=0):
    torch.manual_seed(seed)
    if kind == "doomed":
        return Doomed(6, 3, hidden=(16,))
    if kind == "moved":
        norm = torch.nn.InstanceNorm1d(4, track_running_stats=True)
        parts = torch.nn.Unflatten(1, (4, 4)), norm, torch.nn.Flatten(), Moved(), torch.nn.ReLU()
        return torch.nn.Sequential(torch.nn.Linear(6, 16), *parts, torch.nn.Linear(16, 3))
    if kind == "poisoned":
        return Poisoned(6, 3, hidden=(16,))
    if kind == "plain":
        return trained(MLP(6, 3, hidden=(16,)), x[1000:1200], y[1000:1200])
    norm = FrozenBatchNorm(16) if kind == "frozen" else torch.nn.BatchNorm1d(16)
    noise = torch.nn.Dropout(0.0 if kind == "frozen" else 0.3)
    layers = torch.nn.Linear(6, 16), norm, torch.nn.ReLU(), noise, torch.nn.Linear(16, 3)
    return trained(torch.nn.Sequential(*layers), x[1000:1200], y[1000:1200])

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 2000)
x = (rng.normal(size=(2000, 6)) + 2 * np.eye(6)[y]).astype("float32")
pictures = rng.integers(0, 256, (1000, 8, 8, 1), dtype=np.uint8)
wild = wildood.WildMixture(id=x[:500], ood=rng.normal(size=(200, 6)).astype("float32") - 2, pi=0.2)
steps = wildood.Schedule(epochs=4, batch=32, lr=0.05)
epochs = wildood.Schedule(steps=20, batch=32, duals="epoch", epoch="shortest")

rank, here = int(os.environ.get("RANK", 0)), sys.argv[1]

class Rounded(wildood.Woods):  # as on machines that round otherwise
    def objective(self, classifier, start):
        return super().objective(classifier, start._replace(logsumexp=start.logsumexp * (1 + 1e-5 * rank)))

def fit(method, schedule=steps, kind="plain", labelled=160, at=500, model_seed=0, **settings):
    rows = []
    detector = wildood.fit(
        network(kind, model_seed), (x[at:at + labelled], y[at:at + labelled]), wild if method.uses_wild else None,
        (x[1200:], y[1200:]), method=method, schedule=schedule, verbose=False, on_epoch=rows.append, **settings,
    )
    return [detector.history, detector.threshold, weights(detector.classifier), len(rows)]

def pretrain(at=0):
    rows, spec = [], wildood.InputSpec(mean=(0.5,), std=(0.25,))
    torch.manual_seed(0)
    trained = wildood.pretrain(
        SmallCNN(3, width=4, hidden=8), (pictures[at:at + 160], y[at:at + 160]), (pictures[200:], y[200:1000]), input=spec,
        schedule=wildood.Schedule(steps=20, batch=31, augment=True), verbose=False, on_epoch=rows.append,
    )
    return [[], 0.0, weights(trained), len(rows)]

def weights(module):
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()]).tolist()

def refused(call):
    try:
        call()
    except WildoodError as error:
        return str(error)

def csi():
    data, spec = (pictures[:160], y[:160]), wildood.InputSpec(mean=(0.5,), std=(0.25,))
    holdout = pictures[160:], y[160:1000]
    wildood.fit(
        SmallCNN(3, width=4, hidden=8), data, None, holdout, method=wildood.Csi(head_epochs=1), input=spec, verbose=False,
        schedule=wildood.Schedule(steps=1, batch=16), run_dir=here + "/csi",
    )

def doomed():
    Training = fitting.Training
    fitting.Training = functools.partial(Training, checkpoint_seconds=0.0)
    try:
        fit(wildood.Woods(), kind="doomed", run_dir=here + "/doomed")
    finally:
        fitting.Training = Training

def emptied():
    if rank == 0:
        open(here + "/doomed/checkpoint.safetensors", "w").close()
    doomed()

found = {
    "woods": fit(wildood.Woods(alpha=0.02, gamma=1.5)),
    "woods, duals by epoch": fit(wildood.WoodsAlt(), epochs, labelled=600),
    "energy-logistic": fit(wildood.EnergyLogistic()),
    "frozen": fit(wildood.Woods(), kind="frozen", keep="last"),
    "pretrain": pretrain(),
    "noisy": fit(wildood.Woods(), kind="noisy"),
    "godin": fit(wildood.Godin(epsilon=0.0)),
    "moved": fit(wildood.Woods(), kind="moved", keep="last"),
    "rounded": fit(Rounded()),
    "shards": refused(lambda: fit(wildood.Woods(), at=500 + 160 * rank, model_seed=rank)),
    "pretrained shards": refused(lambda: pretrain(at=10 * rank)),
    "run_dir": refused(lambda: fit(wildood.Woods(), run_dir=here + "/of-one" if rank == 0 else None)),
    "doomed": refused(doomed),
    "emptied": refused(emptied),
    "csi": refused(csi),
    "nan": refused(lambda: fit(wildood.Woods(), kind="poisoned")),
    "small": refused(lambda: fit(wildood.Woods(), wildood.Schedule(steps=2, batch=3))),
}
with open(f"{here}/found-{rank}.json", "w") as file:
    json.dump(found, file)
"""
EXACT = ("woods", "woods, duals by epoch", "energy-logistic", "frozen", "pretrain")
TIMES = {"images_per_second", "seconds_left"}


def without_times(history):
    return [{name: value for name, value in row.items() if name not in TIMES} for row in history]


def run_here(program: Path, *words: object) -> None:
    """Run a program in this process: one more would only import torch once more."""
    with pytest.MonkeyPatch.context() as patch, using_threads(1):  # as the processes of `torchrun` have
        patch.setattr(sys, "argv", [str(program), *map(str, words)])
        patch.setattr(fitting, "Training", fitting.Training)  # which programs change
        runpy.run_path(str(program))


@pytest.fixture(scope="module")
def found(tmp_path_factory, torchrun):
    """What each process of a run on 1, 2 and 3 of them found."""
    results = {}
    for world in (1, 2, 3):
        place = tmp_path_factory.mktemp(f"on{world}")
        (place / "fits.py").write_text(TRAINED + FITS)
        if world == 1:
            run_here(place / "fits.py", place)
        else:
            with torchrun(world, place / "fits.py", place) as process:
                said = process.communicate()[1].decode()
            assert process.returncode == 0, said
            assert "Warning" not in said
        assert (place / "csi").exists() == (world == 1)
        results[world] = [json.loads((place / f"found-{rank}.json").read_text()) for rank in range(world)]
    return results


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", EXACT)
def test_losses_multipliers_and_weights_are_those_of_one_process(found, case, world):
    history, threshold, weights, rows = found[1][0][case]
    for process, (its_history, its_threshold, its_weights, its_rows) in enumerate(each[case] for each in found[world]):
        assert its_weights == pytest.approx(weights, abs=1e-5)
        assert its_threshold == pytest.approx(threshold, abs=1e-5)
        for row, its_row in zip(without_times(history), without_times(its_history), strict=True):
            assert its_row == pytest.approx(row, abs=1e-5)
        assert its_rows == (rows if process == 0 else 0)


def test_the_cases_are_worth_comparing(found):
    """Multipliers that moved, a constraint that was violated and one that was not, rows enough."""
    history = found[1][0]["woods"][0]
    assert len(history) == 5
    assert history[-1]["beta_false_alarm"] > 1
    assert history[-1]["classification"] < 0
    assert 0 < history[-1]["lambda_false_alarm"] != history[0]["lambda_false_alarm"]
    assert found[1][0]["woods, duals by epoch"][0][-1]["lambda_false_alarm"] > 0


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", [*EXACT, "noisy", "godin", "moved", "rounded"])
def test_all_processes_have_the_same_bits(found, case, world):
    first, *others = (each[case] for each in found[world])
    for other in others:
        assert without_times(other[0]) == without_times(first[0])
        assert other[1:3] == first[1:3]


def test_what_cannot_be_shared_is_refused_by_every_process(found):
    coupled = "this method compares the examples of a batch with each other, so that 2 processes cannot share one: "
    assert [each["csi"] for each in found[2]] == 2 * [f"{coupled}start it without torchrun, in one process"]
    too_few = "the schedule's batch is 3, for 3 processes: give at least 6, or start fewer"
    assert [each["small"] for each in found[3]] == 3 * [too_few]
    assert found[1][0]["csi"] is found[1][0]["small"] is None


def test_a_loss_that_is_not_finite_in_one_process_ends_all_of_them(found):
    for world in (2, 3):
        for each in found[world]:
            assert each["nan"].startswith("the loss became nan at step 0")
    assert found[1][0]["nan"] is None


@pytest.mark.parametrize("world", [2, 3])
def test_processes_that_were_given_different_things_are_refused_by_all_of_them(found, world):
    text = "every process must be given the same data, model and settings, but {} differ between the processes: give the "
    for each in found[world]:
        assert each["shards"].startswith(text.format("the labelled data, the starting weights"))
        assert each["pretrained shards"].startswith(text.format("the labelled data"))
        assert each["run_dir"].startswith(text.format("run_dir given"))
    assert found[1][0]["shards"] is found[1][0]["pretrained shards"] is found[1][0]["run_dir"] is None


@pytest.mark.parametrize("world", [1, 2, 3])
def test_weights_that_are_not_finite_end_all_processes_where_one_is_to_save(found, world):
    for each in found[world]:
        assert each["doomed"].startswith("the weights became infinite or NaN at step 3 (lr ")
        assert "/doomed/checkpoint.safetensors: try a smaller lr" in each["doomed"]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_empty_checkpoint_is_said_to_be_damaged_by_every_process(found, world):
    for each in found[world]:
        assert "/doomed/checkpoint.safetensors is damaged (" in each["emptied"]


CUT_OFF = """
import functools, os, sys, time
from pathlib import Path
import numpy as np, torch, wildood
import wildood.detect.fit as fitting
from wildood.models.small import MLP

run, pause = Path(sys.argv[1]), float(sys.argv[2])
Path(f"{run}-pid-{os.environ.get('RANK', 0)}").write_text(str(os.getpid()))
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 400)
x = (rng.normal(size=(400, 6)) + 2 * np.eye(6)[y]).astype("float32")
wild = wildood.WildMixture(id=x[:150], ood=rng.normal(size=(60, 6)).astype("float32") - 2, pi=0.2)
torch.manual_seed(0)
fitting.Training = functools.partial(fitting.Training, checkpoint_seconds=0.0 if sys.argv[3] == "often" else 1000.0)
wildood.fit(
    trained(MLP(6, 3, hidden=(16,)), x[:150], y[:150]), (x[150:300], y[150:300]), wild, (x[300:], y[300:]),
    run_dir=run, seed=3, verbose=False,
    schedule=wildood.Schedule(epochs=12, batch=32), on_epoch=lambda row: time.sleep(pause),
)
"""


def saved_state(run: Path):
    return load_state((run / "checkpoint.safetensors").read_bytes())["state"]


def wait_for_rows(run: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    history, deadline = run / "history.jsonl", time.monotonic() + 180
    while not (history.exists() and len(history.read_bytes().splitlines()) >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run wrote no history"
        time.sleep(0.01)


def test_a_run_whose_process_is_killed_goes_on_with_three_and_after_ctrl_c_with_one(tmp_path, torchrun):
    program, run, whole = tmp_path / "cut_off.py", tmp_path / "run", tmp_path / "whole"
    program.write_text(TRAINED + CUT_OFF)
    with torchrun(2, program, run, "0.3", "often") as process:
        wait_for_rows(run, 4, process)
        os.kill(int(Path(f"{run}-pid-1").read_text()), signal.SIGKILL)
        said = process.communicate()[1].decode()
    assert process.returncode != 0
    assert "wildood.errors.TrainingError: another process of this run ended" in said
    killed_at = saved_state(run)["step"]
    assert 0 < killed_at < 48

    with torchrun(3, program, run, "0.3", "seldom") as process:
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
        run_here(program, directory, "0", "often")
    rows, expected = without_times(read_rows(run / "history.jsonl")), without_times(read_rows(whole / "history.jsonl"))
    assert len(rows) == 13
    for row, its_row in zip(expected, rows, strict=True):
        assert its_row == pytest.approx(row, abs=1e-5)
    for name, value in saved_state(whole)["objective"].items():
        assert np.allclose(saved_state(run)["objective"][name].numpy(), value.numpy(), atol=1e-5)
