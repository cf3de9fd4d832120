"""All questions on one model and one text."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Integer

from interp import corpora, generation, probing
from interp.attention.tables import study_passes as attention_passes
from interp.checks import warn
from interp.corpora import Corpus, Source, pairs as minimal_pairs
from interp.corpora.unigrams import Unigrams
from interp.encoding.tables import study_passes as encoding_passes
from interp.frequency import MASK_RATE, bias_effect_passes, word_frequencies
from interp.models import origin
from interp.models.head import prediction_head
from interp.models.sites import Model, is_encoder
from interp.probing.split import split_tasks
from interp.probing.states import sentence_rows
from interp.results import Result
from interp.run.passes import run, side_by_side

SCALES = tuple(round(0.1 * i, 1) for i in range(11))
_SCALES_OF_TEXT = (0.0, 0.5, 1.0)
_PROMPTS = 100
_log = logging.getLogger("interp")


def survey(
    model: Model,
    text: Source = "bundled",
    *,
    pairs: pd.DataFrame | str | os.PathLike[str] = "bundled",
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    scales: Sequence[float | int] = SCALES,
    bos: bool | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> list[Result]:
    """Word frequency, attention and token probability from shared passes over a text; then probes on minimal pairs,
    and generated text.

    What asks for the same batches is read in one pass; an encoder's masked and unmasked text are two. Generated text
    needs a decoder with b_LN and 100 texts of 60 tokens to take prompts from, and word frequency a bias in the
    prediction head: where a question cannot be asked, a warning says why and it is left out.

    Args:
        text: anything `interp.corpora.load` takes.
        pairs: minimal pairs, anything `interp.corpora.pairs.load` takes.
        unigram: token counts; the model's own, or else this text's.
        scales: the λ of word frequency (generated text: 0, .5 and 1).
        bos: a decoder's beginning-of-sequence token before each text, prompt and sentence. By default as the model was
            trained, for one that `tools/train.py` made; else none before texts, and before sentences what
            TransformerLens knows of the model.
        seed: of masks, samples, nulls and probes.
        directory: keep what is finished here, and go on from there.

    Returns the results, in the order of the page: `BiasEffect`, `GenerationSweep`, `AttentionStudy`, `EncodingStudy`,
    `ProbingStudy`.

    Raises ValueError as the functions it is made of; for pairs that cannot be probed before the text is read.
    """
    root = None if directory is None else Path(directory)
    encoder = is_encoder(model)
    source = corpora.load(text)
    table = minimal_pairs.load(pairs)
    if encoder:
        bos = None
    elif bos is None and _made_here(model):
        _log.info("a beginning-of-sequence token stands before each text, as in training")
        bos = True
    options: dict[str, Any] = {"bos": bool(bos), "batch_size": batch_size, "seed": seed}
    plain = corpora.batches(model, source, **options)
    predicted = corpora.batches(model, source, mask_rate=MASK_RATE, **options) if encoder else plain
    split_tasks(table, None)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    sentence_rows(model, sentences, "cls" if encoder else "eos", bos=bos)
    counts = word_frequencies(model, plain, unigram)

    analyses = [
        attention_passes(model, plain, unigram=counts, seed=seed),
        encoding_passes(model, predicted, unigram=counts, seed=seed),
    ]
    biases = prediction_head(model).biases
    if biases:
        analyses.insert(0, bias_effect_passes(model, predicted, unigram=counts, scales=scales))
    else:
        warn("no word frequency: this model's prediction head has no bias to scale")
    _log.info("reading %s", source.name)
    found: list[Result] = run(model, side_by_side(*analyses), progress=progress, directory=_in(root, "text"))
    _log.info("probing %d minimal pairs", len(table))
    found.append(probing.study(model, table, bos=bos, seeds=[seed], directory=_in(root, "probing"), progress=progress))
    prompts = None if encoder else _prompts(model, source, bool(bos))
    if prompts is not None:
        _log.info("generating text")
        found.insert(
            1,
            generation.sweep(
                model, prompts, scales=_SCALES_OF_TEXT, unigram=counts, seed=seed, directory=_in(root, "generation"),
                progress=progress,
            ),
        )  # fmt: skip
    return found


def _in(root: Path | None, part: str) -> Path | None:
    return None if root is None else root / part


def _made_here(model: Model) -> bool:
    """Whether `tools/train.py` made it: it puts a beginning-of-sequence token before each text."""
    directory = origin(model).directory
    return directory is not None and (directory / "training.json").is_file()


def _prompts(model: Model, source: Corpus, bos: bool) -> generation.Prompts | None:
    try:
        prediction_head(model).require("ln")
        return generation.prompts(model, source, n=_PROMPTS, bos=bos)
    except ValueError as error:
        warn(f"no generated text: {error}")
        return None
