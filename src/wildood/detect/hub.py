"""Detectors on the Hugging Face Hub: the files of a saved detector in a model repository."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from wildood.data.texts import FILE as TOKENIZER
from wildood.errors import DetectorFileError, InputError
from wildood.settings import check_flag, optional, quoted

if TYPE_CHECKING:
    from wildood.detect.detector import Detector

SCHEME = "hf://"
README = "README.md"
WEIGHTS = re.compile(r"weights-[0-9a-f]+\.safetensors")


def push(detector: "Detector", repo: str, private: bool | None, message: str) -> str:
    """Save a detector to a repository of the Hub, in one commit; returns its address with the commit."""
    hub = _import(f"push_to_hub({quoted(repo)})")
    repo, revision = _parse(f"{SCHEME}{str(repo).removeprefix(SCHEME)}")
    from wildood.detect.card import is_card  # noqa: PLC0415 - it describes detectors, which call this

    private = optional(check_flag)(private, "private")
    with TemporaryDirectory() as place, ExitStack() as stack:
        files = sorted(detector.save(place).iterdir())
        stack.enter_context(_one_error(f"{SCHEME}{repo}"))  # of the Hub: an error of `save` is another
        api = hub.HfApi(library_name="wildood")
        api.create_repo(repo, private=private, exist_ok=True)
        names, there = {file.name for file in files}, api.list_repo_files(repo, revision=revision)
        old = [name for name in there if WEIGHTS.fullmatch(name) and name not in names]
        if README in there:
            settings = {"revision": revision, "library_name": "wildood"}
            if not is_card(Path(hub.hf_hub_download(repo, README, **settings))):  # somebody else's, or edited
                files = [file for file in files if file.name != README]
        operations = [hub.CommitOperationAdd(file.name, str(file)) for file in files]
        operations += [hub.CommitOperationDelete(name) for name in old]
        commit = api.create_commit(repo, operations, commit_message=message, revision=revision)
    return f"{SCHEME}{repo}@{commit.oid}"


def download(address: str) -> Path:
    """The directory in the Hub's cache that holds the detector of an address; only its own files are read."""
    from wildood.detect.storage import read_description, weights_path  # noqa: PLC0415 - it calls this

    hub = _import(address)
    repo, revision = _parse(address)
    with _one_error(address):
        place = Path(hub.hf_hub_download(repo, "detector.json", revision=revision, library_name="wildood")).parent
    content = read_description(place)
    names = [weights_path(place, content["weights"]).name, *((TOKENIZER,) if "text" in content["record"] else ())]
    with _one_error(address):  # of the same commit, whose name the directory has
        for name in names:
            hub.hf_hub_download(repo, name, revision=place.name, library_name="wildood")
    return place


def _parse(address: str) -> tuple[str, str | None]:
    """The repository and the revision of an address."""
    match = re.fullmatch(r"hf://([^/@\s]+/[^/@\s]+)(?:@(\S+))?", address)
    if match is None:
        raise InputError(
            f"{quoted(address)} names no repository of the Hub: give hf://user/name, or hf://user/name@revision"
        )
    return match[1], match[2]


def _import(what: str) -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise InputError(f"{what} needs the package huggingface_hub ({error}): pip install 'wildood[hf]'") from error


@contextmanager
def _one_error(address: str) -> Iterator[None]:
    """Whatever the Hub's library raises as one line."""
    try:
        yield
    except (InputError, DetectorFileError):
        raise
    except Exception as error:
        advice = "check the name, the network and the login (hf auth login, or HF_TOKEN)"
        raise DetectorFileError(f"{address}: {type(error).__name__}: {error}: {advice}") from error
