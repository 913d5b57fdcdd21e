"""`Habitat`: a directory in which a detector is served, its traffic collected, and its successor compared and promoted."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from sqlite3 import Connection, Row
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from wildood.data.files import is_held, locked, sync_directory, write_atomically
from wildood.data.schema import SchemaError, check, parse
from wildood.detect.detector import Detector, check_detector
from wildood.detect.storage import ModelOrBuilder, load, read_description
from wildood.errors import DetectorFileError, InputError, as_utf8
from wildood.habitat.comparison_log import latest_comparison
from wildood.habitat.parquet import export_traffic
from wildood.habitat.store import INDEX, TRAFFIC, WINDOW, Store
from wildood.models.features import Call
from wildood.settings import (
    check_choice,
    check_count,
    check_fields,
    check_integer,
    check_number,
    check_path,
    check_positive,
    optional,
    quoted,
)

if TYPE_CHECKING:
    from wildood.habitat.calibrate import Calibration
    from wildood.habitat.compare import ChallengerComparison
    from wildood.habitat.refresh import Refresh
    from wildood.habitat.review import Review
    from wildood.habitat.status import Status

FORMAT = 1
SETTINGS, DETECTORS = "habitat.json", "detectors"
_DAY = 24 * 60 * 60
_PART = ".part"
_ID = re.compile(r"d\d{4,}")


@dataclass(frozen=True)
class Settings:
    """How a habitat collects its traffic.

    Attributes:
        collect: what is stored of a sampled answer: "full" with the raw example, "scores" without.
        sample: the share of answers that is stored.
        window: seconds of a window of time, of which at most `per_window` answers are stored.
        per_window: see `window`; None: no limit.
        budget: bytes of stored traffic; the oldest windows are removed first. None: no limit.
        retain: seconds after which traffic is removed; None: never. Judged examples stay.
        flush_seconds: how much traffic a killed server may lose.
        flush_rows: stored sooner once there are so many.
        queue: answers that wait to be stored; more are dropped and counted.
        redact: "module:function" that changes raw examples before they are stored; the server must be given it.
        shadow: the share of requests that the challenger scores, too.

    >>> Settings(sample=0.1).per_window
    10000
    """

    collect: Literal["full", "scores"] = "full"
    sample: float = 1.0
    window: float = WINDOW
    per_window: int | None = 10_000
    budget: int | None = 5 * 10**9
    retain: float | None = 30.0 * _DAY
    flush_seconds: float = 2.0
    flush_rows: int = 1024
    queue: int = 10_000
    redact: str | None = None
    shadow: float = 0.0

    def __post_init__(self) -> None:
        share = "a share from 0 to 1"
        check_fields(
            self,
            "Settings: ",
            collect=lambda value, name: check_choice(value, name, ("full", "scores")),
            sample=lambda value, name: check_number(value, name, share, least=0, most=1),
            window=check_positive,
            per_window=optional(check_count),
            budget=optional(lambda value, name: check_integer(value, name, "a number of bytes", most=2**62)),
            retain=optional(check_positive),
            flush_seconds=check_positive,
            flush_rows=check_count,
            queue=check_count,
            redact=optional(_check_function),
            shadow=lambda value, name: check_number(value, name, share, least=0, most=1),
        )


def _check_function(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.]+:\w+", value):
        raise InputError(f"{name} is {quoted(value)}: give module:function")
    return value


class _File(TypedDict):
    """`habitat.json`."""

    format: int
    settings: Settings


@dataclass(frozen=True)
class Promotion:
    """An entry of the history of champions.

    Attributes:
        number: counts from 1.
        detector: the new champion.
        former: the one before; None for the first.
        forced: whether it was promoted without evidence.
        evidence: what the comparison said, as JSON-ready data.
    """

    number: int
    time: float
    detector: str
    former: str | None
    who: str
    why: str
    forced: bool
    evidence: Mapping[str, Any] | None


@dataclass(frozen=True)
class Entry:
    """A detector of a habitat.

    Attributes:
        id: "d0001" and so on.
        time: when it was added.
        parent: the detector that it was trained from; None if it was trained elsewhere.
        trained_until: the largest id of an answer that was in its wild data; later ones may judge it.
    """

    id: str
    time: float
    parent: str | None
    trained_until: int


class Habitat:
    """A directory with a detector in service, its traffic, its successors and its history.

    Args:
        path: of a habitat that `Habitat.create` made.
        clock: what tells the time, in seconds since 1970.
        readonly: whether to change nothing, not even the index.

    >>> import tempfile, numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
    >>> place = tempfile.TemporaryDirectory()
    >>> habitat = Habitat.create(place.name, detector)
    >>> habitat.champion, habitat.challenger
    ('d0001', None)
    >>> habitat.add(detector, parent="d0001", trained_until=0), habitat.challenger
    ('d0002', 'd0002')
    >>> habitat.promote("d0002", who="ann", why="for the demonstration", force=True).former
    'd0001'
    >>> place.cleanup()
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time, readonly: bool = False) -> None:
        self.path = check_path(path, "the habitat")
        self.settings = _read(self.path)
        if not (self.path / INDEX).is_file():
            raise InputError(f"{self.path / INDEX} is missing: restore it from a copy of the habitat")
        self.clock = clock
        self.store = Store(self.path, clock=clock, window=self.settings.window, readonly=readonly)
        with self.store.index.reading() as index:
            index.execute("SELECT 1 FROM promotions LIMIT 1").fetchone()

    @classmethod
    def create(
        cls,
        path: str | Path,
        detector: Detector,
        settings: Settings | None = None,
        *,
        who: str = "",
        clock: Callable[[], float] = time.time,
    ) -> "Habitat":
        """A habitat in a new or empty directory, with this detector as its champion.

        If that is interrupted, it can be called again.
        """
        directory, detector = check_path(path, "the habitat"), check_detector(detector)
        settings = Settings() if settings is None else settings
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is a file: give a directory for the habitat")
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory, waiting=f"another process makes a habitat in {directory}: waiting for it"):
            if (directory / SETTINGS).exists():
                raise InputError(f"{directory} is a habitat already: open it, or give another directory")
            files = (INDEX, f"{INDEX}-wal", f"{INDEX}-shm")
            others = {each.name for each in directory.iterdir()} - {*files, TRAFFIC, DETECTORS}
            if others:
                raise InputError(f"{directory} is not empty, it holds {quoted(min(others))}: give a new directory")
            for name in files:  # of an interrupted call
                (directory / name).unlink(missing_ok=True)
            for name in (TRAFFIC, DETECTORS):
                shutil.rmtree(directory / name, ignore_errors=True)
            store = Store.create(directory, clock=clock, window=settings.window)
            first = _add(store, detector, None, 0)
            with store.index.writing() as index:
                _promote(index, first, clock(), who, "the first detector")
            _write(directory, settings)  # last: it makes the directory a habitat
        return cls(directory, clock=clock)

    @property
    def champion(self) -> str:
        """The id of the detector that answers: that of the last promotion."""
        with self.store.index.reading() as index:
            return _champion(index)

    @property
    def challenger(self) -> str | None:
        """The id of the newest detector added since the last promotion that was never promoted; None if there is none."""
        with self.store.index.reading() as index:
            row = index.execute(
                "SELECT id FROM detectors WHERE id NOT IN (SELECT detector FROM promotions) "
                "AND number > (SELECT newest FROM promotions ORDER BY number DESC LIMIT 1) ORDER BY number DESC LIMIT 1"
            ).fetchone()
        return None if row is None else str(row["id"])

    def detectors(self) -> tuple[Entry, ...]:
        """All detectors, the oldest first."""
        with self.store.index.reading() as index:
            found = index.execute("SELECT id, time, parent, trained_until FROM detectors ORDER BY number").fetchall()
        return tuple(Entry(**row) for row in found)

    def promotions(self) -> tuple[Promotion, ...]:
        """The history of champions, the first first."""
        with self.store.index.reading() as index:
            found = index.execute("SELECT * FROM promotions ORDER BY number").fetchall()
        return tuple(map(_promotion, found))

    def directory(self, detector_id: str | None = None) -> Path:
        """Where a detector is saved; by default the champion."""
        detector_id = self.champion if detector_id is None else detector_id
        self._check_known(detector_id)
        return self.path / DETECTORS / detector_id

    def detector(
        self, detector_id: str | None = None, model: ModelOrBuilder = None, forward: Call | None = None
    ) -> Detector:
        """A detector of the habitat; by default the champion. See `wildood.load`."""
        return load(self.directory(detector_id), model, forward)

    def add(self, detector: Detector, *, parent: str | None, trained_until: int) -> str:
        """Save a detector; gives its id.

        Args:
            detector: what to save.
            parent: the id of the detector that it was trained from.
            trained_until: the largest id of an answer that was in its wild data.
        """
        trained_until = check_integer(trained_until, "trained_until", "the id of an answer, or 0", least=0, most=2**62)
        if parent is not None:
            self._check_known(parent)
        return _add(self.store, check_detector(detector), parent, trained_until)

    def add_champion(
        self, detector: Detector, *, trained_until: int, against: str, who: str, why: str, evidence: Mapping[str, Any]
    ) -> Promotion:
        """Save a detector and make it the champion in one transaction, in the place of `against`, which it was made from."""
        promoted: list[Promotion] = []

        def promote(index: Connection, name: str) -> None:
            if (champion := _champion(index)) != against:
                raise InputError(f"{against} is the champion no more, {champion} is: calibrate again")
            promoted.append(_promote(index, name, self.clock(), who, why, against, evidence=evidence))

        _add(self.store, check_detector(detector), against, trained_until, promote)
        return promoted[0]

    def promote(
        self,
        detector_id: str | None = None,
        *,
        who: str,
        why: str = "",
        evidence: Mapping[str, Any] | None = None,
        against: str | None = None,
        force: bool = False,
    ) -> Promotion:
        """Make a detector the champion, and record who did it, when and why, in one transaction.

        A former champion can be promoted again without evidence: that is how to go back.

        Args:
            detector_id: by default the challenger.
            who: the person or the program that promotes.
            why: in their own words.
            evidence: what a comparison said, as JSON-ready data; by default what `compare` recorded of these two.
            against: the champion that it was compared with; another one by now is an error.
            force: promote although no comparison has shown it to be better.
        """
        detector_id = self.challenger if detector_id is None else detector_id
        if detector_id is None:
            raise InputError(f"{self.path} has no challenger: make one with refresh, or name a detector")
        with self.store.index.writing() as index:
            champion = _champion(index)
            _check_known(index, detector_id)
            if detector_id == champion:
                raise InputError(f"{detector_id} is the champion already: name another detector")
            if against is not None and against != champion:
                raise InputError(
                    f"{detector_id} was compared with {against}, but the champion is {champion} now: compare again"
                )
            is_former = index.execute("SELECT 1 FROM promotions WHERE detector = ?", (detector_id,)).fetchone() is not None
            recorded = (
                latest_comparison(index, champion, detector_id) if evidence is None else {**evidence, "separated": True}
            )
            is_better = recorded is not None and recorded.get("separated") is True
            if not (is_better or force or is_former):
                said = f" ({recorded['says']})" if recorded is not None and "says" in recorded else ""
                raise InputError(
                    f"nothing says that {detector_id} is better than {champion}{said}: compare them on later traffic, or "
                    "force it (--force)"
                )
            forced, evidence = not (is_better or is_former), recorded if evidence is None else evidence
            return _promote(index, detector_id, self.clock(), who, why, champion, forced=forced, evidence=evidence)

    def status(self, *, model: ModelOrBuilder = None, forward: Call | None = None) -> "Status":
        """How the habitat is: traffic, unknowns in it, what the promise rests on, and what to do next.

        A model of your own, and the function that calls it, are passed as to `wildood.load`.
        """
        from wildood.habitat.status import status  # noqa: PLC0415 - it reads habitats

        return status(self, self.detector(model=model, forward=forward))

    def calibrate(
        self, *, who: str, why: str = "", force: bool = False, model: ModelOrBuilder = None, forward: Call | None = None
    ) -> "Calibration":
        """Set the champion's threshold by judged known examples of today, without training, and let the result answer.

        It needs enough judged known answers of the random sample, and a reason: the threshold promises nothing, known scores
        have changed, or judged answers set the threshold before and there are twice as many now. `force` needs no reason.
        """
        from wildood.habitat.calibrate import calibrate  # noqa: PLC0415 - it reads habitats

        return calibrate(self, self.detector(model=model, forward=forward), who=who, why=why, force=force)

    def refresh(
        self, labelled: Any, holdout: Any, *, model: ModelOrBuilder = None, forward: Call | None = None, **settings: Any
    ) -> "Refresh":
        """Train a challenger on what was collected; called again after it was killed, it goes on.

        Settings are those of `wildood.habitat.refresh.refresh`: start, method, schedule, alpha, allow_duplicates, restart,
        seed and verbose.
        """
        from wildood.habitat.refresh import refresh  # noqa: PLC0415 - it reads habitats

        return refresh(self, self.detector(model=model, forward=forward), labelled, holdout, **settings)

    def compare(
        self,
        holdout: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - as everywhere
        confidence: float = 0.95,
        model: ModelOrBuilder = None,
        forward: Call | None = None,
    ) -> "ChallengerComparison":
        """Compare champion and challenger on later traffic at equal false alarms; `promote` takes that as evidence.

        `holdout` is that of `refresh`: a quarter of it was set aside for this.
        """
        from wildood.habitat.compare import compare  # noqa: PLC0415 - it reads habitats

        id = self.challenger if id is None else id  # noqa: A001 - as everywhere
        if id is None:
            raise InputError(f"{self.path} has no challenger: make one with refresh")
        champion, challenger = (self.detector(each, model, forward) for each in (None, id))
        return compare(self, champion, challenger, holdout, id=id, confidence=confidence)

    def review(
        self,
        answers: Mapping[int, Any] | None = None,
        *,
        who: str = "",
        top: int = 16,
        model: ModelOrBuilder = None,
        forward: Call | None = None,
    ) -> "Review":
        """What to label first; `answers` are recorded before, by the id of an answer: a class (name or number) or "unknown".

        A random part of the list measures known traffic; the other part is chosen by scores, and only trains.
        """
        from wildood.habitat.review import record_answers, review  # noqa: PLC0415 - they read habitats

        detector = self.detector(model=model, forward=forward)
        recorded = record_answers(self, detector, answers, who) if answers else 0
        return replace(review(self, detector, top=top), recorded=recorded)

    def export_traffic(self, path: str | Path, *, examples: bool = False) -> int:
        """Write the traffic to a Parquet file; gives the number of its rows. It needs pyarrow.

        With `examples`, each array of an example is a list of its numbers, and a list of its sizes in the column `*_shape`.
        """
        return export_traffic(self.store, path, examples=examples)

    def sweep(self) -> None:
        """Apply budget and retention to the traffic, and remove what killed processes left."""
        _remove_unnamed(self.store)
        self.store.sweep(budget=self.settings.budget, retain=self.settings.retain)

    def check(self) -> list[str]:
        """What is wrong with the habitat, one line for each fault; leftovers of killed processes are among them."""
        with self.store.index.reading() as index:
            named = {each for (each,) in index.execute("SELECT id FROM detectors")}
            promoted = {each for (each,) in index.execute("SELECT detector FROM promotions")}
        present = {each.name for each in (self.path / DETECTORS).iterdir()}
        faults = [f"detector {each} is missing" for each in sorted(named - present)]
        faults += [f"detectors/{each} is named by nothing: sweep removes it" for each in sorted(present - named)]
        faults += [f"detector {each} was promoted, but never added" for each in sorted(promoted - named)]
        for each in sorted(named & present):
            try:
                read_description(self.path / DETECTORS / each)
            except DetectorFileError as error:
                faults.append(str(error))
        return faults + self.store.check()

    def _check_known(self, detector_id: str) -> None:
        with self.store.index.reading() as index:
            _check_known(index, detector_id)


