"""interp's answers on a toy of any kind, as tables, which must be the same on a hooked model and on a bridge.

`python tests/bridge/answers.py DIRECTORY KIND …` writes the toy of each kind to DIRECTORY/KIND, and the answers of the
hooked model beside it, for processes whose TransformerLens has no hooked models.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from toys import HF_MODELS, every_table

import interp
from interp import attention, frequency, generation, hooks, probing
from interp.analyses.attention.profile import dimension_profile
from interp.analyses.attention.tables import study as attention_of
from interp.analyses.encoding.tables import study as encoding_of
from interp.analyses.generation.metrics import text_features
from interp.corpora import batches
from interp.corpora.batching import Batch
from interp.instruments.profile import find_outliers
from interp.models.head import prediction_head
from interp.models.identity import weight_hash
from interp.models.sites import is_encoder
from interp.passes.reading import forward
from interp.testing import WORDS, randomise, toy_tokenizer

QUIET: dict[str, Any] = {"progress": False}
WITHOUT_WORDS = ("qwen2",)
"""Kinds for which transformers makes its own tokenizer from any tokenizer.json, so that the toy's words are lost."""

_draw = np.random.default_rng(0)
ROWS = [_draw.integers(7, 67, size=size).tolist() for size in _draw.integers(5, 23, size=16)]
CLASSES = {"early": range(7, 20), "odd": range(21, 67, 2)}
SENTENCES = [" ".join(_draw.choice(WORDS, size=9)) for _ in range(12)]
PAIRS = pd.DataFrame({"UID": "task", "sentence_good": SENTENCES[:6], "sentence_bad": SENTENCES[6:]})


def toy(kind: str, path: Path) -> Path:
    """A saved random model of a kind, with a tokenizer."""
    torch.manual_seed(0)
    model = HF_MODELS[kind]()
    randomise(model)
    model.save_pretrained(path)
    toy_tokenizer().save_pretrained(path)
    return path


def word_frequency(model: Any) -> list[pd.DataFrame]:
    if not prediction_head(model).biases:
        return []
    return list(every_table(frequency.study(model, _read(model), unigram=_counts(), **QUIET)).values())


def attention_study(model: Any) -> list[pd.DataFrame]:
    """The tables without quotients and maxima of their numbers, which near ties may change."""
    found = attention_of(model, _plain(model), unigram=_counts(), key_classes=CLASSES, k=1.5, **QUIET)
    tables = every_table(found).items()
    return [table.drop(columns="head", errors="ignore") for name, table in tables if name != "gaps"]


def attention_weighted(model: Any) -> list[pd.DataFrame]:
    how: dict[str, Any] = {"key_classes": CLASSES, **QUIET}
    weighted = attention.score_contributions(model, _plain(model), weights="attention", scaled=True, **how)
    dims = dimension_profile(model, _plain(model), **how)
    outliers = find_outliers(dims, k=1.5)
    residual = attention.ablation_effect(model, _plain(model), outliers, where="residual", **how)
    return [weighted, residual[["attention_before", "attention_after"]]]


def token_probability(model: Any) -> list[pd.DataFrame]:
    found = encoding_of(model, _read(model), unigram=_counts(), **QUIET)
    return [table for name, table in found.tables.items() if name not in ("dynamics", "dims")]


def sentences(model: Any) -> list[pd.DataFrame]:
    scores = probing.sentence_scores(model, SENTENCES, **QUIET)["sum"].to_numpy()
    features = text_features(model, SENTENCES)
    return [pd.DataFrame({"score": scores}), pd.DataFrame({"feature": features.ravel()})]


def states(model: Any) -> list[pd.DataFrame]:
    read = probing.collect(model, PAIRS, **QUIET)
    return [pd.DataFrame({"state": read.load(number).ravel()}) for number in (0, 1)]


