"""`wildood habitat` as a user types it: what it says, the exit codes, and what it remembers for the next month."""

import json
import re

import numpy as np
import pytest
import torch

import wildood
from wildood.cli.main import FOUND, MISTAKE, OK, main
from wildood.habitat.answers import Answers
from wildood.habitat.habitat import Habitat
from wildood.habitat.judged import is_evidence
from wildood.models.small import MLP

DAY = 86400.0
START = 1000 * DAY


def known(rng, count):
    y = rng.integers(0, 2, count)
    return (np.array([[5.0, 0.0], [0.0, 5.0]])[y] + rng.normal(size=(count, 2))).astype("f"), y


def plain_model():
    """Its energy is high near the origin, where nothing is known."""
    model = MLP(2, 2, hidden=(2,))
    with torch.no_grad():
        for layer in (model.body[1], model.head):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    return model


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A habitat with a day of traffic in which a fifth is unknown, and files of ID examples."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "cache"))
    for name, count in (("labelled", 200), ("holdout", 300)):
        x, y = known(rng, count)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    detector = wildood.posthoc(plain_model(), wildood.EnergyScore(), holdout=known(rng, 400))
    detector.record["classes"] = ["cat", "dog"]
    habitat = Habitat.create(tmp_path / "h", detector, clock=lambda: START)
    feed(habitat, rng, 300)
    return tmp_path


def feed(habitat, rng, count):
    unknown = count // 5
    x = np.concatenate([known(rng, count - unknown)[0], 0.3 * rng.normal(size=(unknown, 2)).astype("f")])
    detector = habitat.detector()
    scores, classes = detector.score_and_classify(x)
    decided = detector.accepts(scores, classes)
    answers = Answers([""] * count, habitat.champion, scores, classes, decided, np.full(count, 0.5))
    habitat.store.append(answers, torch.from_numpy(x))


def run(*words):
    return main(["habitat", *words])


def result_of(capsys, *words):
    assert run(*words, "--json", "--quiet") in {OK, FOUND}
    return json.loads(capsys.readouterr().out)


REFRESH = ("refresh", "h", "--labelled", "labelled.npz", "--holdout", "holdout.npz", "--steps", "15", "--batch", "32")


def test_status_ends_with_3_where_unknowns_are_found(place, capsys):
    assert run("status", "h") == FOUND
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith("false"))
    assert lines["traffic"] == "300 answers, 23.3 % answered unknown; 300 kept, 0 dropped"
    assert lines["unknown"].startswith("unknowns are found in 1 look at 300 rows")
    assert lines["next"] == "review: unknowns are found; see what they are"


def test_status_ends_with_0_without_traffic(place, capsys):
    Habitat.create(place / "empty", Habitat(place / "h").detector())
    assert run("status", "empty") == OK
    assert "nothing: there is no traffic yet" in capsys.readouterr().out


def test_review_takes_answers_by_option_and_by_file(place, capsys):
    listed = result_of(capsys, "review", "h", "--top", "6")
    first, second, third, *_ = [item["answer"] for item in [*listed["random"], *listed["chosen"]]]
    (place / "answers.csv").write_text(f"id,class,note\n{second},dog,x\n{third},,later\n")
    again = result_of(capsys, "review", "h", "--answer", f"{first}=unknown", "--answers", "answers.csv", "--who", "ann")
    assert again["recorded"] == 2
    judged = Habitat(place / "h").store.judged()
    assert dict(zip(judged.answer.tolist(), judged.class_.tolist(), strict=True)) == {first: -1, second: 1}
    assert set(judged.who) == {"ann"}


