"""Adds detectors to a habitat and promotes old and new ones, until it is ended: promoter.py HABITAT."""

import random
import sys
import time

from wildood.habitat.habitat import Habitat


def main():
    habitat = Habitat(sys.argv[1])
    detector = habitat.detector()
    while True:
        champion, known = habitat.champion, [each.id for each in habitat.detectors()]
        chosen = random.choice([each for each in [*known, "new"] if each != champion])  # noqa: S311 - any will do
        if chosen == "new":
            chosen = habitat.add(detector, parent=champion, trained_until=0)
        habitat.promote(chosen, who="promoter", force=True, against=champion)
        sys.stdout.write(f"{chosen}\n")
        sys.stdout.flush()
        time.sleep(random.uniform(0, 0.2))  # noqa: S311 - same


if __name__ == "__main__":
    main()
