"""`wildood data`: the named sets, listed, brought here and checked."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from wildood.cli.options import named, parse
from wildood.data.files import data_root
from wildood.data.named_sets import SETS, NamedSet, SetPart, find_set, readable_size
from wildood.errors import InputError

USAGE = """usage: wildood data list|get|check [NAME ...] [--data-root DIRECTORY]

The image sets that wildood knows by name, such as cifar10 or svhn:test.

  list              what they are, their size, where they are
  get NAME ...      download them, check them, unpack them; what is there is left alone
  check [NAME ...]  open what is there, count it, compare checksums

wildood data get --help for the options of get.
"""
Root = Annotated[Path | None, named("DIRECTORY", "(default: that of WILDOOD_DATA, or your cache)")]


@dataclass(frozen=True)
class ListOptions:
    """The named sets: what they are, how large, and where they are.

    Attributes:
        data_root: the directory that holds the sets.
    """

    data_root: Root = None


@dataclass(frozen=True)
class GetOptions:
    """Download named sets, check them and unpack them. What is there is left alone.

    Attributes:
        names: such as cifar10, or svhn:extra for a part that is large and seldom needed.
        data_root: the directory that holds the sets.
        keep_archives: do not remove archives once they are unpacked.
        quiet: show no progress.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, named("NAME ...")] = ()
    data_root: Root = None
    keep_archives: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class CheckOptions:
    """Open sets that are there, count their images and compare the checksums of files that were kept.

    Attributes:
        names: without any, every set that is there.
        data_root: the directory that holds the sets.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, named("NAME ...")] = ()
    data_root: Root = None


def run(words: Sequence[str]) -> None:
    """List, get or check."""
    actions = {"list": _list, "get": _get, "check": _check}
    if words and words[0] in actions:
        actions[words[0]](words[1:])
        return
    sys.stdout.write(USAGE)
    if not words:
        raise InputError("data: say list, get or check")
    if words[0] not in {"-h", "--help"}:
        raise InputError(f"data: no action {words[0]!r}: give list, get or check")


def _list(words: Sequence[str]) -> None:
    root = data_root(parse(ListOptions, "data list", words).data_root)
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
    found = dict.fromkeys(place.relative_to(root).as_posix() for place in places.values() if place)
    absent = [name for name, place in places.items() if place is None]
    if not found:
        return "missing"
    return ", ".join(found) + (f" (without {', '.join(absent)})" if absent else "")


def _get(words: Sequence[str]) -> None:
    options = parse(GetOptions, "data get", words)
    if not options.names:
        raise InputError("data get needs the name of a set: wildood data list shows them")
    wanted = [_named(text) for text in options.names]  # a misspelt name is refused before any download
    from wildood.data.download import obtain  # noqa: PLC0415 - slow to import
    from wildood.train.progress import verbose_logging  # noqa: PLC0415 - same

    root = data_root(options.data_root)
    for each, part in wanted:
        try:
            with verbose_logging(verbose=not options.quiet):
                obtain(each, root, part, keep=options.keep_archives)
        except KeyboardInterrupt:
            sys.stderr.write("wildood: what was downloaded is kept; called again, it goes on from where it was\n")
            raise
        sys.stdout.write(f"{each.name}: {_where(each, root)}\n")


def _check(words: Sequence[str]) -> None:
    options = parse(CheckOptions, "data check", words)
    root = data_root(options.data_root)
    wanted = [_named(text) for text in options.names] or [(each, None) for each in SETS.values()]
    findings = [finding for each, part in wanted for finding in _findings(each, part, root, asked=bool(options.names))]
    if not findings:
        sys.stdout.write(f"no named set is below {root}: wildood data get NAME brings one\n")
    wrong = sum(not sound for sound in findings)
    if wrong:
        raise InputError(
            f"data check: {wrong} of {len(findings)} {'is' if wrong == 1 else 'are'} not as expected: see above"
        )


def _findings(each: NamedSet, only: SetPart | None, root: Path, *, asked: bool) -> Iterator[bool]:
    """Whether each part and each kept file is as expected, said as it is found."""
    from wildood.data.catalog import read_part  # noqa: PLC0415 - slow to import
    from wildood.data.download import kept_file, wrong_content  # noqa: PLC0415 - same

    for part in [only] if only else each.parts:
        if each.place(part, root) or (asked and (only or not part.on_request)):
            try:
                count = len(read_part(each, part, root))
            except InputError as error:
                yield _say(f"{each.name}:{part.name}", str(error))
            else:
                problem = "" if count == part.count else f"{count:,} images, officially {part.count:,}"
                yield _say(f"{each.name}:{part.name}", problem, f"{count:,} images")
    for file in each.downloads:
        kept = kept_file(file, each, root)
        if kept is not None and (only is None or file.part in {None, only.name}):
            yield _say(kept.relative_to(root).as_posix(), wrong_content(kept, file, root), "checksum")


def _say(what: str, problem: str, fine: str = "") -> bool:
    sys.stdout.write(f"{what:32} {f'WRONG: {problem}' if problem else f'{fine} ok'}\n")
    return not problem


def _named(text: str) -> tuple[NamedSet, SetPart | None]:
    each, part = find_set(text)
    return each, each.part(part) if part else None
