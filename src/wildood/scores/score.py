"""The contract of a score: a module that turns a classifier's outputs into one number per example, higher = more OOD."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildood.data.sources import Source
from wildood.data.structures import Raw
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, evaluating, raw_batches


@dataclass(frozen=True)
class Needs:
    """What a score needs besides the logits."""

    labelled: bool = False  # data to be fitted on
    unseen: bool = False  # to be fitted on ID data that the classifier was not trained on: half of the holdout
    labels: bool = False  # the classes of the data that it is fitted on
    features: bool = False
    gradients: bool = False  # with respect to the input, and a second pass


class Scored(NamedTuple):
    """The scores of a batch, and the classifier's outputs for it."""

    scores: Tensor
    outputs: Outputs


class Score(nn.Module):
    """Higher = more OOD. What is fitted or trained is a buffer or a parameter, so that `state_dict` saves it.

    Attributes:
        paper: where the score was proposed.
        needs: what it needs besides the logits.
        grid: for each setting that may be None, the values that it is chosen from.
        settings: the constructor's arguments, as JSON-ready data.

    >>> Score(k=3).settings
    {'k': 3}
    """

    paper: ClassVar[str] = "your own"
    needs: ClassVar[Needs] = Needs()
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def declare(self, *names: str) -> None:
        """Buffers that `fit` fills."""
        for name in names:
            self.register_buffer(name, torch.empty(0))

    def forward(self, outputs: Outputs) -> Tensor:
        """One number per example."""
        raise NotImplementedError

    def of(self, classifier: Classifier, raw: Raw) -> Scored:
        """The scores of a raw batch; a score that perturbs the input overrides this."""
        outputs = classifier(raw)
        return Scored(self(outputs), outputs)

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Fit the score on labelled data; most scores need no fit."""

    def candidates(self) -> "list[Score]":
        """The scores to choose from: one per combination of grid values for the settings that are None."""
        names = [name for name in self.grid if getattr(self, name) is None]
        if not names:
            return [self]
        combinations = itertools.product(*(self.grid[name] for name in names))
        return [self.with_settings(**dict(zip(names, values, strict=True))) for values in combinations]

    def setting(self, name: str) -> Any:
        """The value of a setting; None, which it is until it is chosen, is refused."""
        value = getattr(self, name)
        if value is None:
            raise InputError(f"{type(self).__name__}: {name} is None: give a number, or let `posthoc` choose it")
        return value

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings; the fitted buffers are shared."""
        other = copy.copy(self)
        other.settings = self.settings | settings
        for name, value in settings.items():
            setattr(other, name, value)
        return other

    def restore(self, state: dict[str, Tensor], *, assign: bool = False) -> None:
        """Load a `state_dict`; the fitted buffers take their shapes from it. `assign` keeps its tensors without a copy."""
        for prefix, module in self.named_modules():
            for name in module._buffers:  # noqa: SLF001 - setattr would refuse another shape only of parameters
                saved = state.get(f"{prefix}.{name}" if prefix else name)
                if saved is not None:
                    module._buffers[name] = torch.empty_like(saved)  # noqa: SLF001
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
