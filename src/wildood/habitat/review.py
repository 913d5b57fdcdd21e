"""What to label first, and people's answers."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wildood.data.files import open_plain
from wildood.detect.detector import UNKNOWN, Detector
from wildood.errors import InputError
from wildood.evaluate.metrics import finite_scores
from wildood.experiments.evaluation import Decisions
from wildood.habitat.answers import Rows
from wildood.habitat.drift import changed_at
from wildood.habitat.judged import is_random
from wildood.habitat.summary import Summary, count_text
from wildood.report.inspection_page import ranked_examples
from wildood.settings import check_integer, quoted

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat

TOP = 16
LOOKED_AT = 20_000  # of the newest rows, that the list is chosen from
UNKNOWN_WORD = "unknown"


@dataclass(frozen=True)
class Item:
    """An answer to judge.

    Attributes:
        answer: its id.
        why: "random sample", or how its score stands out.
        time: when it was answered.
        score: higher is more unlike known data.
        known: whether it was accepted.
        name: of the class that was or would have been answered.
        detector: the id of the detector that answered.
    """

    answer: int
    why: str
    time: float
    score: float
    known: bool
    name: str
    detector: str


@dataclass(frozen=True, repr=False)
class Review(Summary):
    """What to label first.

    Attributes:
        random: a random sample. It measures known traffic, so answer all of it: what is left out biases it.
        chosen: those whose labels teach most, by their scores; they only train.
        detector: the id of the champion.
        recorded: how many answers of people this call has recorded.
    """

    random: tuple[Item, ...]
    chosen: tuple[Item, ...]
    detector: str
    recorded: int = 0

    @property
    def items(self) -> tuple[Item, ...]:
        """All of them, the random sample first."""
        return (*self.random, *self.chosen)

    @property
    def summary(self) -> dict[str, str]:
        """One line for each list."""
        lines = {"recorded": count_text(self.recorded, "answer")} if self.recorded else {}
        if not self.items:
            return lines | {"review": "nothing to review: no answer with an example is waiting"}
        return lines | {
            "random": _listed(self.random, "answer all of these: they measure known traffic"),
            "chosen": _listed(self.chosen, "answer any of these: they train the next detector"),
        }


def review(habitat: "Habitat", detector: Detector, *, top: int = TOP) -> Review:
    """What to label first, of the newest answers of the champion and its relatives that nobody has judged.

    Relatives are the detectors that were trained from one another, such as the former champion right after a promotion.
    Answers from before the last change of known data are left out.

    Half of the list is of the random sample, the newest first, whichever detector answered. The other half is chosen as
    `inspect` does: in turn the nearest above the threshold, the nearest below it and the highest score. Answers of the
    champion come first. Those of its relatives follow by their own decisions, because scores of two detectors are not
    comparable. Two halves, because examples that are chosen by their scores say nothing about known traffic as it comes; so
    they never serve drift, calibration or comparison.

    Args:
        habitat: with the traffic.
        detector: its champion.
        top: how many answers to list.
    """
    top = check_integer(top, "top", "a number of examples to show, at least 1")
    champion, rows = habitat.champion, _newest(habitat, changed_at(detector))
    waiting = np.flatnonzero(~np.isin(rows.id, habitat.store.judged().answer))
    in_sample = is_random(rows.id[waiting])
    random, others = waiting[in_sample][::-1], waiting[~in_sample]
    picked: list[tuple[int, str]] = []
    for name in sorted(set(rows.detector[others].tolist()), key=lambda each: (each == champion, each), reverse=True):
        own = others[rows.detector[others] == name]
        decided = _decisions(rows, own, detector if name == champion else None)
        picked += [(int(own[number]), why) for number, why in ranked_examples(decided, top)["label_first"]]
    count = min(len(random), max(top // 2, top - len(picked)))
    return Review(
        random=tuple(_item(rows, int(number), "random sample", detector) for number in random[:count]),
        chosen=tuple(_item(rows, number, why, detector) for number, why in picked[: top - count]),
        detector=champion,
    )


def _newest(habitat: "Habitat", since: int) -> Rows:
    """The newest rows with examples of the champion and its relatives, with this id or a later one."""
    parents = {each.id: each.parent for each in habitat.detectors()}

    def first(name: str) -> str:
        while (parent := parents[name]) is not None:
            name = parent
        return name

    relatives = [each for each in parents if first(each) == first(habitat.champion)]
    with habitat.store.index.reading() as index:
        query = f"SELECT max(id) FROM answers WHERE detector IN ({', '.join('?' * len(relatives))})"  # noqa: S608 - places
        last = index.execute(query, relatives).fetchone()[0] or 0
    rows = habitat.store.rows(after=max(last - LOOKED_AT, since - 1), with_examples=True)
    return rows.at(np.flatnonzero(np.isin(rows.detector, relatives)))


def _decisions(rows: Rows, which: npt.NDArray[np.intp], detector: Detector | None) -> Decisions:
    """The decisions on some rows: of a detector, or as they were when it is not at hand; then scores serve as margins."""
    scores, classes = rows.score[which], rows.class_[which]
    if detector is not None:
        return Decisions.of(detector, scores.astype(np.float32), classes)
    return Decisions(scores, classes, ~rows.known[which], finite_scores(scores))


def record_answers(habitat: "Habitat", detector: Detector, answers: Mapping[int, Any], who: str) -> int:
    """Record what people say: by the id of an answer, the name or number of its class, or "unknown" (None, -1).

    All are checked before the first is recorded. Gives how many were recorded. An example that is removed meanwhile does not
    stop the others.
    """
    classes = {number: class_number(detector, number, value) for number, value in answers.items()}
    numbers = np.array(list(classes), dtype=np.int64)
    new = numbers[~np.isin(numbers, habitat.store.judged().answer)]
    if len(new):
        habitat.store.source(new)  # refuses answers without an example
    gone = []
    for number, class_ in classes.items():
        try:
            habitat.store.judge(number, class_, who)
        except InputError:  # budget or retention has just removed it
            gone.append(number)
    if gone:
        such = ", ".join(map(str, gone[:5])) + (", ..." if len(gone) > 5 else "")
        raise InputError(
            f"{count_text(len(classes) - len(gone), 'answer')} recorded; the examples of {len(gone)} more ({such}) were "
            "removed meanwhile: leave these out"
        )
    return len(classes)


def class_number(detector: Detector, answer: int, value: Any) -> int | None:
    """The number of the class that a person names; None for "unknown"."""
    names = list(detector.record.get("classes", ()))
    text = str(value).strip()
    if value is None or text in {UNKNOWN_WORD, str(UNKNOWN)}:
        return None
    if text in names:
        return names.index(text)
    count = int(detector.predict_proba(detector.example.blank(1)).shape[1])
    if text.isdecimal() and int(text) < count:
        return int(text)
    such = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else f"a number from 0 to {count - 1}"
    raise InputError(f"answer {answer} is called {quoted(text)}: give {such}, or {UNKNOWN_WORD}")


def parse_answers(words: Iterable[str]) -> dict[int, str]:
    """Answers as they are typed.

    >>> parse_answers(["17=cat", "20=unknown"])
    {17: 'cat', 20: 'unknown'}
    """
    parsed = {}
    for word in words:
        number, equals, name = word.partition("=")
        if not (number.isdecimal() and equals and name):
            raise InputError(f"answer {quoted(word)}: give ID=CLASS or ID={UNKNOWN_WORD}, as in 17=3")
        parsed[int(number)] = name
    return parsed


def read_answers(path: Path) -> dict[int, str]:
    """The answers of a .csv file with the columns id and class."""
    try:
        with open_plain(path) as file:
            rows = list(csv.DictReader(file.read().decode("utf-8-sig").splitlines()))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: give a .csv file with the columns id and class") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no .csv file in UTF-8: give the columns id and class") from error
    if rows and not {"id", "class"} <= rows[0].keys():
        raise InputError(f"{path} has the columns {', '.join(map(str, rows[0]))}: give id and class")
    return parse_answers(f"{row['id']}={row['class']}" for row in rows if row["class"])


def _item(rows: Rows, number: int, why: str, detector: Detector) -> Item:
    return Item(
        answer=int(rows.id[number]),
        why=why,
        time=float(rows.time[number]),
        score=float(rows.score[number]),
        known=bool(rows.known[number]),
        name=str(detector.class_name(int(rows.class_[number]))),
        detector=str(rows.detector[number]),
    )


def _listed(items: tuple[Item, ...], advice: str) -> str:
    return f"{', '.join(str(each.answer) for each in items)} ({advice})" if items else "none"
