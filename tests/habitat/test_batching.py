"""Requests share batches, in order, of one shape each; the queue is bounded, and one bad request spoils no other."""

import asyncio
import threading

import pytest
import torch

from wildood.habitat.batching import Batcher, ClosedError, QueueFullError


class Doubled:
    """What the model of these tests says: twice the examples."""

    def __init__(self, values):
        self.values = values

    def part(self, first, count):
        return Doubled(self.values[first : first + count])


class Model:
    """It remembers its batches, waits where it is told to, and fails on negative numbers."""

    def __init__(self):
        self.batches, self.may_run = [], threading.Event()
        self.may_run.set()

    def __call__(self, _, batch):
        self.may_run.wait(10)
        self.batches.append(batch.flatten().tolist() if isinstance(batch, torch.Tensor) else batch)
        if (batch < 0).any():
            raise ValueError("negative")
        return Doubled(2 * batch)


@pytest.fixture
def model():
    return Model()


def submitted(model, *examples, models=None, **settings):
    """What each request gets, an exception too, where all come at once."""

    async def run():
        batcher = Batcher(model, **{"wait": 0.05, **settings})
        try:
            names = models or [None] * len(examples)
            jobs = [batcher.submit(name, each) for name, each in zip(names, examples, strict=True)]
            results = await asyncio.gather(*jobs, return_exceptions=True)
            assert batcher.waiting == 0
        finally:
            await asyncio.to_thread(batcher.close)
        return [each if isinstance(each, Exception) else each[0].values.flatten().tolist() for each in results]

    return asyncio.run(run())


def column(*values):
    return torch.tensor([[float(value)] for value in values])


def test_requests_share_a_batch_and_get_their_own_part(model):
    assert submitted(model, column(1), column(2, 3), column(4)) == [[2], [4, 6], [8]]
    assert model.batches == [[1, 2, 3, 4]]


def test_a_batch_has_its_size_at_most_and_keeps_the_order(model):
    assert submitted(model, column(1, 2), column(3, 4), column(5), size=3) == [[2, 4], [6, 8], [10]]
    assert model.batches == [[1, 2], [3, 4, 5]]


def test_a_request_larger_than_a_batch_is_one_of_its_own(model):
    assert submitted(model, column(1, 2, 3, 4), column(5), size=2) == [[2, 4, 6, 8], [10]]
    assert model.batches == [[1, 2, 3, 4], [5]]


def test_a_full_batch_does_not_wait_for_more(model):
    assert submitted(model, column(1), column(2), size=2, wait=60) == [[2], [4]]


def test_other_shapes_types_and_models_go_to_other_batches(model):
    wide = torch.ones(1, 2)
    examples = (column(1), wide, column(2), wide.double(), column(3))
    assert submitted(model, *examples, models="aaaab") == [[2], [2, 2], [4], [2, 2], [6]]
    assert model.batches == [[1, 2], [1, 1], [1, 1], [3]]


def test_a_request_on_which_the_model_fails_spoils_no_other(model):
    first, bad, last = submitted(model, column(1), column(-1), column(2))
    assert (first, last) == ([2], [4])
    assert isinstance(bad, ValueError)


def test_a_full_queue_refuses_and_recovers(model):
    async def run():
        model.may_run.clear()
        batcher = Batcher(model, size=1, wait=0, queue=2)
        running = asyncio.ensure_future(batcher.submit(None, column(1)))
        while batcher.waiting or not running.done():
            await asyncio.sleep(0.001)
            if not batcher.waiting:  # the first is with the model
                break
        waiting = [asyncio.ensure_future(batcher.submit(None, column(each))) for each in (2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher.submit(None, column(4))
        model.may_run.set()
        answers = [each[0].values.item() for each in await asyncio.gather(running, *waiting)]
        later = (await batcher.submit(None, column(5)))[0].values.item()
        await asyncio.to_thread(batcher.close)
        return answers, later

    assert asyncio.run(run()) == ([2, 4, 6], 10)


def test_several_jobs_are_taken_together_or_not_at_all(model):
    async def run():
        batcher = Batcher(model, size=8, wait=60, queue=4)
        waiting = asyncio.ensure_future(batcher.submit_all(None, [(column(2), "a"), (column(3, 4), "b")]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher.submit_all(None, [(column(5), "c"), (column(6), "d")])
        assert batcher.waiting == 3
        await asyncio.to_thread(batcher.close)
        return [each.values.flatten().tolist() for each, _ in await waiting]

    assert asyncio.run(run()) == [[4], [6, 8]]
    assert model.batches == [[2, 3, 4]]


def test_one_of_several_jobs_that_fails_fails_all(model):
    async def run():
        batcher = Batcher(model, wait=0)
        with pytest.raises(ValueError, match="negative"):
            await batcher.submit_all(None, [(column(7), "e"), (column(-1), "f"), (column(-2), "g")])
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())


def test_a_probe_is_a_batch_of_its_own_that_nobody_is_told_of(model):
    told = []

    async def run():
        batcher = Batcher(model, lambda _, batch, *__: told.append(len(batch)), wait=0.05)
        probe, *_ = await asyncio.gather(
            batcher.probe(None, column(1)), batcher.submit(None, column(2)), batcher.submit(None, column(3))
        )
        await asyncio.to_thread(batcher.close)
        return probe.values.item()

    assert asyncio.run(run()) == 2
    assert sorted(model.batches) == [[1], [2, 3]]
    assert told == [2]


def test_closing_answers_what_waits_and_refuses_what_comes(model):
    async def run():
        batcher = Batcher(model, size=8, wait=60)
        waiting = [asyncio.ensure_future(batcher.submit(None, column(each))) for each in (1, 2)]
        await asyncio.sleep(0)
        await asyncio.to_thread(batcher.close)
        with pytest.raises(ClosedError):
            await batcher.submit(None, column(3))
        return [each[0].values.item() for each in await asyncio.gather(*waiting)]

    assert asyncio.run(run()) == [2, 4]


def test_a_request_that_was_given_up_is_not_run(model):
    async def run():
        model.may_run.clear()
        batcher = Batcher(model, size=1, wait=0)
        first, given_up = (asyncio.ensure_future(batcher.submit(None, column(each))) for each in (1, 2))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.sleep(0)
        model.may_run.set()
        await first
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())
    assert model.batches == [[1]]


def test_the_caller_is_told_of_each_batch_and_its_requests(model):
    told = []

    async def run():
        batcher = Batcher(
            model, lambda _, batch, result, jobs: told.append((len(batch), [job.tag for job in jobs])), wait=0.05
        )
        await asyncio.gather(*(batcher.submit(None, column(1), tag) for tag in "ab"))
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())
    assert told == [(2, ["a", "b"])]
