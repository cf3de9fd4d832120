"""Intervals of text measures against brute force, which leaves out every prompt in turn and measures again."""

import numpy as np
import pandas as pd
import pytest
from oracles.intervals import half_width, pseudo_values

from interp.analyses.generation import study, text_metrics
from interp.analyses.generation.metrics import MEASURES, frequent_types, intervals
from interp.corpora.unigrams import Unigrams

COUNTS = Unigrams(np.arange(40, 0, -1), "counts")
N = 24
REPETITION = MEASURES.index("repetition")


def written(each, seed=0):
    """Texts of 12 tokens from two decoders at three scales; some of one prompt are shorter than an n-gram."""
    rng = np.random.default_rng(seed)
    rows = [
        (decoder, scale, prompt, rng.integers(0, 12 + 8 * np.nan_to_num(scale), 2 if prompt == 3 else 12))
        for decoder, scales in (("human", [np.nan]), ("greedy", [0.0, 1.0]), ("sample", [0.0, 0.5]))
        for scale in scales
        for prompt in range(N)
        for _ in range(1 if decoder == "human" else each)
    ]
    table = pd.DataFrame(rows, columns=["decoder", "scale", "prompt_id", "token_ids"])
    return table.sample(frac=1, random_state=0)  # in any order


def measured(texts):
    found = text_metrics(texts["token_ids"].map(np.ndarray.tolist).tolist(), unigram=COUNTS)
    return np.array([found[name] for name in MEASURES])


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.filterwarnings("ignore:Precision loss occurred")
def test_intervals_are_those_of_leaving_out_each_prompt(each):
    texts = written(each)
    found = intervals(texts, frequent_types(COUNTS))
    assert len(found) == 5 * len(MEASURES)

    def left_out(decoder, scale):
        """The measures over all prompts, and over all prompts except each one in turn."""
        part = texts[(texts["decoder"] == decoder) & np.isclose(texts["scale"], scale, equal_nan=True)]
        return np.array([measured(part[part["prompt_id"] != prompt]) for prompt in (None, *range(N))])

    unscaled = left_out("greedy", 1.0)
    for (decoder, scale), rows in found.groupby(["decoder", "scale"], dropna=False):
        values = left_out(decoder, scale)
        differences = values - unscaled
        rows = rows.set_index("measure").loc[[*MEASURES]]
        np.testing.assert_allclose(rows["value"], values[0], rtol=1e-12)
        for name, of, ends in (("value", values, ("low", "high")), ("difference", differences, None)):
            if name == "difference" and decoder != "greedy":
                assert rows[["difference", "difference_low", "difference_high"]].isna().all(axis=None)
                continue
            low, high = ends or ("difference_low", "difference_high")
            half = half_width(pseudo_values(of[0], of[1:]))
            repeating = [(of[1:, REPETITION] < of[0, REPETITION]).sum() for of in (values, unscaled)]
            if max(repeating[: 1 + (name == "difference")]) < 5:
                half[REPETITION] = np.nan
            np.testing.assert_allclose(rows[name], of[0], atol=1e-12)
            least, most = (0, 1) if name == "value" else (-np.inf, np.inf)
            np.testing.assert_allclose(rows[low], (of[0] - half).clip(least), atol=1e-9)
            np.testing.assert_allclose(rows[high], (of[0] + half).clip(max=most), atol=1e-9)


@pytest.mark.parametrize("repeating", [0, 4, 5])
def test_repetition_by_few_prompts_has_no_interval(repeating):
    ids = [[1, 2, 3, 4] * 3 if prompt < repeating else [*range(5, 17)] for prompt in range(N)]
    texts = pd.DataFrame({"decoder": "greedy", "scale": 1.0, "prompt_id": range(N), "token_ids": ids})
    found = intervals(texts, frequent_types(COUNTS)).set_index("measure")
    assert found.loc["repetition", "value"] == pytest.approx(repeating * 5 / 9 / N)
    assert found.loc["repetition", ["low", "high"]].notna().all() == (repeating == 5)
    assert found.drop("repetition")[["low", "high"]].notna().all(axis=None)


def test_few_prompts_have_no_interval_and_say_why(load_toy):
    model, text = load_toy("gpt2"), [f"w{i % 7} w{i % 31} w{i % 5} w{i % 11} w{i % 3} w1" for i in range(60)]
    short = {"prompt_tokens": 2, "new_tokens": 4, "scales": [0, 1], "decoders": ["greedy"], "progress": False}
    for n in (19, 20):
        found = study(model, text, n=n, unigram=np.arange(67), **short)
        assert found.intervals["value"].notna().all()
        assert found.intervals[["low", "high"]].isna().all(axis=None) == (n == 19)
        assert found.provenance["intervals"].get("none", "").startswith("what was read is 19 different texts") == (
            n == 19
        )
        by_measure = found.intervals.pivot(index=["decoder", "scale"], columns="measure", values="value")
        metrics = found.metrics.set_index(["decoder", "scale"])
        for name in MEASURES:
            np.testing.assert_allclose(by_measure[name], metrics.loc[by_measure.index, name], rtol=1e-12)
        same = found.intervals.query("scale == 1")
        assert (same["difference"] == 0).all()
