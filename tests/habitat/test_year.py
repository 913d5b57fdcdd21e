"""The example that lives through a year, for two weeks: another camera than the holdout's, and a threshold that follows."""

import importlib.util
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "examples" / "habitat_digits.py"


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("habitat_digits", PLACE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "habitat_digits", module)  # its dataclasses look for it
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PER_DAY", 70)
    monkeypatch.setattr(module, "REVIEWED", 100)
    return module


@pytest.mark.slow
def test_a_change_of_the_camera_is_noticed_and_the_threshold_follows(example, tmp_path, capsys):
    world = example.World(seed=0, sevens_from=99, camera_from=1)
    changed, after = example.live(tmp_path / "h", world, weeks=2, seed=0)
    assert (changed.weeks, changed.detector, after.weeks, after.detector) == ([1], "d0001", [2], "d0002")
    shares = [period.rejected / period.known for period in (changed, after)]
    assert shares[0] > 0.4
    assert shares[1] < 0.15
    printed = capsys.readouterr().out
    assert "week 1: calibrate: known scores have changed" in printed
    assert f"| 1 to 1 | d0001 | 0 |  | {100 * shares[0]:.1f} |" in printed
