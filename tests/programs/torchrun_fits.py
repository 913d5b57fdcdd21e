"""What each of several processes gets from `fit` and `pretrain`, as JSON; run by tests/train/test_torchrun.py."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

import wildood
from wildood.errors import WildoodError
from wildood.models.small import MLP, SmallCNN
from wildood.train import checkpoint


def trained(model, x, y):
    # From weights that know nothing, rounding grows faster than from those that `fit` is made for.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    return model


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

rank, here = int(os.environ.get("RANK", "0")), sys.argv[1]


class Rounded(wildood.Woods):  # as on machines that round otherwise
    def objective(self, classifier, start):
        return super().objective(classifier, start._replace(logsumexp=start.logsumexp * (1 + 1e-5 * rank)))


def fit(method, schedule=steps, kind="plain", labelled=160, at=500, model_seed=0, **settings):
    rows = []
    detector = wildood.fit(
        network(kind, model_seed),
        (x[at : at + labelled], y[at : at + labelled]),
        wild if method.uses_wild else None,
        (x[1200:], y[1200:]),
        method=method,
        schedule=schedule,
        verbose=False,
        on_epoch=rows.append,
        **settings,
    )
    return [detector.history, detector.threshold, weights(detector.classifier), len(rows)]


def pretrain(at=0):
    rows, spec = [], wildood.InputSpec(mean=(0.5,), std=(0.25,))
    torch.manual_seed(0)
    trained = wildood.pretrain(
        SmallCNN(3, width=4, hidden=8),
        (pictures[at : at + 160], y[at : at + 160]),
        (pictures[200:], y[200:1000]),
        input=spec,
        schedule=wildood.Schedule(steps=20, batch=31, augment=True),
        verbose=False,
        on_epoch=rows.append,
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
        SmallCNN(3, width=4, hidden=8),
        data,
        None,
        holdout,
        method=wildood.Csi(head_epochs=1),
        input=spec,
        verbose=False,
        schedule=wildood.Schedule(steps=1, batch=16),
        run_dir=here + "/csi",
    )


def doomed():
    seconds, checkpoint.SECONDS = checkpoint.SECONDS, 0.0
    try:
        fit(wildood.Woods(), kind="doomed", run_dir=here + "/doomed")
    finally:
        checkpoint.SECONDS = seconds


def emptied():
    if rank == 0:
        Path(here, "doomed", "checkpoint.safetensors").write_bytes(b"")
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
Path(here, f"found-{rank}.json").write_text(json.dumps(found))