def _champion(index: Connection) -> str:
    return str(index.execute("SELECT detector FROM promotions ORDER BY number DESC LIMIT 1").fetchone()["detector"])


def _check_known(index: Connection, detector_id: str) -> None:
    known = [each for (each,) in index.execute("SELECT id FROM detectors ORDER BY number")]
    if detector_id not in known:
        raise InputError(f"there is no detector {quoted(detector_id)}: give one of {', '.join(known)}")


def _promote(
    index: Connection,
    detector_id: str,
    now: float,
    who: str,
    why: str,
    former: str | None = None,
    *,
    forced: bool = False,
    evidence: Mapping[str, Any] | None = None,
) -> Promotion:
    """Record a promotion, in a transaction: the pointer to the champion and its history are one row."""
    text = None if evidence is None else json.dumps(evidence)
    row = index.execute(
        "INSERT INTO promotions(time, detector, former, who, why, forced, evidence, newest) "
        "VALUES(?, ?, ?, ?, ?, ?, ?, (SELECT max(number) FROM detectors)) RETURNING *",
        (now, detector_id, former, as_utf8(who), as_utf8(why), forced, text),
    ).fetchone()
    return _promotion(row)


def _promotion(row: Row) -> Promotion:
    values = {each.name: row[each.name] for each in fields(Promotion)}
    evidence = None if row["evidence"] is None else json.loads(row["evidence"])
    return Promotion(**values | {"forced": bool(row["forced"]), "evidence": evidence})


