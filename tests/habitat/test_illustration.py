"""Examples are shown as pictures, texts, columns or numbers."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.tables import TableSpec
from wildood.habitat.illustration import LARGEST, Illustrator

RNG = np.random.default_rng(0)


def detector_of(x, spec=None):
    features = int(np.prod(x.shape[1:])) if spec is None or isinstance(spec, InputSpec) else spec.width
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(features, 3))
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=x, input=spec, alpha=0.1)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_picture_keeps_its_pixels(layout, dtype):
    pixels = RNG.integers(0, 256, size=(40, 5, 6, 1)).astype(np.uint8)
    x = pixels if layout == "NHWC" else pixels.transpose(0, 3, 1, 2)
    x = x if dtype == "uint8" else (x / 255).astype(np.float32)
    illustrator = Illustrator(detector_of(x, InputSpec(layout=layout)))
    assert illustrator.draws
    with Image.open(io.BytesIO(illustrator.png(torch.from_numpy(x[:1].copy())))) as image:
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), pixels[0, ..., 0])


def test_a_large_picture_is_made_smaller():
    x = RNG.integers(0, 256, size=(20, 4, 4 * LARGEST, 3)).astype(np.uint8)
    with Image.open(
        io.BytesIO(Illustrator(detector_of(x, InputSpec(mean=(0, 0, 0), std=(1, 1, 1)))).png(torch.from_numpy(x[:1])))
    ) as image:
        assert image.size == (LARGEST, 1)


def test_other_arrays_are_their_first_numbers():
    illustrator = Illustrator(detector_of(RNG.normal(size=(40, 12)).astype("float32")))
    assert not illustrator.draws
    assert illustrator.text(torch.arange(12.0)[None]) == "0, 1, 2, 3, 4, 5, 6, 7, ... (12 numbers)"


def test_a_row_of_a_table_has_its_own_numbers_and_names():
    table = {"size": RNG.normal(5, 2, 60).tolist(), "kind": ["<b>", "c"] * 30, "rate": np.exp(RNG.normal(0, 3, 60)).tolist()}
    spec = TableSpec.fit(table)
    illustrator = Illustrator(detector_of(spec(table), spec))
    row = {name: values[:1] for name, values in table.items()}
    text = illustrator.text(torch.from_numpy(spec(row)))
    assert f"size {row['size'][0]:.4g}" in text
    assert f"rate {row['rate'][0]:.4g}" in text
    assert "kind <b>" in text
    assert "kind another" in illustrator.text(torch.from_numpy(spec({**row, "kind": ["new"]})))


def test_a_text_is_its_words_without_the_padding():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"[UNK]": 0, "[PAD]": 1, "lost": 2, "<b>": 3, "card": 4}, unk_token="[UNK]")  # noqa: S106 - a token of another kind
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    detector = detector_of(x)
    detector.tokenizer = tokenizers.Tokenizer(words).to_str().encode()
    batch = {"input_ids": torch.tensor([[2, 4, 3, 1]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])}
    assert Illustrator(detector).text(batch) == "lost card <b>"
    detector.tokenizer = None
    assert Illustrator(detector).text(batch) == "input_ids: 2, 4, 3, 1; attention_mask: 1, 1, 1, 0"
