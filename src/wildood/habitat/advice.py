"""What to do next with a habitat, by its status."""

from typing import TYPE_CHECKING

from wildood.habitat.drift import BLOCK
from wildood.habitat.summary import count_text

if TYPE_CHECKING:
    from wildood.habitat.status import Status

DAY = 86400.0
STALE = 90 * DAY  # known answers that are older say little
ENOUGH_LATER = 300  # later rows that make a comparison worth while
SOME_UNKNOWN = 10  # answers of the random sample judged unknown that show unknowns, whatever the test says
ENOUGH_UNKNOWN = 100  # unknowns among the collected rows: with fewer, training is seldom shown to help


def advice(now: "Status") -> str:
    """What to do, in one line; the first that is due."""
    challenger, compared, need = now.challenger, now.compared, now.calibration
    is_worse = compared is not None and not compared.get("separated")
    if not any(day.seen for day in now.days):
        return "nothing: there is no traffic yet"
    if need.why and need.missing and (now.drift is None or now.drift.found):
        return f"review: {need.why}; {_known_answers(need.missing)} of the random sample are needed to calibrate"
    if need.why and not need.missing and (challenger is None or (now.drift is not None and now.drift.found)):
        return f"calibrate: {need.why}, and {need.examples} known answers of today can set it"
    if now.doubt and not need.why:
        return f"review: known scores may have changed; {2 * BLOCK} more known answers of the random sample would tell"
    if challenger is not None:
        if compared is not None and not is_worse:
            return f"promote: {challenger} accepts less unknown traffic than {now.champion}"
        if now.later < ENOUGH_LATER:
            missing = ENOUGH_LATER - now.later
            return f"wait: {count_text(missing, 'more example')} of later traffic before {challenger} is compared"
        if compared is None or not now.again:
            return f"compare: {count_text(now.later, 'later example')} can judge {challenger}"
    if now.found or now.found_by_people:
        return _of_unknowns(now)
    if challenger is not None and compared is not None:
        return f"wait: {challenger} is not shown to be better; compare again after {_answers(now.again)}"
    newest = now.judged.newest
    if newest is None or now.time - newest > STALE:
        age = "no known answers of the random sample" if newest is None else "only old known answers"
        return f"review: there are {age} to check the promise with"
    return "nothing"


def _of_unknowns(now: "Status") -> str:
    """What to do where there are unknowns, and no challenger that could be promoted or compared now."""
    found = "unknowns are found" if now.found else "people have found unknowns"
    if not now.judged.unknown and not now.judged.random:
        return f"review: {found}; see what they are"
    if now.tried is not None and (now.caught.least or 0) > 0.5:
        caught = f"{now.caught.count} of {now.caught.examples} that measure"
        return (
            f'nothing: {now.champion} answers unknowns with "unknown" ({caught}), and {now.tried} is not shown to be better'
        )
    if now.retry:
        return f"wait: {now.tried} is not shown to be better; another refresh is worth while after {_answers(now.retry)}"
    if now.waiting < now.enough:
        missing = count_text(now.enough - now.waiting, "more example")
        return f"wait: {found}; a refresh needs {missing}"
    if now.unknowns < ENOUGH_UNKNOWN:
        return f"wait: {found}; a refresh needs {ENOUGH_UNKNOWN} of them, and about {now.unknowns} are collected"
    if now.missing:
        return f"review: {found}; a refresh needs {_known_answers(now.missing)} of the random sample, about"
    before = "" if now.tried is None else f"; {now.tried} was not shown to be better"
    return f"refresh: {found}, and {count_text(now.waiting, 'example')} are collected{before}"


def _answers(count: int) -> str:
    return count_text(count, "more answer")


def _known_answers(count: int) -> str:
    return count_text(count, "more known answer")
