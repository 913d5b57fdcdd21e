"""A fit on several processes that can be cut off; run by tests/train/test_torchrun.py."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import wildood
from wildood.models.small import MLP
from wildood.train import checkpoint


def trained(model, x, y):
    # From weights that know nothing, rounding grows faster than from those that `fit` is made for.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    return model


run, pause = Path(sys.argv[1]), float(sys.argv[2])
Path(f"{run}-pid-{os.environ.get('RANK', '0')}").write_text(str(os.getpid()))
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 400)
x = (rng.normal(size=(400, 6)) + 2 * np.eye(6)[y]).astype("float32")
wild = wildood.WildMixture(id=x[:150], ood=rng.normal(size=(60, 6)).astype("float32") - 2, pi=0.2)
torch.manual_seed(0)
checkpoint.SECONDS = 0.0 if sys.argv[3] == "often" else 1000.0
wildood.fit(
    trained(MLP(6, 3, hidden=(16,)), x[:150], y[:150]),
    (x[150:300], y[150:300]),
    wild,
    (x[300:], y[300:]),
    run_dir=run,
    seed=3,
    verbose=False,
    schedule=wildood.Schedule(epochs=12, batch=32),
    on_epoch=lambda row: time.sleep(pause),
)
