"""All questions on one model and one text."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from interp import corpora
from interp.analyses import ReportOptions, analyses
from interp.checks import warn
from interp.corpora import Corpus, Source, pairs as minimal_pairs
from interp.corpora.batching import MASK_RATE
from interp.declare import Analysis, find
from interp.frequency import word_frequencies
from interp.generation import Prompts, prompts
from interp.models import origin
from interp.models.sites import Model, is_encoder
from interp.probing.split import split_tasks
from interp.probing.states import state_rows
from interp.results import Result
from interp.run.passes import Passes, asks, side_by_side

_BUNDLED_PAIRS = 100  # a task: enough for 60 to fit on
_DEFAULT = ReportOptions()
_log = logging.getLogger("interp")


@asks(ReportOptions)
def ask_all(
    model: Model,
    text: Source = "bundled",
    options: ReportOptions = _DEFAULT,
) -> Passes[list[Result]]:
    """Every analysis: those of a text from shared passes over it; then probes on minimal pairs, and generated text.

    What asks for the same batches is read in one pass; an encoder's masked and unmasked text are two. Generated text
    needs a decoder with b_LN and 100 texts of 60 tokens to take prompts from, and word frequency a bias in the
    prediction head: where a question cannot be asked, a warning says why and it is left out.

    `text` is anything `interp.corpora.load` takes, `pairs` anything `interp.corpora.pairs.load` takes. `bos` puts a
    decoder's beginning-of-sequence token before each text, prompt and sentence; by default as the model was trained,
    for one that tools/train.py made, else none before texts, and before sentences what TransformerLens knows of the
    model.

    Returns the results, in the order of the page: `BiasEffect`, `GenerationStudy`, `AttentionStudy`, `EncodingStudy`,
    `ProbingStudy`, and those of other packages.

    Raises ValueError as the functions it is made of; for pairs that cannot be probed before the text is read.
    """
    source = corpora.load(text, limit=options.limit, column=options.column, separator=options.separator or "")
    limit = options.pair_limit or (
        _BUNDLED_PAIRS if isinstance(options.pairs, str) and options.pairs == "bundled" else None
    )
    table = minimal_pairs.load(options.pairs, limit=limit)
    bos = _bos(model, options.bos)
    how: dict[str, Any] = {name: getattr(options, name) for name in ("layout", "context", "batch_size", "seed")}
    plain = corpora.batches(model, source, bos=bool(bos), **how)
    masked = corpora.batches(model, source, mask_rate=MASK_RATE, **how) if is_encoder(model) else plain
    split_tasks(table, None)
    state_rows(model, [*table["sentence_good"], *table["sentence_bad"]], "cls" if is_encoder(model) else "eos", bos=bos)
    data = {"text": plain, "masked text": masked, "pairs": table, "prompts": None}
    shared = {"unigram": word_frequencies(model, plain, options.unigram, column=options.column), "seed": options.seed}
    shared |= {"seeds": [options.seed], "progress": options.progress}

    possible = {name: one for name, one in analyses().items() if _possible(model, one)}
    if any(one.reads == "prompts" for one in possible.values()):
        data["prompts"] = _prompts(model, source, bool(bos))

    def asked(analysis: Analysis) -> Passes[Result]:
        directory = None if options.directory is None else Path(options.directory) / analysis.name
        known = {item.name for item in fields(analysis.options)}
        given = shared | {"directory": directory} | ({"bos": bos} if analysis.reads == "pairs" else {})
        own = dict(analysis.in_report) | dict((options.settings or {}).get(analysis.name, {}))
        given = {name: value for name, value in given.items() if name in known} | own
        return find(analysis.answer).passes(model, data[analysis.reads], **given)

    ready = [one for one in possible.values() if data[one.reads] is not None]
    reading = [one for one in ready if one.reads in ("text", "masked text")]
    _log.info("reading %s in rows of %s tokens", source.name, f"{plain.settings['context']:,}")
    found: dict[str, Result] = {}
    for result in (yield from side_by_side(*map(asked, reading))):
        found[result.analysis] = result
    for one in ready:
        if one not in reading:
            _log.info("%s", one.title)
            found[one.name] = yield from asked(one)
    return [found[name] for name in possible if name in found]


def _bos(model: Model, bos: bool | None) -> bool | None:
    """Whether a beginning-of-sequence token comes first; None leaves it to what TransformerLens knows of the model."""
    if is_encoder(model):
        return None
    directory = origin(model).directory
    if bos is None and directory is not None and (directory / "training.json").is_file():
        _log.info("a beginning-of-sequence token stands before each text, as in training")
        return True
    return bos


def _possible(model: Model, analysis: Analysis) -> bool:
    reason = find(analysis.impossible)(model) if analysis.impossible else None
    if reason:
        warn(f"no {analysis.name}: {reason}")
    return not reason


def _prompts(model: Model, source: Corpus, bos: bool) -> Prompts | None:
    try:
        return prompts(model, source, bos=bos)
    except ValueError as error:
        warn(f"no generation: {error}")
        return None
