import math

import pytest
import torch

from wildood.methods.csi import supervised_contrastive


def by_hand(features, labels, temperature):
    """Two loops over the definition."""
    unit = [row / row.norm() for row in features]
    total, anchors = 0.0, 0
    for i, anchor in enumerate(unit):
        below = math.log(sum(math.exp(float(anchor @ other) / temperature) for a, other in enumerate(unit) if a != i))
        others = [p for p in range(len(unit)) if p != i and labels[p] == labels[i]]
        if others:
            anchors += 1
            total -= sum(float(anchor @ unit[p]) / temperature - below for p in others) / len(others)
    return total / anchors


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1], [3, 3, 1, 1, 1, 0]])
def test_loss_is_that_of_two_loops(labels, temperature):
    features = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = supervised_contrastive(features, torch.tensor(labels), temperature).item()
    assert found == pytest.approx(by_hand(features, labels, temperature), rel=1e-9)


def test_length_of_the_features_does_not_matter():
    features, labels = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    stretched = features * torch.rand(8, 1).add(0.5)
    assert torch.isclose(*(supervised_contrastive(each, labels, 0.07) for each in (features, stretched)), rtol=1e-4)


def test_gradient_pulls_equal_labels_together():
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    before = supervised_contrastive(features, labels, 0.2)
    before.backward()
    with torch.no_grad():
        assert supervised_contrastive(features - 0.05 * features.grad, labels, 0.2) < before
