"""GEN (Liu et al., 2023): the generalized entropy of the largest probabilities."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import Score
from wildood.settings import check_count, check_positive, optional


class Gen(Score):
    """s(x) = Σ_k p_k^γ (1 - p_k)^γ over the `top` largest probabilities p of softmax(f(x)), or over all of them if fewer.

    A setting that is None is chosen by wild acceptance.

    >>> Gen()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    paper = "Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, 2023"
    grid: ClassVar = {"gamma": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0), "top": (10, 100)}

    def __init__(self, gamma: float | None = 0.1, top: int | None = 100) -> None:
        gamma = optional(check_positive)(gamma, "Gen: gamma")
        top = optional(check_count)(top, "Gen: top")
        super().__init__(gamma=gamma, top=top)
        self.gamma, self.top = gamma, top

    def forward(self, outputs: Outputs) -> Tensor:
        """The generalized entropy."""
        p = outputs.logits.softmax(1)
        p = p.topk(p.shape[1], dim=1).values  # a sort, which exports have, too
        # 1 - p of a sure classifier loses all digits: it is the sum of the other probabilities.
        rest = torch.cat([p[:, 1:].sum(1, keepdim=True), 1 - p[:, 1:]], dim=1)
        terms: Tensor = (p * rest)[:, : self.setting("top")] ** self.setting("gamma")
        return terms.sum(1)
