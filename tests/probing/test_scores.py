"""Scores of sentences and surprisals of words, against plain loops over transformers and against minicons.

The models are random, in float64, with the tokenizers of the bundled models, which split words.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import sentences as oracle
from scipy import stats

import interp
from interp import probing
from interp.analyses.probing.scores import Sentences, TokenScores
from interp.corpora import token_classes
from interp.instruments.profile import DimensionProfile
from interp.models.running import active_hooks
from interp.passes.reading import observe, part_of
from interp.support.paths import BUNDLED
from interp.testing import randomise, toy_decoder

QUIET: dict[str, Any] = {"progress": False}
SENTENCES = [
    "The boys hurt themselves.",
    "Unbelievable, isn't it? A naïve café owner wept bitterly 🙂.",
    "No",
    "The dogs near the old house barked at night, and nobody slept.",
    "日本語 も バイト で 読める。",
]
REGIONS = [["The boys", " hurt", " themselves."], ["No"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """A model in interp and the same model in transformers, in float64."""
    known: dict[str, SimpleNamespace] = {}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    kinds: dict[str, Callable[[], transformers.PreTrainedModel]] = {
        "tiny-gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=4096, n_positions=96, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
            )
        ),
        "tiny-bert": lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(vocab_size=4096, max_position_embeddings=96, **sizes)
        ),
    }

    def make(name: str) -> SimpleNamespace:
        if name not in known:
            torch.manual_seed(0)
            hf = kinds[name]()
            randomise(hf)
            directory = tmp_path_factory.mktemp(name)
            hf.save_pretrained(directory)
            tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED / name)
            tokenizer.save_pretrained(directory)
            model = interp.load(directory, dtype="float64")
            known[name] = SimpleNamespace(model=model, hf=hf.double().eval(), tokenizer=tokenizer, directory=directory)
        return known[name]

    return make


# By other means


@torch.no_grad()
def by_token(one: SimpleNamespace, text: str, *, bos: bool = True, whole_words: bool = False) -> list[float]:
    """The log-probability of each scored token, with one forward pass per sentence or masked token."""
    ids = one.tokenizer(text, add_special_tokens=False)["input_ids"]
    if one.tokenizer.mask_token_id is not None:
        return list(masked_in_turn(one, text, ids, whole_words))
    row = [one.tokenizer.bos_token_id, *ids] if bos else ids
    log_p = one.hf(torch.tensor([row])).logits[0].log_softmax(-1).numpy()
    if not whole_words:
        return oracle.surprisal(log_p, row)
    return oracle.by_word(log_p, row, [i for token, i in one.tokenizer.get_vocab().items() if token[0] == "Ġ"])


def masked_in_turn(one: SimpleNamespace, text: str, ids: list[int], whole_words: bool) -> Iterator[float]:
    words = one.tokenizer(text, add_special_tokens=False).word_ids()
    for position, target in enumerate(ids):
        row = [one.tokenizer.cls_token_id, *ids, one.tokenizer.sep_token_id]
        for hidden in oracle.masked(position, words, whole_words=whole_words):
            row[hidden + 1] = one.tokenizer.mask_token_id
        yield float(one.hf(torch.tensor([row])).logits[0, position + 1].log_softmax(-1)[target])


@pytest.mark.quick("False-False")
@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("name", "bos"), [("tiny-gpt2", True), ("tiny-gpt2", False), ("tiny-bert", "auto")])
def test_scores_are_a_plain_loop(made: Any, name: str, bos: Any, whole_words: bool) -> None:
    one = made(name)
    sentences = SENTENCES[:2] + SENTENCES[3 : 5 if name == "tiny-gpt2" else 4]
    found = probing.sentence_scores(one.model, sentences, bos=bos, whole_words=whole_words, **QUIET)
    assert found["sentence"].tolist() == sentences
    for row in found.itertuples():
        scores = by_token(one, str(row.sentence), bos=bos is True, whole_words=whole_words)
        assert row.n_tokens == len(scores)
        assert row.sum == pytest.approx(sum(scores), rel=1e-10)
        assert row.per_token == pytest.approx(sum(scores) / len(scores), rel=1e-10)
        n_characters = 0
        for _ in str(row.sentence):
            n_characters += 1
        assert row.per_character == pytest.approx(sum(scores) / n_characters, rel=1e-10)
        assert row.per_byte == pytest.approx(sum(scores) / len(bytes(str(row.sentence), "utf-8")), rel=1e-10)
    assert (found["n_bytes"] > found["n_characters"]).any()
    assert not active_hooks(one.model)


def test_whole_words_change_the_scores_of_words_of_several_tokens(made: Any) -> None:
    bert = made("tiny-bert")
    assert len(bert.tokenizer.tokenize("unbelievable")) > 1
    texts = ["unbelievable", "the"]
    plain, whole = (
        probing.sentence_scores(bert.model, texts, whole_words=how, **QUIET)["sum"] for how in (False, True)
    )
    assert abs(plain[0] - whole[0]) > 1e-3
    assert plain[1] == whole[1]


def test_the_words_of_a_sentence_add_up_to_a_probability(made: Any) -> None:
    """The word after `The`, over all one-token words that begin with a space: the reason for the correction."""
    one = made("tiny-gpt2")
    spaced = [i for token, i in one.tokenizer.get_vocab().items() if token[0] == "Ġ"]
    first = one.tokenizer("The", add_special_tokens=False)["input_ids"]
    tokens = first + spaced[:1]
    with torch.no_grad():
        log_p = one.hf(torch.tensor([[0, *first]])).logits[0].log_softmax(-1)
    begins = log_p[-1, spaced].exp().sum()
    text = one.tokenizer.decode(tokens)
    table = probing.scores.word_surprisal(one.model, [text], bos=True, whole_words=True, **QUIET)
    with torch.no_grad():
        after = one.hf(torch.tensor([[0, *tokens]])).logits[0, -1].softmax(-1)[spaced].sum()
    expected = log_p[-1, tokens[-1]].exp() * after / begins
    assert np.exp(-table["surprisal"].iloc[-1]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("name", "whole_words"), [("tiny-gpt2", False), ("tiny-gpt2", True), ("tiny-bert", False)])
def test_words_are_sums_of_tokens(made: Any, name: str, whole_words: bool) -> None:
    one = made(name)
    found = probing.scores.word_surprisal(one.model, SENTENCES[:4], bos=True, whole_words=whole_words, **QUIET)
    sums = probing.sentence_scores(one.model, SENTENCES[:4], bos=True, whole_words=whole_words, **QUIET)["sum"]
    np.testing.assert_allclose(found.groupby("sentence")["surprisal"].sum(), -sums, rtol=1e-10)
    for number, text in enumerate(SENTENCES[:4]):
        assert found[found["sentence"] == number]["text"].tolist() == text.split()
    words = one.tokenizer("The boys", add_special_tokens=False)["input_ids"]
    scores = by_token(one, SENTENCES[0], bos=True, whole_words=whole_words)
    assert len(words) == found["n_tokens"][:2].sum()
    assert found["surprisal"][:2].sum() == pytest.approx(-sum(scores[: len(words)]), rel=1e-10)


def test_regions(made: Any) -> None:
    one = made("tiny-gpt2")
    found = probing.scores.word_surprisal(one.model, REGIONS, bos=True, **QUIET)
    assert found["text"].tolist() == ["The boys", "hurt", "themselves.", "No"]
    words = probing.scores.word_surprisal(one.model, ["The boys hurt themselves."], bos=True, **QUIET)["surprisal"]
    np.testing.assert_allclose(found["surprisal"][:3], [words[0] + words[1], words[2], words[3]])
    with pytest.raises(ValueError, match=naming("' boys'", "'The boys hurt.'", "'The bo'", "'ys hurt.'")):
        probing.scores.word_surprisal(one.model, [["The bo", "ys hurt."]], bos=True, **QUIET)
    spaces = probing.scores.word_surprisal(one.model, [["The boys", " ", "hurt", "  "]], bos=True, **QUIET)
    assert spaces["text"].tolist() == ["The boys", "", "hurt", ""]
    japanese = probing.scores.word_surprisal(one.model, [["猫が", "二匹", "いる。"]], bos=True, **QUIET)
    whole = probing.sentence_scores(one.model, ["猫が二匹いる。"], bos=True, **QUIET)["sum"]
    assert japanese["surprisal"].sum() == pytest.approx(-whole.item())


def test_a_first_token_without_anything_before_it_has_no_surprisal(made: Any) -> None:
    found = probing.scores.word_surprisal(made("tiny-gpt2").model, [SENTENCES[0]], bos=False, **QUIET)
    assert found["surprisal"].isna().tolist() == [True, False, False, False]


# minicons


@pytest.fixture
def peer(recwarn: pytest.WarningsRecorder) -> Any:
    """minicons reports that it has changed a tokenizer without padding."""
    return pytest.importorskip("minicons.scorer", reason="minicons, the peer library, is not installed")


def summed(log_p: torch.Tensor) -> float:
    return log_p.double().sum().item()


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("bos", [True, False])
def test_decoders_are_minicons(made: Any, peer: Any, bos: bool, whole_words: bool) -> None:
    one = made("tiny-gpt2")
    theirs = peer.IncrementalLMScorer(one.hf, "cpu", tokenizer=one.tokenizer)
    sentences = [text for text in SENTENCES if bos or len(one.tokenizer(text)["input_ids"]) > 1]
    assert bos or {one.tokenizer.tokenize(text)[1][0] == "Ġ" for text in sentences} == {True, False}
    how: dict[str, Any] = {"bow_correction": whole_words, "bos_token": bos}
    for score, reduction in (("sum", summed), ("per_token", lambda log_p: log_p.mean().item())):
        expected = theirs.sequence_score(sentences, reduction=reduction, **how)
        found = probing.sentence_scores(one.model, sentences, bos=bos, whole_words=whole_words, **QUIET)
        np.testing.assert_allclose(found[score], expected, atol=1e-5)
    if bos:  # else minicons gives words the tokens of others
        [words] = theirs.word_score_tokenized(SENTENCES[:1], str.split, surprisal=True, **how)
        found = probing.scores.word_surprisal(one.model, SENTENCES[:1], bos=True, whole_words=whole_words, **QUIET)
        np.testing.assert_allclose(found["surprisal"], [score for _, score in words], atol=1e-5)


@pytest.mark.parametrize(("whole_words", "metric"), [(False, "original"), (True, "within_word_l2r")])
def test_encoders_are_minicons(made: Any, peer: Any, whole_words: bool, metric: str) -> None:
    one = made("tiny-bert")
    one.tokenizer.batch_encode_plus = one.tokenizer.__call__  # transformers 5 no longer has this method
    theirs = peer.MaskedLMScorer(one.hf, "cpu", tokenizer=one.tokenizer)
    expected = [theirs.sequence_score([text], reduction=summed, PLL_metric=metric)[0] for text in SENTENCES[:4]]
    found = probing.sentence_scores(one.model, SENTENCES[:4], whole_words=whole_words, **QUIET)
    np.testing.assert_allclose(found["sum"], expected, atol=1e-5)


# Passes


@pytest.mark.quick("tiny-bert")
@pytest.mark.parametrize(("name", "whole_words"), [("tiny-gpt2", True), ("tiny-bert", False)])
def test_parts_merge_and_a_run_resumes(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole_words: bool
) -> None:
    one, texts = made(name), SENTENCES[:4]
    monkeypatch.setattr("interp.analyses.probing.scores.TOKENS_AT_ONCE", 40)
    sentences = Sentences(one.model, texts, bos=True, whole_words=whole_words)
    assert len(list(sentences.batches())) >= 3
    whole, *parts = (TokenScores(sentences) for _ in range(3))
    observe(one.model, sentences.batches(), whole, **QUIET)
    for index, part in enumerate(parts):
        observe(one.model, part_of(sentences.batches(), index, 2), part, **QUIET)
    parts[0].merge(parts[1])
    np.testing.assert_array_equal(parts[0].log_probabilities, whole.log_probabilities)
    how = {"bos": True, "whole_words": whole_words, "directory": tmp_path} | QUIET
    first = probing.sentence_scores(one.model, texts, **how)
    monkeypatch.setattr("interp.passes.reading.feed", None)
    pd.testing.assert_frame_equal(probing.sentence_scores(one.model, texts, **how), first)
    with pytest.raises(ValueError, match=naming("pass-1.safetensors", "batches.fingerprint")):
        probing.sentence_scores(one.model, texts[:2], **how)


def test_the_head_may_read_a_batch_in_parts(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With logits of some rows at once; an observer of the residual stream makes it read all of them."""
    one = made("tiny-gpt2")
    sentences = Sentences(one.model, SENTENCES[:4], bos=True)
    together, apart, beside = (TokenScores(sentences) for _ in range(3))
    observe(one.model, sentences.batches(), together, **QUIET)
    widths: list[int] = []
    point = one.model.hook_dict["unembed.hook_out"]
    monkeypatch.setattr("interp.passes.reading.LOGITS_AT_ONCE", 40 * one.model.W_U.shape[1] + 3)
    handle = point.register_forward_hook(lambda module, inputs, logits: widths.append(logits.shape[:2].numel()))
    observe(one.model, sentences.batches(), apart, **QUIET)
    n_parts = len(widths)
    profile = DimensionProfile(one.model, token_classes(one.model, None))
    observe(one.model, sentences.batches(), beside, profile, **QUIET)
    handle.remove()
    assert 1 < n_parts < 4
    assert len(widths) == n_parts + 1
    assert sum(widths[:n_parts]) == widths[-1]
    np.testing.assert_allclose(apart.log_probabilities, together.log_probabilities, atol=1e-5)
    np.testing.assert_array_equal(beside.log_probabilities, together.log_probabilities)


