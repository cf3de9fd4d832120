"""Answers against brute force on models, and against tables in which the truth is known."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from interp import corpora, frequency
from interp.analyses.attention.findings import answer as of_attention
from interp.analyses.controls.findings import answer as of_controls
from interp.analyses.encoding.findings import answer as of_encoding
from interp.analyses.frequency.findings import answer as of_frequency
from interp.analyses.generation.findings import answer as of_generation
from interp.analyses.probing.findings import answer as of_probing
from interp.cli import main
from interp.results.findings import counted

WORDS = {"first": "the first token"}
COUNTS = np.arange(67) ** 2  # the first token does not occur


def mean_prediction(model, batches):
    rows = [model(batch.tokens)[batch.read.bool()].softmax(-1).double() for batch in batches]
    return torch.cat(rows).mean(0).numpy()


@torch.no_grad()
def test_what_a_bias_does_to_rare_and_frequent_tokens(load_toy, texts):
    """Against the mean prediction of the model with its bias edited."""
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, context=24)
    effect = frequency.study(model, batches, unigram=COUNTS, scales=[0, 0.5, 1], progress=False)
    values = effect.answer.values
    trained = mean_prediction(model, batches)
    model.ln_final.b.zero_()
    log_ratio = np.log(mean_prediction(model, batches) / trained)
    unigram = effect.types["unigram"].to_numpy()
    occurring = np.sort(unigram[unigram > 0])
    n_rare, n_frequent = int(np.ceil(len(occurring) / 10)), int(np.ceil(len(occurring) / 100))
    rare = (unigram > 0) & (unigram <= occurring[n_rare - 1])
    frequent = unigram >= occurring[-n_frequent]
    assert values["rare_ratio"] == pytest.approx(np.exp(log_ratio[rare].mean()), rel=1e-4)
    assert values["frequent_ratio"] == pytest.approx(np.exp(log_ratio[frequent].mean()), rel=1e-4)
    kl = effect.kl.set_index("scale")
    kl = kl["kl_corrected"].fillna(kl["kl_unigram_model"])
    assert (values["kl_before"], values["kl_after"]) == pytest.approx((kl[1.0], kl[0.0]))
    assert (
        f"the {rare.sum()} rarest of {len(occurring)} types are {values['rare_ratio']:.3g} times" in effect.answer.text
    )


def test_equally_rare_types_are_in_the_same_group(load_toy, texts):
    """Whatever the order of the vocabulary."""
    effect = frequency.study(load_toy("gpt2"), texts, unigram=COUNTS, scales=[0, 1], progress=False)
    counts = np.ones(len(effect.types))
    counts[:5] = [40, 30, 20, 10, 10]
    types = effect.types.assign(unigram=counts / counts.sum())
    table = effect.probabilities(bias="ln").pivot(index="token_id", columns="scale", values="probability")
    log_ratio = np.log(table[0.0] / table[1.0])
    found = of_frequency(effect.kl, types, effect.probabilities)
    assert found.values["rare_ratio"] == pytest.approx(np.exp(log_ratio[5:].mean()), rel=1e-6)
    assert found.text.startswith(f"Without b_LN (the bias of the final layer norm), the {len(types) - 5} rarest of")


def test_types_that_are_all_as_frequent_are_not_called_rare(load_toy, texts):
    effect = frequency.study(load_toy("gpt2"), texts, unigram=COUNTS, scales=[0, 1], progress=False)
    types = effect.types.assign(unigram=1 / len(effect.types))
    text = of_frequency(effect.kl, types, effect.probabilities).text
    assert text.startswith("Without b_LN (the bias of the final layer norm), KL(u‖q), the distance of")


def test_there_is_no_answer_without_the_model_as_it_was_trained(load_toy, texts):
    effect = frequency.study(load_toy("gpt2"), texts, unigram=COUNTS, scales=[0], progress=False)
    assert effect.answer is None


def test_whose_text_comes_nearer_to_human_text():
    rows = [("human", np.nan, 0.7, np.nan), ("greedy", 0.0, 0.3, 0.1), ("greedy", 1.0, 0.2, np.nan)]
    rows += [("top_p", 0.0, 0.9, 0.1), ("top_p", 0.5, 0.85, 0.05), ("top_p", 1.0, 0.8, np.nan)]
    table = pd.DataFrame(rows, columns=["decoder", "scale", "value", "difference"]).assign(measure="diversity")
    no_mauve = pd.DataFrame()
    assert str(of_generation(table, no_mauve)) == (
        "Without b_LN (the bias of the final layer norm), the diversity of text is nearer to that of human text "
        "(0.700) with greedy decoding (0.200 to 0.300) and farther from it with top-p sampling (0.800 to 0.900)."
    )
    of_top_p = table.drop(index=[1, 2])
    assert "is farther from that of human text (0.700) with top-p" in str(of_generation(of_top_p, no_mauve))
    assert of_generation(table[table["scale"] != 0].query("scale != 0.5"), no_mauve) is None


def test_which_dimensions_decide_attention():
    gaps = pd.DataFrame({"layer": [0, 3], "key_class": ["bos", "first"], "dim": [4, 9], "abs_share": [0.1, 0.4]})
    outliers = pd.DataFrame({"dim": [9, 2, 9]})
    of = {"kind": ["removed", "removed", "removed", "frame"], "dims": ["2", "9", "all", "all"]}
    frames = pd.DataFrame(of | {"layer": [1, 3, 3, 3], "key_class": "first", "log_odds": [0.1, -2.0, -2.5, 0.4]})
    frames = frames.assign(attention_before=0.6, attention_after=[0.62, 0.2, 0.1, 0.6])
    ablation = gaps.assign(dim=9, attention_before=0.61, attention_after=0.3)
    found = of_attention(gaps, ablation, outliers, frames, WORDS, "keys")
    assert (found.values["dim"], found.values["layer"], found.values["outliers"]) == (9, 3, [2, 9])
    assert found.values["attention_without_dim"] == 0.3
    assert found.text.endswith(
        "Without it in the keys of this block, attention to the first token goes from 0.610 to 0.300. "
        "Without the 2 outlier dimensions (2, 9) in the keys of block 3, attention to the first token goes from 0.600 "
        "to 0.100."
    )
    alone = of_attention(gaps, ablation[:0], outliers.iloc[:1], frames[frames["dims"] == "9"], WORDS, "residual")
    assert "Without outlier dimension 9 in the residual stream that enters block 3, attention" in alone.text
    each = of_attention(gaps, ablation[:0], outliers, frames[frames["dims"] != "all"], WORDS, "residual")
    assert each.text.endswith(
        "Without outlier dimension 9 in the residual stream that enters block 3, attention to the first token goes "
        "from 0.600 to 0.200."
    )
    assert each.values["removed"] == [9]
    nothing = of_attention(gaps.iloc[:0], ablation, outliers.iloc[:0], frames.iloc[:0], WORDS, "keys")
    assert str(nothing) == "No dimension of the residual stream is an outlier."


def test_how_output_embeddings_encode_probability():
    regression = pd.DataFrame({"target": ["-log alpha", "shuffled"], "cv_r2": [0.91, 0.0], "n_dims": 16, "n_types": 67})
    curve = {"basis": ["axis", "axis", "pca"], "order": ["spearman", "random", "spearman"]}
    removable = pd.DataFrame(curve | {"99%": 0.0, "95%": [0.3, 0.1, 0.2]})
    errors = {"text": ["fitted", "fitted", "other"], "shift": ["exact", "regression", "regression"], "group": "all"}
    found = of_encoding(regression, removable, pd.DataFrame(errors | {"error": [0.01, np.log(2), 9.0]}))
    assert found.values["steering_factor"] == pytest.approx(2)
    assert "R² = 0.910. Asked" in found.text
    assert "misses by a factor of 2.00 in the median. 30% of the dimensions" in found.text


def test_how_few_dimensions_a_sparse_probe_reads():
    means = pd.DataFrame({"state": [1, 2, 2, 2], "probe": ["dense", "dense", "l0", "bag_of_words"]})
    means["accuracy"] = [0.5, 0.9, 0.8, 0.6]
    by_state = pd.DataFrame({"state": [1, 2], "l0_open": [0.5, 0.125]})
    read = pd.DataFrame({"dim": [3, 7, 5], "read_by": [2, 2, 1]})
    found = of_probing(means, by_state, read, 2, 16, "3 phenomena")
    assert str(found) == (
        "Accuracy at state 2, mean over 3 phenomena: dense probes 0.900, sparse probes 0.800, a bag of words 0.600. A "
        "sparse probe reads 2.0 of 16 dimensions on average; most often dimensions 3, 7, for 2 tasks each."
    )
    assert str(of_probing(means, by_state, read.iloc[:0], 1, 16, "1 task")).endswith("1 task: dense probes 0.500.")


def test_what_a_direction_costs_frequent_and_rare_tokens():
    bands = pd.DataFrame({"bias": ["ln", "ln", "mean", "mean"], "scale": 0.0, "band": [2, 1, 1, 2]})
    bands = bands.assign(n_types=[50, 1, 1, 50], share=[0.4, 0.6, 0.6, 0.4], delta_nll=[-0.2, 0.7, 3.0, 1.0])
    found = of_controls(bands)
    assert (found.values["frequent"], found.values["rare"]) == (0.7, -0.2)
    assert "of the 1 most frequent token, 60% of the text, changes by +0.70 nats" in found.text
    assert of_controls(bands.iloc[:0]) is None


def test_answers_come_first_in_the_terminal_and_on_the_page(tmp_path, capsys):
    command = ["frequency", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "30", "--out", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert main(["show", str(tmp_path), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["answers"]
    assert record["analysis"] == "frequency"
    assert record["values"]["bias"] == "ln"
    line = next(line for line in printed.splitlines() if record["answer"] in line)
    assert line.startswith("Word frequency in the prediction head: Without b_LN")
    assert printed.index(line) < printed.index("Are predictions further from word frequency")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.index(record["answer"]) < page.index("Are predictions further")
    result = frequency.FrequencyStudy.load(tmp_path)
    assert repr(result).splitlines()[1].startswith("Without b_LN")
    assert result.answer.text in result.summary()
    assert line.endswith(f"Verdicts: {counted(result.findings)}.")
