"""What the page says: figures, sentences and cards, ready for its templates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import Any, Final

import numpy as np
import torch
from markupsafe import Markup

from wildood.detect.detector import Detector
from wildood.errors import InputError, printable
from wildood.evaluate.intervals import in_percent
from wildood.experiments.evaluation import Decisions
from wildood.habitat import charts
from wildood.habitat.answers import Rows
from wildood.habitat.habitat import Habitat, Promotion
from wildood.habitat.illustration import Illustrator
from wildood.habitat.judged import is_random
from wildood.habitat.overview import (
    SHOWN,
    Course,
    Latest,
    Traffic,
    comparison_numbers,
    latest,
    latest_time,
    promotion_ticks,
    time_ticks,
    when,
)
from wildood.habitat.review import Item, Review
from wildood.habitat.status import Status
from wildood.habitat.summary import count_text, days_text
from wildood.report import figures

BUTTONS: Final = 12  # classes that have a button each; more are a list
HISTORY: Final = 20  # promotions that are shown
_ACTIONS: Final = {"review": "#review", "promote": "#challenger"}
_COMMANDS: Final = ("calibrate", "refresh", "compare")
_WHY: Final = {
    "random sample": "Part of the random sample, which measures known traffic: answer all of these.",
    "just rejected": "Just rejected: its label says whether the threshold is right.",
    "just accepted": "Just accepted: its label says whether the threshold is right.",
    "highest score": "Among the highest scores: is it unknown, or known and changed?",
}


@dataclass(frozen=True)
class Shown:
    """What a person has chosen to see.

    Attributes:
        span: the key of the time that two figures show.
        at: the answer under review; None: the first that waits.
        skipped: answers that were passed over.
    """

    span: str
    at: int | None = None
    skipped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class View:
    """The page's content at one moment; the templates read its properties.

    Attributes:
        detector: the champion.
        names: of its classes.
        promoted: the id of the champion in the index, which this server answers with once it is loaded.
        model: what commands need as --model; None: they need none.
    """

    habitat: Habitat
    detector: Detector
    names: Sequence[str | int]
    promoted: str
    status: Status
    waiting: Review
    shown: Shown
    now: float
    course: Course
    latest: Latest
    model: str | None

    @classmethod
    def of(
        cls,
        habitat: Habitat,
        detector: Detector,
        names: Sequence[str | int],
        promoted: str,
        status: Status,
        waiting: Review,
        shown: Shown,
        course: Course,
        *,
        model: str | None = None,
    ) -> "View":
        """The present view."""
        now = latest_time(habitat)
        last = latest(habitat, status.champion, detector)
        return cls(habitat, detector, names, promoted, status, waiting, shown, now, course, last, model)

    @property
    def traffic(self) -> Traffic:
        """The answers of the chosen span."""
        return self.course.traffic

    # --- first ------------------------------------------------------------------------------------------------------------

    @property
    def next(self) -> dict[str, str]:
        """What to do next: the kind, the sentence, where on this page it is done, or the command that does it."""
        kind, _, rest = self.status.next.partition(": ")
        command = self.command(kind) if kind in _COMMANDS else ""
        return {"kind": kind, "says": printable(rest), "link": _ACTIONS.get(kind, ""), "command": command}

    @property
    def tiles(self) -> list[dict[str, str]]:
        """The numbers to see first."""
        status, counted, promise = self.status, self.traffic, self.detector.promise
        share = in_percent(counted.unknown / counted.answers) if counted.answers else "–"
        recent = status.recent
        measured = status.false_alarms
        since = f"for {days_text(self.now - status.since)}"
        if self.promoted != status.champion:
            since = f"until {self.promoted} is loaded, which was promoted"
        return [
            {"name": "answers", "value": f"{counted.answers:,}", "says": f"in {counted.span.name}"},
            {"name": "said “unknown”", "value": share, "says": f"of the answers in {counted.span.name}"},
            {
                "name": "unknown, at least",
                "value": in_percent(recent.bound) if recent else "–",
                "says": f"of the latest {recent.wild:,} answers, at 95 % confidence" if recent else "no answers to test yet",
            },
            {
                "name": "false alarms",
                "value": f"≤ {100 * promise.alpha:g} %" if promise and promise.unseen else "no promise",
                "says": "promised; "
                + (f"{in_percent(measured.value)} of {measured.examples} measured" if measured else "not measured yet"),
            },
            {"name": "champion", "value": status.champion, "says": since},
        ]

    # --- figures ----------------------------------------------------------------------------------------------------------

    @property
    def traffic_figure(self) -> Markup | None:
        """Answers per minute."""
        counted = self.traffic
        if not counted.bars:
            return None
        axis = counted.start, counted.now
        return charts.traffic(counted.bars, counted.unit, axis, time_ticks(counted.now, counted.span.seconds))

    @property
    def traffic_says(self) -> str:
        """What to conclude from it."""
        counted, promise = self.traffic, self.detector.promise
        if not counted.answers:
            return ""
        share = counted.unknown / counted.answers
        says = f"{in_percent(share)} of {count_text(counted.answers, 'answer')} said “unknown”"
        if promise is not None:
            most = f"{100 * promise.alpha:g} %"
            says += (
                f": more than the {most} of false alarms that known traffic may cause."
                if share > promise.alpha
                else f": no more than the {most} of false alarms that known traffic may cause."
            )
        says += f" {count_text(counted.dropped, 'answer')} came too fast to be recorded." if counted.dropped else ""
        return says + (" The course within each window is estimated from the recorded sample." if counted.estimated else "")

    @property
    def bound_figure(self) -> Markup | None:
        """The lower bound on the share of unknowns over time."""
        points, counted = self.course.bounds, self.traffic
        if not points:
            return None
        lines = promotion_ticks(self.promotions, counted.start, counted.now)
        axis = counted.start, counted.now
        return charts.bounds(points, lines, axis, time_ticks(counted.now, counted.span.seconds))

    @property
    def bound_says(self) -> str:
        """What to conclude from it."""
        status = self.status
        if status.untested or status.looks is None:
            return f"The share of unknowns is {status.untested}."
        if not status.recent:
            return ""
        least = f"at least {in_percent(status.recent.bound)} of the latest {status.recent.wild:,} answers were unknown"
        error = f"{100 * status.looks.error:g} %"
        if status.found:
            return f"Unknowns are found: {least}. The test over all days errs with probability {error} at most."
        if status.found_by_people:
            people = f"People have called {count_text(status.people, 'answer')} of the random sample unknown."
            return f"{people} The test, which begins anew with each champion, has not found unknowns yet."
        if status.recent.bound > 0:
            return f"Now {least}, at 95 % confidence. The test over all days has not found unknowns yet."
        return f"No unknowns are found. The test over all days errs with probability {error} at most."

    @property
    def score_figure(self) -> Markup | None:
        """The scores of the latest answers against the holdout's; margins where each class has a threshold."""
        holdout = self._holdout
        if holdout is None or not len(self.latest.rows):
            return None
        decided = self.latest.decided
        if self.detector.class_thresholds is not None:
            return charts.scores(holdout.margins, decided.margins, 0.0, figures.MARGIN)
        return charts.scores(holdout.scores, decided.scores, self.detector.threshold, figures.SCORE)

    @property
    def score_says(self) -> str:
        """What to conclude from it."""
        holdout, decided = self._holdout, self.latest.decided
        if holdout is None or not len(decided.scores):
            return ""
        now, known = float(decided.rejected.mean()), float(holdout.rejected.mean())
        says = (
            f"{in_percent(now)} of the latest {len(decided.scores):,} answers are right of the line, {in_percent(known)} of"
        )
        return says + " the holdout. A hump that the holdout does not have is unknown, or known and changed."

    @cached_property
    def _holdout(self) -> Decisions | None:
        scores, classes = self.detector.holdout_scores, self.detector.holdout_classes
        if scores is None or (classes is None and self.detector.class_thresholds is not None):
            return None
        return Decisions.of(self.detector, scores, np.zeros(len(scores), np.int64) if classes is None else classes)

    # --- the promise ------------------------------------------------------------------------------------------------------

    @property
    def promise(self) -> dict[str, str]:
        """The promise, and what it rests on."""
        status, promise, judged = self.status, self.detector.promise, self.status.judged
        items = {"promise": printable(status.promise)}
        if promise is not None:
            age = days_text(self.now - status.calibrated)
            items["rests on"] = f"{count_text(promise.examples, 'known example')}; {status.champion} was made {age} ago"
        newest = f"; the newest is {days_text(self.now - judged.newest)} old" if judged.newest is not None else ""
        items["known answers"] = f"{judged.random} of the random sample, {judged.evidence} of them measure{newest}"
        if status.false_alarms is not None:
            items["measured"] = f"{status.false_alarms.text(0.95)} of those that measure since the calibration are rejected"
        if status.drift is not None:
            items["drift"] = str(status.drift)
        items["unknowns"] = status.caught_text
        items["judged unknown"] = f"{judged.unknown:,}"
        return items

    @property
    def promise_says(self) -> str:
        """What to conclude from it."""
        status, promise = self.status, self.detector.promise
        if promise is None or not promise.unseen:
            return "Nothing is promised: review the random sample, then calibrate."
        if status.drift is not None and status.drift.found:
            return "Known data has changed since the calibration: the promise no longer holds. Review, then calibrate."
        if status.false_alarms is None:
            return "Nobody has checked it since: review the random sample, and the page measures the false alarms."
        if status.false_alarms.low > promise.alpha:
            return "More known examples are rejected than promised. Review more; if known data has changed, calibrate."
        return "What people have judged does not contradict it."

    # --- review -----------------------------------------------------------------------------------------------------------

    @property
    def card(self) -> dict[str, Any] | None:
        """The answer under review."""
        if self.shown.at is not None and (own := self._row(self.shown.at)) is not None:
            item = next((each for each in self.waiting.items if each.answer == self.shown.at), None)
            if item or self.shown.at in self._judged or not bool(is_random(self.shown.at)):
                return self._card(own, item.why if item else "")
        for item in self.queue:
            if (own := self._row(item.answer)) is not None:
                return self._card(own, item.why)
        return None

    @cached_property
    def queue(self) -> list[Item]:
        """The answers that wait for a review and were not passed over."""
        judged = self._judged
        return [each for each in self.waiting.items if each.answer not in self.shown.skipped and each.answer not in judged]

    @cached_property
    def _judged(self) -> dict[int, int | None]:
        with self.habitat.store.index.reading() as index:
            return dict(map(tuple, index.execute("SELECT answer, class FROM judgements").fetchall()))

    def _row(self, answer: int) -> Rows | None:
        rows = self.habitat.store.rows(after=answer - 1, until=answer, with_examples=True)
        return rows if len(rows) else None

    def _card(self, rows: Rows, why: str) -> dict[str, Any]:
        answer, class_ = int(rows.id[0]), int(rows.class_[0])
        judged = self._judged
        return {
            **self._example(rows, 0),
            "class": class_,
            "why": _WHY.get(why, "You picked this one."),
            "is_random": bool(is_random(answer)),
            "judged": self._said(judged[answer]) if answer in judged else "",
            "names": [(number, printable(name)) for number, name in enumerate(self.names)],
        }

    @property
    def has_buttons(self) -> bool:
        """Whether each class has a button."""
        return len(self.names) <= BUTTONS

    @property
    def left(self) -> int:
        """How many answers wait."""
        return len(self.queue)

    @property
    def draws(self) -> bool:
        """Whether examples are pictures."""
        return Illustrator(self.detector).draws

    @property
    def galleries(self) -> list[dict[str, Any]]:
        """The most unknown and the newest examples."""
        chosen = (
            ("most-unknown", "The most unknown", "The highest scores of the latest answers. Pick one to say what it is.",
             self.latest.most_unknown()),
            ("newest", "The newest", "What is coming in now, whatever its score.", self.latest.newest()),
        )  # fmt: skip
        return [
            {"key": key, "title": title, "says": says, "examples": [self._example(self.latest.rows, row) for row in rows]}
            for key, title, says, rows in chosen
        ]

    def _example(self, rows: Rows, row: int) -> dict[str, Any]:
        answer, class_ = int(rows.id[row]), int(rows.class_[row])
        judged = self.latest.judged
        name = printable(self.names[class_]) if 0 <= class_ < len(self.names) else str(class_)
        return {
            "answer": answer,
            "version": f"{int(1000 * rows.time[row]):x}",  # numbers of answers are unique in one habitat only
            "text": "" if self.draws else self._text(answer),
            "name": name,
            "known": bool(rows.known[row]),
            "says": name if rows.known[row] else "unknown",
            "score": f"{rows.score[row]:.3g}",
            "p_value": "" if np.isnan(rows.p_value[row]) else f"{rows.p_value[row]:.2g}",
            "time": float(rows.time[row]),
            "when": when(float(rows.time[row]), self.now),
            "request": printable(rows.request[row]),
            "verdict": self._said(judged[answer]) if answer in judged else "",
            "can_pick": answer in judged or not bool(is_random(answer)),
        }

    def _text(self, answer: int) -> str:
        try:
            batch, _ = self.habitat.store.source([answer]).gather(torch.arange(1))
        except InputError:  # another process has just removed it
            return ""
        return printable(Illustrator(self.detector).text(batch))

    def _said(self, class_: int | None) -> str:
        if class_ is None:
            return "unknown"
        return printable(self.names[class_]) if class_ < len(self.names) else str(class_)

    # --- champion and challenger ------------------------------------------------------------------------------------------

    @cached_property
    def promotions(self) -> tuple[Promotion, ...]:
        """All of them, the first first."""
        return self.habitat.promotions()

    @property
    def challenger(self) -> dict[str, Any] | None:
        """The challenger with its comparison; None if there is none."""
        status, identifier = self.status, self.status.challenger
        if identifier is None:
            return None
        compared, numbers = status.compared, comparison_numbers(status.compared)
        entry = next(each for each in self.habitat.detectors() if each.id == identifier)
        figure = None
        if numbers is not None:
            figure = charts.acceptance((status.champion, numbers[0]), (identifier, numbers[1]), numbers[2])
        return {
            "id": identifier,
            "age": when(entry.time, self.now),
            "parent": entry.parent,
            "later": count_text(status.later, "later answer"),
            "compared": compared,
            "says": printable(compared.get("says", "")) if compared else "",
            "caveat": printable(compared.get("caveat", "")) if compared else "",
            "separated": bool(compared and compared.get("separated")),
            "figure": figure,
        }

    def command(self, name: str) -> str:
        """What to type."""
        model = "" if self.model is None else f" --model {quote(self.model)}"
        return f"wildood habitat {name} {quote(str(self.habitat.path))}{model}"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The promotions, the newest first."""
        rows = list(self._history())[::-1]
        return rows[:HISTORY]

    def _history(self) -> Iterator[dict[str, Any]]:
        for each in self.promotions:
            evidence = "by force" if each.forced else ""
            if each.evidence is not None:
                evidence = printable(each.evidence.get("says", "compared"))
            yield {
                "number": each.number,
                "detector": each.detector,
                "former": each.former or "",
                "time": each.time,
                "when": when(each.time, self.now),
                "who": printable(each.who),
                "why": printable(each.why),
                "forced": each.forced,
                "evidence": evidence,
            }

    @property
    def questions(self) -> list[dict[str, Any]]:
        """What is asked before a promotion: of the challenger, and of each former champion."""
        status, questions = self.status, []
        if status.challenger is not None:
            shown = bool(status.compared and status.compared.get("separated"))
            questions.append({"id": status.challenger, "forced": not shown, "back": False, "compared": status.compared})
        former = dict.fromkeys(each.detector for each in reversed(self.promotions))
        questions += [
            {"id": each, "forced": False, "back": True, "compared": None} for each in former if each != status.champion
        ]
        return questions[:SHOWN]
