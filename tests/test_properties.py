"""What holds for any input: batches, pairs, scales, counts, results and pages."""

import csv
import json
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from naming import naming
from toys import toy

import interp
from interp import corpora, frequency, pages
from interp.analyses.registry import analyses
from interp.cli.flags import numbers as parse_scales
from interp.corpora import pairs
from interp.corpora.unigrams import Unigrams, count, load as load_counts
from interp.figures.figure import Figure
from interp.figures.section import Section
from interp.pages.page import render
from interp.pages.undrawn import Written
from interp.results.findings import Finding
from interp.results.result import Result
from interp.testing import WORDS, toy_tokenizer

SPACE = st.sampled_from([" ", "  ", "\t", "\u00a0", "\u3000"])
TEXT = st.lists(st.sampled_from([*WORDS[:9], "unknown", "É", "<b>", "\0", "\ufeff"]), max_size=60).map(" ".join)
TEXTS = st.lists(st.one_of(TEXT, SPACE, st.just("")), min_size=1, max_size=12)
LONG = st.one_of(TEXTS, st.lists(TEXT.map(lambda text: f"{text} {text} w1 w2 w3"), min_size=3, max_size=12))
CONTEXT = st.one_of(st.integers(3, 6), st.integers(3, 24))
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SENTENCE = STRINGS.filter(lambda text: text.strip() and text == text.strip())
HOSTILE = st.sampled_from(
    [
        "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--",
        "-->", "]]>", "</title><svg onload=alert(1)>", "\" onclick=\"alert(1)", "' onclick='alert(1)", "{{ 7 * 7 }}",
        "&lt;b&gt;", "</style>", "\u2028", "javascript:alert(1)", "<sub><script>alert(1)</script></sub>",
    ]
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*% of the tokens of texts are")
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def causal(hf_directory: Any) -> Any:
    return toy(interp.load(hf_directory("gpt2")).tokenizer)


@pytest.fixture(scope="module")
def encoder(hf_directory: Any) -> Any:
    return toy(interp.load(hf_directory("gpt2")).tokenizer, encoder=True)


def ids_of(model: Any, text: str) -> list[int]:
    return [model.tokenizer.get_vocab().get(word, 1) for word in text.lower().split()]


def assume_known(model: Any, texts: list[str]) -> None:
    """Texts without a token that the tokenizer knows are refused; see test_unknown_tokens."""
    ids = [token for text in texts for token in ids_of(model, text)]
    assume(not ids or set(ids) != {1})


@pytest.mark.slow
@given(LONG, CONTEXT, st.integers(1, 9), st.booleans())
@few
def test_packed_rows_are_the_text(causal: Any, texts: list[str], context: int, batch_size: int, eos: bool) -> None:
    """All tokens are there once, in order; only the end that does not fill a row is left out."""
    assume(context >= 2 + eos)
    assume_known(causal, texts)
    stream = [token for text in texts for token in (*ids_of(causal, text), *[causal.tokenizer.eos_token_id] * eos)]
    batches = corpora.batches(causal, texts, layout="packed", context=context, batch_size=batch_size, eos=eos)
    if len(stream) < context:
        with pytest.raises(ValueError, match=naming(context, "row")):
            list(batches)
        return
    rows = [row for batch in batches for row in batch.tokens.tolist()]
    assert [token for row in rows for token in row] == stream[: len(stream) // context * context]
    for batch in batches:
        assert batch.tokens.shape[0] <= batch_size
        assert batch.reads_all
        assert not batch.padded
        assert (batch.targets[:, :-1] == batch.tokens[:, 1:]).all()
        assert (batch.targets[:, -1] == -1).all()


@pytest.mark.slow
@given(LONG, CONTEXT, st.integers(1, 9), st.sampled_from(["causal", "encoder"]), st.booleans())
@few
def test_rows_of_texts_are_the_texts(
    causal: Any, encoder: Any, texts: list[str], context: int, batch_size: int, kind: str, bos: bool
) -> None:
    """Every text is cut into rows, each of which is read once, whatever the batches."""
    model = encoder if kind == "encoder" else causal
    tokenizer = model.tokenizer
    bos = bos and kind == "causal"
    before = [tokenizer.cls_token_id] if kind == "encoder" else [tokenizer.bos_token_id] * bos
    after = [tokenizer.sep_token_id] if kind == "encoder" else []
    room = context - len(before) - len(after)
    assume_known(model, texts)
    ids = [ids_of(model, text) for text in texts]
    expected = [before + row[i : i + room] + after for row in ids for i in range(0, len(row), room)]
    batches = corpora.batches(model, texts, layout="texts", context=context, batch_size=batch_size, bos=bos)
    if not expected:
        with pytest.raises(ValueError, match=naming("text", "token")):
            list(batches)
        return
    found = []
    for batch in batches:
        found += [row[: sum(mask)] for row, mask in zip(batch.tokens.tolist(), batch.mask.tolist(), strict=True)]
        assert len(batch.tokens) <= batch_size
    assert sorted(found) == sorted(expected)
    resumed = sum((len(row) - 1) // room for row in ids if row)  # rows whose BOS is not the beginning of their text
    n_read = sum(map(len, expected)) - bos * resumed - sum(map(bool, ids))  # nor at the last position of a text
    assert sum(batch.n_read for batch in batches) == (0 if kind == "encoder" else n_read)
    last = max(number for number, row in enumerate(ids) if row)
    assert sum(batch.n_texts for batch in batches) == last + 1


@pytest.mark.slow
@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=8), st.sampled_from([".csv", ".jsonl"]))
@few
def test_pairs_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], suffix: str
) -> None:
    assume(all(good != bad for good, bad in rows))
    assume(suffix == ".jsonl" or not any("\0" in sentence or "\r" in sentence for row in rows for sentence in row))
    path = tmp_path_factory.mktemp("pairs") / f"task{suffix}"
    names = ["sentence_good", "sentence_bad"]
    with path.open("w", encoding="utf-8", newline="") as file:
        if suffix == ".csv":
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *rows])
        else:
            file.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    table = pairs.load(path)
    assert list(table[names].itertuples(index=False, name=None)) == rows
    assert list(table["pairID"]) == [str(number) for number in range(len(rows))]


