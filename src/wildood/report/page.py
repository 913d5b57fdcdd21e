"""The page: one self-contained HTML file, for a wide screen, a phone and paper, light and dark."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from wildood.report.style import COLOURS


@dataclass(frozen=True)
class Panel:
    """A figure, table or row of pictures, as HTML, with a title and a sentence that says what to see."""

    title: str
    says: str
    body: str


@dataclass(frozen=True)
class Section:
    """A heading with panels side by side where there is room; `wide` gives each the whole width."""

    title: str
    panels: Sequence[Panel]
    wide: bool = False


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document; `lead` is HTML, the titles and sentences are text.

    >>> html = page("A title", "<p>A lead.</p>", [Section("First", [Panel("P", "See this.", "<p>body</p>")])])
    >>> "<h1>A title</h1>" in html, "See this." in html, "http" in html
    (True, True, False)
    """
    return _PAGE.substitute(
        title=escape(title),
        lead=lead,
        light=_colours(0),
        dark=_colours(1),
        sections="\n".join(_section(section) for section in sections),
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    strong: int | None = None,
    best: Collection[tuple[int, int]] = (),
) -> str:
    """A table of text; its first column names the rows. Row number `strong` is bold, and each (row, column) of `best`.

    >>> table(["method", "FPR95"], [["energy", "13.1"]])
    '<div class="table"><table><thead><tr><th scope="col">method</th><th scope="col">FPR95</th></tr></thead><tbody><tr><th
    scope="row">energy</th><td>13.1</td></tr></tbody></table></div>'
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr{" class=strong" if number == strong else ""}><th scope="row">{escape(name)}</th>'
        + "".join(
            f"<td{' class=best' if (number, column) in best else ''}>{escape(cell).replace('± ', '±&nbsp;')}</td>"
            for column, cell in enumerate(cells, start=1)
        )
        + "</tr>"
        for number, (name, *cells) in enumerate(rows)
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def definitions(items: Mapping[str, str]) -> str:
    """Names and what they stand for, as a list.

    >>> definitions({"seed": "0"})
    '<dl><dt>seed</dt><dd>0</dd></dl>'
    """
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in items.items())}</dl>"


def note(text: str) -> str:
    """A paragraph below a table."""
    return f'<p class="note">{escape(text)}</p>'


def code(text: str) -> str:
    """Code to copy."""
    return f"<pre><code>{escape(text)}</code></pre>"


def _section(section: Section) -> str:
    panels = "".join(
        f'<div class="panel"><h3>{escape(panel.title)}</h3><p class="says">{escape(panel.says)}</p>{panel.body}</div>'
        for panel in section.panels
    )
    layout = "wide" if section.wide else "side"
    return f'<section><h2>{escape(section.title)}</h2><div class="{layout}">{panels}</div></section>'


def _colours(theme: int) -> str:
    return " ".join(f"--{role}: {values[theme]};" for role, values in COLOURS.items())


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { $light --paper: #ffffff; --box: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { $dark --paper: #15181c; --box: #20252b; } }
@media print {
  :root { $light --paper: #ffffff; --box: #ffffff; }
  .panel { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; border-bottom: 1px solid var(--grid); padding-bottom: 0.25rem; }
h3 { font-size: 1rem; margin: 0 0 0.25rem; }
.lead { font-size: 1.1rem; max-width: 46rem; }
.says { margin: 0 0 0.6rem; max-width: 46rem; color: var(--ink); }
.side { display: grid; gap: 1.75rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.wide { display: grid; gap: 1.75rem; grid-template-columns: minmax(0, 1fr); }
.panel { min-width: 0; }
.panel > svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg text { font-family: inherit !important; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.9rem 0.4rem 0; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--faint); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 400; }
tbody tr { border-bottom: 1px solid var(--grid); }
tr.strong th, tr.strong td, td.best { font-weight: 700; }
@media (max-width: 34rem) { th, td { white-space: normal; padding-right: 0.3rem; } table { font-size: 0.72rem; } }
.note { margin: 0.6rem 0 0; max-width: 46rem; font-size: 0.9rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 0.75rem; }
.pictures figure { margin: 0; width: 5.2rem; }
.pictures img { width: 100%; image-rendering: pixelated; border: 1px solid var(--grid); }
.pictures figcaption { font-size: 0.78rem; line-height: 1.3; color: var(--ink); }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr); gap: 0.25rem 1.25rem; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
pre { background: var(--box); border: 1px solid var(--grid); border-radius: 6px; padding: 0.8rem 1rem; overflow-x: auto;
  font: 0.85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
</style>
</head>
<body>
<header><h1>$title</h1><div class="lead">$lead</div></header>
<main>
$sections
</main>
</body>
</html>
""")
