"""The batches of a run, in the order that the seed decides, prefetched where data is on disk or read by workers."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import torch
from torch import Tensor

from wildood.data.augmentation import flip_and_crop
from wildood.data.inputs import InputSpec
from wildood.data.judged import Judged
from wildood.data.mapped import read_ahead
from wildood.data.sampling import ShuffledCycle, generator
from wildood.data.sources import Source
from wildood.data.structures import Raw, batch_length, concatenate, map_structure, to_device
from wildood.data.wild import Wild
from wildood.methods.objective import NO_LABEL, Batch
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier


class Batches:
    """Labelled and wild examples in the order that the seed decides; of several processes, each reads its share of a batch.

    The share is every `world`-th example, from the `rank`-th. All processes draw the numbers of the whole batch: what they
    read together is what one process reads, so that a run can go on with another number of them.

    With `fresh` examples, a share of the labelled ones of a batch are theirs; those without a class have `NO_LABEL`. With
    `judged` ones, an eighth as many of them join each batch, or all where there are fewer.

    >>> import numpy as np, torch
    >>> from wildood.data.sources import ArraySource
    >>> source, classifier = ArraySource(np.zeros((9, 2)), np.arange(9)), Classifier(torch.nn.Linear(2, 3))
    >>> def labels(*place):
    ...     return Batches(source, None, Schedule(batch=5), 0, classifier, *place).draw().labels.tolist()
    >>> labels(), labels(0, 2), labels(1, 2)
    ([2, 1, 5, 4, 7], [2, 5, 7], [1, 4])
    """

    def __init__(
        self,
        labelled: Source,
        wild: Wild | None,
        schedule: Schedule,
        seed: int,
        classifier: Classifier,
        rank: int = 0,
        world: int = 1,
        fresh: Source | None = None,
        fresh_share: float = 0.5,
        judged: Judged | None = None,
    ) -> None:
        self._labelled, self._schedule, self._classifier, self._fresh = labelled, schedule, classifier, fresh
        self._device = classifier.device  # to ask for it in each step takes longer than to shuffle
        self._share = slice(rank, None, world)
        self._fresh_count = 0 if fresh is None else max(1, int(fresh_share * schedule.batch))
        self._fresh_share = slice((rank - schedule.batch + self._fresh_count) % world, None, world)
        pools = (() if wild is None else wild.pools) + (() if fresh is None else (fresh,))
        pools += () if judged is None else (judged.examples,)
        self._judged = judged
        self._judged_count = 0 if judged is None else min(len(judged.is_ood), max(1, schedule.batch // 8))
        self._judged_order = None if judged is None else ShuffledCycle(len(judged.is_ood), generator(seed, "judged"))
        self.read_ahead = read_ahead((labelled, *pools))
        self._order = ShuffledCycle(len(labelled), generator(seed, "labelled"))
        self._fresh_order = None if fresh is None else ShuffledCycle(len(fresh), generator(seed, "fresh"))
        self._wild = wild.sampler(seed, rank, world) if wild is not None else None
        self._augmentation = generator(seed, "augmentation")

    def draw(self) -> Batch:
        """The next batch, on the classifier's device."""
        raw, labels = _gather(self._labelled, self._order.take(self._schedule.batch - self._fresh_count)[self._share])
        assert labels is not None  # noqa: S101 - labelled
        if self._fresh is not None and self._fresh_order is not None:
            more, classes = _gather(self._fresh, self._fresh_order.take(self._fresh_count)[self._fresh_share])
            classes = labels.new_full((batch_length(more),), NO_LABEL) if classes is None else classes
            raw, labels = concatenate([raw, more]), torch.cat([labels, classes.to(labels)])
        wild = None if self._wild is None else self._wild.draw(self._schedule.batch)
        if self._schedule.augment:
            raw, wild = self._augmented(raw), None if wild is None else self._augmented(wild)
        wild = None if wild is None else to_device(wild, self._device)
        return Batch(to_device(raw, self._device), labels.to(self._device), wild, *self._draw_judged())

    def _draw_judged(self) -> tuple[Raw, Tensor] | tuple[()]:
        if self._judged is None or self._judged_order is None:
            return ()
        which = self._judged_order.take(self._judged_count)
        judged, _ = self._judged.examples.gather(which)
        judged = self._augmented(judged, len(which)) if self._schedule.augment else judged
        return to_device(judged, self._device), self._judged.is_ood[which].float().to(self._device)

    def _augmented(self, images: Raw, of: int | None = None) -> Tensor:
        """The images flipped and cropped: this process's share of those of a batch, or all `of` them."""
        assert isinstance(images, Tensor)  # noqa: S101 - check_augmentation has refused others
        spec = self._classifier.spec
        layout = spec.layout if isinstance(spec, InputSpec) else "NCHW"
        if of is not None:
            return flip_and_crop(images, layout, self._augmentation)
        return flip_and_crop(images, layout, self._augmentation, of=self._schedule.batch, share=self._share)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the batches need to go on where they were: the same on every process."""
        return {
            "labelled": self._order.state_dict(),
            "fresh": None if self._fresh_order is None else self._fresh_order.state_dict(),
            "wild": None if self._wild is None else self._wild.state_dict(),
            "judged": None if self._judged_order is None else self._judged_order.state_dict(),
            "augmentation": self._augmentation.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._order.load_state_dict(state["labelled"])
        if self._fresh_order is not None:
            self._fresh_order.load_state_dict(state["fresh"])
        if self._wild is not None:
            self._wild.load_state_dict(state["wild"])
        if self._judged_order is not None:
            self._judged_order.load_state_dict(state["judged"])
        self._augmentation.set_state(state["augmentation"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""


def _gather(source: Source, indices: Tensor) -> tuple[Raw, Tensor | None]:
    """The examples at these indices; of several processes, one may have none of a small share."""
    if len(indices):
        return source.gather(indices)
    raw, labels = source.gather(torch.zeros(1, dtype=torch.int64))
    return map_structure(lambda part: part[:0], raw), None if labels is None else labels[:0]


class Prefetch:
    """Batches drawn one ahead in a thread, in the same order as without it.

    >>> import numpy as np, torch
    >>> from wildood.data.sources import ArraySource
    >>> source, classifier = ArraySource(np.zeros((9, 2)), np.arange(9)), Classifier(torch.nn.Linear(2, 3))
    >>> with Prefetch(Batches(source, None, Schedule(batch=5), 0, classifier)) as batches:
    ...     batches.draw().labels.tolist()
    [2, 1, 5, 4, 7]
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, self._pool = batches, ThreadPoolExecutor(1)
        self._next: Future[Batch] | None = None
        self._state: dict[str, Any] | None = None  # before the batch that is drawn ahead

    def draw(self) -> Batch:
        """The batch that was drawn ahead; the next one is begun."""
        batch = (self._next or self._pool.submit(self._batches.draw)).result()
        self._state = self._batches.state_dict()
        self._next = self._pool.submit(self._batches.draw)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from: the batch that is drawn ahead has not been trained on."""
        return self._batches.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; before the first draw."""
        self._batches.load_state_dict(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def prefetched(batches: Batches) -> Batches | Prefetch:
    """The same batches, prefetched if some of the data is on disk or read by workers."""
    return Prefetch(batches) if batches.read_ahead else batches
