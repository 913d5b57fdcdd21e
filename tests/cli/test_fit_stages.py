"""A method of two stages from the command line."""

import json

import numpy as np

import wildood
from wildood.cli.main import main


def test_csi_is_fitted_shown_and_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("labelled", "holdout"):
        np.savez(f"{name}.npz", x=rng.integers(0, 256, (60, 8, 8, 1)).astype(np.uint8), y=np.arange(60) % 2)
    words = ["fit", "--method", "csi", "--labelled", "labelled.npz", "--holdout", "holdout.npz", "--epochs", "1", "--batch"]
    words += ["16", "--head-epochs", "2", "--head-lr", "0.2", "--model", "smallcnn:classes=2,width=4,hidden=8", "--out", "d"]
    assert main([*words, "--mean", "0.5", "--std", "0.25", "--quiet"]) == 0
    content = json.loads((tmp_path / "d" / "detector.json").read_bytes())
    assert content["record"]["method"] == {
        "name": "Csi", "temperature": 0.07, "projection": 128, "head_epochs": 2, "head_lr": 0.2, "alpha": 0.05,
    }  # fmt: skip
    assert content["record"]["schedule"]["weight_decay"] == 1e-6  # the method's own, where nothing else was said
    assert [(row["stage"], row["epoch"]) for row in content["history"]] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    images = np.load("labelled.npz")["x"]
    assert wildood.load("d").predict(images).shape == (60,)
    assert main(["show", "d"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "method Csi: temperature 0.07" in shown
    last = content["history"][4]
    accuracy = f"accuracy {100 * last['accuracy']:.1f} %"
    assert f"kept epoch 2 of 2 of stage 2, step {last['step']} of {last['step']}, {accuracy}" in shown


def test_settings_of_csi_are_refused_for_other_methods(capsys):
    words = ["fit", "--method", "godin", "--labelled", "a.npz", "--model", "smallcnn", "--out", "d", "--head-lr", "0.2"]
    assert main(words) == 2
    assert "--head-lr is not a setting of godin: leave it out" in capsys.readouterr().err
