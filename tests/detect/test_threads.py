"""Several threads call one detector, train at the same time, or save to one directory: each gets what it would get alone."""

import copy
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.detect import storage
from wildood.detect.detector import Detector, Example
from wildood.models.classifier import Classifier
from wildood.models.small import MLP
from wildood.scores.score import Score
from wildood.scores.shipped import POSTHOC

THREADS = 4
SAY = ("score", "predict", "p_value", "classify", "predict_proba")
MEETING: threading.Barrier | None = None


class Meeting(nn.Module):
    """Every forward pass waits before the last layer until all threads are there: all of them are under way at once."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        features = self.body(x)
        if MEETING is not None:
            MEETING.wait(timeout=60)
        return self.head(features)


def together(*calls, meet=False):
    """What each call gives, each in a thread of its own; in forward passes that meet, if asked."""
    barrier = threading.Barrier(len(calls))

    def called(call):
        try:
            return call()
        except BaseException:
            barrier.abort()  # the others wait for nobody
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(calls)) as pool:
        if meet:
            patch.setattr(sys.modules[__name__], "MEETING", barrier)
        return [future.result() for future in [pool.submit(called, call) for call in calls]]


@pytest.fixture
def busy():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def images(count, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return np.clip(rng.normal(60 + 60 * y[:, None, None, None], 25, (count, 4, 4, 1)), 0, 255).astype(np.uint8), y


LABELLED, HOLDOUT, TEST = images(150, 0), images(120, 1), images(40, 2)
WILD = np.concatenate([images(80, 3)[0], np.random.default_rng(4).integers(0, 256, (20, 4, 4, 1)).astype(np.uint8)])
SPEC = wildood.InputSpec(mean=(0.5,), std=(0.25,))
BATCHES = [TEST[0][10 * number : 10 * number + 3 + number] for number in range(THREADS)]
SETTINGS = {
    wildood.Odin: {"epsilon": 0.01},
    wildood.Mahalanobis: {"epsilon": 0.01},
    wildood.Knn: {"k": 5},
    wildood.NnGuide: {"k": 5},
}
SCORES = [*(cls(**SETTINGS.get(cls, {})) for cls in POSTHOC), wildood.Ash(variant="s")]
METHODS = (
    wildood.Woods(),
    wildood.WoodsAlt(),
    wildood.OutlierExposure(),
    wildood.EnergyMargin(),
    wildood.EnergyLogistic(),
    wildood.Godin(epsilon=0.01),
    wildood.Csi(head_epochs=1),
)
QUICK = wildood.Schedule(steps=2, batch=16, lr=0.01)


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = Meeting()
    return wildood.pretrain(
        start, LABELLED, schedule=wildood.Schedule(epochs=3, batch=32, lr=0.05), input=SPEC, verbose=False
    )


@pytest.fixture(
    scope="module",
    params=[*SCORES, *METHODS, "frozen"],
    ids=lambda made: made if isinstance(made, str) else type(made).__name__,
)
def detector(request, model):
    if isinstance(request.param, Score):
        return wildood.posthoc(model, request.param, labelled=LABELLED, holdout=HOLDOUT, input=SPEC)
    frozen = request.param == "frozen"
    method = wildood.WoodsAlt() if frozen else request.param
    wild = WILD if method.uses_wild else None
    return wildood.fit(
        model, LABELLED, wild, HOLDOUT, method=method, schedule=QUICK, keep="last", input=SPEC, frozen=frozen, verbose=False
    )


@pytest.mark.parametrize("say", SAY)
def test_threads_that_are_in_one_forward_pass_get_the_answers_they_would_get_alone(detector, say):
    calls = [lambda batch=batch: getattr(detector, say)(batch) for batch in BATCHES]
    alone = [call() for call in calls]
    for _ in range(3):
        found = together(*calls, meet=True)
        assert all(np.array_equal(one, other) for one, other in zip(found, alone, strict=True))


def test_threads_that_take_turns_get_the_answers_they_would_get_alone(detector, busy):
    def ask(batch):
        return [getattr(detector, say)(batch).tolist() for say in SAY for _ in range(10)]

    calls = [lambda batch=batch: ask(batch) for batch in BATCHES]
    assert together(*calls) == [call() for call in calls]


def test_a_copy_of_a_detector_reads_its_own_features(detector):
    again = copy.deepcopy(detector)
    assert np.array_equal(again.score(TEST[0]), detector.score(TEST[0]))
    with torch.no_grad():
        again.classifier.model.body[1].weight.zero_()
    assert not np.array_equal(again.score(TEST[0]), detector.score(TEST[0]))


def test_a_call_leaves_hooks_and_modes_alone_while_it_lasts(detector):
    model = detector.classifier.model

    def state():
        return [(part.training, *map(list, (part._forward_hooks, part._forward_pre_hooks))) for part in model.modules()]

    seen, before = [], state()
    mine = model.head.register_forward_pre_hook(lambda *_: seen.append(state()))
    registered = state()
    detector.predict(BATCHES[0])
    assert seen
    assert all(each == registered for each in seen)
    assert registered == state()
    mine.remove()
    assert before == state()


def test_another_thread_sees_one_calibration_or_the_other_at_every_line_of_calibrate(model):
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=HOLDOUT, input=SPEC, alpha=0.2)
    scores, classes = detector.score_and_classify(TEST[0])
    seen = []

    def state():
        accepted = detector.accepts(scores, classes).tolist()
        return accepted, detector.threshold, detector.promise, len(detector.holdout_scores), detector.record["data"]

    def look(*_):
        seen.append(state())
        return look

    before, tracer = state(), sys.gettrace()
    sys.settrace(look)
    try:
        detector.calibrate(LABELLED, 0.4, by_class=True)
    finally:
        sys.settrace(tracer)
    after = state()
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert all(each in (before, after) for each in seen)
    assert after in seen


@pytest.fixture(scope="module")
def dropping():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Meeting(dropout=0.5)


def weights(model):
    return [value.tolist() for value in model.state_dict().values()]


@pytest.mark.parametrize("how", ["fit", "pretrain"])
def test_trainings_in_threads_end_with_the_bits_they_would_have_alone(dropping, how):
    """Dropout draws from torch's generator, of which a process has one: one training waits for the other."""

    def train(seed):
        if how == "pretrain":
            return weights(
                wildood.pretrain(
                    dropping, LABELLED, schedule=wildood.Schedule(epochs=1, batch=16), seed=seed, input=SPEC, verbose=False
                )
            )
        made = wildood.fit(
            dropping, LABELLED, WILD, HOLDOUT, schedule=QUICK, keep="last", seed=seed, input=SPEC, verbose=False
        )
        return weights(made.classifier.model)

    calls = [lambda seed=seed: train(seed) for seed in range(THREADS)]
    alone = [call() for call in calls]
    logger = logging.getLogger("wildood")
    before = torch.get_rng_state(), logger.level, logger.propagate, list(logger.handlers)
    assert together(*calls) == alone
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (logger.level, logger.propagate, logger.handlers) == before[1:]


