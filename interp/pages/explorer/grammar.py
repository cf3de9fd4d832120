"""The panel on grammar: the scores of two sentences and of their words, and a saved probe's score at every token."""

import pandas as pd

from interp.analyses.probing.probes import probe, token_scores
from interp.analyses.probing.scores import sentence_scores, word_surprisal
from interp.pages.explorer import figures
from interp.pages.explorer.subject import Answer, Subject, code, token_ids
from interp.passes.execution import execute, side_by_side
from interp.support.words import printed

__all__ = ["grammar"]

_NAMES = ("first", "second")
_TRAINED_AT = {"eos": "the last token", "cls": "the first token"}
_SHOWN = ["sentence", "n_tokens", "sum", "per_token", "per_character", "per_byte"]
_SCORES = """
from interp.analyses.probing.scores import sentence_scores, word_surprisal

scores = sentence_scores(model, sentences)
words = word_surprisal(model, sentences)
apart = scores["sum"][0] - scores["sum"][1]
"""
_PROBE = """
probe = interp.probing.probe({probing}, {task!r}, {state})
probed = [interp.probing.token_scores(model, probe, sentence) for sentence in sentences]
"""


def grammar(subject: Subject, first: str, second: str, *, probe_of: tuple[str, int] | None = None) -> Answer:
    """The log-probabilities of two sentences, the surprisal of their words, and a probe's score at every token.

    Args:
        probe_of: the task and the state of a probe of the saved run. With one, a model without a prediction head
            answers with its scores alone.

    Raises the errors of `interp.analyses.probing.scores.word_surprisal`, and of `interp.probing.probe`.
    """
    sentences = [first, second]
    for sentence in sentences:
        token_ids(subject.model, sentence)
    probed = None if probe_of is None else _probed(subject, sentences, *probe_of)
    try:
        answer = _scored(subject, sentences)
    except ValueError as error:
        if probed is None:
            raise
        answer = Answer([f"The sentences have no scores: {error}."], {}, {}, "", {})
    lines = f"sentences = {sentences}\n{answer.code}"
    if probed is not None:
        answer.figures.update(probed.figures)
        answer.tables.update(probed.tables)
        lines += probed.code
    return Answer(answer.notes, answer.figures, answer.tables, code(subject, lines), answer.numbers)


def _scored(subject: Subject, sentences: list[str]) -> Answer:
    """The scores of two sentences and of their words."""
    model = subject.model
    passes = side_by_side(sentence_scores.passes(model, sentences), word_surprisal.passes(model, sentences))
    scores, words = execute(model, passes, progress=False)
    difference = float(scores["sum"][0] - scores["sum"][1])
    likelier = "first" if difference > 0 else "second"
    notes = [
        f"The {likelier} sentence is more probable, by {printed(abs(difference), '{:.3f}')} nats "
        f"({printed(scores['sum'][0], '{:.3f}')} and {printed(scores['sum'][1], '{:.3f}')})."
        if difference
        else f"Both sentences have the same probability ({printed(scores['sum'][0], '{:.3f}')} nats)."
    ]
    if words["surprisal"].isna().any():
        notes.append("A first word has no surprisal here, because the model reads nothing before it.")
    words["sentence"] = words["sentence"].map(dict(enumerate(_NAMES)))
    tables = {"Scores of the sentences, in nats": scores[_SHOWN], "Surprisal of words, in nats": words}
    return Answer(notes, {"surprisal": figures.surprisal(words)}, tables, _SCORES, {"apart": difference})


def _probed(subject: Subject, sentences: list[str], task: str, state: int) -> Answer:
    """The score of a probe at every token of two sentences."""
    assert subject.probes is not None
    trained = probe(subject.probes, task, state)
    parts = []
    for name, sentence in zip(_NAMES, sentences, strict=True):
        tokens, values = token_scores(subject.model, trained, sentence)
        columns = {"sentence": name, "position": range(len(tokens)), "token": tokens, "score": values}
        parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True)
    place = _TRAINED_AT.get(subject.probes.provenance.get("position", ""), "another token")
    figure = figures.probe_scores(table, f"Probe of {task} at state {state}", place)
    lines = _PROBE.format(probing=subject.probing, task=task, state=state)
    return Answer([], {"probe": figure}, {"Score of the probe at every token": table}, lines, {})
