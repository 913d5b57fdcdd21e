"""A habitat: its settings, its detectors and the history of its champions."""

import json
import threading

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.errors import InputError
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.index import UnavailableError


@pytest.fixture
def habitat(tmp_path, detector, clock):
    return Habitat.create(tmp_path / "h", detector, Settings(sample=0.5, window=100.0), who="ann", clock=clock)


def test_it_is_a_public_name():
    assert wildood.Habitat is Habitat


def test_a_new_habitat_serves_its_first_detector(habitat, detector, clock):
    assert (habitat.champion, habitat.challenger) == ("d0001", None)
    (first,) = habitat.promotions()
    assert (first.detector, first.former, first.who, first.time, first.forced) == ("d0001", None, "ann", clock.now, False)
    (entry,) = habitat.detectors()
    assert (entry.id, entry.parent, entry.trained_until) == ("d0001", None, 0)
    x = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    assert habitat.detector().score(x).tolist() == detector.score(x).tolist()
    assert habitat.check() == []


def test_it_is_opened_with_its_settings(habitat, clock):
    again = Habitat(habitat.path, clock=clock)
    assert again.settings == Settings(sample=0.5, window=100.0)
    assert again.store.window == 100.0
    assert Habitat(str(habitat.path)).champion == "d0001"


def test_a_model_of_the_users_own_is_passed_to_load_it(tmp_path):
    class Own(nn.Linear):
        pass

    torch.manual_seed(0)
    model, x = Own(2, 3), np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x, alpha=0.1)
    habitat = Habitat.create(tmp_path / "h", detector)
    assert habitat.detector(model=Own(2, 3)).score(x).tolist() == detector.score(x).tolist()
    with pytest.raises(wildood.DetectorFileError, match="a model of your own"):
        habitat.detector()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": 2}, "sample is 2: give a share from 0 to 1"),
        ({"collect": "all"}, "collect is 'all': give 'full' or 'scores'"),
        ({"window": 0}, "window is 0: give a positive number"),
        ({"per_window": 1.5}, "per_window is 1.5"),
        ({"budget": -1}, "budget is -1: give a number of bytes"),
        ({"retain": "30d"}, "retain is '30d': give a positive number"),
        ({"redact": "redact"}, "redact is 'redact': give module:function"),
        ({"shadow": -0.1}, "shadow is -0.1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Settings(**settings)


def test_what_is_no_habitat_is_refused(tmp_path, habitat, detector):
    with pytest.raises(InputError, match=r"nowhere is no habitat, it has no habitat\.json: make one with Habitat\.create"):
        Habitat(tmp_path / "nowhere")
    with pytest.raises(InputError, match="give a path"):
        Habitat(3)
    with pytest.raises(InputError, match="is a habitat already"):
        Habitat.create(habitat.path, detector)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file: give a directory"):
        Habitat.create(tmp_path / "file", detector)
    with pytest.raises(InputError, match="is no habitat"):
        Habitat(tmp_path / "file")
    with pytest.raises(InputError, match="is not empty, it holds 'file'"):
        Habitat.create(tmp_path, detector)
    with pytest.raises(InputError, match="detector"):
        Habitat.create(tmp_path / "other", "no detector")
    assert not (tmp_path / "other").exists()


def test_a_damaged_habitat_is_refused(habitat):
    path = habitat.path / "habitat.json"
    whole = json.loads(path.read_text())
    for content, message in {
        '{"format"': "it is not JSON: correct it, or restore it",
        "[]": "the whole is",
        json.dumps(whole | {"format": 2}): "has format 2, this wildood reads 1: use the wildood that wrote it",
        json.dumps({"format": 1}): "settings is missing",
        json.dumps(whole | {"settings": whole["settings"] | {"sample": 7}}): "sample is 7",
        json.dumps(whole | {"settings": whole["settings"] | {"colour": 7}}): "settings.colour is not known to this wildood",
    }.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Habitat(habitat.path)
    path.write_text(json.dumps(whole))
    index = habitat.path / "index.sqlite"
    content = index.read_bytes()
    index.write_bytes(b"x" * 5000)
    with pytest.raises(UnavailableError, match="it is damaged: restore it from a copy"):
        Habitat(habitat.path)
    index.unlink()
    with pytest.raises(InputError, match=r"index\.sqlite is missing: restore it"):
        Habitat(habitat.path)
    index.write_bytes(content)
    assert Habitat(habitat.path).champion == "d0001"


def test_an_interrupted_creation_is_done_again(tmp_path, detector, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    for name in ("_write", "_promote", "_add"):
        with monkeypatch.context() as patch:
            patch.setattr(f"wildood.habitat.habitat.{name}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                Habitat.create(tmp_path / "h", detector)
        with pytest.raises(InputError, match="is no habitat"):
            Habitat(tmp_path / "h")
    habitat = Habitat.create(tmp_path / "h", detector)
    assert [each.id for each in habitat.detectors()] == ["d0001"]
    assert habitat.check() == []


def test_the_challenger_is_the_newest_that_was_never_promoted(habitat, detector):
    def add(trained_until):
        return habitat.add(detector, parent=habitat.champion, trained_until=trained_until)

    assert add(10) == "d0002"
    assert habitat.challenger == "d0002"
    assert add(20) == "d0003"
    assert habitat.challenger == "d0003"
    assert habitat.promote(who="ann", evidence={"p": 0.01}).detector == "d0003"
    assert (habitat.champion, habitat.challenger) == ("d0003", None)  # d0002 is older than the last promotion
    assert add(30) == "d0004"
    assert habitat.challenger == "d0004"
    assert habitat.promote("d0001", who="ann").former == "d0003"  # going back needs no evidence
    assert habitat.challenger is None
    assert [each.trained_until for each in habitat.detectors()] == [0, 10, 20, 30]
    assert [each.parent for each in habitat.detectors()] == [None, "d0001", "d0001", "d0003"]
    assert [each.detector for each in habitat.promotions()] == ["d0001", "d0003", "d0001"]
    assert habitat.check() == []


def test_a_promotion_is_recorded(habitat, detector, clock):
    habitat.add(detector, parent="d0001", trained_until=0)
    clock.now += 5
    promotion = habitat.promote("d0002", who="ann", why="it catches more", evidence={"caught": [0.1, 0.5]}, against="d0001")
    assert promotion == habitat.promotions()[-1]
    assert (promotion.number, promotion.time, promotion.former) == (2, clock.now, "d0001")
    assert (promotion.who, promotion.why, promotion.forced) == ("ann", "it catches more", False)
    assert promotion.evidence == {"caught": [0.1, 0.5]}


def test_a_promotion_without_reason_is_refused(habitat, detector):
    with pytest.raises(InputError, match="has no challenger"):
        habitat.promote(who="ann")
    habitat.add(detector, parent="d0001", trained_until=0)
    with pytest.raises(
        InputError, match="nothing says that d0002 is better than d0001: compare them on later traffic, or force it"
    ):
        habitat.promote(who="ann")
    with pytest.raises(InputError, match="there is no detector 'd0009': give one of d0001, d0002"):
        habitat.promote("d0009", who="ann", force=True)
    with pytest.raises(InputError, match="d0001 is the champion already"):
        habitat.promote("d0001", who="ann", force=True)
    with pytest.raises(InputError, match="was compared with d0002, but the champion is d0001 now: compare again"):
        habitat.promote("d0002", who="ann", evidence={}, against="d0002")
    assert len(habitat.promotions()) == 1
    assert habitat.promote(who="ann", force=True).forced


def test_unknown_detectors_are_refused(habitat, detector):
    for wrong in ("d0009", "../detectors/d0001", "", "d0001/"):
        with pytest.raises(InputError, match="there is no detector"):
            habitat.detector(wrong)
    with pytest.raises(InputError, match="there is no detector"):
        habitat.add(detector, parent="d0009", trained_until=0)
    with pytest.raises(InputError, match="trained_until is -1"):
        habitat.add(detector, parent=None, trained_until=-1)
    assert len(habitat.detectors()) == 1


def test_detectors_added_at_once_have_different_ids(habitat, detector):
    names = []
    threads = [
        threading.Thread(target=lambda: names.append(habitat.add(detector, parent=None, trained_until=0))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == ["d0002", "d0003", "d0004", "d0005"]
    assert habitat.check() == []


def test_a_failed_addition_leaves_nothing(habitat, detector, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("wildood.habitat.habitat.sync_directory", full)
        with pytest.raises(OSError, match="No space"):
            habitat.add(detector, parent=None, trained_until=0)
    assert habitat.check() == ["detectors/d0002 is named by nothing: sweep removes it"]
    assert habitat.add(detector, parent=None, trained_until=0) == "d0002"
    (habitat.path / "detectors" / "d0007").mkdir()
    habitat.sweep()
    assert habitat.check() == []


def test_the_check_finds_missing_and_damaged_detectors(habitat, detector):
    habitat.add(detector, parent=None, trained_until=0)
    file = habitat.path / "detectors" / "d0002" / "detector.json"
    file.write_text("{}")
    (fault,) = habitat.check()
    assert "d0002" in fault
    file.unlink()
    assert len(habitat.check()) == 1


def test_a_readonly_habitat_answers(habitat, detector):
    readonly = Habitat(habitat.path, readonly=True)
    assert readonly.champion == "d0001"
    assert readonly.detector().threshold == detector.threshold
    with pytest.raises(UnavailableError, match="cannot be written to"):
        readonly.promote("d0001", who="ann", force=True)
    with pytest.raises(UnavailableError, match="cannot be written to"):
        readonly.add(detector, parent=None, trained_until=0)
    assert habitat.check() == []
