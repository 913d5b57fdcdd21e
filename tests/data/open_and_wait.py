"""Opens a folder of 40 images, and waits at the 30th until a file is there: PHOTOS CACHE SIGNALS GO_ON."""

import logging
import sys
import time
from pathlib import Path

from wildood.data import image_cache
from wildood.data.folders import open_images


def main(photos, cache, signals, go_on):
    really, decoded = image_cache.decode, []

    def decode(path, framing):
        decoded.append(path)
        if path.endswith("30.png"):
            (signals / "busy").touch()
            while not go_on.exists():
                time.sleep(0.01)
        return really(path, framing)

    image_cache.decode = decode
    images = open_images(photos, cache=cache, workers=2)
    print(len(decoded), images.content, images.examples[:, 0, 0, 0].tolist() == list(range(40)))  # noqa: T201


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(*map(Path, sys.argv[1:]))
