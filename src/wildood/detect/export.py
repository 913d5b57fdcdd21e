"""A detector as one module, and as a file for other runtimes: `torch.export` or ONNX."""

import copy
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wildood.data.files import write_atomically
from wildood.data.structures import Raw, map_structure, parts_of, tensors_of
from wildood.detect.detector import UNKNOWN, Detector
from wildood.errors import InputError
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import ranked

TRIED = 8  # examples that an exported file is tried on, if none are given


Answers = tuple[Tensor, Tensor, Tensor, Tensor]  # as `DetectorModule` returns them; torch saves no named tuples


class DetectorModule(nn.Module):
    """A detector as an `nn.Module`, with the threshold inside: raw examples in; classes, scores, known, p-values out.

    Classes are int64, -1 where an example is rejected. Scores are float32, higher = more OOD. `known` is whether an example
    is accepted. P-values are against the holdout.

    It holds the detector's own classifier and score: copy them (`copy.deepcopy`) before you change anything.

    >>> import wildood
    >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
    >>> detector = wildood.posthoc(nn.Linear(2, 3), wildood.EnergyScore(), holdout=x)
    >>> classes, scores, known, p_values = detector.to_module()(torch.from_numpy(x))
    >>> bool(np.array_equal(classes.numpy(), detector.predict(x)))
    True
    """

    thresholds: Tensor
    holdout_scores: Tensor

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        scores = detector.holdout_scores
        if np.isnan(detector.threshold) or scores is None:
            raise InputError("this detector has no threshold: call detector.calibrate(holdout, alpha) first")
        if isinstance(detector.scorer, PerturbedScore) and detector.scorer.setting("epsilon") != 0:
            name = type(detector.scorer).__name__
            raise InputError(
                f"{name} takes a gradient step on its input, which a module for other runtimes cannot: give "
                f"{name}(epsilon=0), or another score"
            )
        device = detector.classifier.device
        self.classifier, self.score = detector.classifier.eval(), detector.scorer.eval()
        each = [detector.threshold] if detector.class_thresholds is None else detector.class_thresholds
        # As numpy compares them: the largest float32 up to the threshold accepts the same scores.
        rounded = np.asarray(each, np.float32)
        rounded = np.where(rounded > np.asarray(each), np.nextafter(rounded, np.float32(-np.inf)), rounded)
        self.register_buffer("thresholds", torch.from_numpy(rounded).to(device))
        self.register_buffer("holdout_scores", torch.from_numpy(np.sort(scores)).to(device))
        self.eval()

    def forward(self, x: Raw) -> Answers:
        """Class or -1, score, whether it is known, and p-value of each raw example."""
        scores, outputs = ranked(self.score.of(self.classifier, x))
        classes = outputs.logits.argmax(1)
        threshold = self.thresholds if len(self.thresholds) == 1 else self.thresholds[classes]
        known = scores.isfinite() & (scores <= threshold)
        above = (self.holdout_scores[None, :] >= scores[:, None]).sum(1)
        p_values = (1 + above).float() / (1 + len(self.holdout_scores))
        return torch.where(known, classes, UNKNOWN), scores.float(), known, p_values


def export(detector: Detector, path: Path, examples: Any = None) -> Path:
    """Write a detector as .pt2 (`torch.export`) or .onnx, after the file has answered as the detector does.

    Args:
        detector: a calibrated one.
        path: where to; its suffix decides the format.
        examples: raw examples to try the file on, at least two; by default blank ones.
    """
    if path.suffix not in {".pt2", ".onnx"}:
        raise InputError(f"{path} has the suffix {path.suffix!r}: give a name that ends with .pt2 or .onnx")
    batch = _batch(detector, examples)
    module = copy.deepcopy(DetectorModule(detector)).requires_grad_(requires_grad=False)
    with torch.no_grad(), warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # torch warns of its own internals
        program = _exported(module, batch)
        content = _as_pt2(program, module, batch) if path.suffix == ".pt2" else _as_onnx(program, module, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """No log lines but errors of a package in the block: torch tells of operators of packages that are not installed."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _batch(detector: Detector, examples: Any) -> Raw:
    if examples is None:
        return detector.example.blank(TRIED)
    source = detector.source_of(examples)
    if len(source) < 2:
        raise InputError("examples has 1 example: give at least two, so that the batch size can vary")
    return source.gather(torch.arange(min(len(source), 256)))[0]


def _exported(module: DetectorModule, batch: Raw) -> torch.export.ExportedProgram:
    size = torch.export.Dim("batch", min=1, max=1 << 20)
    shapes = {"x": map_structure(lambda _: {0: size}, batch)}
    try:
        return torch.export.export(module, (batch,), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"torch.export cannot follow this detector: {line}") from error


def _as_pt2(program: torch.export.ExportedProgram, module: DetectorModule, batch: Raw) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for size in (len(tensors_of(batch)[0]), 1):
        part = map_structure(lambda tensor, size=size: tensor[:size], batch)
        _check(module, part, again(part))
    return file.getvalue()


def _as_onnx(program: torch.export.ExportedProgram, module: DetectorModule, batch: Raw) -> bytes:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        import onnxscript  # noqa: F401, PLC0415 - what torch needs for it
    except ImportError as error:
        raise InputError("an ONNX file needs more packages: pip install 'wildood[export]'") from error
    names = ["class", "score", "known", "p_value"]
    inputs = [".".join(re.findall(r"\w+", name)) or "x" for name, _ in parts_of(batch, "")]  # "input_ids", or "pair.0"
    written = torch.onnx.export(program, input_names=inputs, output_names=names, dynamo=True, verbose=False)
    if written is None:  # as its signature allows
        raise InputError("torch.onnx cannot write this detector")
    content: bytes = written.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (len(tensors_of(batch)[0]), 1):
        part = map_structure(lambda tensor, size=size: tensor[:size], batch)
        given = {
            each.name: tensor.cpu().numpy() for each, tensor in zip(session.get_inputs(), tensors_of(part), strict=True)
        }
        _check(module, part, [torch.from_numpy(np.asarray(answer)) for answer in session.run(names, given)])
    return content


def _check(module: DetectorModule, batch: Raw, answers: Any) -> None:
    """Refuse a file that answers otherwise: scores to 1e-4 of their spread, and classes unless they are that near to change.

    Single precision keeps about seven digits of what a score adds up, which may be larger than the score.
    """
    with torch.no_grad():
        expected = module(batch)
    (classes, scores, _, p_values), own = ([each.cpu() for each in several] for several in (answers, expected))
    near = 1e-4 * max(1.0, float(own[1].std(correction=0)))
    if not torch.allclose(scores, own[1], rtol=1e-4, atol=near):
        instead = "" if module.classifier.dtype == torch.float32 else ": give a detector of a model in float32"
        raise InputError(f"the exported file scores otherwise, by up to {float((scores - own[1]).abs().max()):.2g}{instead}")
    distance = (own[1][:, None] - module.thresholds.cpu()[None, :]).abs()
    sure = (distance > near + 1e-4 * own[1].abs()[:, None]).all(1)
    if not torch.equal(classes[sure], own[0][sure]) or not torch.allclose(p_values, own[3], atol=0.02):
        raise InputError("the exported file has other classes or p-values than the detector")
