"""What a detector promises about false alarms, in words and numbers."""

from dataclasses import dataclass
from typing import Final

NOT_COMPARED: Final = "whether a training has used them could not be checked"


@dataclass(frozen=True)
class Promise:
    """What the threshold promises, and on what the promise rests.

    Attributes:
        alpha: the false-alarm rate.
        examples: how many ID examples the threshold was computed on.
        unseen: whether neither the starting classifier nor the fit has trained on them, as far as the caller says.
        confidence: the probability, over the draw of the holdout, with which the rate holds; None: it holds on average.
        by_class: whether it holds among the examples of each predicted class.
        caveat: what could not be checked about these examples, or what else must hold; empty if there is nothing.

    >>> print(Promise(alpha=0.05, examples=500, unseen=True))
    false-alarm rate <= 5 % on ID data like the 500 holdout examples (on average over holdouts)
    >>> print(Promise(alpha=0.05, examples=500, unseen=True, confidence=0.95, by_class=True))
    false-alarm rate <= 5 % in each predicted class on ID data like the 500 holdout examples (with probability 95 %)
    >>> print(Promise(alpha=0.05, examples=500, unseen=True, caveat="whether they are in labelled could not be checked"))
    false-alarm rate <= 5 % on ID data like the 500 holdout examples (on average over holdouts); whether they are in labelled
    could not be checked
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
            f"future ID data is drawn like the {self.examples} examples (exchangeable with them), on which neither the "
            "starting classifier nor the fit has trained, and which have chosen nothing"
        )

    def __str__(self) -> str:
        rate = f"{100 * self.alpha:g} %" + (" in each predicted class" if self.by_class else "")
        if self.unseen:
            how = "on average over holdouts" if self.confidence is None else f"with probability {100 * self.confidence:g} %"
            text = f"false-alarm rate <= {rate} on ID data like the {self.examples} holdout examples ({how})"
            return f"{text}; {self.caveat}" if self.caveat else text
        return (
            f"no promise: the threshold aims at a false-alarm rate of {rate} on {self.examples} examples, but if the model "
            "was trained on them, fresh data is rejected more often: give a holdout that it has not seen"
        )
