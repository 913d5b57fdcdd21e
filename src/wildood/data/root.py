"""The directory that holds the named sets and what is kept of opened pictures."""

import os
from pathlib import Path

from platformdirs import user_cache_dir

from wildood.settings import check_path

VARIABLE = "WILDOOD_DATA"


def data_root(given: str | Path | None = None) -> Path:
    """The directory that was given, else that of the environment variable WILDOOD_DATA, else the user's cache.

    >>> data_root("sets").as_posix()
    'sets'
    """
    if given is not None:
        return check_path(given, "the data root (cache=, root= or --data-root)")
    return Path(os.environ.get(VARIABLE) or user_cache_dir("wildood"))
