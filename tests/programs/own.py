"""A user's own model, which can be made slow; built by tests/cli/test_torchrun.py."""

import os
import time
from pathlib import Path

import torch

from wildood.train import checkpoint

Path(f"pid-{os.environ.get('RANK')}").write_text(str(os.getpid()))
checkpoint.SECONDS = 0.0


class Slow(torch.nn.Module):
    def forward(self, batch):
        time.sleep(0.05 if Path("slow").exists() else 0)
        return batch


def build():
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(Slow(), *layers)