def test_a_month_takes_one_command_each(place, capsys, monkeypatch):
    made = result_of(capsys, *REFRESH)
    assert (made["challenger"], made["champion"], made["until"]) == ("d0002", "d0001", 300)
    remembered = json.loads((place / "h" / "refresh.json").read_text())
    assert remembered["labelled"] == str(place / "labelled.npz")
    assert (remembered["steps"], remembered["batch"], remembered["method"]) == (15, 32, None)
    feed(Habitat(place / "h"), np.random.default_rng(1), 150)
    compared = result_of(capsys, "compare", "h")
    later = int(np.sum(~is_evidence(np.arange(301, 451))))
    assert (compared["later"], compared["challenger"], compared["look"]) == (later, "d0002", 1)
    assert compared["holdout"] > 0
    assert run("promote", "h", "--force", "--why", "a trial", "--who", "ann") == OK
    assert "d0002 is the champion now, after d0001" in capsys.readouterr().out
    promotion = Habitat(place / "h").promotions()[-1]
    assert (promotion.who, promotion.why, promotion.evidence["look"]) == ("ann", "a trial", 1)
    monkeypatch.chdir(place / "cache")
    made = result_of(capsys, "refresh", "../h", "--seed", "1")
    assert (made["challenger"], made["champion"], made["until"]) == ("d0003", "d0002", 450)
    assert Habitat(place / "h").detector("d0003").record["schedule"]["steps"] == 15
    assert result_of(capsys, "refresh", "../h", "--seed", "0")["challenger"] == "d0004"
    assert Habitat(place / "h").detector("d0004").record["seed"] == 0  # and not the remembered 1


def test_refresh_starts_from_the_weights_it_is_given(place, capsys):
    wildood.posthoc(plain_model(), wildood.EnergyScore(), holdout=known(np.random.default_rng(5), 100)).save("start")
    made = result_of(capsys, *REFRESH, "--weights", "start")
    assert made["challenger"] == "d0002"
    assert json.loads((place / "h" / "refresh.json").read_text())["weights"] == str(place / "start")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status", "nowhere"), "nowhere is no habitat"),
        (("promote", "h"), "has no challenger"),
        (("promote", "h", "--to", "d9"), "there is no detector 'd9'"),
        (("compare", "h"), "has no challenger"),
        (("refresh", "h"), "needs --labelled and --holdout: give it once, it is remembered"),
        (("refresh", "h", "--labelled", "labelled.npz"), "needs --holdout"),
        ((*REFRESH, "--method", "magic"), "--method magic: give one of woods,"),
        ((*REFRESH, "--weights", "none.safetensors"), "--weights .*none.safetensors: there is no such file"),
        (("status", "h", "--force"), "--force is for calibrate and promote, not for status"),
        (("review", "h", "--answer", "x=cat"), "answer 'x=cat': give ID=CLASS"),
        (("review", "h", "--answer", "1=bird"), "answer 1 is called 'bird': give cat, dog, or unknown"),
        (("review", "h", "--answer", "99999=cat"), "99999"),
        (("review", "h", "--answers", "none.csv"), "none.csv: No such file"),
        (("review", "h", "--top", "0"), "top is 0"),
        (("mend", "h"), "mend"),
    ],
)
def test_mistakes_are_one_line(place, capsys, words, message):
    assert run(*words, "--quiet") == MISTAKE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


def test_calibrate_sets_the_threshold_by_known_answers_of_now(place, capsys):
    habitat = Habitat(place / "h")
    feed(habitat, np.random.default_rng(3), 900)
    ids = np.arange(301, 1021)  # known ones
    evidence = ids[is_evidence(ids)]
    x = habitat.store.source(evidence).gather(torch.arange(len(evidence)))[0]
    lines = [f"{each},{'cat' if row[0] > row[1] else 'dog'}" for each, row in zip(evidence, x, strict=True)]
    (place / "answers.csv").write_text("\n".join(["id,class", *lines]))
    assert run("review", "h", "--answers", "answers.csv", "--quiet") == OK
    assert run("calibrate", "h", "--quiet") == MISTAKE
    assert "no change of known scores is found" in capsys.readouterr().err
    done = result_of(capsys, "calibrate", "h", "--force", "--who", "ann", "--why", "a trial")
    assert (done["champion"], done["former"], done["examples"]) == ("d0002", "d0001", len(evidence))
    assert Habitat(place / "h").promotions()[-1].why == "a trial"
