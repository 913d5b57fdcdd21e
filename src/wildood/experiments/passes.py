"""The images that go through the network in a run: with a backward pass, and without."""

from typing import NamedTuple, Self

from wildood.detect.preparation import ASIDE
from wildood.detect.scoring import CHOSEN_BY
from wildood.experiments.experiment import Experiment
from wildood.experiments.sizes import Sizes
from wildood.methods.csi import Csi, CsiHeads
from wildood.methods.objective import Method, Stage, stages_of
from wildood.methods.woods import Woods
from wildood.models.heads import JointHead
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Score

TURNS = JointHead.turns


class Passes(NamedTuple):
    """Images through the network: with a backward pass, and without.

    >>> Passes(1, 2).plus(Passes(3, 4)).times(2)
    Passes(trained=8, looked_at=12)
    """

    trained: float
    looked_at: float

    def plus(self, other: Self) -> "Passes":
        """Both together."""
        return Passes(self.trained + other.trained, self.looked_at + other.looked_at)

    def times(self, count: float) -> "Passes":
        """Each so many times."""
        return Passes(self.trained * count, self.looked_at * count)


class Rate(NamedTuple):
    """Images per second of a network on this machine, with a backward pass and without."""

    trained: float
    looked_at: float

    def seconds(self, passes: Passes) -> float:
        """How long so many images take.

        >>> Rate(trained=10.0, looked_at=40.0).seconds(Passes(20, 40))
        3.0
        """
        return passes.trained / self.trained + passes.looked_at / self.looked_at


def work_of(experiment: Experiment, sizes: Sizes) -> tuple[int, Passes]:
    """Steps of a run, and the images that go through its network."""
    recipe = experiment.recipe()
    if isinstance(recipe, Score):
        return 0, _scoring(experiment, recipe, sizes)
    return _training(experiment, recipe, sizes)


def _scoring(experiment: Experiment, score: Score, sizes: Sizes) -> Passes:
    """A pass over everything; where settings are chosen, one for each candidate over what chooses."""
    traffic = sizes.wild_id + sizes.wild_ood
    if not score.about.gradients:  # then a pass gives features of all there is, and the rest costs nothing
        more = 0 if experiment.wild is None else traffic + sizes.validation_ood
        return Passes(0, sizes.labelled + sizes.holdout + sizes.test + more)
    once, candidates, threshold = Passes(0, sizes.labelled), score.candidates(), sizes.holdout
    if len(candidates) > 1:
        threshold -= sizes.holdout // 2
        other = sizes.validation_ood if experiment.protocol == "as_published" else min(CHOSEN_BY, traffic)
        choosing = sizes.holdout - threshold + (0 if experiment.wild is None else other)
        for candidate in candidates:
            once = once.plus(_one(candidate).times(choosing))
    return once.plus(_one(candidates[-1]).times(threshold + sizes.test))


def _one(score: Score) -> Passes:
    """What a score needs of one image: a step on the input takes a backward pass, and a second look."""
    return Passes(1, 1) if isinstance(score, PerturbedScore) and score.epsilon != 0 else Passes(0, 1)


def _training(experiment: Experiment, method: Method, sizes: Sizes) -> tuple[int, Passes]:
    pools = [sizes.wild_id, sizes.wild_ood] if experiment.uses_wild else []
    views = TURNS if isinstance(method, Csi) else 1  # of each image when it is scored
    steps, passes = 0, Passes(0, sizes.labelled + views * (sizes.holdout + sizes.test))
    for number, stage in enumerate(stages_of(method)):
        schedule = (experiment.schedule or stage.schedule()) if number == 0 else stage.schedule()
        per_epoch, length = schedule.length(sizes.labelled, pools)
        look, images = sizes.holdout + sum(pools) * ASIDE, schedule.batch * (2 if pools else 1)
        rows = schedule.ends(schedule.row_every(per_epoch, images, int(look)), length)
        looked_at = look * (1 if isinstance(stage, Csi) else rows)  # what classifies not yet is looked at once
        looked_at += rows * sizes.labelled if schedule.duals == "epoch" else 0
        steps += length
        passes = passes.plus(_in_step(stage).times(length * images))
        passes = passes.plus(Passes(0, looked_at * (views if number else 1)))
    return steps, passes


def _in_step(stage: Stage) -> Passes:
    """Of one example in a step: CSI has eight views of it, then four on a network that stays as it is.

    Of WOODS, every second example is wild, and is seen by the starting classifier, too.
    """
    if isinstance(stage, Csi):
        return Passes(2 * TURNS, 0)
    if isinstance(stage, Woods) and not stage.published:
        return Passes(1, 0.5)
    return Passes(0, TURNS) if isinstance(stage, CsiHeads) else Passes(1, 0)
