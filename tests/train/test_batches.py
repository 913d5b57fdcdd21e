"""What several processes read together is what one process reads: labelled, wild, and how each image is augmented."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wildood import InputSpec, Schedule, WildMixture
from wildood.data.sources import ArraySource
from wildood.methods.objective import NO_LABEL
from wildood.models.classifier import Classifier
from wildood.train.batches import Batches

RNG = np.random.default_rng(0)
LABELLED = ArraySource(RNG.integers(0, 256, (37, 6, 6, 1), dtype=np.uint8), np.arange(37))
WILD = WildMixture(*(RNG.integers(0, 256, (count, 6, 6, 1), dtype=np.uint8) for count in (30, 20)), pi=0.4)
CLASSIFIER = Classifier(nn.Linear(1, 2), InputSpec(mean=(0.5,), std=(0.5,)))


FRESH = ArraySource(RNG.integers(0, 256, (8, 6, 6, 1), dtype=np.uint8))


def batches(rank=0, world=1, seed=3, fresh=None):
    return Batches(LABELLED, WILD, Schedule(batch=11, augment=True), seed, CLASSIFIER, rank, world, fresh)


def test_half_of_the_labelled_examples_of_a_batch_are_fresh_ones_without_a_class():
    source = ArraySource(np.full((8, 6, 6, 1), 255, np.uint8))
    drawn = Batches(LABELLED, WILD, Schedule(batch=11), 3, CLASSIFIER, fresh=source).draw()
    assert drawn.labels.tolist()[6:] == [NO_LABEL] * 5
    assert min(drawn.labels.tolist()[:6]) >= 0
    assert bool((drawn.labelled[6:] == 255).all())
    assert len(drawn.labelled) == len(drawn.wild) == 11


def test_fresh_examples_have_their_share_of_a_batch_and_their_classes():
    source = ArraySource(np.full((8, 6, 6, 1), 255, np.uint8), np.full(8, 99))
    drawn = [
        Batches(LABELLED, WILD, Schedule(batch=20), 3, CLASSIFIER, fresh=source, fresh_share=share).draw()
        for share in (0.5, 0.15, 0.01)
    ]
    assert [batch.labels.tolist().count(99) for batch in drawn] == [10, 3, 1]
    assert [len(batch.labels) for batch in drawn] == [20, 20, 20]


def test_cross_entropy_ignores_fresh_examples():
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, NO_LABEL, NO_LABEL])
    assert torch.equal(F.cross_entropy(logits, labels), F.cross_entropy(logits[:2], labels[:2]))


@pytest.mark.parametrize("fresh", [None, FRESH])
@pytest.mark.parametrize("world", [2, 3])
def test_the_shares_of_a_batch_are_together_the_batch_of_one_process(world, fresh):
    alone, shared = batches(fresh=fresh), [batches(rank, world, fresh=fresh) for rank in range(world)]
    for _ in range(8):
        whole = alone.draw()
        parts = [each.draw() for each in shared]
        assert sum(len(part.labels) for part in parts) == 11
        for rank, part in enumerate(parts):
            for mine, everyones in zip(part[:3], whole[:3], strict=True):  # none is judged
                assert torch.equal(mine, everyones[rank::world])


@pytest.mark.parametrize("fresh", [None, FRESH])
def test_the_state_of_any_process_goes_on_with_another_number_of_them(fresh):
    second = batches(1, 2, fresh=fresh)
    for _ in range(5):
        second.draw()
    three, alone = [batches(rank, 3, seed=0, fresh=fresh) for rank in range(3)], batches(seed=0, fresh=fresh)
    for each in (*three, alone):
        each.load_state_dict(second.state_dict())
    whole, parts = alone.draw(), [each.draw() for each in three]
    assert torch.equal(second.draw().wild, whole.wild[1::2])
    for rank, part in enumerate(parts):
        assert torch.equal(part.labelled, whole.labelled[rank::3])
        assert torch.equal(part.wild, whole.wild[rank::3])
