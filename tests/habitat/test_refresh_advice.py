"""What `fit` advises is reworded for a refresh, which has fewer options and its own data."""

import ast
import logging
import re
from pathlib import Path

import numpy as np
import pytest

import wildood
from wildood.cli.habitat import ALLOWED
from wildood.errors import InputError
from wildood.habitat import refresh as refreshing
from wildood.habitat.judged import is_evidence
from wildood.habitat.refresh import FORCED, _advised

SCHEDULE = wildood.Schedule(steps=20, batch=64)
PACKAGE = Path(refreshing.__file__).parents[1]
NOT_RUN = ("bulk", "estimator", "fit_many", "pretrain")  # commands of their own
ROOMS = ("evaluate", "models", "scores", "methods", "train", "detect")
MODULES = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py")) if path.stem not in NOT_RUN]
# A refresh always gives wild data and a holdout, never fresh examples without a method for them, precision with frozen. It
# keeps the best epoch.
UNREACHED = ("give wild=x (--wild)", "leave fresh= (--fresh) out", "leave precision (--precision) out",
             "keep='last' (--keep last)", "or keep='best' (--epsilon or --keep best)")  # fmt: skip


def texts(path):
    """The text of each literal of a module; what is filled in is left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_advice_names_an_option_that_a_refresh_does_not_have(path):
    options = {f"--{name.replace('_', '-')}" for name in ALLOWED["refresh"] | {"model"}}
    for text in texts(path):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", _advised(text)))
        assert named <= options or any(each in text for each in UNREACHED), text


@pytest.fixture
def known(plane):
    return {"labelled": plane.known(300), "holdout": plane.known(400)}


def test_warnings_and_errors_of_fit_are_reworded(plane_habitat, plane, clock, known, monkeypatch, caplog):
    clock.pass_days()
    plane.feed(plane_habitat, *plane.traffic(300, 0.2))

    def fit(*_, **__):
        logging.getLogger("wildood").warning("changed: give %s as fresh= (--fresh)", "known examples of today")
        raise InputError("5 of the holdout: give others, or no holdout")

    monkeypatch.setattr(refreshing, "fit", fit)
    with pytest.raises(InputError, match=r"^5 of the holdout: give others$"):
        plane_habitat.refresh(**known, verbose=False)
    assert "changed: give more known answers of the random sample (wildood habitat review)" in caplog.messages
    logging.getLogger("wildood").warning("(--fresh)")
    assert caplog.messages[-1] == "(--fresh)"


def test_a_small_holdout_is_refused_with_what_a_refresh_has(plane_habitat, plane, clock, known):
    clock.pass_days()
    plane.feed(plane_habitat, *plane.traffic(50))
    with pytest.raises(InputError, match=r"give a larger holdout or a larger alpha= \(in Python\)$"):
        plane_habitat.refresh(known["labelled"], plane.known(30), verbose=False)


@pytest.mark.slow
def test_that_a_forced_calibration_is_undone_is_said(plane_habitat, plane, clock, known):
    clock.pass_days()
    plane.feed(plane_habitat, *plane.traffic(1000))
    ids = np.arange(1, 1001)
    plane.judge(plane_habitat, ids[is_evidence(ids)][:40])
    plane_habitat.calibrate(who="ann", force=True)
    made = plane_habitat.refresh(**known, schedule=SCHEDULE, verbose=False)
    assert made.calibrated_on == "holdout"
    assert made.warnings[-1] == FORCED
    plane_habitat.promote(who="ann", force=True)
    again = plane_habitat.refresh(**known, schedule=SCHEDULE, verbose=False)
    assert FORCED not in again.warnings


def test_the_warnings_of_a_record_are_reworded():
    texts = ["give known examples of today as fresh= (--fresh)", "as it is"]
    record = {"uniform": texts[0], "assessment": {"helped": False, "warnings": texts}, "method": {"name": "Woods"}}
    refreshing._advise(record)
    reworded = "give more known answers of the random sample (wildood habitat review)"
    assert record == {
        "uniform": reworded, "assessment": {"helped": False, "warnings": [reworded, "as it is"]}, "method": {"name": "Woods"}
    }  # fmt: skip
