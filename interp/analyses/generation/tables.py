"""Text generated with b_LN scaled: every decoder at every λ, and measures of the texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pandas as pd
import torch
import xxhash
from jaxtyping import Float
from tqdm.auto import tqdm
from transformers import GenerationConfig

from interp import models
from interp.analyses.frequency import bias_effect
from interp.analyses.generation.columns import IN_PAPER, MEANINGS
from interp.analyses.generation.decoding import (
    Generation,
    Prompts,
    check_decodes,
    check_prompts,
    continuation,
    decode,
    prompts,
    resolved,
)
from interp.analyses.generation.findings import HUMAN, diverse
from interp.analyses.generation.metrics import MAUVE_SEEDS, ORDERS, frequent_types, text_features, text_metrics
from interp.analyses.generation.options import TOKENS_AT_ONCE, Decoder, GenerationOptions, check_asked
from interp.analyses.generation.uncertainty import FEWEST_PROMPTS, intervals, mauve_jackknife
from interp.corpora import Batches, batches
from interp.corpora.counts import unigrams_of
from interp.corpora.sources import Source
from interp.corpora.unigrams import Unigrams
from interp.hooks import scale_bias
from interp.models.head import prediction_head
from interp.models.sites import Model
from interp.passes.checkpoint import Checkpoint, Tables, identity, is_finished, kept_each
from interp.passes.execution import Passes, asks
from interp.results.findings import Finding, over_texts
from interp.results.intervals import about as intervals_of
from interp.results.result import Result, provenance
from interp.support.choices import Several, listed

__all__ = ["HUMAN", "GenerationStudy", "study"]


@dataclass(frozen=True, eq=False)
class GenerationStudy(Result):
    """The result of `study`. Human continuations of the same prompts have the decoder `human` and the scale NaN.

    - `texts` (decoder, scale, prompt_id, prompt, text, n_tokens, token_ids).
    - `metrics` (decoder, scale, diversity, diversity_se, perplexity, perplexity_low, perplexity_high, mauve_mean,
      mauve_low, mauve_high, mauve_sd, frequent_share, repetition, distinct_1 … distinct_4, distinct_1_text …
      distinct_4_text, diversity_text, n_texts, n_tokens): see `text_metrics`. `perplexity`, with its 95 % interval, is
      that of the model with b_LN scaled on the whole text that prompts are taken from, as in
      `interp.frequency.bias_effect`. It does not depend on the decoder. The interval of MAUVE is over prompts, and NaN
      for fewer than 100 (see `interp.generation.uncertainty.mauve_jackknife`); `mauve_sd` is over clusterings.
    - `intervals` (decoder, scale, measure, value, low, high, difference, difference_low, difference_high): diversity,
      repetition and frequent_share with 95 % intervals over prompts, and their differences from λ = 1 for the same
      prompts; see `interp.generation.uncertainty.intervals`.
    """

    analysis: ClassVar[str] = "generation"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    texts: pd.DataFrame
    metrics: pd.DataFrame
    intervals: pd.DataFrame

    @property
    def findings(self) -> tuple[Finding, ...]:
        return over_texts(diverse(self.intervals), self.provenance.get("intervals", {}))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        title = f"{Path(self.provenance['model']).name} continues {self.provenance['corpus']}"
        return {"metrics": (title, self.metrics[[*_SHOWN, "n_tokens"]].dropna(axis=1, how="all"))}


@asks(GenerationOptions)
def study(model: Model, text: Prompts | Source, options: GenerationOptions) -> Passes[GenerationStudy]:
    """Continue prompts with b_LN → λ b_LN at every λ with every decoder, and measure the texts.

    `text` is what `prompts` returns, or a text that it takes. Every text gets as many new tokens as its human
    continuation has, and the end-of-sequence token is suppressed, because distinct n-grams are comparable only for
    equal amounts of text. `decoders` are names, or a mapping from your own names to `GenerationConfig`s. Word
    frequencies are those that ship with the model, or else those of the whole corpus of the prompts. Perplexity is that
    of `bias_effect` with the same `layout` and `context`, on all of the text that prompts are taken from. MAUVE
    compares texts (prompt and continuation) by the last hidden states of the model `features`; mauve-text itself uses
    `MAUVE_MODEL`.

    Source: Kobayashi et al. 2023, table 2.

    Raises ValueError for an encoder, a model without b_LN, scales that are repeated or not finite, missing or unknown
    decoders, prompts of another tokenizer, MAUVE without mauve-text, a directory of another run or one used while hooks
    are active on the model, and the errors of `prompts` and `generate`.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> short = {"n": 3, "prompt_tokens": 2, "new_tokens": 4}
        >>> text = ["w0 w1 w2 w3 w4 w5"] * 20
        >>> found = study(toy_decoder(), text, scales=[0, 1], decoders=["greedy"], **short, progress=False)
        >>> found.metrics["decoder"].tolist()  # the human continuations, then a row for each λ
        ['human', 'greedy', 'greedy']
    """
    yield []  # its forward passes are its own
    check_asked(options)
    check_decodes(model)
    seed = int(options.seed)
    batch_size = None if options.batch_size is None else int(options.batch_size)
    directory, features = options.directory, options.features
    prediction_head(model).require("ln")
    run = {} if directory is None else identity(model, torch=torch.__version__)
    given = _prompts(model, text, options)
    configs = _configs(model, options.decoders, given.human.shape[1])
    described = {name: json.loads(config.to_json_string()) for name, config in configs.items()}
    prepared = batches(
        model, given.corpus, bos=given.settings.get("bos", False), layout=options.layout, context=options.context
    )
    check_prompts(model, given)
    counts = unigrams_of(model, prepared, options.unigram, column=options.column)
    perplexity = _perplexity(model, prepared, counts, listed(options.scales))
    judge = models.load(features, device=model.W_U.device) if isinstance(features, str) else features
    rows = given.ids.tolist()

    def one(decoder: str, scale: float, checkpoint: Checkpoint | None) -> Tables:
        recipe = scale_bias(model, "ln", scale)
        found = decode(model, rows, configs[decoder], recipe, seed=seed, batch_size=batch_size, checkpoint=checkpoint)
        both = {} if judge is None else {"features": _features(judge, found), "human_features": human_features}
        bar.update()
        return _measured(decoder, scale, found, len(rows), unigram=counts, **both)

    human = [continuation(model, row, new) for row, new in zip(rows, given.human.tolist(), strict=True)]
    human_features = None if judge is None else _features(judge, human)
    run |= {
        "prompts": given.settings, "seed": seed, "batch_size": batch_size, "tokens_at_once": TOKENS_AT_ONCE,
        "token_ids": xxhash.xxh3_128(given.ids.tobytes() + given.human.tobytes()).hexdigest(),
        "unigram": xxhash.xxh3_128(counts.counts.tobytes()).hexdigest(),
        "features": None if judge is None else models.identity.weight_hash(judge),
    }  # fmt: skip
    work = []
    for decoder, scale in product(configs, perplexity.index):
        own = {"decoder": described[decoder], "scale": scale}
        checkpoint = Checkpoint.within(directory, f"{quote(decoder, safe='')}-{scale}", run | own)
        work.append((checkpoint, partial(one, decoder, scale, checkpoint)))
    left = sum(checkpoint is None or not is_finished(checkpoint.path) for checkpoint, _ in work)
    with tqdm(total=left, unit="setting", disable=None if options.progress else True, desc="generating") as bar:
        parts = [_measured(HUMAN, np.nan, human, len(rows), unigram=counts), *kept_each(work)]
    texts, metrics = (pd.concat([part[name] for part in parts], ignore_index=True) for name in ("texts", "metrics"))
    frequent = frequent_types(counts)
    about = {"scales": perplexity.index.tolist(), "decoders": described, "seed": seed, "batch_size": batch_size}
    about["tokens_at_once"] = TOKENS_AT_ONCE
    about["intervals"] = intervals_of(len(rows), 1)
    about["unigram"] = {"corpus": counts.corpus, "n_tokens": counts.n_tokens}
    about["frequent"] = {"n_types": int(frequent.sum()), "share_of_corpus": float(counts.distribution[frequent].sum())}
    return GenerationStudy(
        provenance=provenance(model, given.settings, **about, mauve=_about_mauve(judge, len(rows))),
        texts=texts[_TEXTS],
        metrics=metrics.join(perplexity, on="scale")[_METRICS],
        intervals=intervals(texts, frequent),
    )


def _about_mauve(judge: Model | None, n_prompts: int) -> dict[str, Any] | None:
    """The provenance of MAUVE, with the reason if it has no interval."""
    if judge is None:
        return None
    about: dict[str, Any] = {"features": models.identity.origin(judge).name, "seeds": list(MAUVE_SEEDS)}
    if n_prompts < FEWEST_PROMPTS:
        about["no_interval"] = f"{n_prompts} prompts were continued; an interval of MAUVE needs {FEWEST_PROMPTS}"
    return about


_TEXTS = ["decoder", "scale", "prompt_id", "prompt", "text", "n_tokens", "token_ids"]
_SHOWN = ["decoder", "scale", "diversity", "diversity_se", "perplexity", "perplexity_low", "perplexity_high"]
_SHOWN += ["mauve_mean", "mauve_low", "mauve_high", "mauve_sd", "frequent_share", "repetition"]
_METRICS = _SHOWN + [f"distinct_{n}" for n in ORDERS] + [f"distinct_{n}_text" for n in ORDERS]
_METRICS += ["diversity_text", "n_texts", "n_tokens"]


def _perplexity(model: Model, prepared: Batches, counts: Unigrams, scales: Sequence[float | int]) -> pd.DataFrame:
    """Perplexity on a text at each scale of b_LN, and its interval, as in `bias_effect`."""
    effect = bias_effect(model, prepared, unigram=counts, biases=["ln"], scales=scales, progress=False)
    return effect.kl.set_index("scale")[["perplexity", "perplexity_low", "perplexity_high"]]


def _prompts(model: Model, text: Any, options: GenerationOptions) -> Prompts:
    names = ("n", "prompt_tokens", "new_tokens", "limit", "column", "bos")
    asked = {name: getattr(options, name) for name in names if getattr(options, name) not in (None, "auto")}
    if not isinstance(text, Prompts):
        return prompts(model, text, **asked, seed=options.seed)
    if asked:
        raise ValueError(f"these prompts are already made; set {', '.join(asked)} in interp.generation.prompts")
    return text


def _configs(
    model: Model, decoders: Several[Decoder] | Mapping[str, GenerationConfig], new_tokens: int
) -> dict[str, GenerationConfig]:
    """The config of each decoder by name, with the number of tokens to generate."""
    names = listed(decoders)
    named: Mapping[str, Any] = decoders if isinstance(decoders, Mapping) else dict(zip(names, names, strict=True))
    configs = {name: resolved(model, decoder, new_tokens) for name, decoder in named.items()}
    for config in configs.values():
        config.min_new_tokens = new_tokens
    return configs


def _measured(decoder: str, scale: float, found: list[Generation], n_prompts: int, **read: Any) -> Tables:
    """The texts of a decoder at a scale, and their measures. `read` holds the other arguments of `text_metrics`."""
    where: dict[str, Any] = {"decoder": decoder, "scale": scale}
    table = pd.DataFrame(found).assign(prompt_id=np.arange(len(found)) * n_prompts // len(found), **where)
    table["n_tokens"], table["token_ids"] = table["token_ids"].map(len), table["token_ids"].map(np.array)
    measures = text_metrics([generation.token_ids for generation in found], **read)
    ends = np.nan, np.nan
    if "features" in read:
        mauve = mauve_jackknife(read["features"], read["human_features"], table["prompt_id"].to_numpy())
        ends = float(mauve.low), float(mauve.high)
    measures |= dict(zip(("mauve_low", "mauve_high"), ends, strict=True))
    return {"texts": table, "metrics": pd.DataFrame([measures | where])}


def _features(judge: Model, generations: list[Generation]) -> Float[np.ndarray, "texts d_model"]:
    return text_features(judge, [generation.prompt + generation.text for generation in generations])
