"""What the page says about `interp probing`."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from interp.analyses.probing import across_tasks, figures as plots
from interp.analyses.probing.tables import ProbingStudy
from interp.figures.draw import add_series
from interp.figures.figure import Figure
from interp.figures.runs import DEPTH, Sides, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.section import Contexts, Section
from interp.figures.style import CHANCE, figure, run_styles
from interp.instruments.uncertainty import averaged
from interp.support.words import count, within

__all__ = ["DEFINITIONS", "section", "sides"]

_COMPARED = {"dense": "Dense probes", "l0": "Sparse probes", "dense_untrained": "Dense probes of untrained models"}
_MOST_NEURONS = 10  # the number of neurons whose tokens the page has
_HARD = 0.75  # accuracy of a bag of words below which a task is not lexical
DEFINITIONS = {
    "Source": "A study of Llama-3-8B on BLiMP by sparse probes (NLP 2025, Japan); gates: Louizos et al. 2018, top-k: "
    "Gurnee et al. 2023.",
    "State": "Hidden state 0 is the embeddings, state L + 1 what leaves TransformerLens' block L (counted from 0).",
    "Probe": "σ((w ⊙ m)·x) on the standardised residual stream x, without intercept, with gates m of 0 to 1; dense: L2 "
    "logistic regression, all gates open. Pairs are split 60 : 20 : 20, and pairs that share a sentence stay together. "
    "Accuracy is the share of test sentences that are judged correctly, pair accuracy the share of test pairs whose "
    "good sentence scores higher.",
    "λ": "Sparse (L0) probes minimise λ·BCE + (1 − λ)·mean P(m ≠ 0), with hard-concrete gates m; a small λ shuts most.",
    "Top k": "The k dimensions with the largest |Welch t| on the training split.",
    "Controls": "A bag of words on the same split; labels flipped within half of the pairs; the same architecture with "
    "random weights (three times at the state of the findings); the residual stream in a random basis.",
    "Concentrated": "The top 1, 10 and 25 % of dimensions by |Welch t| against as many in 39 random rotations of the "
    "standardised states, standardised again: of any direction, the largest coordinates hold more than their share.",
    "Tokens": "The score of a sparse probe at every token of a test pair, above 0 (blue) for good, on one scale per "
    "pair. The probe was trained where the pairs are read (the appended EOS, or [CLS]). At other tokens its score "
    "shows where a distinction appears, but it is not a probability.",
    "Tokens of a neuron": "A click on a neuron shows the 20 tokens, of the sentences of all pairs, at which its "
    "magnitude is largest at that state; the table contexts has those of every neuron that a sparse probe reads there.",
    "Intervals": "95 %, in brackets: Wilson's for a single accuracy; for a mean Student's t over phenomena, with a "
    "mean over the tasks of each first, or over tasks if some have no phenomenon, from five on; for a mean over pairs "
    "of them a jackknife, from eight on. A probe is better or worse on a task by McNemar's exact test over test pairs "
    "(where the two differ, is one right more often?) at .05, with p adjusted over tasks (Benjamini and Hochberg).",
    "The model's own accuracy": "The share of all pairs whose good sentence has the higher log-probability (ties are "
    "wrong; BERT: pseudo-log-likelihood, each token masked in turn), as a sum or divided by the number of scored "
    "tokens, characters or bytes.",
    "Random for one of the top": "How many times as many random dimensions reach the accuracy of the top 1 %, for "
    "tasks on which the top is above chance and above the untrained model (one-sided, 99 %). It is large in any basis, "
    "and so no evidence that the model's own is special.",
    "Neurons removed": "Set to zero or to their mean at all positions; the change of the model's own minimal-pair "
    "accuracy, against random neurons and others of matched magnitude.",
}


def section(study: ProbingStudy) -> Section:
    """What the page says about `interp probing`; every number comes from the result."""
    state, probes = study.provenance["state"], study.probes[study.probes["control"] == "none"]
    methods = set(probes["method"])
    figures = {"sparse": plots.sparse_probes(study)} if "l0" in methods else {}
    figures["beyond_words"] = plots.beyond_words(study)
    if "topk:welch" in methods:
        figures["topk"] = plots.topk_probes(study)
    if not study.random_k.empty:
        figures["random"] = plots.random_dims(study, state)
        figures["random_states"] = plots.random_dims_by_state(study)
    if not study.agreement.empty:
        figures["agreement"] = plots.gate_agreement(study)
    at_state = {
        f"Means over {study.averaged_over.said} at state {state}": study.means,
        f"Probes compared at state {state}": study.differences,
    }
    tables = {"Accuracy by hidden state, mean over tasks": study.by_state}
    for title, table in at_state.items():
        tables[title] = table[table["state"] == state].drop(columns="state")
    contexts = {}
    if not study.contexts.empty:
        read = study.neurons_read.head(_MOST_NEURONS)
        tables[f"Neurons that the sparse probes of most tasks read at state {state}"] = read
        contexts = {f"dimension {dim}": _contexts(study, dim) for dim in read["dim"]}
    if not study.judgement_means.empty:
        tables[f"The model's own accuracy on all pairs, mean over {study.averaged_over.said}"] = study.judgement_means
    if not study.ablation.empty:
        figures["ablation"] = plots.probe_ablation(study)
        tables["Neurons removed: change of the model's own minimal-pair accuracy"] = study.ablated
    if not study.transfer.empty:
        figures["transfer"] = across_tasks.transfer_matrix(study)
        figures["transfer_difference"] = across_tasks.transfer_matrix(study, difference=True)
        figures["general"] = across_tasks.general_probes(study)
        figures["overlap"] = across_tasks.neuron_overlap(study)
        tables["Probes of several tasks on a task they have not seen, mean over tasks"] = study.never_seen
    tables["Tasks"] = study.tasks
    notes = tuple(_notes(study))
    views = plots.token_views(study)
    main = next(iter(figures))
    return Section(main, study.findings, notes, DEFINITIONS, figures, tables, study.provenance, views, contexts)


def _contexts(study: ProbingStudy, dim: int) -> Contexts:
    """The tokens at which a neuron is largest, each with its sentence and task."""
    tokens = study.contexts[study.contexts["dim"] == dim]
    where = f"of the sentences at which its magnitude is largest in state {study.provenance['state']}"
    descriptions = tokens["sentence"] + ", " + tokens["task"]
    return Contexts(f"The {count(len(tokens), 'token')} {where}.", tokens.assign(text=descriptions))


def _notes(study: ProbingStudy) -> Iterator[str]:
    if "dense" in study.by_state and (hard := _hard_tasks(study)):
        yield hard
    if "read_at" in study.provenance:
        begins = study.provenance["begins_with"]
        begin = f"begins with {begins}" if begins else "has no special token before it"
        yield f"Each sentence {begin}, and its vector is read at {study.provenance['read_at']}."
    if worth := _worth(study):
        yield worth


def _hard_tasks(study: ProbingStudy) -> str:
    """The accuracy of dense probes on tasks on which the words alone say little; empty if there are none."""
    hits = study.hits[study.hits["state"] == study.provenance["state"]]
    names = ["bag_of_words", "dense", "dense_untrained"]
    by_task = hits.groupby("task")[names].mean()
    hard = by_task.index[by_task["bag_of_words"] < _HARD]
    if not len(hard):
        return ""
    means, _ = averaged(hits[hits["task"].isin(hard)], [], study.phenomenon_of)
    accuracies = dict.fromkeys(names, "none")
    for row in means.to_dict("records"):
        accuracies[row["probe"]] = f"{row['accuracy']:.3f} {within(row['low'], row['high'], '{:.3f}')}"
    where = f"On the {count(len(hard), 'task')} where a bag of words gets less than {_HARD:g}"
    probes = f"dense probes get {accuracies['dense']}, those of the untrained model {accuracies['dense_untrained']}"
    return f"{where} ({accuracies['bag_of_words']}) {probes}."


def _worth(study: ProbingStudy) -> str:
    """How many random dimensions one of the top replaces; empty if no task has such a ratio. Ratios beyond the sizes
    that were tried count as larger than all others."""
    table = study.equivalence[study.equivalence["state"] == study.provenance["state"]]
    rows = table.dropna(subset="ratio")
    if rows.empty:
        return ""
    median = float(rows["ratio"].where(~rows["censored"].astype(bool), np.inf).median())
    times = f"{median:.1f}" if np.isfinite(median) else "more than could be tried"
    return (
        f"On the {len(rows)} of {count(len(table), 'task')} whose top 1 % of dimensions is above chance and above the "
        f"untrained model, the median number of random dimensions that one of the top is worth is {times}."
    )


def sides(studies: Mapping[str, ProbingStudy]) -> Sides:
    rows, depth = {}, {}
    for name, study in studies.items():
        table = study.by_state.set_index("state")
        state = study.provenance["state"]
        rows[name] = {"n_tasks": len(study.tasks), "state": state}
        rows[name]["model_accuracy"] = study.tasks["model_accuracy"].mean()
        rows[name].update(table.loc[state].to_dict())
        depth[name] = table.set_axis(table.index / layers_of(name, study.provenance))
    common = shared(depth, lambda table: [measure for measure in _COMPARED if measure in table])
    numbers = numbers_of(rows)
    figures = {measure: _probes(having, measure) for measure, having in common}
    best = numbers.filter(["dense", "l0", "topk"]).max(axis=1)
    heading = "What the best probes add to a bag of words in accuracy"
    return Sides(DEFINITIONS, numbers, figures, extremes(heading, best - numbers["bag_of_words"], "{:+z.3f}"))


def _probes(tables: Mapping[str, pd.DataFrame], measure: str) -> Figure:
    """Accuracy of probes by relative depth, mean over tasks, from the tables `by_state`. Dotted: a bag of words."""
    out = figure(_COMPARED[measure], DEPTH, "accuracy", subtitle="mean over tasks; dotted: a bag of words")
    draw_runs(out, {name: table[measure] for name, table in tables.items()}, list(tables))
    for name, style in run_styles(list(tables)).items():
        dotted = dict(CHANCE, name=style["name"], color=style["color"])
        add_series(out, tables[name]["bag_of_words"].round(4), dotted, legend=False, hoverinfo="skip")
    return out
