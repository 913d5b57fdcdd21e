"""A fit of several stages that can be killed; run by tests/detect/test_stages.py."""

import sys
import time

import numpy as np
import torch

import wildood
import wildood.train.checkpoint

torch.set_num_threads(1)
rng = np.random.default_rng(0)
y = np.arange(104) % 2
x = rng.integers(0, 256, (104, 8, 8, 3)).astype(np.uint8)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3),
    torch.nn.BatchNorm2d(4),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(16, 2),
)
wildood.train.checkpoint.SECONDS = 0.0
pause = float(sys.argv[2])
detector = wildood.fit(
    model,
    (x[:64], y[:64]),
    None,
    (x[64:], y[64:]),
    input=wildood.InputSpec(mean=(0.5,), std=(0.25,)),
    method=wildood.Csi(head_epochs=5, projection=8),
    schedule=wildood.Schedule(epochs=5, batch=16, lr=1.0, decay="cosine"),
    run_dir=sys.argv[1],
    seed=3,
    verbose=False,
    keep="last",
    on_epoch=lambda row: time.sleep(pause),
)
detector.save(sys.argv[1] + "-detector")
