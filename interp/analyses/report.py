"""All questions on one model and one text."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from interp import corpora
from interp.analyses.declare import Analysis, kinds, named, taken
from interp.analyses.generation import prompts
from interp.analyses.registry import BUNDLED_PAIRS, ReportOptions, analyses, left_out, remove_others, saved_names
from interp.corpora import pairs as minimal_pairs
from interp.corpora.batching import MASK_RATE
from interp.corpora.counts import word_frequencies
from interp.corpora.frames import settled_bos
from interp.corpora.positions import state_rows
from interp.corpora.sources import Source
from interp.corpora.splits import split_tasks
from interp.models.sites import Model, is_encoder
from interp.passes import distributed
from interp.passes.execution import Passes, asks, side_by_side
from interp.results.result import Result
from interp.support.checks import collecting, warn
from interp.support.disk import check_page
from interp.support.paths import local_path
from interp.support.words import beginning_words

__all__ = ["report"]
__dir__ = __all__.copy

_OF_PROMPTS = ("n", "prompt_tokens", "new_tokens")  # arguments of `interp.generation.prompts`
_DEFAULT = ReportOptions()
_log = logging.getLogger("interp")


@asks(ReportOptions)
def report(model: Model, text: Source = "bundled", options: ReportOptions = _DEFAULT) -> Passes[dict[str, Result]]:
    """Ask all questions about a model, as the command `interp report` does, and return the results by name.

    Analyses that need the same batches share one pass over the text; the masked and the unmasked text of an encoder are
    two passes. Probes on minimal pairs and generated text follow. Generated text needs a decoder with b_LN (with
    `more`, any decoder) and enough texts to take prompts from (100 of 60 tokens, unless `settings` says otherwise). A
    question that cannot be asked is left out, as is what a question cannot be asked of this model; `left_out` in the
    provenance of every result says what and why, and so does a warning.

    `text` is anything `interp.corpora.load` takes, and `pairs` anything `interp.corpora.pairs.load` takes. `bos` says
    where a decoder's beginning-of-sequence token stands, in rows of text, prompts and sentences alike; see
    `interp.corpora.batches`.

    Returns `{"frequency": FrequencyStudy, "generation": GenerationStudy, …}`, in the order of the page; with `more`
    also what goes beyond the four papers, and the analyses of other packages.

    Raises ValueError as the analyses do. Pairs that cannot be probed are refused before the text is read. Raises
    FileExistsError, also before that, if `out` holds results that are not to be overwritten.

    Examples:
        >>> import pandas as pd
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(n_positions=64, n_layer=1), ["w0 w1 w2 w3 w4 w5 " * 10] * 100
        >>> good, bad = [f"w{i} w1 w2" for i in range(10)], [f"w{i} w2 w1" for i in range(10)]
        >>> asked = {"pairs": pd.DataFrame({"sentence_good": good, "sentence_bad": bad})}
        >>> asked["unigram"] = corpora.count_unigrams(model, text)
        >>> own = {"attention": {"key_classes": {"first": [7, 8]}}, "encoding": {"orders": ["random"]}}
        >>> own |= {"generation": {"decoders": ["greedy"], "scales": [0]}, "probing": {"methods": ["dense"]}}
        >>> list(report(model, text, **asked, settings=own, progress=False))
        ['frequency', 'generation', 'attention', 'encoding', 'probing']
    """
    if options.out is not None:
        _check_out(local_path(options.out), overwrite=options.overwrite)
    of_text: list[str] = []
    with collecting(of_text):
        source = corpora.load(text, limit=options.limit, column=options.column, separator=options.separator or "")
    of_bundled = BUNDLED_PAIRS if isinstance(options.pairs, str) and options.pairs == "bundled" else None
    pairs = minimal_pairs.read(options.pairs, limit=options.pair_limit or of_bundled, **options.columns)
    bos = settled_bos(model, options.bos)
    encoder = is_encoder(model)
    batching: dict[str, Any] = {name: getattr(options, name) for name in ("layout", "context", "batch_size", "seed")}
    plain = corpora.batches(model, source, bos=False if encoder else options.bos, **batching)
    masked = corpora.batches(model, source, mask_rate=MASK_RATE, **batching) if encoder else plain
    sentences = minimal_pairs.sentences_of(pairs.table)
    split_tasks(pairs.table, rows=state_rows(model, sentences, "cls" if encoder else "eos", bos=bos))
    data = {"text": plain, "masked text": masked, "pairs": pairs}
    caveats: list[str] = []
    with collecting(caveats):
        unigram = word_frequencies(model, plain, options.unigram, column=options.column)
    shared = {"counts": unigram, "seed": options.seed}
    of_reads: Any = {"pairs": {"bos": bos}, "prompts": {"layout": options.layout, "context": options.context}}
    reported, chosen = _reported(options)
    absent = left_out(model, chosen)
    possible = {}
    for name, analysis in reported.items():
        if analysis.reads == "prompts" and name not in absent:
            lengths = taken(analyses()[name].options, chosen[name], _OF_PROMPTS)
            try:
                data[name] = prompts(model, source, bos=bos, seed=options.seed, **lengths)
            except ValueError as error:
                absent[name] = str(error)
        if analysis.unsuited and name not in absent:
            reason = analysis.why_unsuited(model, data[analysis.reads], chosen[name])
            absent.update({name: reason} if reason else {})
        if name not in absent:
            possible[name] = analysis
    for name in reported.keys() - possible.keys():
        warn(f"no {name}: {absent[name]}")

    def answer(analysis: Analysis) -> Passes[Result]:
        directory = None if options.directory is None else Path(options.directory) / analysis.name
        base = named(analysis.options, shared | of_reads.get(analysis.reads, {}))
        base.update(progress=options.progress, directory=directory)
        read = data[analysis.name if analysis.reads == "prompts" else analysis.reads]
        result: Result = yield from resolve_name(analysis.answer).passes(model, read, **(base | chosen[analysis.name]))
        counted = "counts" in kinds(analysis.options).values()
        before = [*(of_text if analysis.reads != "pairs" else []), *(caveats if counted else [])]
        notes = {"caveats": [*before, *result.provenance.get("caveats", [])], "left_out": absent}
        result.provenance.update({name: value for name, value in notes.items() if value})
        return result

    begin = "" if encoder else f" {beginning_words(bos)}"
    first_step = f"reading {source.name} in rows of {plain.settings['context']:,} tokens{begin}"
    results = yield from _in_steps(possible, answer, options, first_step)
    if options.out is not None and distributed.writes():
        from interp.pages.page import write_page

        remove_others(local_path(options.out), results)
        write_page(options.out)
    return results


def _in_steps(
    possible: Mapping[str, Analysis],
    answer: Callable[[Analysis], Passes[Result]],
    options: ReportOptions,
    first_step: str,
) -> Passes[dict[str, Result]]:
    """The results, in the order of the page: of the analyses that read the text together, and then of each other."""
    reading: dict[str, Analysis] = {}
    later: dict[str, Analysis] = {}
    for name, analysis in possible.items():
        if analysis.reads in ("text", "masked text"):
            reading[name] = analysis
        else:
            later[name] = analysis
    steps = len(later) + 1
    _log.info("%s", first_step, extra={"step": 1, "steps": steps})
    read_together = yield from side_by_side(*map(answer, reading.values()))
    results: dict[str, Result] = dict(zip(reading, read_together, strict=True))
    for result in read_together:
        _finish(result, options)
    for step, (name, analysis) in enumerate(later.items(), 2):
        _log.info("%s", analysis.title, extra={"step": step, "steps": steps})
        results[name] = yield from answer(analysis)
        _finish(results[name], options)
    return {name: results[name] for name in possible}


def _check_out(out: Path, *, overwrite: bool) -> None:
    """Raise FileExistsError for a directory in which something would be replaced that should not be."""
    if (saved := saved_names(out)) and not overwrite:
        raise FileExistsError(f"{out} already holds {', '.join(saved)}; choose another out, or add overwrite=True")
    check_page(out)


def _finish(result: Result, options: ReportOptions) -> None:
    """Save a result as soon as there is one."""
    if options.out is not None and distributed.writes():
        result.save(options.out, overwrite=options.overwrite)
    if options.finished is not None:
        options.finished(result)


def _reported(options: ReportOptions) -> tuple[dict[str, Analysis], dict[str, dict[str, Any]]]:
    """The analyses of a report, and the options of each."""
    reported: dict[str, Analysis] = {}
    chosen: dict[str, dict[str, Any]] = {}
    for name, analysis in analyses().items():
        if analysis.is_reported(more=options.more, settings=options.settings):
            reported[name] = analysis
            chosen[name] = analysis.reported(more=options.more, settings=options.settings)
    return reported, chosen
