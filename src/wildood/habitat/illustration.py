"""A raw example as a person looks at it: a picture, a text, or a few numbers."""

import math
import re
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from wildood.data.inputs import InputSpec
from wildood.data.structures import Raw, parts_of
from wildood.data.tables import NumericColumn, TableSpec
from wildood.detect.detector import Detector
from wildood.report.page import is_picture, png

LARGEST: Final = 256  # pixels of the longer side of a picture
FEW: Final = 8  # numbers that are shown
LONGEST: Final = 400  # letters of a text
_KEY = re.compile(r"(?<=\[)'?([^\]']+)")  # of a part of a structured example, as in x['ids'][0]


@dataclass(frozen=True)
class Illustrator:
    """Shows examples of one detector.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(3, 2), wildood.EnergyScore(), holdout=x)
    >>> Illustrator(detector).text(torch.tensor([[1.0, 2.5, -3.0]]))
    '1, 2.5, -3'
    """

    detector: Detector

    @property
    def draws(self) -> bool:
        """Whether examples are pictures."""
        example = self.detector.example
        return not example.parts and is_picture(self.detector.classifier.spec, tuple(example.shape))

    def png(self, batch: Raw) -> bytes:
        """The picture of a batch of one."""
        spec = self.detector.classifier.spec
        assert isinstance(spec, InputSpec)  # noqa: S101 - as `draws` says
        assert isinstance(batch, Tensor)  # noqa: S101 - same
        return png(batch[0].cpu().numpy(), spec, LARGEST)

    def text(self, batch: Raw) -> str:
        """A batch of one in words: the columns of a table that stand out, the words of a text, or the first numbers."""
        spec = self.detector.classifier.spec
        if words := self._words(batch):
            return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
        if isinstance(spec, TableSpec) and isinstance(batch, Tensor):
            return _columns(spec, batch[0])
        if isinstance(batch, Tensor):
            return _numbers(batch[0])
        return "; ".join(f"{'.'.join(_KEY.findall(name))}: {_numbers(tensor[0])}" for name, tensor in parts_of(batch))

    def _words(self, batch: Raw) -> str:
        """The tokens of a batch of one as text; "" if it has none, or the detector no tokenizer."""
        if self.detector.tokenizer is None or not isinstance(batch, dict) or "input_ids" not in batch:
            return ""
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package
        except ImportError:
            return ""
        ids, mask = batch["input_ids"][0], batch.get("attention_mask")
        own = ids if mask is None else ids[mask[0].bool()]
        return str(Tokenizer.from_str(self.detector.tokenizer.decode()).decode(own.tolist()))


def _numbers(tensor: Tensor) -> str:
    flat = tensor.flatten()
    more = f", ... ({flat.numel():,} numbers)" if flat.numel() > FEW else ""
    return ", ".join(f"{value:.4g}" for value in flat[:FEW].tolist()) + more


def _columns(spec: TableSpec, row: Tensor) -> str:
    """The columns of a row in the table's own numbers and names: the least usual numbers first, then the categories."""
    numbers, categories, first = [], [], 0
    for column in spec.columns:
        own = row[first : first + column.width]
        first += column.width
        if isinstance(column, NumericColumn):
            value = column.mean + column.std * float(own[0])
            value = math.copysign(math.expm1(min(abs(value), 700.0)), value) if column.log else value
            numbers.append((abs(float(own[0])), f"{column.name} {value:.4g}"))
        else:
            known = own[: len(column.categories)]
            categories.append(f"{column.name} {column.categories[int(known.argmax())] if bool(known.any()) else 'another'}")
    unusual = [text for _, text in sorted(numbers, key=lambda each: -each[0])]
    return ", ".join([*unusual[:FEW], *categories[:FEW]])