# Pairs


@pytest.mark.slow
def test_accuracy_by_each_score(made: Any) -> None:
    one = made("tiny-gpt2")
    table = interp.corpora.pairs.generate(n_per_task=25, tasks=["npi_ever", "causative"])
    names = ["sum", "per_token", "per_character", "per_byte"]
    found = probing.minimal_pair_accuracy(one.model, table, scores=names, bos=True, **QUIET)
    assert found["score"].tolist() == [name for name in names for _ in range(2)]
    plain: dict[str, dict[str, np.ndarray]] = {}
    for task, part in table.groupby("UID"):
        good, bad = ([by_token(one, text) for text in part[f"sentence_{which}"]] for which in ("good", "bad"))
        by = {"sum": sum, "per_token": np.mean}
        plain[str(task)] = {
            name: np.array([how(g) > how(b) for g, b in zip(good, bad, strict=True)], dtype=float)
            for name, how in by.items()
        }
    for row in found[found["score"].isin(["sum", "per_token"])].itertuples():
        right = plain[str(row.task)][str(row.score)]
        assert row.accuracy == right.mean()
        interval = stats.binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
        assert (row.low, row.high) == pytest.approx(tuple(interval))
        gap = right - plain[str(row.task)]["sum"]
        assert row.difference == pytest.approx(gap.mean())
        apart = int((gap > 0).sum()), int((gap < 0).sum())
        assert row.p == pytest.approx(stats.binomtest(apart[0], sum(apart)).pvalue if sum(apart) else 1.0)
        assert row.difference_low <= row.difference <= row.difference_high
    assert found["difference"].abs().max() > 0, "if the scores were equal, nothing would be tested"
    alone = probing.minimal_pair_accuracy(one.model, table, bos=True, **QUIET)
    pd.testing.assert_frame_equal(alone, found.head(2), check_dtype=False)