@pytest.fixture
def several():
    """Three detectors that differ, and what each says."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = [Detector(Classifier(MLP(2, 3)).eval(), wildood.EnergyScore(), Example((2,), "float")) for _ in range(3)]
    return {detector.score(np.ones((1, 2), np.float32)).tobytes(): detector for detector in made}


def test_saves_to_one_directory_leave_one_whole_detector_that_can_be_read_at_any_moment(several, busy, tmp_path):
    next(iter(several.values())).save(tmp_path)
    done = threading.Semaphore(0)

    def save(detector):
        try:
            for _ in range(5):
                detector.save(tmp_path)
        finally:
            done.release()

    def load():
        found, ended = [], 0
        while ended < len(several):
            found.append(wildood.load(tmp_path).score(np.ones((1, 2), np.float32)).tobytes())
            ended += done.acquire(blocking=False)
        return found

    *_, found = together(*(lambda detector=detector: save(detector) for detector in several.values()), load)
    assert set(found) <= set(several)
    assert wildood.load(tmp_path).score(np.ones((1, 2), np.float32)).tobytes() in several
    assert len(list(tmp_path.iterdir())) == 3


def test_a_save_waits_for_one_that_is_under_way(several, tmp_path, monkeypatch):
    """As another process's would: the lock knows only who has opened the directory."""
    first, second, _ = several.values()
    order, write = [], storage.write_together

    def slowly(files):
        order.append("begins")
        entered.set()
        other_waits.wait(60)
        write(files)
        order.append("ends")

    entered, other_waits = threading.Event(), threading.Event()
    monkeypatch.setattr(storage, "write_together", slowly)
    monkeypatch.setattr(logging.getLogger("wildood"), "info", lambda *_: other_waits.set())
    threads = [threading.Thread(target=each.save, args=(tmp_path,)) for each in (first, second)]
    threads[0].start()
    entered.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert order == ["begins", "ends"] * 2
    assert other_waits.is_set()
