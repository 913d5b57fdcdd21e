"""The supervised contrastive loss (Khosla et al., 2020): examples of one class attract each other, all others repel."""

import torch
import torch.nn.functional as F
from torch import Tensor


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The mean over anchors i of  -1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p / T) / Σ_{a ≠ i} exp(z_i·z_a / T) ).

    P(i) are the other examples with the label of i; z are the features, normalised here. Anchors that have no other example
    of their label are left out.

    >>> same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> round(supervised_contrastive(same, torch.tensor([0, 0, 1, 1]), temperature=1.0).item(), 4)  # -log(e / (e + 2))
    0.5514
    """
    unit = F.normalize(features, dim=1)
    similarity = unit @ unit.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    count = positive.sum(1)
    per_anchor = -(log_share * positive).sum(1)[count > 0] / count[count > 0]
    return per_anchor.mean()
