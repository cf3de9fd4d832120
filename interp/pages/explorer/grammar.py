"""The panel on grammar: the scores of two sentences and of their words, and a saved probe's score at every token."""

import pandas as pd

from interp.analyses.probing.probes import probe, token_scores
from interp.analyses.probing.scores import sentence_scores, word_surprisal
from interp.pages.explorer import figures
from interp.pages.explorer.subject import Answer, Subject, code, token_ids
from interp.support.words import printed

__all__ = ["grammar"]

_NAMES = ("first", "second")
_TRAINED_AT = {"eos": "the last token", "cls": "the first token"}
_SHOWN = ["sentence", "n_tokens", "sum", "per_token", "per_character", "per_byte"]
_SCORES = """
from interp.analyses.probing.scores import sentence_scores, word_surprisal

sentences = {sentences}
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
        probe_of: the task and the state of a probe of the saved run.

    Raises the errors of `interp.analyses.probing.scores.word_surprisal`, and of `interp.probing.probe`.
    """
    model = subject.model
    sentences = [first, second]
    for sentence in sentences:
        token_ids(model, sentence)
    scores = sentence_scores(model, sentences, progress=False)
    words = word_surprisal(model, sentences, progress=False)
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
    drawn = {"surprisal": figures.surprisal(words)}
    tables = {"Scores of the sentences, in nats": scores[_SHOWN], "Surprisal of words, in nats": words}
    lines = _SCORES.format(sentences=sentences)
    if probe_of is not None and subject.probes is not None:
        task, state = probe_of
        trained = probe(subject.probes, task, state)
        parts = []
        for name, sentence in zip(_NAMES, sentences, strict=True):
            tokens, values = token_scores(model, trained, sentence)
            columns = {"sentence": name, "position": range(len(tokens)), "token": tokens, "score": values}
            parts.append(pd.DataFrame(columns))
        probed = pd.concat(parts, ignore_index=True)
        place = _TRAINED_AT.get(subject.probes.provenance.get("position", ""), "another token")
        drawn["probe"] = figures.probe_scores(probed, f"Probe of {task} at state {state}", place)
        tables["Score of the probe at every token"] = probed
        lines += _PROBE.format(probing=subject.probing, task=task, state=state)
    return Answer(notes, drawn, tables, code(subject, lines), {"apart": difference})
