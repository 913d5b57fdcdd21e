"""Many small figures of scores side by side."""

from collections.abc import Sequence

from wildood.evaluate.metrics import accepting_threshold
from wildood.report.figures import Scores, small_histogram

SAYS = "Hatched is OOD, the other ID. The dashed line accepts 95 % of ID: what lies right of it is rejected."


def score_figure(name: str, known: Scores | None, other: Scores | None, ood: str, caption: str) -> str:
    """Scores of ID and of one OOD set, with a caption in HTML; empty if somebody has deleted the scores.

    >>> score_figure("a", None, None, "SVHN", "SVHN")
    ''
    """
    if known is None or other is None or not len(known) or not len(other):
        return ""
    svg = small_histogram(name, known, other, accepting_threshold(known), ("ID", ood))
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def multiples(drawn: Sequence[str]) -> str:
    """Figures in a grid.

    >>> multiples(["<figure></figure>"])
    '<div class="multiples"><figure></figure></div>'
    """
    return f'<div class="multiples">{"".join(drawn)}</div>'
