"""A lock is held by one, or shared by many, and let go of when its holder dies."""

import subprocess
import sys

from wildood.data.files import locked

HOLD = """
import sys
from pathlib import Path
from wildood.data.files import locked
with locked(Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_lock_is_shared_by_readers_and_refused_to_a_writer(tmp_path):
    path = tmp_path / "lock"
    with locked(path, shared=True) as first, locked(path, shared=True) as second, locked(path) as third:
        assert (first, second, third) == (True, True, False)
    with locked(path) as fourth:
        assert fourth


def test_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        with locked(path) as held:
            assert not held
        holder.kill()
        holder.wait()
        with locked(path) as held:
            assert held


def test_lock_where_no_file_can_be_is_not_had(tmp_path):
    with locked(tmp_path / "no" / "lock") as held:
        assert not held


def test_a_directory_is_locked_as_a_file_is(tmp_path):
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path, shared=True) as first, locked(tmp_path, shared=True) as second, locked(tmp_path) as third:
        assert (first, second, third) == (True, True, False)
    assert list(tmp_path.iterdir()) == []
