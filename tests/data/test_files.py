"""A file is whole or not there, and state comes back bit by bit or not at all."""

import errno
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from wildood.data import files as files_module
from wildood.data.files import DamagedFileError, digest, dump_state, load_state, locked, write_atomically

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
STATE = {
    "weights": torch.arange(6.0).reshape(2, 3),
    "plain": [True, None, 0.1, "text", math.inf],
    "empty": torch.empty(0, 3),
    "number": torch.tensor(1.5, dtype=torch.bfloat16),
}


def bits(tensor):
    packed = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.dtype, tuple(tensor.shape), bytes(packed.untyped_storage())


def files(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


HOLDER = [sys.executable, Path(__file__).with_name("hold_lock.py")]


def test_lock_is_held_by_one_and_then_free(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock") as third:
        assert third


def test_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen([*HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        with locked(path) as held:
            assert not held
        holder.kill()
        holder.wait()
        with locked(path) as held:
            assert held


def test_lock_that_is_waited_for_is_logged_and_taken_when_it_is_free(tmp_path, caplog):
    path = tmp_path / "lock"
    with subprocess.Popen([*HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        threading.Timer(0.1, holder.stdin.close).start()
        with caplog.at_level("INFO", logger="wildood"), locked(path, waiting="waiting for it") as held:
            assert held
    assert caplog.messages == ["waiting for it"]


def test_lock_where_no_file_can_be_is_not_available(tmp_path):
    with locked(tmp_path / "no" / "lock") as held:
        assert not held


def test_a_directory_is_locked_as_a_file_is(tmp_path):
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert (first, second) == (True, False)
    assert list(tmp_path.iterdir()) == []


def test_write_replaces_the_whole_content(tmp_path):
    path = tmp_path / "new" / "directory" / "a.bin"
    write_atomically(path, b"a long first content")
    write_atomically(path, b"second")
    assert files(path.parent) == {"a.bin": b"second"}


@pytest.mark.parametrize("place", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_write_that_fails_midway_leaves_the_old_content_and_no_stray_file(tmp_path, monkeypatch, place, error):
    def fail(*_):
        raise error

    write_atomically(tmp_path / "a.bin", b"old")
    if place == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "a.bin", b"new")
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "b.bin", b"new")
    assert files(tmp_path) == {"a.bin": b"old"}


def test_content_reaches_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    """Otherwise a machine that loses power could find the new name on an empty file."""
    synced, fsync = [], os.fsync

    def watch(number):
        synced.append((os.fstat(number).st_size, (tmp_path / "a.bin").exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", watch)
    write_atomically(tmp_path / "a.bin", b"12345")
    assert synced[0] == (5, False)


FORK = multiprocessing.get_context("fork")


def start_writing(path, *, kill=False):
    """A process in the middle of writing a file, which is killed there or goes on when it is told to."""
    reached, go_on = FORK.Event(), FORK.Event()

    def stop(_):
        reached.set()
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        go_on.wait()

    def write():
        os.fsync = stop
        write_atomically(path, b"new")

    process = FORK.Process(target=write, daemon=True)
    process.start()
    assert reached.wait(60)
    if kill:
        process.join()
    return process, go_on


def names(place):
    return sorted(re.sub("[0-9a-f]{16}", "*", path.name) for path in place.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next_one_and_what_a_living_one_writes_is_not(tmp_path):
    killed, _ = start_writing(tmp_path / "a.bin", kill=True)
    assert killed.exitcode == -signal.SIGKILL
    assert names(tmp_path) == [".a.bin.*.part"]
    living, go_on = start_writing(tmp_path / "b.bin")
    assert names(tmp_path) == [".b.bin.*.part"]
    write_atomically(tmp_path / "c.bin", b"other")
    assert names(tmp_path) == [".b.bin.*.part", "c.bin"]
    go_on.set()
    living.join()
    assert files(tmp_path) == {"b.bin": b"new", "c.bin": b"other"}


def test_files_of_others_that_look_alike_are_left_alone(tmp_path):
    theirs = {"a.part", ".a.part", ".a.b.part", f"a.{'0' * 16}.part", f".{'0' * 16}.part", f".a.{'0' * 15}x.part"}
    for name in theirs:
        (tmp_path / name).write_bytes(b"theirs")
    write_atomically(tmp_path / "a", b"mine")
    assert set(files(tmp_path)) == theirs | {"a"}


def test_what_another_machine_left_is_removed_when_it_is_a_day_old(tmp_path):
    new, old = (tmp_path / f".a.bin.{digit * 16}.part" for digit in "01")
    for path, hours in ((new, 1), (old, 25)):
        path.write_bytes(b"theirs")
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    write_atomically(tmp_path / "a.bin", b"mine")
    assert set(files(tmp_path)) == {"a.bin", new.name}


def test_without_locks_nothing_is_removed_and_files_are_written(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    start_writing(tmp_path / "a.bin", kill=True)
    (left,) = files(tmp_path)
    monkeypatch.setattr("fcntl.flock", unknown)
    write_atomically(tmp_path / "a.bin", b"mine")
    assert files(tmp_path) == {"a.bin": b"mine", left: b"new"}


def test_threads_that_write_one_file_do_not_meet(tmp_path):
    contents = [bytes([number]) * 1000 for number in range(8)]

    def write(content):
        for _ in range(25):
            write_atomically(tmp_path / "a.bin", content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert list(files(tmp_path)) == ["a.bin"]
    assert files(tmp_path)["a.bin"] in contents


def test_a_writer_whose_file_is_taken_for_a_leftover_writes_another(tmp_path, monkeypatch):
    """Between the moment when it makes the file and the moment when it has the lock."""
    taken, real = [], files_module.locked

    @contextmanager
    def late(path, **settings):
        with real(path, **settings) as mine:
            if not taken:
                taken.append(path)
                path.unlink()
            yield mine

    monkeypatch.setattr("wildood.data.files.locked", late)
    write_atomically(tmp_path / "a.bin", b"whole")
    assert len(taken) == 1
    assert files(tmp_path) == {"a.bin": b"whole"}


def test_digest_is_sha256():
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_come_back_bit_by_bit(dtype, shape):
    noise = torch.randint(0, 256, (*shape, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tensor = (noise[..., 0] > 127) if dtype == torch.bool else noise.view(dtype)[..., 0]  # NaN of all sorts included
    assert bits(load_state(dump_state({"a": [tensor]}))["a"][0]) == bits(tensor)


def test_parameters_views_and_shared_tensors_come_back_as_plain_tensors():
    base = torch.arange(12.0).reshape(3, 4)
    shared = torch.nn.Parameter(base.clone())
    state = {"column": base[:, 1], "transposed": base.T, "expanded": base[:1].expand(5, 4), "p": shared, "q": shared}
    state["channels_last"] = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    again = load_state(dump_state(state))
    assert list(again) == list(state)
    for name, tensor in state.items():
        assert torch.equal(again[name], tensor.detach()), name
        assert not again[name].requires_grad


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
states = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(states)
def test_nested_plain_values_come_back_as_they_were(state):
    again = load_state(dump_state(state))
    assert again == state
    assert repr(again) == repr(state)  # -0.0 == 0.0, and True == 1


@pytest.mark.parametrize(
    "state", [{"tensor": 0}, {"items": []}, {"items": [["a", {"tensor": 0}]]}, {}, [], {"0": torch.ones(1)}]
)
def test_keys_that_the_format_itself_uses_are_nothing_special(state):
    assert load_state(dump_state(state)) == state


def test_tuples_come_back_as_lists_and_nan_as_nan():
    again = load_state(dump_state((1, (2, math.nan))))
    assert again[0] == 1
    assert isinstance(again, list)
    assert math.isnan(again[1][1])


def test_state_changed_after_dumping_does_not_change_the_file():
    tensor = torch.zeros(3)
    content = dump_state(tensor)
    tensor += 1
    assert load_state(content).tolist() == [0.0, 0.0, 0.0]


def test_every_torn_prefix_is_refused():
    content = dump_state(STATE)
    for length in range(len(content)):
        with pytest.raises(DamagedFileError):
            load_state(content[:length])


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_every_flipped_byte_is_refused(flip):
    content = bytearray(dump_state(STATE))
    for position in range(len(content)):
        content[position] ^= flip
        with pytest.raises(DamagedFileError):
            load_state(bytes(content))
        content[position] ^= flip
    assert list(load_state(bytes(content))) == list(STATE)


def test_changed_type_of_a_tensor_is_refused():
    content = dump_state({"mask": torch.arange(5, dtype=torch.uint8)})
    changed = content.replace(b'"dtype":"U8"', b'"dtype":"I8"', 1)
    assert changed != content
    with pytest.raises(DamagedFileError):
        load_state(changed)


@pytest.mark.parametrize("more", [b"\0", b"more"])
def test_more_bytes_than_were_written_are_refused(more):
    with pytest.raises(DamagedFileError):
        load_state(dump_state(STATE) + more)


FOREIGN = {
    "nothing": b"",
    "zeros": b"\0" * 100,
    "json": b"{}",
    "zip": b"PK\x03\x04 a pickle in a zip file, as torch.save writes it",
    "other names": save({"a": torch.ones(2)}),
    "no metadata": save({"body": torch.ones(2, dtype=torch.uint8)}),
    "no skeleton": save({"body": torch.ones(2, dtype=torch.uint8)}, metadata={"skeleton": "[", "digest": "0"}),
    "bfloat16": save({"body": torch.ones(2, dtype=torch.bfloat16)}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_file_is_refused(kind, request):
    with pytest.raises(DamagedFileError):
        load_state(FOREIGN[kind])


def test_swapped_bodies_are_refused():
    """Two files of equal length, the header of one on the body of the other."""
    first, second = dump_state({"a": torch.zeros(4)}), dump_state({"a": torch.ones(4)})
    cut = 8 + int.from_bytes(first[:8], "little")
    assert len(first) == len(second)
    with pytest.raises(DamagedFileError, match="checksum"):
        load_state(first[:cut] + second[cut:])


def test_threads_that_write_one_file_at_once_leave_one_of_their_contents(tmp_path, monkeypatch):
    barrier, fsync = threading.Barrier(2), os.fsync

    def meet(number):
        barrier.wait(60)  # both drafts are open
        fsync(number)

    monkeypatch.setattr(os, "fsync", meet)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write_atomically, tmp_path / "a", content) for content in (b"one", b"other")]:
            done.result()
    assert files(tmp_path) in ({"a": b"one"}, {"a": b"other"})


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    """As root, a rename would put a plain file in its place."""
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_atomically(link, b"nothing")
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()