def test_a_tie_is_wrong() -> None:
    model = toy_decoder()
    with torch.no_grad():
        model.unembed.W_U.zero_()  # all tokens are equally likely
        model.unembed.b_U.zero_()
    pairs = pd.DataFrame({"sentence_good": ["w1 w2"], "sentence_bad": ["w2 w1"], "UID": ["t"]})
    assert probing.minimal_pair_accuracy(model, pairs, **QUIET)["accuracy"].tolist() == [0.0]


# Refusals


def test_words_that_are_not_marked(load_toy: Callable[..., Any], made: Any) -> None:
    with pytest.raises(ValueError, match=naming("tokenizer", "whole_words")):
        probing.sentence_scores(load_toy("gpt2"), ["w1 w2"], whole_words=True, **QUIET)
    with pytest.raises(ValueError, match=naming("'猫がいる。'", "whole_words")):
        probing.sentence_scores(made("tiny-gpt2").model, ["猫がいる。"], whole_words=True, bos=True, **QUIET)


class Slow:
    """Stands in for a tokenizer that is written in Python."""

    is_fast = False

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        assert not options.get("return_offsets_mapping")
        return self._fast(*args, **options)


def test_a_slow_tokenizer(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bert, gpt2 = made("tiny-bert").model, made("tiny-gpt2").model
    expected = probing.scores.word_surprisal(gpt2, SENTENCES, whole_words=True, bos=True, **QUIET)
    for model in (bert, gpt2):
        monkeypatch.setattr(model, "tokenizer", Slow(model.tokenizer))
    slow = probing.scores.word_surprisal(gpt2, SENTENCES, whole_words=True, bos=True, **QUIET)
    pd.testing.assert_frame_equal(slow, expected)
    values = ("tokenizer", "Slow", "'The boys hurt themselves.'")
    with pytest.raises(ValueError, match=naming(*values)):
        probing.sentence_scores(bert, SENTENCES[:1], whole_words=True, **QUIET)
    with pytest.raises(ValueError, match=naming(*values)):
        probing.scores.word_surprisal(bert, SENTENCES[:1], **QUIET)


def test_text_that_is_all_unknown(made: Any) -> None:
    bert = made("tiny-bert").model
    with pytest.raises(ValueError, match=naming(2, "[UNK]")):
        probing.sentence_scores(bert, ["คุณชื่ออะไร", "คุณ"], **QUIET)
    with pytest.warns(UserWarning, match="of the tokens of the sentences are"):
        found = probing.sentence_scores(bert, ["The boys hurt themselves.", "คุณ"], **QUIET)
    assert found["n_unknown"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("scores", "error", "values"),
    [
        (["total"], ValueError, ("'total'", "sum, per_token, per_character, per_byte")),
        (["sum", "sum"], ValueError, ("scores", ["sum", "sum"])),
        ([], ValueError, ("scores", "string")),
        ("sum", TypeError, ("scores", "list", "'sum'")),
    ],
)
def test_invalid_scores(made: Any, scores: Any, error: type[Exception], values: tuple[str, ...]) -> None:
    pairs = interp.corpora.pairs.load("bundled", limit=10)
    with pytest.raises(error, match=naming(*values)):
        probing.minimal_pair_accuracy(made("tiny-gpt2").model, pairs, scores=scores, **QUIET)


def test_invalid_sentences(made: Any) -> None:
    model = made("tiny-gpt2").model
    with pytest.raises(TypeError, match=naming("sentences", "list", "'a b'")):
        probing.scores.word_surprisal(model, "a b", **QUIET)
    with pytest.raises(ValueError, match=naming("regions")):
        probing.scores.word_surprisal(model, [[]], **QUIET)
    with pytest.raises(ValueError, match=naming(2, 1, "' '")):
        probing.scores.word_surprisal(model, [["", " "]], bos=False, **QUIET)
