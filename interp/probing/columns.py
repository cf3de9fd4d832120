"""What the columns of `interp probing`'s tables mean."""

from interp.columns import COMMON, Column

__all__ = ["MEANINGS"]

_PROBES = {"dense": "dense", "l0": "sparse", "topk": "top k"}
_CONTROLS = {"flipped": "labels flipped", "untrained": "untrained", "rotated": "random basis"}

MEANINGS = COMMON | {
    "field": Column("field", "BLiMP's field of grammar."),
    "linguistics_term": Column("phenomenon", "BLiMP's linguistics term."),
    "accuracy": Column("accuracy", "Share of test sentences, or pairs of them, that are judged right."),
    "model_accuracy": Column("model's own accuracy", "Share of test pairs whose good sentence the model prefers."),
    "n_judged": Column("judged", "How many test pairs the model's own accuracy is of."),
    "bag_of_words": Column("bag of words", "Accuracy of a classifier that counts words, on the same split."),
    "score": Column("score", "How log-probabilities of sentences are compared, or what ranks units."),
    "above": Column("tasks above", "Tasks on which it is better, at an adjusted p of .05."),
    "below": Column("tasks below", "Tasks on which it is worse, at an adjusted p of .05."),
    "probe": Column("probe", "Which probe, and of which control."),
    "against": Column("against", "What it is compared with."),
    "sd": Column("SD over seeds", "Standard deviation of the accuracy over seeds."),
    "method": Column("method", "dense: L2 logistic regression; l0: sparse; topk: of the top k dimensions."),
    "l0_strength": Column("λ", "Weight of the loss against the number of open gates; small: few gates."),
    "k": Column("k", "How many dimensions."),
    "C": Column("C", "Inverse strength of the L2 penalty."),
    "control": Column("control", "none; labels flipped; random basis; untrained; or a task that is no grammar."),
    "pair_accuracy": Column("pair accuracy", "Share of test pairs whose good sentence scores higher."),
    "validation_accuracy": Column("validation accuracy", "On the pairs that choose, not those that test."),
    "n_open": Column("open gates", "How many dimensions the probe reads."),
    "open_fraction": Column("open fraction", "Share of dimensions that the probe reads."),
    "expected_open": Column("expected open", "Mean probability that a gate is open."),
    "n_test": Column("test sentences", "How many."),
    "rms": Column("RMS", "Root mean square of the training states as the model has them."),
    "t": Column("t", "Of the differences within pairs, or Welch's, as the table says."),
    "welch_t": Column("Welch t", "Of good against bad sentences."),
    "gate": Column("gate", "0 closed, 1 open."),
    "weight": Column("weight", "Of the dimension in the probe."),
    "ratio": Column("random for one of the top", "How many times as many random dimensions reach the top's accuracy."),
    "top_accuracy": Column("accuracy of the top", "Of a probe of the top 1 % of dimensions."),
    "censored": Column("lower bound?", "Whether all dimensions there are do not reach it."),
    "spearman_max": Column("largest possible ρ", "The rank correlation that gates so few can have at most."),
    "auroc": Column("AUROC", "How well |t| tells open gates from closed ones."),
    "pair": Column("pair", "Row of the table of pairs."),
    "task_a": Column("task", "The one task."),
    "task_b": Column("and", "The other task."),
    "control_a": Column("control of the one", "none for a task, words for its partner that is no grammar."),
    "control_b": Column("control of the other", "none for a task, words for its partner that is no grammar."),
    "jaccard": Column("Jaccard index", "Open gates of both over open gates of either."),
    "expected": Column("by chance", "What random sets of that size have."),
    "train_task": Column("trained on", "The task of the probe."),
    "test_task": Column("tested on", "The task whose test pairs it reads."),
    "trained_on": Column("trained on", "Which other tasks the probe has seen."),
    "set": Column("removed", "The neurons found, or controls: random, matched in magnitude, or in perplexity."),
    "n_neurons": Column("neurons", "How many are removed."),
    "magnitude": Column("RMS", "Mean root mean square of the neurons."),
    "accuracy_before": Column("before", "The model's own accuracy on the pairs before."),
    "accuracy_after": Column("after", "The model's own accuracy on the pairs after."),
    "margin_before": Column("margin, before", "Mean difference of the two sentences' scores."),
    "margin_after": Column("margin, after", "Mean difference of the two sentences' scores."),
    "log_probability_before": Column("log p, before, nats", "Mean log-probability of a sentence."),
    "log_probability_after": Column("log p, after, nats", "Mean log-probability of a sentence."),
    "change": Column("change", "Of the model's own accuracy, mean over tasks."),
    "margin": Column("change of margin, nats", "Of the mean difference of the two sentences' scores."),
    "below_every_match": Column("below every match", "Tasks on which it falls further than with any matched neurons."),
    "mean": Column("mean", "Of the dimension over training sentences."),
    "top_low": Column("accuracy of the top, low", "One-sided 99 % lower end."),
    "untrained_accuracy": Column("of the top, untrained", "Accuracy of the top 1 % in the untrained model."),
    "sentence": Column("sentence", "good or bad."),
    "position": Column("position", "Of the token in the sentence."),
    "of": Column("units", "Of the residual stream, MLP neurons, or outputs of attention heads."),
    "at": Column("at", "Hidden state of the residual stream; block of neurons and heads."),
    "unit": Column("unit", "Its number there."),
    "overlap": Column("overlap", "Share of the top units that other pairs choose too."),
    "null": Column("labels flipped", "Mean overlap with labels flipped at random within pairs."),
    "null_high": Column("labels flipped, 95 %", "95th percentile with labels flipped at random within pairs."),
    "auc": Column("AUC", "P(good > bad) of the unit over all sentences."),
    "auc_error": Column("error of AUC", "The histogram moves it by at most this."),
    "error": Column("error of AUC", "The histogram moves it by at most this."),
    "parts": Column("chosen by", "Share of the parts of the pairs whose top has it."),
    "pair_share": Column("pairs told", "Share of pairs in which the unit is larger for the right sentence."),
    "by": Column("groups", "What makes a group of tasks: field or phenomenon."),
    "within": Column("within", "Mean overlap of two tasks of one group."),
    "between": Column("between", "Mean overlap of two tasks of different groups."),
    "n_groups": Column("groups", "How many groups."),
}
for _name, _probe in _PROBES.items():
    MEANINGS[_name] = Column(_probe, f"Accuracy of {_probe} probes.")
    for _control, _words in _CONTROLS.items():
        MEANINGS[f"{_name}_{_control}"] = Column(f"{_probe}, {_words}", f"Accuracy of {_probe} probes, {_words}.")
MEANINGS |= {
    f"l0{control}_open": Column(f"{MEANINGS[f'l0{control}'].label}, open", "Share of gates that are open.")
    for control in ("", "_untrained", "_rotated")
}
