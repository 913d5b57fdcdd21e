"""A fit with a run directory that can be killed; run by tests/train/test_checkpoint.py."""

import sys
import time

import numpy as np
import torch

import wildood
import wildood.train.checkpoint

torch.set_num_threads(1)
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 400)
x = (rng.normal(size=(400, 6)) + 2 * np.eye(6)[y]).astype("float32")
wild = wildood.WildMixture(id=x[:150], ood=rng.normal(size=(60, 6)).astype("float32") - 2, pi=0.2)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)
)
wildood.train.checkpoint.SECONDS = 0.0 if sys.argv[2] == "often" else 1000.0
pause = float(sys.argv[3])
detector = wildood.fit(
    model,
    (x[150:300], y[150:300]),
    wild,
    (x[300:], y[300:]),
    run_dir=sys.argv[1],
    seed=3,
    verbose=False,
    method=getattr(wildood, sys.argv[4])(),
    schedule=wildood.Schedule(epochs=12, batch=32),
    on_epoch=lambda row: time.sleep(pause),
)
detector.save(sys.argv[1] + "-detector")
