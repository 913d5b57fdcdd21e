import numpy as np
import pytest
import torch

from wildood.data.inputs import InputSpec
from wildood.data.sources import ArraySource
from wildood.models.classifier import EVAL_BATCH, Classifier
from wildood.train.monitor import measure_start


@pytest.mark.parametrize(
    ("least", "greatest", "kind", "expected"),
    [(-1.5, 0.75, "float32", (-1.5, 0.75)), (51, 204, "uint8", (0.2, 0.8))],
)
def test_the_start_knows_how_far_the_raw_values_reach(least, greatest, kind, expected):
    images = np.full((EVAL_BATCH + 4, 2, 2, 1), (least + greatest) / 2, kind)
    images[3, 0, 0], images[-1, 1, 1] = greatest, least  # in two batches
    labels = torch.arange(len(images)) % 2
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    start = measure_start(Classifier(model, InputSpec(mean=(0.5,), std=(0.25,))), ArraySource(images, labels), seed=0)
    assert start.reach == pytest.approx(expected)
    assert start.shape == (1, 2, 2)
