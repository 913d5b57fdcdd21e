"""The split of the data of a fit: what trains, what chooses, what sets the threshold. A holdout that leaks is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.fingerprint import TOLERATED, ExampleHashes, Overlap
from wildood.data.images import Images
from wildood.data.inputs import Spec
from wildood.data.judged import Judged, without
from wildood.data.mapped import MappedSource
from wildood.data.sampling import Indices, generator, permutation, split
from wildood.data.sources import ArraySource, Part, Source
from wildood.data.validation import align_classes, labelled_and_holdout, labelled_source, unlabelled_source
from wildood.data.wild import MOST_ASIDE, Wild, WildMixture, WildPool, as_wild
from wildood.detect.detector import Example
from wildood.errors import InputError
from wildood.evaluate.thresholds import confidence_text, examples_needed
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.settings import check_integer
from wildood.train.distributed import this_process
from wildood.train.progress import logger

ASIDE = 0.1  # the share of wild data, and of labelled data without a holdout, that is not trained on
SELECTION_SIZE = 1000  # wild examples to choose by, if that is at most half of them: fewer seldom show that training helped
TAIL = 10  # false alarms to expect in each third of a holdout, at least, if one third may train
TOO_FEW = 5  # wild examples that cannot tell epochs apart at all
Sources = Mapping[str, Sequence[Source]]  # by what they are to a fit: labelled, wild (one or two pools), holdout, ood


@dataclass(frozen=True, eq=False)
class SplitHoldout:
    """A holdout that is split already; `fit` takes it in the place of one that it halves.

    Attributes:
        examples: with their classes.
        selection: the numbers of those that choose the epoch or a setting of the score, and that may train.
        threshold: of those that set the threshold. The others are not used.
    """

    examples: Source
    selection: Indices
    threshold: Indices


class FitSplit(NamedTuple):
    """The data of a fit, split by what it is used for."""

    labelled: Source
    wild: Wild | None  # None for methods that train without
    wild_aside: Source | None  # wild data that is not trained on, or known OOD examples, to choose by
    selection: Source  # holdout examples to choose the epoch or a setting of the score by
    threshold: Source  # holdout examples that set the threshold; the same ones where nothing is chosen
    example: Example
    fingerprints: dict[str, str]
    unlabelled: dict[str, str]  # fingerprints without labels, where they differ
    caveat: str = ""  # of the promise
    fresh: Source | None = None  # ID examples as they come now: false alarms are measured on them, too
    missing_classes: str = ""  # of the holdout or of labelled, as a warning
    repeated_wild: str = ""  # that few wild examples are distinct, as a warning
    judged: Judged | None = None  # wild examples that a person has judged, which train
    judged_unknown: Source | None = None  # unknown ones of them that measure what is caught
    judged_caveat: str = ""  # of what they promise
    may_train: bool = False  # whether `selection` is large enough that half of it may become `fresh`
    traffic: Wild | None = None  # all wild data, where a part of it is set aside

    def with_fresh(self, seed: int) -> "FitSplit":
        """The same with half of the holdout examples that choose as `fresh` ones."""
        halves = split(len(self.selection), 0.5, generator(seed, "fresh-from-holdout"))
        selection, fresh = (Part(self.selection, half) for half in halves)
        return self._replace(selection=selection, fresh=fresh, may_train=False)

    def with_selection(self, alpha: float, confidence: float | None, seed: int, *, instead: str) -> "FitSplit":
        """The same with the holdout halved, unless it is already: one half to choose by, the other for the threshold."""
        if self.selection is not self.threshold:
            return self
        selection, threshold = halve_holdout(self.threshold, alpha, confidence, seed, instead=instead)
        return self._replace(selection=selection, threshold=threshold)


def split_for_fit(
    labelled: Any,
    wild: Any,
    holdout: Any,
    schedule: Schedule,
    alpha: float,
    spec: Spec | None,
    keep: str,
    seed: int,
    confidence: float | None = None,
    ood: Any = None,
    *,
    uses_wild: bool = True,
    allow_duplicates: bool = False,
    fresh: Any = None,
    judged: Any = None,
    from_holdout: bool = False,
) -> FitSplit:
    """Check and split the data of a user. Wild data that a method does not train on still chooses.

    Of a holdout, one half chooses and the other sets the threshold. Without `fresh` examples, `from_holdout` lets two thirds
    choose, so that half of these can become fresh ones, if each third is large enough.
    """
    halves = holdout if isinstance(holdout, SplitHoldout) else None
    if halves is not None:
        used = [each[torch.arange(len(each))] for each in (halves.selection, halves.threshold)]
        holdout = Part(halves.examples, torch.cat(used))
    known, unseen = labelled_and_holdout(labelled, holdout)
    if wild is None and uses_wild:
        raise InputError(
            "this method trains on wild data: give wild=x (--wild), unlabelled examples as the classifier meets them"
        )
    traffic = None if wild is None else as_wild(wild)
    outliers = None if ood is None else unlabelled_source(ood, "ood")
    today = None if fresh is None else fresh_source(labelled, fresh)
    answers = None if judged is None else Judged.of(judged, spec)
    missing_classes = _missing_classes(known, unseen)
    if missing_classes:
        logger.warning("%s", missing_classes)
    sources: dict[str, Sequence[Source]] = {
        "labelled": [known],
        "wild": () if traffic is None else traffic.pools,
        "holdout": () if unseen is None else [unseen],
        "ood": () if outliers is None else [outliers],
        "fresh": () if today is None else [today],
        "judged": () if answers is None else [answers.examples],
    }
    example = _example_of_all(sources, spec)
    fingerprints, unlabelled = fingerprints_of(sources), fingerprints_of(sources, labels=False)
    unlabelled = {name: text for name, text in unlabelled.items() if text != fingerprints[name]}
    if isinstance(traffic, WildMixture):
        fingerprints["wild"] += f" at pi = {traffic.pi}"
    others = {name: each for name, each in sources.items() if name != "holdout" and (name != "wild" or uses_wild)}
    caveat = check_overlap(unseen, others, allow_duplicates=allow_duplicates)
    needed = examples_needed(alpha, confidence)
    in_thirds = from_holdout and today is None and unseen is not None and len(unseen) / 3 >= max(needed, TAIL / alpha)
    if unseen is None:
        known, unseen = split_labelled(known, needed, schedule.batch, seed, halves=keep == "best")
    if len(known) < schedule.batch:
        raise InputError(
            f"labelled has {len(known)} examples to train on, fewer than a batch of {schedule.batch}: give more, or a "
            "smaller batch, as in schedule=Schedule(steps=100, batch=32) (--batch 32)"
        )
    traffic, answers, measures, judged_caveat = _with_judged(traffic, answers, seed)
    trained_on: Wild | None = traffic if uses_wild else None
    aside, whole = outliers, trained_on if outliers is None else None
    if outliers is None and trained_on is not None:
        trained_on, aside = split_wild(trained_on, keep, seed)
        if keep == "best" and (few := len(aside)) < TOO_FEW:
            logger.warning("only %d wild examples choose the epoch, so it is left to chance: give more wild data", few)
    elif outliers is None and traffic is not None:
        aside = subsample(traffic.whole(seed), MOST_ASIDE, seed)
    repeated_wild = _repeated(traffic.source) if isinstance(traffic, WildPool) and outliers is None else ""
    parts = FitSplit(
        known, trained_on, aside, unseen, unseen, example, fingerprints, unlabelled, caveat, today, missing_classes,
        repeated_wild, answers, measures, judged_caveat, traffic=whole,
    )  # fmt: skip
    if halves is not None:
        check_holdout_size(min(len(halves.selection), len(halves.threshold)), alpha, confidence)
        selection, threshold = (Part(halves.examples, each) for each in (halves.selection, halves.threshold))
        may_train = from_holdout and today is None and len(selection) / 2 >= max(needed, TAIL / alpha)
        return parts._replace(selection=selection, threshold=threshold, may_train=may_train)
    if keep == "best" and in_thirds:
        rest, third = split(len(unseen), 1 / 3, generator(seed, "holdout"))
        return parts._replace(selection=Part(unseen, rest), threshold=Part(unseen, third), may_train=True)
    if keep == "best" and uses_wild:  # then there is an epoch to choose
        return parts.with_selection(alpha, confidence, seed, instead="keep='last' (--keep last)")
    check_holdout_size(len(unseen), alpha, confidence)
    return parts


def check_fresh(fresh: Any, method: Method) -> None:
    """Refuse fresh examples for a method that has no constraint on them."""
    if fresh is not None and not method.uses_wild:
        raise InputError("fresh examples are for methods that train on wild data: leave fresh= (--fresh) out")


def _with_judged(
    traffic: Wild | None, judged: Judged | None, seed: int
) -> tuple[Wild | None, Judged | None, Source | None, str]:
    """Wild data without the judged unknowns that measure; those that train, those that measure, and what is not sure."""
    if traffic is None or judged is None:
        return traffic, judged, None, ""
    trains, measures = judged.split(seed)
    if measures is None:
        return traffic, trains, None, ""
    traffic, caveat = without(traffic, measures)
    return traffic, trains, measures, caveat


def check_fresh_and_judged(fresh: Any, judged: Any, method: Method) -> None:
    """Refuse fresh examples for a method without wild data; judged ones where no term is for them, and under torchrun."""
    check_fresh(fresh, method)
    if judged is not None and not getattr(method, "uses_judged", False):
        raise InputError(f"judged examples are for Woods and WoodsAlt, not for {type(method).__name__}: leave judged out")
    if judged is not None and this_process().world > 1:
        raise InputError("judged examples train in one process: leave judged out, or train without torchrun")


def fresh_source(labelled: Any, fresh: Any) -> Source:
    """Fresh examples, with their classes if they have some."""
    if isinstance(fresh, tuple | list) and len(fresh) == 2:
        return labelled_source(fresh, "fresh")
    if isinstance(fresh, ArraySource | MappedSource) and fresh.labels is not None:
        return labelled_source(align_classes(labelled, fresh, "fresh"), "fresh")
    return unlabelled_source(fresh, "fresh")


def check_seed(seed: Any, name: str = "seed") -> int:
    """A seed: a whole number from 0 on."""
    return check_integer(seed, name, "a whole number from 0 on", least=0, most=1 << 128)


def subsample(source: Source, count: int, seed: int) -> Source:
    """The source, or `count` of its examples where it has more."""
    if len(source) <= count:
        return source
    return Part(source, permutation(len(source), generator(seed, "chosen-by"))[:count])


def split_wild(traffic: Wild, keep: str, seed: int) -> tuple[Wild, Source]:
    """Wild data to train on, and a tenth of it to choose by: more where that is less than `SELECTION_SIZE`."""
    share = max(ASIDE, min(0.5, SELECTION_SIZE / len(traffic.whole(seed)))) if keep == "best" else ASIDE
    return traffic.set_aside(share, seed)


def split_labelled(known: Source, needed: int, least_left: int, seed: int, *, halves: bool) -> tuple[Source, Source]:
    """Without a holdout: labelled data to train on, and a tenth of it (at least what alpha needs) for the threshold."""
    aside = max(round(ASIDE * len(known)), needed * (2 if halves else 1))
    if len(known) - aside < least_left:
        raise InputError(
            f"labelled has {len(known)} examples: too few to use {aside} for the threshold and keep "
            f"{least_left}: give holdout=(x, y) (--holdout)"
        )
    logger.warning(
        "no holdout: %d labelled examples set the threshold instead. If the model was trained on them, the false-alarm rate "
        "on fresh data will be higher than alpha; give holdout= (--holdout) for a promise",
        aside,
    )
    first, second = split(len(known), aside / len(known), generator(seed, "labelled-aside"))
    return Part(known, first), Part(known, second)


def halve_holdout(
    holdout: Source, alpha: float, confidence: float | None, seed: int, *, instead: str
) -> tuple[Source, Source]:
    """Two halves of a holdout, each large enough for the false-alarm rate: one chooses, the other sets the threshold."""
    halves = split(len(holdout), 0.5, generator(seed, "holdout"))
    check_holdout_size(min(map(len, halves)), alpha, confidence, instead=instead)
    first, second = (Part(holdout, half) for half in halves)
    return first, second


def check_holdout_size(count: int, alpha: float, confidence: float | None, *, instead: str = "") -> None:
    """Refuse a holdout, or a half of one (`instead` says how to do without halves), that is too small for alpha."""
    needed = examples_needed(alpha, confidence)
    if count < needed:
        half = " in each half (one chooses, one sets the threshold)" if instead else ""
        remedy = f", a larger alpha (--alpha), or {instead}" if instead else " or a larger alpha (--alpha)"
        raise InputError(
            f"the holdout has {count} examples{half}, but a false-alarm rate of {alpha}{confidence_text(confidence)} "
            f"needs at least {needed}: give a larger holdout{remedy}"
        )


def fingerprints_of(sources: Sources, *, labels: bool = True) -> dict[str, str]:
    """The fingerprints of what there is of these sources, for a record."""
    present = {name: several for name, several in sources.items() if several}
    return {name: "+".join(each.fingerprint(labels=labels) for each in several) for name, several in present.items()}


def check_overlap(holdout: Source | None, others: Sources, *, allow_duplicates: bool = False) -> str:
    """Refuse a holdout of which examples are in other sources; return what the promise must say of it, if anything.

    Labelled and wild examples that are equal are only warned of. With `allow_duplicates`, equal examples are no leak.
    """
    hashes = [(name, ExampleHashes(source)) for name, several in others.items() for source in several]
    for name, other in hashes[1:]:
        if hashes[0][0] == "labelled":
            _warn_of_shared("labelled", hashes[0][1].overlap(other), name, other)
    caveats = [] if holdout is None else _caveats(ExampleHashes(holdout), hashes, allow_duplicates=allow_duplicates)
    for caveat in caveats:
        logger.warning("of the promise: %s", caveat)
    return "; ".join(caveats)


def _caveats(holdout: ExampleHashes, others: list[tuple[str, ExampleHashes]], *, allow_duplicates: bool) -> list[str]:
    caveats, equal = [], []
    for name, other in others:
        overlap = holdout.overlap(other)
        _refuse_leak(overlap, name, allow_duplicates=allow_duplicates)
        _warn_of_shared("holdout", overlap, name, other)
        if not overlap.is_checked:
            why = "too few of its examples were read" if overlap.repeatable else "values differ at each reading"
            caveats.append(f"whether they are in {name} could not be checked ({why})")
        if overlap.shared > TOLERATED * overlap.compared:
            equal.append(f"{overlap.shared} of the {overlap.compared} holdout examples are equal to examples of {name}")
    if holdout.is_repeatable and 2 * holdout.distinct < holdout.count:
        caveats.append(
            f"only {holdout.distinct} of them are distinct: the promise holds only if all were drawn independently"
        )
    if equal:
        caveats.append(f"{', '.join(equal)}: the promise holds only if they are equal by chance")
    return caveats


def _refuse_leak(overlap: Overlap, name: str, *, allow_duplicates: bool) -> None:
    if overlap.is_leak and (overlap.same_items or not allow_duplicates):
        how = " (the same items of one dataset)" if overlap.same_items else ""
        by_nature = ", or allow_duplicates=True (--allow-duplicates) if inputs repeat by nature"
        raise InputError(
            f"{overlap.shared} of the {overlap.compared} holdout examples are in {name}, too{how}: the promise needs "
            f"examples that are in no training; give others, or no holdout{'' if overlap.same_items else by_nature}"
        )


def _warn_of_shared(name: str, overlap: Overlap, other_name: str, other: ExampleHashes) -> None:
    if overlap.shared:
        read = "" if overlap.share_compared == 1 else f" ({other.count} of its {len(other.source)} were read)"
        counts = f"{overlap.shared} of the {overlap.compared} {name} examples"
        logger.warning("%s are in %s, too%s: the same data twice?", counts, other_name, read)


def _missing_classes(labelled: Source, holdout: Source | None) -> str:
    """Which classes of labelled the holdout has no example of, or labelled none of those of the holdout."""
    if not isinstance(labelled, ArraySource) or not isinstance(holdout, ArraySource):
        return ""
    names = labelled.classes if isinstance(labelled, Images) and labelled.classes else ()
    first, second = np.asarray(labelled.labels), np.asarray(holdout.labels)
    texts = []
    if which := _listed(np.setdiff1d(first, second), names):
        texts.append(f"{which} in labelled but not in the holdout: the promise is about data like the holdout")
    if which := _listed(np.setdiff1d(second, first), names):
        texts.append(f"{which} in the holdout but not in labelled: training takes its examples for unknown")
    return "; ".join(texts)


def _listed(missing: npt.NDArray[Any], names: Sequence[str]) -> str:
    """Missing classes as the subject of a sentence."""
    if not len(missing):
        return ""
    one = f"class {names[missing[0]] if 0 <= missing[0] < len(names) else missing[0]}"
    return f"{one} is" if len(missing) == 1 else f"{len(missing)} classes, such as {one}, are"


def _repeated(wild: Source) -> str:
    """That few wild examples are distinct: tests of whether training helped take them for independent.

    Copies of one example, which would be on both sides of the split, are refused.
    """
    hashes = ExampleHashes(wild)
    if not hashes.is_repeatable or 2 * hashes.distinct >= hashes.count:
        return ""
    if hashes.distinct == 1:
        raise InputError(f"the {hashes.count} wild examples are all equal: give traffic as the classifier meets it")
    return (
        f"only {hashes.distinct} of {hashes.count} wild examples are distinct: whether training helped is less certain than "
        "the numbers say, unless all were drawn independently"
    )


def _example_of_all(sources: Sources, spec: Spec | None) -> Example:
    """The shape and kind of a raw example, which all sources must share."""
    example = Example.of(sources["labelled"][0])
    if example.kind == "uint8" and spec is None:
        raise InputError(
            "labelled holds uint8 examples: say how they become model input, with input=InputSpec(mean=..., std=...) in "
            "Python or --mean and --std on the command line, as the model was trained (wildood pretrain wrote them to its "
            "settings.toml); or give floats"
        )
    for name, several in sources.items():
        for source in several:
            example.check(source, name)
    return example
