"""Any text, on one line, as Markdown and as LaTeX that show it as it is: a name may be that of a file."""

import re

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "π": r"$\pi$",
}


def escaped_markdown(text: str) -> str:
    r"""As Markdown, in a table or out of it.

    >>> print(escaped_markdown("a_b | c"))
    a\_b \| c
    """
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", one_line(text))


def escaped_latex(text: str) -> str:
    r"""As LaTeX, in a table or out of it.

    >>> print(escaped_latex("a_b & 95 %"))
    a\_b \& 95 \%
    """
    escaped = "".join(_LATEX.get(character, character) for character in one_line(text))
    escaped = re.sub("-(?=-)", "-{}", escaped)  # two in a row would become a dash
    # At the start of a row, these would belong to the end of the row before.
    return f"{{}}{escaped}" if escaped[:1] in {"[", "*"} else escaped


def one_line(text: str) -> str:
    r"""Without line ends, which would end a row of a table.

    >>> one_line("a\nb")
    'a b'
    """
    return " ".join(text.split())
