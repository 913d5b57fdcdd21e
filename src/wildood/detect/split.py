"""A user's data, checked and divided into what a fit trains on and what it does not look at."""

from typing import Any, NamedTuple

import numpy as np

from wildood.data.fingerprint import TOLERATED, Content, Overlap, unlabelled_fingerprints
from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.data.sampling import generator, permutation, split
from wildood.data.sources import ArraySource, Part, Source
from wildood.data.validation import labelled_source, numbered_like, unlabelled_source
from wildood.data.wild import MOST_ASIDE, Wild, WildMixture, WildPool, as_wild
from wildood.detect.detector import Example
from wildood.errors import InputError
from wildood.evaluate.thresholds import confidence_text, examples_needed
from wildood.methods.schedule import Schedule
from wildood.train.progress import logger

ASIDE = 0.1  # the share of wild data, and of labelled data without a holdout, that training does not see
JUDGES = 500  # wild examples to choose by, if that is at most half of them: fewer seldom show that training helped
FEW = 5  # wild examples that cannot tell epochs apart at all


class Data(NamedTuple):
    """What a fit trains on and what it does not look at."""

    labelled: Source
    wild: Wild | None  # None for methods that train without
    wild_aside: Source | None  # or OOD examples, if some are known
    selection: Source  # chooses the epoch or a setting of the score
    threshold: Source  # sets the threshold; the same where nothing is to be chosen, or nothing to be promised
    example: Example
    fingerprints: dict[str, str]
    unlabelled: dict[str, str]  # fingerprints of the same data without its labels
    caveat: str = ""  # what the promise must say of the holdout


def prepare(
    labelled: Any,
    wild: Any,
    holdout: Any,
    schedule: Schedule,
    alpha: float,
    spec: InputSpec | None,
    keep: str,
    seed: int,
    confidence: float | None = None,
    ood: Any = None,
    *,
    uses_wild: bool = True,
    allow_duplicates: bool = False,
) -> Data:
    """Check everything the user gave, and divide it; wild data that a method does not train on still chooses."""
    known = labelled_source(labelled, "labelled")
    holdout = numbered_like(labelled, holdout, "holdout")
    if wild is None and uses_wild:
        raise InputError(
            "this method trains on wild data: give wild=x (--wild), unlabelled examples as the classifier meets them"
        )
    traffic = None if wild is None else as_wild(wild)
    unseen = None if holdout is None else labelled_source(holdout, "holdout")
    if isinstance(known, ArraySource) and isinstance(unseen, ArraySource):
        _warn_of_missing_classes(known, unseen)
    example = _same_examples(known, traffic, unseen, spec)
    fingerprints = {"labelled": known.fingerprint()}
    if traffic is not None:
        fingerprints["wild"] = "+".join(pool.fingerprint() for pool in traffic.pools)
    if isinstance(traffic, WildMixture):
        fingerprints["wild"] += f" at pi = {traffic.pi}"
    unlabelled = unlabelled_fingerprints(
        {
            "labelled": [known],
            "wild": () if traffic is None else traffic.pools,
            "holdout": () if unseen is None else [unseen],
        }
    )
    pools = traffic.pools if traffic is not None and uses_wild else ()
    trained_on = [("labelled", known), *(("wild", pool) for pool in pools)]
    trained_on += [] if ood is None else [("ood", unlabelled_source(ood, "ood"))]
    caveat = check_overlap(unseen, trained_on, allow_duplicates=allow_duplicates)
    if unseen is None:
        needed = examples_needed(alpha, confidence)
        known, unseen = set_aside_labelled(known, needed, schedule.batch, seed, halves=keep == "best")
    else:
        fingerprints["holdout"] = unseen.fingerprint()
    if len(known) < schedule.batch:
        raise InputError(
            f"labelled has {len(known)} examples to train on, fewer than a batch of {schedule.batch}: give more, or a "
            "smaller batch, as in schedule=Schedule(steps=100, batch=32) (--batch 32)"
        )
    kept: Wild | None = None
    aside: Source | None = None
    if ood is not None:
        kept, aside = traffic if uses_wild else None, example.check(unlabelled_source(ood, "ood"), "ood")
        fingerprints["ood"] = aside.fingerprint()
    elif traffic is not None and uses_wild:
        kept, aside = set_aside_wild(traffic, keep, seed)
        if keep == "best" and len(aside) < FEW:
            logger.warning(
                "only %d wild examples are set aside to choose the epoch by, which leaves it to chance: give more wild data",
                len(aside),
            )
    elif traffic is not None:
        aside = at_most(traffic.whole(seed), MOST_ASIDE, seed)
    data = Data(known, kept, aside, unseen, unseen, example, fingerprints, unlabelled, caveat)
    if keep == "best" and uses_wild:  # then there is an epoch to choose
        return halved(data, alpha, confidence, seed, instead="keep='last' (--keep last)")
    enough(unseen, alpha, confidence)
    return data


