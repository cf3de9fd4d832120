"""Tables for a paper, in LaTeX."""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from interp.results.columns import COMMON, Column, Displayed, displayed, with_columns

__all__ = ["latex"]
__dir__ = __all__.copy

_MOST = 26  # the most characters per line in a column of sentences
_MATH = {
    "α": "alpha", "γ": "gamma", "ε": "varepsilon", "λ": "lambda", "ρ": "rho", "σ": "sigma", "τ": "tau", "Δ": "Delta",
    "Σ": "Sigma", "Ω": "Omega", "√": "surd", "‖": "|", "≤": "leq", "≥": "geq", "≈": "approx", "×": "times",
    "·": "cdot", "→": "to", "⊙": "odot", "±": "pm", "∞": "infty",
}  # fmt: skip
_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "␣": r"\textvisiblespace{}", "–": "--", "…": r"\ldots{}", "“": "``",
    "”": "''", "’": "'", "ᵀ": r"$^{\mathrm{T}}$", "²": "$^2$", "½": r"$\frac{1}{2}$", "w̃": r"$\tilde{w}$", "−": "$-$",
}  # fmt: skip
_SPECIAL.update({letter: f"\\{letter}" for letter in "&%$#_{}"})
_SPECIAL.update({letter: f"$\\{name}$" for letter, name in _MATH.items()})
_INDEXED, _POWER = r"\b(?P<base>[bwW])_(?P<index>LN|FC|last|U|Q|K|O|out)\b", r"(?<=\d)e(?P<sign>[−+])0*(?P<power>\d+)"
_TRANSLATED = re.compile("|".join([_INDEXED, _POWER, *map(re.escape, _SPECIAL)]))


def latex(
    table: pd.DataFrame,
    headings: Mapping[str, Column] = COMMON,
    *,
    columns: Sequence[str] | None = None,
    usual: Sequence[str] | None = None,
) -> str:
    r"""Write a table for a paper, with the rules of booktabs (`\usepackage{booktabs}`).

    It reads as on the page of a run: with headings and words for codes, the interval after its value, the same decimals
    throughout a column, and no empty columns; an empty table becomes a comment. Text is aligned left and numbers right;
    sentences are folded. Symbols and characters that are special in LaTeX are translated; letters of other scripts need
    XeLaTeX or LuaLaTeX.

    Args:
        headings: the headings of columns, such as `result.headings`.
        columns: the columns to show, in this order; the interval of a value comes with it.
        usual: the columns to take if none are named; by default all of them. A comment in the last line names the
            rest.

    Raises ValueError for columns that the table does not have.

    Examples:
        >>> table = pd.DataFrame({"scale": [0.0, 1.0], "js": [0.0258, 0.0117], "js_low": [0.021, 0.0101],
        ...                       "js_high": [0.0301, 0.0133]})
        >>> print(latex(table))
        \begin{tabular}{rr}
        \toprule
        $\lambda$ & JS, nats \\
        \midrule
        0 & 0.0258 [0.0210, 0.0301] \\
        1 & 0.0117 [0.0101, 0.0133] \\
        \bottomrule
        \end{tabular}
        <BLANKLINE>
    """
    printable = chosen = displayed(table if columns is None else with_columns(table, columns, headings), headings)
    if not printable:
        return "% this table is empty\n"
    if columns is None and usual is not None:
        by_name = {column.name: column for column in printable}
        chosen = [by_name[name] for name in usual if name in by_name]
    sides = ""
    columns_of_text = []
    for column in chosen:
        side = f"p{{{_MOST / 2:g}em}}" if _is_long(column) else "l"
        sides += "r" if column.numeric else side
        columns_of_text.append(map(_escaped, [column.heading.label, *column.cells]))
    heading, *body = [f"{_first(' & '.join(row))} \\\\" for row in zip(*columns_of_text, strict=True)]
    lines = [f"\\begin{{tabular}}{{{sides}}}", r"\toprule", heading, r"\midrule", *body, r"\bottomrule"]
    lines.append(r"\end{tabular}")
    if left_out := [column.name for column in printable if column not in chosen]:
        names = ", ".join(map(_one_line, left_out))
        lines.append(f"% not shown: {names}; name columns to choose others")
    return "\n".join([*lines, ""])


def _is_long(column: Displayed) -> bool:
    return not column.numeric and max(map(len, column.cells), default=0) > _MOST


def _first(row: str) -> str:
    r"""A row that may follow `\\` and `\midrule`, which would read `[CLS]` or `*` after them as an argument."""
    return f"{{}}{row}" if row.startswith(("[", "*")) else row


def _one_line(text: str) -> str:
    """Text without the line breaks that would end a comment."""
    return " ".join(text.splitlines())


def _escaped(text: str) -> str:
    """Text as LaTeX writes it: symbols as formulas, `b_LN` with an index, `1.2e−05` as a power of ten."""
    pieces = _TRANSLATED.sub(_translated, _one_line(text))
    return re.sub(r"(?<!\\)\$\$", "", pieces)  # joins two adjacent formulas


def _translated(match: re.Match[str]) -> str:
    if match["base"]:
        return f"${match['base']}_{{\\mathrm{{{match['index']}}}}}$"
    if match["power"]:
        return f"$\\times 10^{{{'-' * (match['sign'] == '−')}{match['power']}}}$"
    return _SPECIAL[match[0]]
