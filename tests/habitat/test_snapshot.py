"""A snapshot keeps the examples of a training run while the store removes them."""

import os

import pytest
import torch

from wildood.errors import InputError
from wildood.habitat.snapshot import open_snapshot, take_snapshot


def test_a_snapshot_outlives_the_traffic(store, answers, vectors, tmp_path, clock):
    for first in range(0, 30, 10):
        store.append(answers(10, first), vectors(10, first))
    ids = [25, 3, 14, 3]
    snapshot = take_snapshot(store, ids, tmp_path / "wild")
    fingerprint = store.source(ids).fingerprint()
    clock.now += 1e6
    store.sweep(retain=1.0)
    assert len(store.rows()) == len(list(store.traffic.iterdir())) == 0
    again, source = open_snapshot(tmp_path / "wild")
    assert again.tolist() == ids
    assert source.gather(torch.arange(4))[0][:, 0].tolist() == [24.0, 2.0, 13.0, 2.0]
    assert source.fingerprint() == snapshot.fingerprint() == fingerprint


@pytest.mark.parametrize("links", [True, False])
def test_an_interrupted_snapshot_is_taken_again(store, answers, vectors, tmp_path, monkeypatch, links):
    for first in range(0, 30, 10):
        store.append(answers(10, first), vectors(10, first))
    link, calls = os.link, []

    def interrupted(*paths):
        calls.append(paths)
        if len(calls) == 2:
            raise KeyboardInterrupt
        if not links:
            raise OSError(95, "Operation not supported")
        link(*paths)

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_snapshot(store, range(1, 31), tmp_path / "wild")
    with pytest.raises(FileNotFoundError):
        open_snapshot(tmp_path / "wild")
    source = take_snapshot(store, range(1, 31), tmp_path / "wild")
    assert source.gather(torch.arange(30))[0][:, 0].tolist() == list(range(30))
    assert len(list((tmp_path / "wild").iterdir())) == 4


def test_a_damaged_snapshot_is_refused(store, answers, vectors, tmp_path):
    store.append(answers(2), vectors(2))
    take_snapshot(store, [1], tmp_path / "wild")
    (tmp_path / "wild" / "rows.npz").write_bytes(b"x")
    with pytest.raises(InputError, match="is damaged"):
        open_snapshot(tmp_path / "wild")
