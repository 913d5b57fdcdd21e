"""What every score is: a module that turns a classifier's outputs into one number for each example."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs, evaluating, raw_batches


@dataclass(frozen=True)
class About:
    """Where a score is from, and what it needs besides the classifier and its logits.

    Attributes:
        paper: the paper that proposed it.
        labelled: it is fitted on labelled data.
        labels: and reads their classes.
        features: it reads the classifier's features.
        gradients: it follows the gradient with respect to the input, in a second pass.
    """

    paper: str
    labelled: bool = False
    labels: bool = False
    features: bool = False
    gradients: bool = False


class Scored(NamedTuple):
    """The scores of a batch, and the classifier's outputs for it."""

    scores: Tensor
    outputs: Outputs


class Score(nn.Module):
    """Higher = more OOD. What is fitted or trained is a buffer or a parameter, so that all scores are saved one way.

    Attributes:
        about: where it is from and what it needs.
        settings: the constructor's arguments, as JSON-ready data.

    >>> Score(k=3).settings
    {'k': 3}
    """

    about: ClassVar[About] = About("your own")

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, outputs: Outputs) -> Tensor:
        """One number for each example."""
        raise NotImplementedError

    def of(self, classifier: Classifier, raw: Tensor) -> Scored:
        """The scores of a raw batch; scores that change the input first do it here."""
        outputs = classifier(raw)
        return Scored(self(outputs), outputs)

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Learn what the score needs to know of labelled data; most need nothing."""

    def candidates(self) -> "list[Score]":
        """The scores to choose from: this one alone, or one for each value of a setting that is None."""
        return [self]

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings; what was fitted is shared."""
        other = copy.copy(self)
        other.settings = self.settings | settings
        for name, value in settings.items():
            setattr(other, name, value)
        return other

    def restore(self, state: dict[str, Tensor], *, assign: bool = False) -> None:
        """Take back what `state_dict` gave; fitted buffers have the shapes of the data they were fitted on.

        Args:
            state: what it gave.
            assign: keep these tensors themselves, not copies of them.
        """
        for name in self._buffers:
            if name in state:
                self._buffers[name] = torch.empty_like(state[name])
        self.load_state_dict(state, assign=assign)


def score_all(classifier: Classifier, source: Source, score: Score) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The score and the predicted class of every example of a source."""
    scores, classes = [], []
    with evaluating(classifier), evaluating(score):
        for raw, _ in raw_batches(source):
            batch = ranked(score.of(classifier, raw))
            scores.append(batch.scores.float().cpu())
            classes.append(batch.outputs.logits.argmax(1).cpu())
    return torch.cat(scores).numpy(), torch.cat(classes).numpy()


def ranked(scored: Scored) -> Scored:
    """The same, with +inf (more OOD than any number) for an example whose score or largest logit is not finite.

    -inf would be accepted by every threshold, and NaN cannot be compared.

    >>> logits = torch.tensor([[2.0, 1.0], [torch.inf, 1.0], [-torch.inf, 3.0]])
    >>> ranked(Scored(-logits.logsumexp(1), Outputs(logits))).scores
    tensor([-2.3133,     inf, -3.0000])
    """
    finite = scored.scores.isfinite() & scored.outputs.logits.amax(1).isfinite()
    return Scored(scored.scores.where(finite, torch.inf), scored.outputs)
