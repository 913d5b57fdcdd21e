"""`wildood data`: the named sets, listed, brought here and checked."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from wildood.cli.options import DATA_ROOT, named, parse
from wildood.data.catalog import SETS, NamedSet, SetPart, find_set, read_part, readable_size
from wildood.data.files import data_root
from wildood.errors import InputError

Wanted = tuple[NamedSet, SetPart | None]


@dataclass(frozen=True)
class DataOptions:
    """The image sets that wildood knows by name, such as cifar10 or svhn:test.

    Attributes:
        action: list: what they are, how large, and where. get: download, check and unpack them; what is there is left alone.
            check: open those that are there, count their images and compare the checksums of kept files.
        names: such as cifar10, or svhn:extra for a part that is large and seldom needed; check takes all that are there
            without any.
        keep_archives: with get, do not remove archives once they are unpacked.
        quiet: with get, show no progress.
    """

    action: Annotated[Literal["list", "get", "check"], tyro.conf.Positional, named("ACTION")]
    names: Annotated[tuple[str, ...], tyro.conf.Positional, named("NAME ...")] = ()
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None
    keep_archives: bool = False
    quiet: bool = False


def run(words: Sequence[str]) -> None:
    """List, get or check."""
    options = parse(DataOptions, "data", words)
    root = data_root(options.data_root)
    wanted = [_find(text) for text in options.names]  # a misspelt name is refused before any download
    if options.action == "list":
        _list(root)
    elif options.action == "get":
        _get(wanted, root, options)
    else:
        _check(wanted, root)


def _list(root: Path) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, least in (("name", 9), ("what it is", 20), ("images", 13), ("download", 10), ("where", 9)):
        table.add_column(heading, min_width=least, overflow="fold")
    for each in SETS.values():
        images = "\n".join(f"{part.name} {part.count:,}" for part in each.parts)
        table.add_row(each.name, each.what, images, readable_size(each), _where(each, root))
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.print(table)
    console.print(f"below {root}", soft_wrap=True)


def _where(each: NamedSet, root: Path) -> str:
    """Where the parts are, below the data root."""
    if each.kind == "digits":
        return "in scikit-learn" if each.place(each.parts[0], root) else "missing"
    places = {part.name: each.place(part, root) for part in each.parts}
    present = dict.fromkeys(place.relative_to(root).as_posix() for place in places.values() if place)
    absent = [name for name, place in places.items() if place is None]
    if not present:
        return "missing"
    return ", ".join(present) + (f" (without {', '.join(absent)})" if absent else "")


def _get(wanted: Sequence[Wanted], root: Path, options: DataOptions) -> None:
    if not wanted:
        raise InputError("data get needs the name of a set: wildood data list shows them")
    from wildood.data.download import obtain  # noqa: PLC0415 - slow to import
    from wildood.train.progress import verbose_logging  # noqa: PLC0415 - same

    for each, part in wanted:
        try:
            with verbose_logging(verbose=not options.quiet):
                obtain(each, root, part, keep=options.keep_archives)
        except KeyboardInterrupt:
            sys.stderr.write("wildood: what was downloaded is kept; called again, it goes on from where it was\n")
            raise
        sys.stdout.write(f"{each.name}: {_where(each, root)}\n")


def _check(wanted: Sequence[Wanted], root: Path) -> None:
    every: list[Wanted] = [(each, None) for each in SETS.values()]
    results = [fine for each, part in wanted or every for fine in _results(each, part, root, asked=bool(wanted))]
    if not results:
        sys.stdout.write(f"no named set is below {root}: wildood data get NAME brings one\n")
    wrong = results.count(False)
    if wrong:
        are = "is" if wrong == 1 else "are"
        raise InputError(f"data check: {wrong} of {len(results)} {are} not as expected: see above")


def _results(each: NamedSet, only: SetPart | None, root: Path, *, asked: bool) -> Iterator[bool]:
    """Whether each part and each kept file is as expected; each is printed as soon as it is checked."""
    from wildood.data.download import kept_file, wrong_content  # noqa: PLC0415 - slow to import

    for part in [only] if only else each.parts:
        if each.place(part, root) or (asked and (only or not part.on_request)):
            try:
                count = len(read_part(each, part, root))
            except InputError as error:
                yield _print(f"{each.name}:{part.name}", str(error))
            else:
                problem = "" if count == part.count else f"{count:,} images, officially {part.count:,}"
                yield _print(f"{each.name}:{part.name}", problem, f"{count:,} images")
    for file in each.downloads:
        kept = kept_file(file, each, root)
        if kept is not None and (only is None or file.part in {None, only.name}):
            yield _print(kept.relative_to(root).as_posix(), wrong_content(kept, file, root), "checksum")


def _print(what: str, problem: str, fine: str = "") -> bool:
    sys.stdout.write(f"{what:32} {f'WRONG: {problem}' if problem else f'{fine} ok'}\n")
    return not problem


def _find(text: str) -> Wanted:
    each, part = find_set(text)
    return each, each.part(part) if part else None
