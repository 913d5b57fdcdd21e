"""The package as a user gets it: quick to import, typed, and whole when installed from its wheel."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import wildood

ROOT = Path(__file__).resolve().parents[1]

USE_IT = """
import json
import numpy as np, torch, wildood
from wildood.models.small import MLP

rng = np.random.default_rng(0)
torch.manual_seed(0)
def known(n):
    y = rng.integers(0, 2, n)
    return (rng.normal(size=(n, 2)) + 6 * y[:, None]).astype("float32"), y

wild = np.concatenate([known(90)[0], rng.normal(size=(10, 2)).astype("float32") + 30])
schedule = wildood.Schedule(steps=6, batch=16)
detector = wildood.fit(MLP(2, 2, hidden=(8,)), known(64), wild, known(60), schedule=schedule, verbose=False)
again = wildood.load(detector.save("out"))
x = known(20)[0]
print(json.dumps({
    "home": wildood.__file__,
    "version": wildood.__version__,
    "predicted": again.predict(x).tolist(),
    "same": bool(np.array_equal(again.score(x), detector.score(x))),
    "numpy": np.__file__,
}))
"""


def run_python(code, *, python=sys.executable, cwd=None):
    """What a new interpreter prints as JSON; it sees neither the repository nor PYTHONPATH."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_wildood_imports_neither_torch_nor_numpy(tmp_path):
    heavy = run_python(
        "import json, sys, wildood; wildood.__version__, wildood.__all__, dir(wildood); "
        "print(json.dumps([name for name in ('torch', 'numpy', 'safetensors', 'rich') if name in sys.modules]))",
        cwd=tmp_path,
    )
    assert heavy == []


def test_fit_and_the_loggers_load_without_the_packages_of_extras(tmp_path):
    extras = run_python(
        "import json, sys, wildood; wildood.fit, wildood.load, wildood.TensorBoardLogger, wildood.WandbLogger; "
        "names = 'sklearn', 'tensorboard', 'mlflow', 'wandb', 'huggingface_hub'; "
        "print(json.dumps([name for name in names if name in sys.modules]))",
        cwd=tmp_path,
    )
    assert extras == []


def test_errors_load_without_torch(tmp_path):
    assert (
        run_python("import json, sys, wildood; wildood.InputError; print(json.dumps('torch' in sys.modules))", cwd=tmp_path)
        is False
    )


def test_all_is_the_keys_of_the_lazy_table_in_its_order():
    assert wildood.__all__ == list(wildood._HOMES)


@pytest.mark.parametrize("name", [name for name in wildood.__all__ if name != "evaluate"])
def test_every_public_name_loads_from_its_home(name):
    value = getattr(wildood, name)
    home = sys.modules[wildood._HOMES[name]]
    assert value is getattr(home, name)
    if isinstance(value, type) or callable(value):
        assert (value.__module__, value.__name__) == (wildood._HOMES[name], name)


def test_public_names_stay_functions_after_everything_is_imported(tmp_path):
    """A submodule of the same name would take the function's place as soon as anything imports it."""
    kinds = run_python(
        "import json, pkgutil, wildood\n"
        "for module in pkgutil.walk_packages(wildood.__path__, 'wildood.'):\n"
        "    if not module.name.endswith('__main__'): __import__(module.name)\n"
        "print(json.dumps({name: type(getattr(wildood, name)).__name__ for name in wildood.__all__}))",
        cwd=tmp_path,
    )
    assert {name for name, kind in kinds.items() if kind == "module"} == set()
    assert {kinds["fit"], kinds["inspect"], kinds["load"], kinds["posthoc"]} == {"function"}


EVALUATE = """
import json, pickle
from inspect import signature
{before}
import wildood
first = wildood.evaluate
import wildood.evaluate.metrics
from wildood import evaluate
from wildood.report.evaluation import evaluate as function
try:
    wildood.evaluate("d/", id=None, ood=None)
except wildood.InputError as error:
    said = str(error)
print(json.dumps({{
    "said": said,
    "same": first is evaluate is wildood.evaluate is pickle.loads(pickle.dumps(evaluate)),
    "signature": signature(wildood.evaluate) == signature(function),
    "auroc": wildood.evaluate.metrics.auroc([0.0], [1.0]),
}}))
"""


@pytest.mark.parametrize(
    "before",
    ["", "import wildood.evaluate.metrics", "from wildood.evaluate import metrics", "import wildood.report.evaluation"],
)
def test_evaluate_is_the_function_and_the_room_whatever_was_imported_before(tmp_path, before):
    said = run_python(EVALUATE.format(before=before), cwd=tmp_path)
    assert said.pop("said").startswith("detector is a str: give what fit, posthoc or load returned")
    assert said == {"same": True, "signature": True, "auroc": 1.0}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'wildood' has no attribute 'nonsense'"):
        _ = wildood.nonsense
    assert not hasattr(wildood, "torch")


def test_dir_lists_the_public_names():
    assert set(wildood.__all__) | {"__version__"} <= set(dir(wildood))
    assert dir(wildood) == sorted(set(dir(wildood)))


def test_types_are_shipped():
    assert (Path(wildood.__file__).parent / "py.typed").is_file()


def source_tree(destination):
    """What a checkout holds; a copy, so that building leaves nothing in the repository."""
    for name in ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, destination / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(origin, destination / name)
    return destination


@pytest.mark.slow
def test_wheel_works_in_a_new_environment_without_the_repository(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", source_tree(tree)]
    subprocess.run(build, check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("wildood-*-py3-none-any.whl")

    home = tmp_path / "environment"
    venv.create(home, system_site_packages=False, with_pip=True, symlinks=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    # A path in a .pth file does not bring the .pth files that lie there: the editable install stays behind.
    site_packages = next((home / "lib").glob("python*")) / "site-packages"
    (site_packages / "installed_dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")

    empty = tmp_path / "empty"
    empty.mkdir()
    said = run_python(USE_IT, python=python, cwd=empty)
    assert Path(said["home"]).is_relative_to(site_packages)
    assert Path(said["numpy"]).is_relative_to(sysconfig.get_path("purelib"))
    assert said["version"] == wildood.__version__
    assert said["same"] is True
    assert len(said["predicted"]) == 20
    assert set(said["predicted"]) <= {wildood.UNKNOWN, 0, 1}
    assert (site_packages / "wildood" / "py.typed").is_file()
    assert sorted(path.suffix for path in (empty / "out").iterdir()) == [".json", ".md", ".safetensors"]
