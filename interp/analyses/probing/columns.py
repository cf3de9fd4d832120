"""What the columns of `interp probing`'s tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS", "TRAINED_ON"]

TRAINED_ON = {"others": "all others", "other_fields": "other fields", "same_field": "the same field"}
TRAINED_ON |= {"same_term": "the same term"}
"""The tasks that a general probe is trained on."""
_PROBES = {"dense": "dense", "l0": "sparse", "topk": "top k"}
_CONTROLS = {"flipped": "labels flipped", "untrained": "untrained", "rotated": "random basis"}
_PROBE_WORD = _PROBES | {"bag_of_words": "bag of words"}
_PROBE_WORD |= {
    f"{name}_{how}": f"{probe}, {what}" for name, probe in _PROBES.items() for how, what in _CONTROLS.items()
}
_METHOD_WORD = {"l0": "sparse", "bag_of_words": "bag of words", "random": "random dimensions"}
_METHOD_WORD |= {"topk:welch": "top k (Welch)"}
_CONTROL_WORD = {"flip": "labels flipped", "rotation": "random basis", "untrained": "untrained"}
_SCORE_WORD = {"per_token": "per token", "per_character": "per character"}
_SCORE_WORD |= {"per_byte": "per byte"}
_SET_WORD = {"matched": "random, matched in size", "perplexity": "random, matched in perplexity"}

MEANINGS = COMMON | {
    "scale": Column("SD", "Standard deviation of the dimension over training sentences; ∞ for a constant one."),
    "accuracy": Column("accuracy", "Share of test sentences, or of test pairs, that are judged correctly."),
    "model_accuracy": Column("model's own accuracy", "Share of all pairs whose good sentence it scores higher."),
    "n_judged": Column("judged", "Number of pairs behind the model's own accuracy."),
    "model_accuracy_test": Column("its accuracy, test pairs", "The same share of the test pairs alone."),
    "n_judged_test": Column("judged, test pairs", "Number of test pairs behind that."),
    "bag_of_words": Column("bag of words", "Accuracy of a classifier that sees word counts only, on the same split."),
    "score": Column("score", "How the model scores sentences; the score of the probe at a token.", _SCORE_WORD),
    "above": Column("tasks above", "Number of tasks on which it is better, at an adjusted p of at most .05."),
    "below": Column("tasks below", "Number of tasks on which it is worse, at an adjusted p of at most .05."),
    "probe": Column("probe", "The probe, and its control if it is one.", _PROBE_WORD),
    "against": Column("against", "What it is compared with.", _PROBE_WORD),
    "sd": Column("SD over seeds", "Standard deviation of the accuracy over seeds."),
    "method": Column(
        "method",
        "dense: L2 logistic regression; l0: sparse; topk: on the top k dimensions; or words alone.",
        _METHOD_WORD,
    ),
    "l0_strength": Column("λ", "Weight of the loss relative to the number of open gates; a small λ opens few."),
    "k": Column("k", "Number of dimensions."),
    "control": Column("control", "none; labels flipped; random basis; or untrained model.", _CONTROL_WORD),
    "pair_accuracy": Column("pair accuracy", "Share of test pairs in which the good sentence scores higher."),
    "validation_accuracy": Column("validation accuracy", "Accuracy on the pairs that are used for choosing only."),
    "n_open": Column("open gates", "Number of dimensions that the probe reads."),
    "open_fraction": Column("open fraction", "Share of dimensions that the probe reads."),
    "n_test": Column("test sentences", "Number of test sentences; pairs that share a sentence count as one pair."),
    "rms": Column("RMS", "Root mean square of the training states before any scaling."),
    "t": Column("t", "Welch's t statistic."),
    "gate": Column("gate", "0: closed; 1: open."),
    "weight": Column("weight", "Weight of the dimension in the probe."),
    "ratio": Column("random per top dimension", "How many random dimensions per top one reach the same accuracy."),
    "top_accuracy": Column("accuracy of the top", "Accuracy of a probe of the top 1 % of dimensions."),
    "censored": Column("lower bound?", "Whether all remaining dimensions together do not reach it."),
    "spearman_max": Column("largest possible ρ", "The largest rank correlation possible with so few open gates."),
    "auroc": Column("AUROC", "How well |t| separates open gates from closed ones."),
    "read_by": Column("read by", "Number of tasks whose sparse probe reads the neuron."),
    "text": Column("sentence", "Whether the sentence is good or bad, and its task."),
    "pair": Column("pair", "Row number in the table of pairs."),
    "jaccard": Column("Jaccard index", "Gates open in both, divided by gates open in either."),
    "train_task": Column("trained on", "Task on which the probe was trained."),
    "test_task": Column("tested on", "Task whose test pairs the probe reads."),
    "trained_on": Column("trained on", "Which other tasks the probe was trained on.", TRAINED_ON),
    "set": Column("removed", "The neurons found, or controls: random, or matched in size or perplexity.", _SET_WORD),
    "n_neurons": Column("neurons", "Number of neurons removed."),
    "magnitude": Column("RMS", "Root mean square, mean over the neurons."),
    "accuracy_before": Column("before", "The model's own accuracy on the pairs before the removal."),
    "accuracy_after": Column("after", "The model's own accuracy on the pairs after the removal."),
    "margin_before": Column("margin, before", "Mean difference between the scores of the two sentences, before."),
    "margin_after": Column("margin, after", "Mean difference between the scores of the two sentences, after."),
    "log_probability_before": Column("log p, before, nats", "Mean log-probability of a sentence, before."),
    "log_probability_after": Column("log p, after, nats", "Mean log-probability of a sentence, after."),
    "change": Column("change", "Change of the model's own accuracy, mean over tasks."),
    "margin": Column("change of margin, nats", "Change of the mean difference between scores of the two sentences."),
    "below_every_match": Column(
        "below every match", "Tasks where accuracy falls further than without any matched set."
    ),
    "mean": Column("mean", "Mean of the dimension over training sentences."),
    "top_low": Column("accuracy of the top, low", "Lower end of the accuracy of the top, one-sided at 99 %."),
    "untrained_accuracy": Column("of the top, untrained", "Accuracy of the top 1 % in the untrained model."),
    "sentence": Column("sentence", "Which sentence of the pair: good or bad."),
    "position": Column("position", "Position of the token in the sentence."),
}
for _name, _probe in _PROBES.items():
    MEANINGS[_name] = Column(_probe, f"Accuracy of {_probe} probes.")
    for _control, _words in _CONTROLS.items():
        MEANINGS[f"{_name}_{_control}"] = Column(f"{_probe}, {_words}", f"Accuracy of {_probe} probes, {_words}.")
MEANINGS |= {
    f"l0{control}_open": Column(f"{MEANINGS[f'l0{control}'].label}, open", "Share of its gates that are open.")
    for control in ("", "_untrained", "_rotated")
}
IN_PAPER = {
    "probes": ["task", "state", "method", "l0_strength", "control", "accuracy", "n_open"],
    "general": ["task", "trained_on", "method", "l0_strength", "accuracy", "n_open"],
    "ablation": ["task", "mode", "set", "draw", "n_neurons", "accuracy_before", "accuracy_after"],
    "contexts": ["dim", "activation", "before", "token", "after"],
    "judgements": ["task", "score", "accuracy", "difference", "p_adjusted"],
}
"""The columns that wide tables have in a paper, unless others are named."""