def halved(data: Data, alpha: float, confidence: float | None, seed: int, *, instead: str) -> Data:
    """The same, with one half of the holdout to choose by and the other one for the threshold."""
    selection, threshold = halves_of(data.threshold, seed)
    for part in (selection, threshold):
        enough(part, alpha, confidence, halves=True, instead=instead)
    return data._replace(selection=selection, threshold=threshold)


def _warn_of_missing_classes(known: ArraySource, unseen: ArraySource) -> None:
    lacking = np.setdiff1d(np.asarray(known.labels), np.asarray(unseen.labels))
    if len(lacking):
        names = known.classes if isinstance(known, Images) and known.classes else ()
        first = names[lacking[0]] if names else lacking[0]
        logger.warning(
            "classes of labelled that are not in the holdout: %d, such as %s; the promise is about data like the holdout",
            len(lacking),
            first,
        )


def at_most(source: Source, count: int, seed: int) -> Source:
    """The source, or so many of its examples."""
    if len(source) <= count:
        return source
    return Part(source, permutation(len(source), generator(seed, "chosen-by"))[:count])


def halves_of(holdout: Source, seed: int) -> tuple[Source, Source]:
    """The half of a holdout that chooses, and the half that sets the threshold."""
    first, second = split(len(holdout), 0.5, generator(seed, "holdout"))
    return Part(holdout, first), Part(holdout, second)


def enough(part: Source, alpha: float, confidence: float | None = None, *, halves: bool = False, instead: str = "") -> None:
    """Refuse a holdout, or a half of one, that is too small for the promised rate."""
    needed = examples_needed(alpha, confidence)
    if len(part) < needed:
        half = " in each half (one chooses, one sets the threshold)" if halves else ""
        remedy = f", a larger alpha (--alpha), or {instead}" if halves else " or a larger alpha (--alpha)"
        raise InputError(
            f"the holdout has {len(part)} examples{half}, but a false-alarm rate of {alpha}{confidence_text(confidence)} "
            f"needs at least {needed}: give a larger holdout{remedy}"
        )


