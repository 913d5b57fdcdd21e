"""Pictures to open, a cache for them, and what was decoded on the way."""

import os

import pytest
from PIL import Image

from wildood.data import image_cache


@pytest.fixture
def photos(tmp_path):
    """40 pictures of two classes; each has a grey of its own."""
    for number in range(40):
        path = tmp_path / "photos" / "ab"[number // 20] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (number, number, number)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def decodings(monkeypatch):
    """The names of the files that were decoded."""
    names = []
    really = image_cache.decode

    def decode(path, framing):
        names.append(os.path.basename(path))  # noqa: PTH119
        return really(path, framing)

    monkeypatch.setattr(image_cache, "decode", decode)
    return names


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"
