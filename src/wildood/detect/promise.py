"""What the threshold of a detector guarantees about false alarms, in words and numbers."""

from dataclasses import dataclass
from typing import Final

NOT_COMPARED: Final = "whether they were used in training could not be checked"


@dataclass(frozen=True)
class Promise:
    """What the threshold guarantees, and from how many examples.

    Attributes:
        alpha: the false-alarm rate.
        examples: how many ID examples the threshold was computed from.
        unseen: whether the caller says that they trained neither the starting classifier nor the detector.
        confidence: the probability, over the draw of the holdout, with which the rate holds; None: it holds on average.
        by_class: whether the rate holds among the examples of each predicted class.
        caveat: what could not be checked about these examples, or what else must hold.

    >>> print(Promise(alpha=0.05, examples=500, unseen=True))
    false-alarm rate <= 5 % on average over holdouts, if the 500 holdout examples are unseen and future ID data has the same
    distribution
    >>> print(Promise(0.05, 500, unseen=True, confidence=0.95, by_class=True, caveat="the holdout was not compared"))
    false-alarm rate <= 5 % in each predicted class with probability 95 %, if the 500 holdout examples are unseen and future
    ID data has the same distribution; the holdout was not compared
    """

    alpha: float
    examples: int
    unseen: bool
    confidence: float | None = None
    by_class: bool = False
    caveat: str = ""

    @property
    def assumption(self) -> str:
        """What must be true for the promise to hold."""
        return (
            f"future ID data has the same distribution as the {self.examples} examples (is exchangeable with them), and "
            "these trained neither the starting classifier nor the detector and chose nothing"
        )

    def __str__(self) -> str:
        rate = f"{100 * self.alpha:g} %" + (" in each predicted class" if self.by_class else "")
        if not self.unseen:
            return (
                f"no promise: the threshold aims at a false-alarm rate of {rate}, but the model may be trained on the "
                f"{self.examples} examples that set it, so it may reject more fresh data: give an unseen holdout"
            )
        how = "on average over holdouts" if self.confidence is None else f"with probability {100 * self.confidence:g} %"
        condition = f"if the {self.examples} holdout examples are unseen and future ID data has the same distribution"
        return f"false-alarm rate <= {rate} {how}, {condition}" + (f"; {self.caveat}" if self.caveat else "")