def check_overlap(unseen: Source | None, trained_on: list[tuple[str, Source]], *, allow_duplicates: bool = False) -> str:
    """Refuse a holdout that is part of what is trained on; give what a promise must say of the holdout, if anything.

    Args:
        unseen: the holdout.
        trained_on: what it is compared with, each with its name; these are compared with one another, too.
        allow_duplicates: whether equal examples are no leak, because inputs repeat by nature.
    """
    held = [] if unseen is None else [("holdout", Content(unseen))]
    unchecked, equal = [], []
    for name, content in ((name, Content(source)) for name, source in trained_on):
        for other, examples in held:
            found = examples.overlap(content)
            if other == "holdout":
                _refuse_leak(found, name, allow_duplicates=allow_duplicates)
                if not found.is_checked:
                    why = "too few of its examples were read" if found.repeatable else "values differ at each reading"
                    unchecked.append(f"whether they are in {name} could not be checked ({why})")
                if found.shared > TOLERATED * found.compared:
                    equal.append(f"{found.shared} of the {found.compared} holdout examples are equal to examples of {name}")
            if found.shared:
                some = "" if found.share_compared == 1 else f" ({content.looked_at} of its {len(content.source)} were read)"
                logger.warning(
                    "%d of the %d %s examples are in %s, too%s: the same data twice?",
                    found.shared, found.compared, other, name, some,
                )  # fmt: skip
        if name == "labelled":
            held.append((name, content))
    if held and held[0][0] == "holdout" and held[0][1].is_repeatable:
        examples = held[0][1]
        if 2 * examples.distinct < examples.looked_at:
            unchecked.append(
                f"only {examples.distinct} of them are distinct: the promise holds only if all were drawn independently"
            )
    if equal:
        unchecked.append(f"{', '.join(equal)}: the promise holds only if they are equal by chance")
    for caveat in unchecked:
        logger.warning("of the promise: %s", caveat)
    return "; ".join(unchecked)


def _refuse_leak(found: Overlap, name: str, *, allow_duplicates: bool) -> None:
    if found.is_leak and (found.same_items or not allow_duplicates):
        how = " (the same items of one dataset)" if found.same_items else ""
        by_nature = "" if found.same_items else ", or allow_duplicates=True (--allow-duplicates) if inputs repeat by nature"
        raise InputError(
            f"{found.shared} of the {found.compared} holdout examples are in {name}, too{how}: the promise needs examples "
            f"that are in no training; give others, or no holdout{by_nature}"
        )


def set_aside_wild(traffic: Wild, keep: str, seed: int) -> tuple[Wild, Source]:
    """The wild data that trains, and that which training does not see: a tenth, and more where few would have to choose.

    >>> kept, aside = set_aside_wild(as_wild(np.zeros((800, 2))), "best", seed=0)
    >>> len(kept.pools[0]), len(aside)
    (400, 400)
    """
    share = max(ASIDE, min(0.5, JUDGES / len(traffic.whole(seed)))) if keep == "best" else ASIDE
    return traffic.set_aside(share, seed)


def set_aside_labelled(known: Source, needed: int, least_left: int, seed: int, *, halves: bool) -> tuple[Source, Source]:
    """Without a holdout: part of the labelled data takes its place, and the user is told what that means."""
    least = needed * (2 if halves else 1)
    wanted = max(round(ASIDE * len(known)), least)
    if len(known) - wanted < least_left:
        raise InputError(
            f"labelled has {len(known)} examples: too few to set {wanted} aside for the threshold and keep "
            f"{least_left}: give holdout=(x, y) (--holdout)"
        )
    kept, aside = split(len(known), wanted / len(known), generator(seed, "labelled-aside"))
    logger.warning(
        "no holdout: %d labelled examples are set aside for the threshold. If the model was trained on them, the "
        "false-alarm rate on fresh data will be higher than alpha; give holdout= (--holdout) for a promise",
        len(aside),
    )
    return Part(known, kept), Part(known, aside)


def _same_examples(
    known: Source, traffic: WildPool | WildMixture | None, unseen: Source | None, spec: InputSpec | None
) -> Example:
    """What a raw example is like, the same in every source."""
    example = Example.of(known)
    if example.kind == "uint8" and spec is None:
        raise InputError(
            "labelled holds uint8 examples: say how they become model input, with input=InputSpec(mean=..., std=...) in "
            "Python or --mean and --std on the command line, as the model was trained (wildood pretrain wrote them to its "
            "settings.toml); or give floats"
        )
    pools = () if traffic is None else traffic.pools
    for name, source in [("wild", pool) for pool in pools] + ([] if unseen is None else [("holdout", unseen)]):
        example.check(source, name)
    return example
