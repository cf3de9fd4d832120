"""Which rows may depend on each other: those of one text, in stretches of up to eight rows."""

import pytest
import torch

import interp
from interp import corpora
from interp.corpora.sentences import Cut, numbered


def test_a_stretch_ends_with_a_text_or_after_eight_rows():
    ends = [0, 0, 1, 1, *[0] * 19, 2, 0]
    rows = list(numbered(Cut([token], [1] * end) for token, end in enumerate(ends)))
    assert [row.number for row in rows] == list(range(len(ends)))
    assert [row.stretch for row in rows] == [0, 0, 0, 1, *[2] * 8, *[3] * 8, *[4] * 4, 5]


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("layout", ["packed", "texts"])
def test_rows_of_a_text_are_in_its_stretch(kind, layout, load_toy):
    """Texts have three rows each, so a text has the same number as its stretch."""
    model = load_toy(kind)
    long = [" ".join(f"w{number}" for _ in range(30)) for number in range(12)]
    context = {"gpt2": 10, "bert": 12}[kind]
    batches = corpora.batches(model, long, layout=layout, context=context, batch_size=5)
    found = {}
    for batch in batches:
        for row, mask, stretch in zip(batch.tokens, batch.mask, batch.stretches.tolist(), strict=True):
            words = [token for token in row[mask.bool()].tolist() if token >= 7]
            found.setdefault(stretch, []).extend(words)
    assert sorted(found) == list(range(12))
    for stretch, words in found.items():
        assert words == [7 + stretch] * 30


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("layout", ["packed", "texts"])
def test_every_token_is_assigned_to_its_text(kind, layout, load_toy):
    """Each text repeats its own word; some are empty, some continue in the next row, and some end with their row."""
    model = load_toy(kind)
    lengths = [3, 0, 12, 0, 0, 5, 25, 1, 0, 8, 10, 10, 4, 30, 2]
    texts = [" ".join([f"w{number}"] * length) for number, length in enumerate(lengths)]
    batches = corpora.batches(model, texts, layout=layout, context={"gpt2": 10, "bert": 12}[kind])
    seen = {}
    for row in batches.rows():
        for pos, token in enumerate(row.ids.tolist()):
            if token >= 7:
                assert row.text_at(pos) == token - 7
                seen[token - 7] = seen.get(token - 7, 0) + 1
    whole = {number: length for number, length in enumerate(lengths) if length}
    assert seen == whole if layout == "texts" else sum(seen.values()) == sum(lengths) // 10 * 10
    numbers = sorted(number for batch in batches for number in batch.rows.tolist())
    assert numbers == [row.number for row in batches.rows()]


@pytest.mark.parametrize("layout", ["packed", "texts"])
def test_copies_of_a_text_are_no_further_texts(layout, load_toy):
    """Intervals take stretches as independent, and sixty copies of a sentence say no more than it does."""
    model = load_toy("gpt2")
    texts = ["w1 w2 w3 w4 w5"] * 60
    copies = corpora.batches(model, texts, layout=layout, context=10)
    assert {stretch for batch in copies for stretch in batch.stretches.tolist()} <= {0, 1}
    assert copies.about["repeated_texts"] == 59 / 60
    others = [f"w{number} w{number + 1} w{number + 2} w4 w5 w6 w7 w8 w9 w10" for number in range(30)]
    mixed = corpora.batches(model, [*others, *others], layout=layout, context=10)
    stretches = [row.stretch for row in mixed.rows()]
    assert stretches == [*range(30), *[30] * 30]
    assert mixed.about["repeated_texts"] == 0.5


def test_copies_of_a_long_text_make_no_stretches(load_toy):
    long = " ".join(f"w{number % 11}" for number in range(240))
    rows = list(corpora.batches(load_toy("gpt2"), [long, long, "w1 w2 w3 w4 w5 w6 w7 w8"], context=8).rows())
    assert [row.stretch for row in rows[:30]] == [number // 8 for number in range(30)]
    assert {row.stretch for row in rows[30:60]} == {4}


@pytest.mark.filterwarnings("ignore:word frequencies come from")
def test_no_verdict_comes_from_copies_of_one_text(load_toy):
    model = load_toy("gpt2")
    texts = {
        "copies": ["w1 w2 w3 w4 w5 w6"] * 60,
        "different": [f"w1 w2 w3 w4 w5 w{i % 8} w{i // 8}" for i in range(60)],
    }
    results = {name: interp.frequency.study(model, of, context=12, progress=False) for name, of in texts.items()}
    assert results["copies"].kl["delta_kl_low"].isna().all()
    assert results["different"].kl["delta_kl_low"].notna().all()
    assert "98% of the texts repeat an earlier one" in " ".join(results["copies"].caveats)
    assert "repeat an earlier one" not in " ".join(results["different"].caveats)


def test_rows_of_token_ids_are_stretches(load_toy):
    ids = torch.arange(7)[:, None].expand(-1, 6) + 9
    batches = corpora.batches(load_toy("gpt2"), ids, batch_size=3)
    assert [stretch for batch in batches for stretch in batch.stretches.tolist()] == list(range(7))