def _add(
    store: Store,
    detector: Detector,
    parent: str | None,
    trained_until: int,
    also: Callable[[Connection, str], None] | None = None,
) -> str:
    """Save a detector under a temporary name; number it, give it its name and record it in one transaction.

    `also` is done in the same transaction, with the name.
    """
    directory = store.directory / DETECTORS
    directory.mkdir(exist_ok=True)
    with _temporary(directory) as draft:
        detector.save(draft / "detector")
        with store.index.writing() as index:
            row = (store.clock(), parent, trained_until)
            query = "INSERT INTO detectors(time, parent, trained_until) VALUES(?, ?, ?) RETURNING number"
            number = int(index.execute(query, row).fetchone()["number"])
            name = f"d{number:04}"
            index.execute("UPDATE detectors SET id = ? WHERE number = ?", (name, number))
            if also is not None:
                also(index, name)
            if (directory / name).exists():  # of a process that was killed here
                shutil.rmtree(directory / name)
            (draft / "detector").replace(directory / name)
            sync_directory(directory)
    return name


@contextmanager
def _temporary(directory: Path) -> Iterator[Path]:
    """A directory that is locked while it is there: one without a lock was left by a killed process."""
    while True:
        draft = directory / f".{token_hex(6)}{_PART}"
        draft.mkdir()
        with locked(draft, waiting="") as mine:
            if mine and not draft.exists():  # removed as a leftover before it was locked
                continue
            try:
                yield draft
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            return


