"""`wildood pretrain`: weights, settings that can be passed back, and an accuracy that is said."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from wildood.cli.main import main

PRETRAIN = ["pretrain", "--labelled", "labelled.npz", "--model", "summing:build", "--augment", "False", "--batch", "32"]


def right(weights, x, y):
    return ((x @ weights["0.weight"].numpy().T + weights["0.bias"].numpy()).argmax(1) == y).mean()


def test_the_settings_that_were_written_can_be_passed_back(cli, arrays):
    assert cli(*PRETRAIN, "--steps", "4", "--out", "p").code == 0
    assert cli("pretrain", "--config", "p/settings.toml", "--out", "p2").code == 0
    first, second = (load_file(arrays / name / "weights.safetensors") for name in ("p", "p2"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_accuracy_is_said_when_it_is_called_again_too(cli, arrays):
    words = [*PRETRAIN, "--epochs", "2", "--lr", "0.001", "--set-aside", "0.2", "--out", "accurate"]
    first, second = cli(*words), cli(*words)
    with np.load(arrays / "accurate" / "set_aside.npz") as aside:
        share = right(load_file(arrays / "accurate" / "weights.safetensors"), aside["x"], aside["y"])
    assert first.out == f"accurate/weights.safetensors: accuracy {100 * share:.1f} % on set_aside.npz\n"
    assert second.out == first.out
    assert "epoch" not in second.err  # nothing was trained again


@pytest.mark.parametrize("learns", [False, True])
def test_without_a_set_aside_the_accuracy_is_that_of_training_and_chance_level_is_warned_of(cli, arrays, caplog, learns):
    out, file = f"learns-{learns}", "labelled.npz" if learns else "shuffled.npz"
    with np.load(arrays / "labelled.npz") as labelled:
        x, y = labelled["x"], labelled["y"] if learns else np.random.default_rng(0).permutation(labelled["y"])
    np.savez(arrays / "shuffled.npz", x=x, y=y)
    result = cli(*PRETRAIN, "--labelled", file, "--steps", "20", "--lr", "0.01", "--quiet", "--out", out)
    share = right(load_file(arrays / out / "weights.safetensors"), x, y)
    assert result.code == 0
    assert result.out == f"{out}/weights.safetensors: accuracy {100 * share:.1f} % on 120 examples that it was trained on\n"
    frequent = np.bincount(y).max() / len(y)
    warning = (
        f"{100 * share:.1f} % of labelled, no better than always answering the most frequent class ({100 * frequent:.1f} %)"
    )
    assert (warning in caplog.text) == (not learns)
    assert (share > 0.9) == learns


def test_the_help_is_about_pretraining(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")  # more would put groups of options side by side
    with pytest.raises(SystemExit):
        main(["pretrain", "--help-all"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--steps N how many steps to train, instead of --epochs." in shown
    assert "--batch N examples in a step. (default: 128)" in shown
    assert "--epochs N how many epochs to train. (default: 100)" in shown
    assert "--minutes NUMBER the longest time to train" in shown
    for untrue in ("(default: None)", "by itself", "looked at", "wild ones", "--duals"):
        assert untrue not in shown
