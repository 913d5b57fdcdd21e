"""What keeps runs from starting on Ray is said in one line."""

import os
import socket
import sys

import pytest

from wildood.errors import InputError
from wildood.experiments.ray_pool import connected


class NoneFound:
    """In the place of Ray's cached look at the processes."""

    def __call__(self):
        return set()

    def cache_clear(self):
        """Nothing was cached."""


def refusal(address="local", cpus=1, gpus=0.0):
    with pytest.raises(InputError) as refused, connected(address, cpus, gpus):
        pytest.fail("connected")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal() == "runs on Ray need the package ray: pip install 'wildood[ray]'"


def test_address_at_which_nobody_listens_is_refused():
    with socket.socket() as taken:  # a port that is bound, but not listened at, refuses
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refusal(address).startswith(f"nobody answers at {address} (")


def test_no_cluster_to_find_and_an_address_that_is_none_are_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", os.fspath(tmp_path))
    # Ray also looks for clusters among the processes, where it would find that of a test which runs beside this one.
    monkeypatch.setattr("ray._private.services._cached_find_gcs_addresses", NoneFound())
    for address in ("auto", "nonsense"):
        assert refusal(address).startswith(f"Ray cannot be used at {address} (")
        assert refusal(address).endswith("): give a cluster's address, or local")


@pytest.mark.parametrize(
    ("cpus", "gpus", "said"),
    [
        (0, 0.0, "a run has 0 CPUs: give at least 1"),
        (1, -1.0, "a run has -1 GPUs: give a share of one, such as 0.5, or a whole number"),
        (1, 1.5, "a run has 1.5 GPUs: give a share of one, such as 0.5, or a whole number"),
    ],
)
def test_share_that_no_run_can_have_is_refused(cpus, gpus, said):
    assert refusal("local", cpus, gpus) == said