def _remove_unnamed(store: Store) -> None:
    """Remove directories of detectors that killed processes left: no transaction is about to name them."""
    with store.index.writing() as index:
        named = {each for (each,) in index.execute("SELECT id FROM detectors")}
        for place in (store.directory / DETECTORS).iterdir():
            is_leftover = place.suffix == _PART and not is_held(place)
            if is_leftover or (_ID.fullmatch(place.name) and place.name not in named):
                shutil.rmtree(place, ignore_errors=True)


def _write(directory: Path, settings: Settings) -> None:
    content = {"format": FORMAT, "settings": asdict(settings)}
    write_atomically(directory / SETTINGS, (json.dumps(content, indent=1) + "\n").encode())


def _read(directory: Path) -> Settings:
    """The settings of a habitat; a directory that is none is refused."""
    path = directory / SETTINGS
    try:
        content = parse(path.read_bytes(), dict[str, Any])
        if content.get("format") != FORMAT and isinstance(content.get("format"), int):
            raise InputError(
                f"{path} has format {content['format']}, this wildood reads {FORMAT}: use the wildood that wrote it"
            )
        settings: Settings = check(content, _File)["settings"]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{directory} is no habitat, it has no {SETTINGS}: make one with Habitat.create(path, detector), or by "
            f"wildood serve DETECTOR --habitat {directory}"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): make it readable") from error
    except SchemaError as error:
        raise InputError(f"{path}: {error}: correct it, or restore it from a copy") from error
    return settings
