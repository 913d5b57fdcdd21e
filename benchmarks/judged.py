"""What a person's answers bring: FPR95 after 50, 200 and 1,000 judged wild examples, simulated on CLINC150.

    python benchmarks/judged.py --data-root DATA

The answers are the truth. `label_plan` asks for them around the boundary of the detector that `fit` makes without any; in
other rows, as many are of a random sample. `fit` may deploy the start, which no answer changes: a line says which step and
score are deployed, and `--keep last` measures what was trained. The validation part: what is measured trains and chooses
nothing.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from habitat_problems import Habitat, Part, problems

import wildood
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.train.selection import Keep

BUDGETS = (50, 200, 1000)
Array = npt.NDArray[Any]


def truth_of(habitat: Habitat) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The wild examples, and which of them are unknown."""
    assert isinstance(habitat.wild, np.ndarray)  # noqa: S101 - of these problems
    assert habitat.wild_ood is not None  # noqa: S101
    unknown = {row.tobytes() for row in habitat.wild_ood}
    return habitat.wild, np.array([row.tobytes() in unknown for row in habitat.wild])


def measured(habitat: Habitat, seed: int, keep: Keep, judged: Any = None) -> tuple[wildood.Detector, str]:
    """A detector that learned from these answers, and its numbers on what nothing has seen."""
    data = habitat.labelled, habitat.wild, habitat.holdout
    settings: dict[str, Any] = {"seed": seed, "keep": keep, "allow_duplicates": True, "verbose": False}
    detector = wildood.fit(habitat.model, *data, judged=judged, **settings)
    (x, _), strange = habitat.test_id, habitat.test_ood
    fpr95 = fpr_at_tpr(detector.score(x), detector.score(strange))
    caught, alarms = (float(np.mean(detector.predict(each) == wildood.UNKNOWN)) for each in (strange, x))
    bound = detector.caught
    least = "" if bound is None or bound.least is None else f", promised {100 * bound.least:.0f} % of the like"
    deployed = f"step {detector.history[detector.record['kept_epoch']]['step']}, {type(detector.scorer).__name__}"
    shares = f"FPR95 {100 * fpr95:.1f} %, caught {100 * caught:.1f} %, false alarms {100 * alarms:.1f} %"
    return detector, f"{deployed}: {shares}{least}"


def main() -> None:
    """One line for each budget and way to choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--problem", default="CLINC150 MiniLM, linear")
    parser.add_argument("--pi", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--keep", choices=["best", "last"], default="best")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part: Part = arguments.part
    problem = next(each for each in problems() if each.name == arguments.problem)
    for seed in arguments.seeds:
        habitat = problem.draw(arguments.data_root, seed, part, arguments.pi)
        wild, is_ood = truth_of(habitat)
        first, text = measured(habitat, seed, arguments.keep)
        print(f"seed {seed}, no answers: {text}", flush=True)
        for budget in arguments.budgets:
            plan = wildood.label_plan(first, wild, budget, seed)
            for number in plan:
                plan.answer(is_ood=bool(is_ood[number]))
            drawn = np.random.default_rng(seed).permutation(len(wild))[:budget]
            for how, numbers in (("planned", plan.numbers), ("random", drawn)):
                _, text = measured(habitat, seed, arguments.keep, (wild[numbers], is_ood[numbers]))
                print(f"seed {seed}, {len(numbers)} {how} ({is_ood[numbers].sum()} unknown): {text}", flush=True)


if __name__ == "__main__":
    main()
