"""`wildood export`: a saved detector as a file for other runtimes."""

import torch


def test_a_saved_detector_is_written_and_answers(fitted, cli, arrays):
    result = cli("export", "d", "d.pt2", "--model", "summing:build")
    assert result.code == 0
    assert result.out.startswith("d.pt2: float examples of shape (3,) in batches of any size; returns class")
    classes, scores, known, p_values = torch.export.load(arrays / "d.pt2").module()(torch.zeros(3, 3))
    assert (classes.dtype, known.dtype) == (torch.int64, torch.bool)
    assert scores.shape == p_values.shape == (3,)


def test_another_suffix_is_refused(fitted, assert_mistake):
    assert_mistake(["export", "d", "d.txt", "--model", "summing:build"], "give a name that ends with .pt2 or .onnx")
