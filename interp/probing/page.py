"""What the page says of `interp probing`."""

from collections.abc import Iterator, Mapping

import pandas as pd
import plotly.graph_objects as go

from interp.figures.draw import add_series
from interp.figures.runs import DEPTH, Sides, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.section import Section, count
from interp.figures.style import CHANCE, figure, run_styles
from interp.probing import figures as plots
from interp.probing.tables import ProbingStudy

__all__ = ["DEFINITIONS", "section", "sides"]

_COMPARED = {"dense": "Dense probes", "l0": "Sparse probes", "dense_untrained": "Dense probes of untrained models"}
_HARD = 0.75  # accuracy of a bag of words below which a task is not lexical
_PROBES = {
    "l0": "sparse probes with {l0_open:.1%} of the gates open (λ = {l0_strength:g}) {l0:.3f}",
    "dense": "dense probes {dense:.3f}",
    "topk": "probes of the top {k:g} dimensions {topk:.3f}",
}
_CONTROLS = {
    "dense_untrained": "dense probes of the untrained model {dense_untrained:.3f}",
    "dense_flipped": "dense probes with flipped labels {dense_flipped:.3f}",
    "l0_rotated": "sparse probes in a random basis {l0_rotated:.3f} with {l0_rotated_open:.1%} of the gates open",
}

DEFINITIONS = {
    "Source": "A study of Llama-3-8B on BLiMP by sparse probes (NLP 2025, Japan); gates: Louizos et al. 2018, "
    "top-k: Gurnee et al. 2023.",
    "State": "Hidden state 0 is the embeddings, state L + 1 what leaves TransformerLens' block L (counted from 0).",
    "Probe": "σ((w ⊙ m)·x) on the standardised residual stream x, without intercept; dense: L2 logistic "
    "regression. Pairs, not sentences, are split 60 : 20 : 20; accuracy is on the test sentences, pair "
    "accuracy the share of pairs whose good sentence scores higher.",
    "λ": "L0 probes minimise λ·BCE + (1 − λ)·mean P(z ≠ 0): hard-concrete gates m that a small λ closes.",
    "Top k": "The k dimensions of the largest |Welch t| on the training split.",
    "Controls": "A bag of words on the same split; labels flipped within half of the pairs; the same "
    "architecture with random weights; the residual stream in a random basis.",
    "Tokens": "The score of a sparse probe at every token of a test pair, above 0 (blue) for good, on one scale "
    "a pair. It was trained where the pairs are read (the appended EOS, or [CLS]) and is out of its range "
    "elsewhere: that shows where a distinction appears, no probabilities.",
    "Neurons removed": "Set to zero or to their mean at all positions; the change of the model's own "
    "minimal-pair accuracy, against random neurons and others of matched magnitude.",
}


def section(study: ProbingStudy) -> Section:
    """What the page says of `interp probing`; every number comes from the result."""
    methods = set(study.probes["method"])
    figures = {"sparse": plots.sparse_probes(study)} if "l0" in methods else {}
    figures["beyond_words"] = plots.beyond_words(study)
    if "topk:welch" in methods:
        figures["topk"] = plots.topk_probes(study)
    if not study.random_k.empty:
        figures["random"] = plots.random_dims(study, study.provenance["state"])
    if not study.agreement.empty:
        figures["agreement"] = plots.gate_agreement(study)
    tables = {"Accuracy by hidden state, mean over tasks": study.by_state}
    if not study.ablation.empty:
        figures["ablation"] = plots.probe_ablation(study)
        tables["Neurons removed: change of the model's own minimal-pair accuracy"] = study.ablated
    if not study.transfer.empty:
        figures["transfer"] = plots.transfer_matrix(study)
        figures["transfer_difference"] = plots.transfer_matrix(study, difference=True)
        figures["general"] = plots.general_probes(study)
        figures["overlap"] = plots.neuron_overlap(study)
        tables["Probes on tasks they have not seen, mean over tasks"] = study.never_seen
    tables["Tasks"] = study.tasks
    sentences, views = list(_sentences(study)), plots.token_views(study)
    main, finding = next(iter(figures)), " ".join(sentences)
    return Section(sentences[0], main, finding, DEFINITIONS, figures, tables, study.provenance, views)