def generated(model: Any) -> list[pd.DataFrame]:
    if is_encoder(model):
        return []
    biases = prediction_head(model).biases
    recipe = hooks.scale_bias(model, biases[0], 0.5) if biases else hooks.prune_output_dims(model, [0, 1])
    texts = [
        str(text.token_ids)
        for decoder in ("greedy", "beam", "top_k", "top_p", "sample")
        for use_cache in (True, False)
        for text in generation.generate(
            model, [[9, 20, 31], [40]], hooks=recipe, decoder=decoder, use_cache=use_cache, max_new_tokens=8, **QUIET
        )
    ]
    return [pd.DataFrame({"tokens": texts})]


@torch.no_grad()
def recipes(model: Any) -> list[pd.DataFrame]:
    """The log-probabilities under every recipe."""
    batch = Batch.of(ROWS[:3])
    edits = [hooks.ablate_dims(model, 1, [3, 5], where=where) for where in ("keys", "queries", "residual")]
    edits += [hooks.scale_bias(model, bias, 0.3) for bias in prediction_head(model).biases]
    edits += [hooks.prune_output_dims(model, range(4))]
    edits += [hooks.adjust_logits(model, np.log(_counts() / _counts().sum()), 0.5)]
    found = []
    for recipe in edits:
        with model.hooks(fwd_hooks=recipe):
            found.append(batch.select(forward(model, batch)).log_softmax(-1).flatten())
    return [pd.DataFrame({"log_p": torch.cat(found)})]


_ALL = word_frequency, attention_study, attention_weighted, token_probability, sentences, states, generated, recipes
ANSWERS: dict[str, Callable[[Any], list[pd.DataFrame]]] = {one.__name__: one for one in _ALL}
OF_WORDS = ("sentences", "states")
ROUNDED_MORE = ("through_unigram",)
"""Small differences of logarithms: rounding matters more."""


def answers_of(kind: str) -> list[str]:
    return [name for name in ANSWERS if kind not in WITHOUT_WORDS or name not in OF_WORDS]


def answer(name: str, model: Any) -> list[pd.DataFrame]:
    with warnings.catch_warnings(action="ignore"):
        return ANSWERS[name](model)


def saved(folder: Path, kind: str) -> dict[str, list[pd.DataFrame]]:
    """The answers that `main` wrote."""

    def numbered(name: str) -> list[Path]:
        paths = (folder / kind / "answers").glob(f"{name}-*.parquet")
        return sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))

    return {name: [pd.read_parquet(path) for path in numbered(name)] for name in answers_of(kind)}


def assert_same(found: Sequence[pd.DataFrame], expected: Sequence[pd.DataFrame], rtol: float) -> None:
    """Check that tables are equal, with numbers compared relative to the largest in their column."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one.columns) == list(other.columns)
        for column in other:
            ours, theirs = one[column].to_numpy(), other[column].to_numpy()
            if other[column].dtype.kind == "f":
                size = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
                share = 10 * rtol if column in ROUNDED_MORE else rtol
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=share * max(size, 1e-9), err_msg=str(column))
            else:
                pd.testing.assert_series_equal(one[column], other[column])


def _counts() -> np.ndarray:
    return np.arange(1, 68) % 13 + 1


def _read(model: Any) -> Any:
    """Rows in which an encoder predicts masked tokens."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(7, 67, size=(20, 16)))
    return batches(model, ids, mask_rate=0.3) if is_encoder(model) else batches(model, ids)


def _plain(model: Any) -> Any:
    ids = torch.from_numpy(np.random.default_rng(2).integers(7, 67, size=(12, 20)))
    return batches(model, ids)


def main(folder: Path, kinds: Sequence[str]) -> None:
    for kind in kinds:
        model = interp.load(toy(kind, folder / kind), backend="hooked")
        (folder / kind / "answers").mkdir()
        (folder / kind / "weight_hash").write_text(weight_hash(model), encoding="utf-8")
        for name in answers_of(kind):
            for number, table in enumerate(answer(name, model)):
                table.to_parquet(folder / kind / "answers" / f"{name}-{number}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