@given(st.text("0123456789.,:-+eEinfa \u00b2", max_size=16))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_scales_are_numbers_or_refused(text: str) -> None:
    try:
        scales = parse_scales(text)
    except ValueError:
        with pytest.raises(ValueError, match=naming("--scales")):
            parse_scales(text)
        return
    assert scales
    assert np.isfinite(scales).all()
    assert len(set(scales)) == len(scales) <= 1_001


@given(st.integers(-30, 30), st.integers(1, 60), st.integers(1, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_both_ends_of_scales_are_there(start: int, step: int, steps: int) -> None:
    stop = start + steps * step
    scales = parse_scales(f"{start / 20}:{stop / 20}:{step / 20}")
    np.testing.assert_allclose(scales, [(start + i * step) / 20 for i in range(steps + 1)], atol=1e-12)


@pytest.mark.slow
@given(TEXTS, TEXTS)
@few
def test_counts_count(tmp_path_factory: pytest.TempPathFactory, one: list[str], other: list[str]) -> None:
    tokenizer = toy_tokenizer()
    vocabulary = tokenizer.get_vocab()
    expected = Counter(vocabulary.get(word, 1) for text in one + other for word in text.lower().split())
    parts = []
    for texts in (one, other):
        if any(text.split() for text in texts):
            parts.append(count(tokenizer, texts, corpus="x", d_vocab=67))
        else:
            with pytest.raises(ValueError, match=naming("corpus", "x", "token")):
                count(tokenizer, texts, corpus="x", d_vocab=67)
    if not parts:
        return
    total: Unigrams = parts[0] if len(parts) == 1 else parts[0].merge(parts[1])
    assert {token: n for token, n in enumerate(total.counts.tolist()) if n} == dict(expected)
    path = tmp_path_factory.mktemp("counts") / "u.safetensors"
    total.save(path)
    assert (load_counts(path).counts == total.counts).all()
    assert load_counts(path).tokenizer == total.tokenizer


@dataclass(frozen=True, eq=False)
class Kept(Result):
    analysis: ClassVar[str] = "kept"

    words: pd.DataFrame


@pytest.mark.slow
@given(st.dictionaries(STRINGS, st.lists(st.one_of(STRINGS, HOSTILE), min_size=3, max_size=3), max_size=4), STRINGS)
@few
def test_results_are_read_as_they_were_saved(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[str]], corpus: str
) -> None:
    directory = tmp_path_factory.mktemp("kept")
    kept = Kept({"corpus": corpus, **columns}, pd.DataFrame(columns))
    kept.save(directory)
    read = Kept.load(directory)
    assert read.provenance == kept.provenance
    assert read.words.to_dict("list") == kept.words.to_dict("list")


ADDRESSES = ("href", "src", "srcset", "action", "formaction", "data", "poster", "xlink:href")


class Elements(HTMLParser):
    """The elements of a page that run code, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "img", "svg", "link", "base", "form", "style"):
            self.running.append(tag)
        self.running += [f"{tag} {name}" for name, value in attrs if name.startswith("on")]
        addresses = [(name, value or "") for name, value in attrs if name in ADDRESSES]
        self.running += [f"{tag} {name}" for name, value in addresses if value.strip().startswith("javascript:")]

    def handle_data(self, data: str) -> None:
        self.text += data


def elements(path: Path) -> Elements:
    page = Elements()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


FREQUENCY = analyses()["frequency"]


def section_of(word: str) -> Section:
    figure = Figure(go.Scatter(x=[1], y=[1], text=[word], name=word)).update_layout(title=word)
    said = {"question": word, "measure": word, "unit": word, "compared_with": word, "rule": word}
    finding = Finding(**said, verdict="yes", value=1.0, low=0.5, high=1.5)
    return Section(
        main="one", findings=(finding,), notes=(word,), definitions={word: word},
        figures={"one": figure}, tables={word: pd.DataFrame({word: [word, word], "n": [1.0, 2.0]})},
        provenance={word: word, "list": [word]},
    )  # fmt: skip


@pytest.mark.slow
def test_no_text_becomes_an_element_of_a_page(tmp_path: Path) -> None:
    def page_of(word: str) -> Elements:
        written = Written(tmp_path / "page.html")
        render(written, word, [(word, FREQUENCY, section_of(word))])
        return elements(written.path)

    plain = page_of("word")

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(st.lists(HOSTILE, min_size=1, max_size=4).map("".join))
    def check(word: str) -> None:
        page = page_of(word)
        assert page.running == plain.running
        assert word.strip() in page.text

    check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_name_with_html_is_text_on_the_page(load_toy: Any, texts: list[str], tmp_path: Path) -> None:
    model = load_toy("gpt2")
    path = tmp_path / "<img src=x onerror=alert(1)>.txt"
    written = []
    for corpus in (tmp_path / "text.txt", path):
        corpus.write_text("\n".join(texts))
        frequency.study(model, corpus, progress=False).save(tmp_path / "run", overwrite=True)
        written.append(elements(pages.write_page(tmp_path / "run")))
    assert written[0].running == written[1].running
    assert path.name in written[1].text