def _hard_tasks(study: ProbingStudy) -> str:
    """How far dense probes go where the words alone say little."""
    at = study.probes[(study.probes["state"] == study.provenance["state"]) & (study.probes["method"] == "dense")]
    means = at.groupby(["control", "task"])[["accuracy", "bag_of_words"]].mean()
    trained = means.loc["none"]
    hard = trained[trained["bag_of_words"] < _HARD]
    above = int((trained["accuracy"] > trained["bag_of_words"]).sum())
    sentence = f"Dense probes are above the bag of words on {above} of {count(len(trained), 'task')}"
    if not hard.empty:
        words, probes = hard["bag_of_words"].mean(), hard["accuracy"].mean()
        sentence += f"; on the {count(len(hard), 'task')} where that gets less than {_HARD:g} ({words:.3f} on average) "
        sentence += f"they get {probes:.3f}"
        if "untrained" in means.index:
            chance = means.loc["untrained", "accuracy"].reindex(hard.index).mean()
            sentence += f", those of the untrained model {chance:.3f}"
    return f"{sentence}."


def _accuracies(study: ProbingStudy, sentences: dict[str, str]) -> str:
    """The numbers of `by_state` at the study's state, each in its words; those that it does not have are left out."""
    at = study.by_state.set_index("state").loc[study.provenance["state"]].to_dict()
    known = at | {"l0_strength": study.provenance["l0_strength"], "k": study.largest_k}
    return ", ".join(words.format(**known) for name, words in sentences.items() if name in at)


def _sentences(study: ProbingStudy) -> Iterator[str]:
    """What was found; the first is the summary."""
    of = ("mean over " if len(study.tasks) > 1 else "") + count(len(study.tasks), "task")
    words = _accuracies(study, {"bag_of_words": "a bag of words {bag_of_words:.3f}"})
    yield f"Accuracy at state {study.provenance['state']}, {of}: {_accuracies(study, _PROBES)}; {words}."
    if controls := _accuracies(study, _CONTROLS):
        yield f"Controls: {controls}."
    if "dense" in study.by_state:
        yield _hard_tasks(study)
    if not study.transfer.empty:
        other = study.transfer[study.transfer["train_task"] != study.transfer["test_task"]]
        sparse, dense = other["l0_strength"] == study.provenance["l0_strength"], other["method"] == "dense"
        right = [other.loc[probes, "pair_accuracy"].mean() for probes in (sparse, dense)]
        yield "On the pairs of other tasks sparse probes are right on {:.3f}, dense ones on {:.3f}.".format(*right)
    for mode, part in study.ablated.groupby("mode", sort=False):
        change, n_tasks = part.set_index("set")["accuracy"], count(int(part["n_tasks"].iloc[0]), "task")
        where = f"to {'their means' if mode == 'mean' else 'zero'} changes the model's own accuracy by"
        found, matched = (f"{change[name]:+z.3f}" for name in ("found", "matched"))
        yield f"Setting the found neurons {where} {found} on {n_tasks}, matched ones by {matched}."


def sides(studies: Mapping[str, ProbingStudy]) -> Sides:
    rows, depth = {}, {}
    for name, study in studies.items():
        table, state = study.by_state.set_index("state"), study.provenance["state"]
        tested = {"n_tasks": len(study.tasks), "state": state, "model_accuracy": study.tasks["model_accuracy"].mean()}
        rows[name] = tested | table.loc[state].to_dict()
        depth[name] = table.set_axis(table.index / layers_of(name, study.provenance))
    common = shared(depth, lambda table: [measure for measure in _COMPARED if measure in table])
    numbers, figures = numbers_of(rows), {measure: _probes(having, measure) for measure, having in common}
    best = numbers.filter(["dense", "l0", "topk"]).max(axis=1)
    what = "What the best probes add to a bag of words in accuracy"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, best - numbers["bag_of_words"], "{:+z.3f}"))


def _probes(tables: Mapping[str, pd.DataFrame], measure: str) -> go.Figure:
    """Accuracy of probes by relative depth, mean over tasks, from the tables `by_state`; dotted a bag of words."""
    out = figure(_COMPARED[measure], DEPTH, "accuracy", subtitle="mean over tasks; dotted: a bag of words")
    draw_runs(out, {name: table[measure] for name, table in tables.items()}, list(tables))
    for name, style in run_styles(list(tables)).items():
        dotted = CHANCE | {"name": style["name"], "color": style["color"]}
        add_series(out, tables[name]["bag_of_words"].round(4), dotted, legend=False, hoverinfo="skip")
    return out
