"""LaTeX tables for a paper."""

import re
import shutil
import string
import subprocess

import numpy as np
import pandas as pd
import pytest
from matplotlib.mathtext import MathTextParser
from naming import naming

from interp.analyses.registry import load, names
from interp.results.columns import Column
from interp.results.latex import latex

TABLE = pd.DataFrame(
    {"token_id": [3, 4, 5], "token": ["␣the_end", "=1+2", "50 % & more"], "share": [0.123456789, float("nan"), 1e-12]}
)


def heading(text: str) -> str:
    return latex(pd.DataFrame({"x": [1]}), {"x": Column(text)}).splitlines()[2]


def test_each_row_has_a_cell_per_column_and_nothing_that_latex_reads_as_a_command():
    text = latex(TABLE)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 1 + len(TABLE)
    assert all(line.replace(r"\&", "").count("&") == 2 for line in body)
    assert text.splitlines()[0] == r"\begin{tabular}{rlr}"
    assert r"\textvisiblespace{}the\_end" in text
    assert r"50 \% \& more" in text
    assert "4 & =1+2 & --" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("b_LN W_U, nats", r"$b_{\mathrm{LN}}$ $W_{\mathrm{U}}$, nats"),
        ("‖w_out‖", r"$\|w_{\mathrm{out}}\|$"),
        ("5 $λ", r"5 \$$\lambda$"),
        ("a\\b ~ c^2", r"a\textbackslash{}b \textasciitilde{} c\textasciicircum{}2"),
    ],
)
def test_symbols_are_formulas(found, wanted):
    assert heading(found) == f"{wanted} \\\\"


def test_every_heading_and_word_can_be_set():
    parse = MathTextParser("path").parse
    for analysis in names():
        for one in load(analysis).kind.columns.values():
            for text in (one.label, *one.words.values()):
                found = heading(text)
                assert found.isascii(), found
                for formula in re.findall(r"(?<!\\)\$.*?(?<!\\)\$", found):
                    parse(formula)


def test_intervals_and_words_stand_in_one_cell():
    table = pd.DataFrame({"kind": ["l0", "dense"], "js": [-0.5, 2.5], "js_low": [-1, 2.0], "js_high": [0.0, np.nan]})
    rows = latex(table, {"kind": Column("probe", "", {"l0": "sparse"}), "js": Column("JS")}).splitlines()
    assert rows[2] == r"probe & JS \\"
    assert rows[4:6] == [r"sparse & $-$0.5 [$-$1.0, 0.0] \\", r"dense & 2.5 \\"]


def test_powers_of_ten():
    assert r"1.00$\times 10^{-8}$ \\" in latex(pd.DataFrame({"x": [1e-8, 1e-3]}))


def test_a_table_says_what_it_leaves_out():
    table = pd.DataFrame({f"column_{i:02d}": ["word" * 4] * 2 for i in range(4)})
    assert latex(table).startswith(r"\begin{tabular}{llll}")
    assert latex(table) == latex(table, columns=[*table])
    *_, end, left_out = latex(table, usual=["column_03", "absent", "column_01"]).splitlines()
    assert end == r"\end{tabular}"
    assert left_out == "% not shown: column_00, column_02; name columns to choose others"
    assert latex(table, usual=["column_03", "absent", "column_01"]).splitlines()[2] == r"column 03 & column 01 \\"
    assert "not shown" not in latex(table, columns=["column_03"])


@pytest.mark.parametrize("cell", ["[CLS]", "*"])
def test_a_cell_at_the_start_of_a_row_is_not_an_argument_of_the_row_before(cell):
    table = pd.DataFrame({"keys": [cell, "a"], "n": [1, 2]})
    assert latex(table).splitlines()[4] == f"{{}}{cell} & 1 \\\\"


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028"])
def test_a_name_of_a_column_stays_in_its_comment(end):
    hostile = f"x{end}\\input{{secret}}"
    table = pd.DataFrame({"keys": ["a long cell, which leaves no room"], hostile: ["a"], f"y{end}": ["b"]})
    written = latex(table, usual=["keys"])
    [*_, comment] = written.splitlines()
    assert comment.startswith("% not shown: ")
    assert "\\input" in comment
    assert latex(table, columns=[hostile]).splitlines()[2] == r"x \textbackslash{}input\{secret\} \\"


def test_an_empty_table_is_a_comment():
    assert latex(TABLE.iloc[:0]).startswith("%")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_sets_every_character_of_a_keyboard_at_the_start_of_a_row(tmp_path):
    table = pd.DataFrame({"token": [*string.punctuation], "share": [0.5] * len(string.punctuation)})
    page = (r"\documentclass{article}\usepackage{booktabs}\begin{document}", latex(table), r"\end{document}")
    (tmp_path / "page.tex").write_text("\n".join(page), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    ended = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stdout
    assert (tmp_path / "page.pdf").is_file()


def test_sentences_are_folded():
    assert latex(pd.DataFrame({"x": ["a sentence that is rather long"], "y": ["b"]})).startswith(
        r"\begin{tabular}{p{13em}l}"
    )


def test_columns_that_the_table_lacks():
    for wrong in (["tokens"], [], "token"):
        with pytest.raises(ValueError, match=naming("columns", wrong, "token_id, token, share")):
            latex(TABLE, columns=wrong)
