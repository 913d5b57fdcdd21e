"""Two replicas on Ray answer as one server does, outlive one of them, follow a promotion, and share a habitat."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

import wildood
from wildood.cli.serve import ServeOptions
from wildood.cli.serve_ray import Replica
from wildood.detect.storage import read_description
from wildood.habitat.habitat import Habitat
from wildood.models.small import MLP

pytest.importorskip("fastapi", reason="ray[serve] is not installed")
X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")


def detector_of(seed):
    torch.manual_seed(seed)
    return wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=X, alpha=0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of two replicas, their habitat, and the process that started them."""
    place = tmp_path_factory.mktemp("ray")
    saved, habitat = detector_of(0).save(place / "d"), place / "h"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "wildood", "serve", saved, "--habitat", habitat, "--ray", "local", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place) as process:
        try:
            line = process.stdout.readline()
            assert line == f"2 replicas at http://127.0.0.1:{port} (habitat {habitat})\n", process.stderr.read()
            yield f"http://127.0.0.1:{port}", Habitat(habitat), process
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode == 0


def ask(address, x):
    request = urllib.request.Request(f"{address}/predict", json.dumps(x.tolist()).encode())  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - same
        return json.load(answer)


def replicas(process):
    """The processes of the replicas below the process that started the cluster."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            names[int(path.name)] = (path / "cmdline").read_bytes()
            parents[int(path.name)] = int(re.search(r"PPid:\s+(\d+)", (path / "status").read_text())[1])
        except OSError:  # it has ended
            continue

    def is_ours(number):
        while number in parents and number != process.pid:
            number = parents[number]
        return number == process.pid

    return [number for number, name in names.items() if b"ray::ServeReplica" in name and is_ours(number)]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_replicas_answer_as_the_detector_does(served):
    address, _, process = served
    answers = [ask(address, X[:3]) for _ in range(8)]
    assert len(replicas(process)) == 2
    for answer in answers:
        assert answer["detector"] == "d0001"
        assert np.allclose(answer["score"], detector_of(0).score(X[:3]), rtol=1e-5)
        assert answer["class"] == detector_of(0).predict(X[:3]).tolist()


@pytest.mark.slow
def test_a_killed_replica_takes_only_the_requests_that_it_had_begun(served):
    address, habitat, process = served
    ended, answered, lost = threading.Event(), [], []

    def load():
        while not ended.is_set():
            try:
                answered.append(ask(address, X[:1])["score"][0])
            except URLError as error:
                lost.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(answered) > 20)
    victim = replicas(process)[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(replicas(process)) == 2 and victim not in replicas(process))
    count = len(answered)
    until(lambda: len(answered) > count + 20)
    ended.set()
    for thread in threads:
        thread.join()
    assert len(lost) <= len(threads)  # those in flight
    assert np.allclose(answered, detector_of(0).score(X[:1])[0], rtol=1e-5)
    until(lambda: len(habitat.store.rows()) > 0)
    assert not [fault for fault in habitat.check() if "orphan" not in fault and "sweep" not in fault]


@pytest.mark.slow
def test_a_promotion_reconfigures_all_replicas_in_place(served):
    address, habitat, process = served
    before = set(replicas(process))
    habitat.promote(habitat.add(detector_of(1), parent="d0001", trained_until=0), who="test", force=True)
    until(lambda: {ask(address, X[:1])["detector"] for _ in range(8)} == {"d0002"})
    assert np.allclose(ask(address, X[:1])["score"], detector_of(1).score(X[:1]), rtol=1e-5)
    assert set(replicas(process)) == before
    until(lambda: "d0002" in habitat.store.rows().detector.tolist())


def test_another_user_config_is_followed_in_place(tmp_path):
    first, second = (detector_of(seed).save(tmp_path / f"{seed}") for seed in (0, 1))
    replica = Replica(ServeOptions(detector=first), str(tmp_path))
    service, served = replica.service, replica.service.follower.served
    replica.reconfigure({"detector": str(second)})
    service.follower.look()
    assert replica.service is service
    ids = [read_description(place)["digest"][:12] for place in (first, second)]
    assert [served.id, service.follower.served.id] == ids
    assert np.allclose(service.follower.served.detector.score(X), detector_of(1).score(X), rtol=1e-5)
    replica.check_health()
    service.close()
    with pytest.raises(RuntimeError, match="stops"):
        replica.check_health()
