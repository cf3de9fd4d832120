"""Each kind of finding on constructed tables, with the verdicts yes, partly, no and cannot tell."""

import math

import numpy as np
import pandas as pd
import pytest

from interp.analyses.attention.findings import steered
from interp.analyses.directions.findings import direction_findings
from interp.analyses.encoding.findings import (
    as_untrained,
    better_than_random,
    beyond_theory,
    removable,
    steered as steers,
)
from interp.analyses.frequency.findings import findings as of_biases
from interp.analyses.generation.findings import diverse
from interp.analyses.probing.findings import above_untrained, beyond, concentrated, held, needed, some_general
from interp.results.findings import Finding, findings_table, over_texts

NONE = math.nan


def finding(**changed):
    known = {"question": "Is it so?", "verdict": "yes", "measure": "it is", "value": 1.0, "low": 0.5, "high": 1.5}
    return Finding(**known | {"rule": "yes where it is"} | changed)


def test_a_finding_is_a_sentence():
    assert str(finding()) == "Is it so? It is 1.000 [0.500, 1.500]. Yes."
    assert str(finding(unit="nats", form="{:+.1f}")) == "Is it so? It is +1.0 nats [+0.5, +1.5]. Yes."
    below = finding(value=-1.0, low=-1.5, high=-0.5, control=-0.25, compared_with="by chance")
    assert str(below) == "Is it so? It is −1.000 [−1.500, −0.500]; by chance: −0.250. Yes.", "minus signs, not hyphens"
    assert str(finding(control=0.25, compared_with="by chance")).endswith("[0.500, 1.500]; by chance: 0.250. Yes.")
    bare = finding(verdict="cannot tell", low=NONE, high=NONE, compared_with="nothing is like it")
    assert str(bare) == "Is it so? It is 1.000 (no interval); nothing is like it. Cannot tell."
    assert str(finding(value=NONE)) == "Is it so? It is undefined. Yes."


@pytest.mark.parametrize(
    ("value", "low", "high", "told"),
    [(-0.00123, -0.002, -0.00001234, "−0.001230 [−0.002000, −0.000012]"),
     (-0.00123, -0.002, 0.00001234, "−0.001230 [−0.002000, +0.000012]"),
     (0.5, -1e-8, 1.0, "+0.500 [0.000, +1.000]"), (1e-17, -1e-17, 2e-17, "0.000 [0.000, 0.000]"),
     (0.0, 0.0, 0.0, "0.000 [0.000, 0.000]"), (0.00009999, NONE, NONE, "+0.000100 (no interval)"),
     (0.1, 0.0005001, 0.2, "+0.100 [+0.001, +0.200]"), (0.1, -0.0004, 0.2, "+0.10000 [−0.00040, +0.20000]")],
)  # fmt: skip
def test_what_is_not_zero_is_not_printed_as_zero(value, low, high, told):
    for form in ("{:+.3f}", "{:+z.3f}"):
        assert finding(value=value, low=low, high=high, form=form).number == told
    assert str(finding(control=-0.00012, compared_with="by chance")).endswith(
        "[0.500, 1.500]; by chance: −0.00012. Yes."
    )
    assert finding(value=0.2, low=0, high=1, form="{:.0f}").number == "0.20 [0.00, 1.00]"


@pytest.mark.parametrize(
    ("verdict", "towards", "low", "high", "told"),
    [("no", 1, -0.3, -0.1, "No, the opposite"), ("no", -1, 0.1, 0.3, "No, the opposite"), ("no", 1, 0.1, 0.3, "No"),
     ("no", 1, -0.3, 0.0, "No"), ("no", 0, -0.3, -0.1, "No"), ("no", 1, NONE, NONE, "No"),
     ("cannot tell", 1, -0.3, -0.1, "Cannot tell")],
)  # fmt: skip
def test_the_opposite_is_called_so(verdict, towards, low, high, told):
    found = finding(verdict=verdict, towards=towards, low=low, high=high)
    assert str(found).endswith(f". {told}.")
    assert findings_table([found])["verdict"].tolist() == [verdict]


def test_a_finding_without_an_interval_says_why():
    without = finding(low=NONE, high=NONE)
    assert str(over_texts([without], {})) == str((without,)), "the reason is unknown"
    (found,) = over_texts([without], {"none": "9 texts"})
    assert str(found) == "Is it so? It is 1.000 (no interval: 9 texts). Yes."
    assert over_texts([finding(low=NONE, no_interval="one task")], {"none": "9 texts"})[0].no_interval == "one task"
    (whole,) = over_texts([finding()], {"none": "9 texts"})
    assert str(whole).endswith("1.000 [0.500, 1.500]. Yes.")


def test_findings_are_records():
    table = findings_table([finding(), finding(value=-2.0)])
    assert table["value"].tolist() == [1.0, -2.0]
    assert {"question", "verdict", "measure", "low", "high", "control", "rule"} < set(table)


def of_bias(delta, low, high, *, bias="ln", scale=0.0, spearman=0.8, draws=None, before=0.1, perplexity=3.0):
    kl = pd.DataFrame({"bias": bias, "scale": [scale, 1.0], "delta_kl": [delta, 0.0]})
    kl = kl.assign(kl_unigram_model=kl["delta_kl"] + before, delta_kl_corrected=kl["delta_kl"])
    kl = kl.assign(delta_kl_low=[low, 0.0], delta_kl_high=[high, 0.0], perplexity=perplexity)
    types = pd.DataFrame({"unigram": [0.25] * 4})
    columns = {"bias": bias, "spearman": spearman, "spearman_low": spearman - 0.1, "spearman_high": spearman + 0.1}
    projection = pd.DataFrame([columns | {"n_types": 50}])
    drawn = {"isotropic": 0.2, "embeddings": 0.2, "centred embeddings": 0.2, "orders": 0.1} | (draws or {})
    table = pd.DataFrame(
        [{"kind": kind, "spearman": x} for kind, most in drawn.items() for x in np.linspace(-most, most, 399)]
    )
    return of_biases(kl, types, projection.iloc[: int(bias != "fc")], table, {"groups": 20, "texts_per_group": 2})


def test_a_text_that_the_model_does_not_predict_has_no_verdict_on_its_distance_from_word_frequency():
    moved, follows = of_bias(0.3, 0.29, 0.31, perplexity=4.1)
    assert (moved.verdict, follows.verdict) == ("cannot tell", "yes")
    assert "no better than word frequencies" in str(moved)
    assert of_bias(0.3, 0.29, 0.31, perplexity=3.9)[0].verdict == "yes"


@pytest.mark.parametrize(
    ("delta", "low", "high", "before", "verdict"),
    [
        (0.2, 0.1, 0.3, 0.1, "yes"),
        (0.2, 0.1, 0.3, 5.0, "cannot tell"),  # 5 % of KL as trained is .25
        (0.003, 0.002, 0.004, 0.01, "no"),
        (-0.2, -0.3, -0.1, 0.1, "no"),
        (0.2, -0.1, 0.5, 0.1, "cannot tell"),
        (0.2, NONE, NONE, 0.1, "cannot tell"),
        (0.0, 0.0, 0.0, 0.1, "no"),
    ],
)
def test_a_bias_keeps_predictions_near_word_frequency(delta, low, high, before, verdict):
    moved, _ = of_bias(delta, low, high, before=before)
    assert moved.question == "Are predictions further from word frequency without b_LN?"
    assert (moved.verdict, moved.value) == (verdict, delta)
    assert str(moved).endswith(". No, the opposite.") == (delta < 0)
    if delta == 0.2 and low == -0.1:
        assert "about 91 texts would decide it" in str(moved)


@pytest.mark.parametrize(
    ("spearman", "draws", "verdict"),
    [(0.8, {}, "yes"), (0.8, {"embeddings": 0.9}, "partly"), (0.8, {"embeddings": 1, "isotropic": 1}, "cannot tell"),
     (-0.8, {}, "no"), (0.0, {}, "cannot tell"), (0.8, {"orders": 0.9}, "yes")],
)  # fmt: skip
def test_what_a_bias_adds_follows_word_frequency(spearman, draws, verdict):
    _, follows = of_bias(0.2, 0.1, 0.3, spearman=spearman, draws=draws)
    assert follows.verdict == verdict
    if verdict == "partly":
        assert "does not pass random sums of output embeddings, which share their common direction" in str(follows)


def test_the_bias_of_the_logits_is_compared_with_random_orders_of_its_values():
    _, follows = of_bias(0.2, 0.1, 0.3, bias="last", draws={"embeddings": 0.9})
    assert follows.verdict == "yes"
    assert "399 random orders of its values: median 0.000, p = 0.003" in str(follows)


def test_other_scales_and_biases_are_named():
    assert of_bias(0.1, 0.0, 0.2, scale=0.5)[0].question.endswith("with b_LN times 0.5?")
    assert [one.question[:4] for one in of_bias(0.0, 0.0, 0.0, scale=1.0)] == ["Does"]
    (dense,) = of_bias(0.2, 0.1, 0.3, bias="fc")
    assert (dense.verdict, dense.question[-6:]) == ("yes", " b_FC?")
    assert of_bias(0.1, 0.0, 0.2, spearman=NONE)[1:] == ()


def of_outlier(effect, half, directions, ordinary, *, before=0.5, after=0.2, dims="48"):
    """Largest effects: of what is removed, and of the draws of each control."""
    spread = np.linspace(0.5, 1, 39)
    rows = {"dims": dims, "kind": ["removed"], "draw": [0], "log_odds": [effect]}
    rows |= {"log_odds_low": [effect - half], "log_odds_high": [effect + half]}
    tables = [pd.DataFrame(rows)]
    for kind, most in {"frame": directions / 2, "equal keys": directions, "ordinary": ordinary}.items():
        draws = {"dims": dims, "kind": kind, "draw": range(39), "log_odds": np.resize([1, -1], 39) * most * spread}
        tables.append(pd.DataFrame(draws))
    return pd.concat(tables, ignore_index=True).assign(
        layer=3, key_class="cls", attention_before=before, attention_after=after
    )


@pytest.mark.parametrize(
    ("effect", "half", "directions", "ordinary", "verdict"),
    [
        (-1.4, 0.1, 0.4, 0.1, "yes"),
        (1.4, 0.1, 0.4, 0.1, "yes"),
        (-1.4, 0.1, 2.0, 0.1, "partly"),  # large because of its size
        (-0.1, 0.05, 0.1, 0.1, "no"),
        (-1.4, 3.0, 0.4, 0.1, "cannot tell"),
        (-1.4, NONE, 0.4, 0.1, "cannot tell"),
    ],
)
def test_an_outlier_dimension_steers_attention(effect, half, directions, ordinary, verdict):
    (found,) = steered(of_outlier(effect, half, directions, ordinary), {"cls": "[CLS]"}, "keys")
    assert found.verdict == verdict
    assert found.question == "Does outlier dimension 48 steer attention more than other directions do?"
    assert "the largest change, in block 3 for [CLS] (from 0.500 to 0.200 of the attention), is" in str(found)
    assert "39 random directions with the same values: median" in str(found)
    assert "39 other dimensions: median" in str(found)
    if verdict == "partly":
        assert "it does not pass random directions with the same values: 23 of 39 reach it. Partly." in str(found)


def test_a_change_of_attention_has_a_smallest_size():
    """From .03, attention must change by .02, which is .7 in log-odds upwards; from .5, by .05."""
    (small,) = steered(of_outlier(0.5, 0.01, 0.02, 0.01, before=0.03, after=0.049), {}, "keys")
    assert (small.verdict, round(small.smallest, 2)) == ("no", 0.53)
    (large,) = steered(of_outlier(0.5, 0.01, 0.02, 0.01), {}, "keys")
    assert (large.verdict, round(large.smallest, 2)) == ("yes", 0.2)


def test_all_outliers_come_first_and_residual_streams_have_no_test():
    parts = of_outlier(-1.4, 0.1, 0.4, 0.1), of_outlier(-2.0, 0.1, 0.4, 0.1, dims="all")
    frames = pd.concat(parts, ignore_index=True)
    together, alone = steered(frames, {}, "keys")
    assert together.question == "Do the outlier dimensions steer attention more than other directions do?"
    assert alone.value == -1.4
    (untested,) = steered(frames.iloc[:1], {}, "residual")
    assert untested.verdict == "cannot tell"
    assert "random directions with the same values: none; other dimensions: none; 39 random directions" in str(untested)


def of_theory(fit, first, second, half=0.01):
    r2 = np.array([fit, first, second])
    table = pd.DataFrame({"predictor": ["fit", "first order", "second order"], "r2": r2, "beyond": fit - r2})
    ends = {
        f"{name}_{end}": table[name] + sign * half
        for name in ("r2", "beyond")
        for end, sign in (("low", -1), ("high", 1))
    }
    return table.assign(**ends, r2_corrected=table["r2"], beyond_corrected=table["beyond"])


@pytest.mark.parametrize(
    ("fit", "first", "second", "half", "verdict"),
    [(0.9, -1.3, 0.6, 0.02, "yes"), (0.9, 0.6, -1.3, 0.02, "yes"), (0.99, 0.98, 0.999, 0.005, "no"),
     (0.8, 0.1, 0.99, 0.02, "no"), (0.9, -1.3, 0.87, 0.05, "cannot tell"), (0.9, -1.3, 0.6, NONE, "cannot tell")],
)  # fmt: skip
def test_token_probability_beyond_what_is_true_by_construction(fit, first, second, half, verdict):
    found = beyond_theory(of_theory(fit, first, second, half))
    assert found.verdict == verdict
    assert found.value == pytest.approx(fit - max(first, second))
    assert f"{max(first, second):.3f}" in str(found)
    assert f"finite text, is {fit - max(first, second):+.3f}".replace("-", "−") in str(found)


def test_values_are_those_that_intervals_are_around():
    """The difference from the theory is corrected for the finite text, but not what untrained models are beside."""
    table = of_theory(0.9, 0.1, 0.6)
    corrected = {"r2_corrected": table["r2"] + 0.03, "beyond_corrected": table["beyond"] + 0.05}
    ends = {
        name: table[name] + (0.03 if name.startswith("r2") else 0.05) for name in table if name[-4:] in ("_low", "high")
    }
    table = table.assign(**corrected, **ends)
    finding = beyond_theory(table)
    assert (finding.value, finding.low, finding.high) == pytest.approx((0.35, 0.34, 0.36))
    regression = pd.DataFrame({"target": ["-log alpha"] + ["untrained"] * 3, "cv_r2": [0.9, 0.8, 0.7, 0.85]})
    (finding,) = as_untrained(regression, table)
    assert (finding.value, finding.low, finding.high) == pytest.approx((0.9, 0.89, 0.91))


def test_intervals_of_version_02_are_around_the_value_itself():
    table = of_theory(0.9, 0.1, 0.6).drop(columns=["r2_corrected", "beyond_corrected"])
    finding = beyond_theory(table)
    assert (finding.value, finding.low, finding.high) == pytest.approx((0.3, 0.29, 0.31))
    assert "corrected" not in str(finding)
    regression = pd.DataFrame({"target": ["-log alpha"] + ["untrained"] * 3, "cv_r2": [0.9, 0.8, 0.7, 0.85]})
    (finding,) = as_untrained(regression, table)
    assert (finding.value, finding.low, finding.high) == pytest.approx((0.9, 0.89, 0.91))


@pytest.mark.parametrize(
    ("fit", "second", "untrained", "verdict"),
    [(0.9, 0.6, [0.8, 0.7, 0.85], "yes"), (0.9, 0.6, [0.8, 0.7, 0.89], "partly"),
     (0.9, 0.95, [0.8, 0.7, 0.85], "partly"), (0.9, 0.9, [0.95, 0.8, 0.9], "no"),
     (0.9, 0.6, [0.8, 0.7], "partly"), (0.9, 0.6, [NONE, 0.7, 0.8], "partly")],
)  # fmt: skip
def test_token_probability_better_than_without_training(fit, second, untrained, verdict):
    regression = pd.DataFrame({"target": ["-log alpha"] + ["untrained"] * len(untrained), "cv_r2": [fit, *untrained]})
    (found,) = as_untrained(regression, of_theory(fit, 0.1, second))
    assert found.verdict == verdict
    assert not [*as_untrained(regression.iloc[:1], of_theory(fit, 0.1, second))]


@pytest.mark.parametrize(
    ("agreement", "reach", "verdict"),
    [(0.97, 0.01, "yes"), (0.95, 0.01, "partly"), (0.92, 0.01, "partly"), (0.89, 0.02, "partly"), (0.88, 0.01, "no"),
     (0.99, NONE, "cannot tell")],
)  # fmt: skip
def test_dimensions_can_be_removed(agreement, reach, verdict):
    rows = {"basis": "axis", "order": ["spearman", "random"], "fraction": 0.3, "top1_agreement": [agreement, 0.8]}
    ends = {f"top1_agreement_{name}": [agreement + at, 0.8 + at] for name, at in (("low", -reach), ("high", reach))}
    (found,) = removable(pd.DataFrame(rows | ends))
    assert (found.verdict, found.question) == (verdict, "Can 30% of the output dimensions be removed?")
    assert not [*removable(pd.DataFrame(rows | ends).iloc[1:])]


@pytest.mark.parametrize(
    ("agreement", "half", "verdict"),
    [(0.9, 0.02, "yes"), (0.5, 0.02, "no"), (0.9, 0.3, "cannot tell"), (0.72, 0.05, "cannot tell"),
     (0.9, NONE, "cannot tell")],
)  # fmt: skip
def test_an_order_is_better_than_a_random_one(agreement, half, verdict):
    table = pd.DataFrame({"order": ["spearman"] + ["random"] * 39, "fraction": 0.3, "n_positions": 500})
    table = table.assign(top1_agreement=[agreement, *np.linspace(0.65, 0.75, 39)])
    ends = {"top1_agreement_low": table["top1_agreement"] - half, "top1_agreement_high": table["top1_agreement"] + half}
    (found,) = better_than_random(table.assign(**ends))
    assert found.verdict == verdict
    assert found.n_controls == 39
    assert not [*better_than_random(table.iloc[:0])]


@pytest.mark.parametrize(
    ("regression", "constant", "tokens", "verdict"),
    [(0.01, 0.5, 9, "yes"), (0.9, 0.1, 9, "no"), (0.3, 0.3, 9, "no"), (0.01, 0.5, 4, "cannot tell")],
)
def test_steering_does_more_than_a_constant_shift(regression, constant, tokens, verdict):
    requested = np.tile([0.5, 2.0, 20.0], tokens)
    rows = {"text": "fitted", "weights": "least_norm", "token_id": np.repeat(range(tokens), 3), "requested": requested}

    def missing(by):
        error = by + np.repeat(np.linspace(-0.005, 0.005, tokens), 3)
        return pd.DataFrame(rows | {"achieved": np.where(requested < 9, requested * np.exp(error), 1)})

    both = [missing(regression).assign(shift="regression"), missing(constant).assign(shift="constant", weights="")]
    (found,) = steers(pd.concat([*both, both[0].assign(text="other", achieved=9.0)]))
    assert found.verdict == verdict
    assert found.value == pytest.approx(regression - constant)
    assert not [*steers(both[0])]
    assert not [*steers(both[1])]


PHENOMENA = {f"{task}": f"p{task // 2}" for task in range(20)}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "yes"), (-0.3, -0.1, "no"), (-0.01, 0.015, "no"), (-0.1, 0.1, "cannot tell"), (0.001, 0.019, "no"),
     (NONE, NONE, "cannot tell")],
)  # fmt: skip
def test_probes_tell_more_than_words(low, high, verdict):
    row = {"probe": "dense", "against": "bag_of_words", "difference": (low + high) / 2, "low": low, "high": high}
    table = pd.DataFrame([row | {"above": 12, "below": 1, "n_tasks": 20}])
    (found,) = beyond(table, PHENOMENA)
    assert found.verdict == verdict
    assert (found.answer == "no, the opposite") == (high == -0.1)
    assert "better on 12 of 20 tasks and worse on 1 (McNemar" in str(found)
    assert "(mean over 10 phenomena)" in str(found)
    assert not [*beyond(table.assign(against="anything"), PHENOMENA)]
    both = pd.concat([table.assign(probe=probe) for probe in ("l0", "topk")])
    assert [one.question for one in beyond(both, PHENOMENA)] == ["Are sparse probes more accurate than a bag of words?"]
    assert len([*beyond(both.iloc[1:], PHENOMENA)]) == 1


def beside(own, others, n_tasks=20, noise=0.01, **about):
    """Accuracies on tasks, and those of draws of a control on the same tasks; tasks differ far more than draws."""
    rng = np.random.default_rng(0)
    level, control = rng.uniform(-0.2, 0.2, n_tasks), "untrained" if "probe" in about else "rotation"
    rows = [(f"{task}", "none", 0, own + level[task]) for task in range(n_tasks)]
    for draw, other in enumerate(others):
        jitter = rng.normal(0, noise, n_tasks)
        rows += [(f"{task}", control, draw, other + level[task] + jitter[task]) for task in range(n_tasks)]
    return pd.DataFrame(rows, columns=["task", "control", "draw", "accuracy"]).assign(state=3, **about)


@pytest.mark.parametrize(
    ("others", "n_tasks", "verdict"),
    [([0.7, 0.72, 0.71], 20, "yes"), ([0.7, 0.72, 0.79], 20, "no"), ([0.7, 0.72, 0.9], 20, "no"),
     ([0.7, 0.7], 20, "cannot tell"), ([0.7, 0.72, 0.71], 8, "cannot tell")],
)  # fmt: skip
def test_probes_are_above_those_of_three_untrained_models(others, n_tasks, verdict):
    table = pd.concat([beside(0.8, others, n_tasks, probe=probe) for probe in ("dense", "topk")])
    counts = {"probe": "dense", "against": "dense_untrained", "above": 12, "below": 1, "n_tasks": 20}
    dense, top = above_untrained(table, pd.DataFrame([counts]), PHENOMENA)
    assert [dense.verdict, top.verdict] == [verdict] * 2
    assert dense.question == "Are dense probes more accurate than those of untrained models?"
    assert ("better on 12 of 20 tasks" in str(dense), "tasks" in str(top)) == (True, False)
    if len(others) < 3:
        assert "3 untrained models are the fewest that can decide it" in str(dense)
    if n_tasks < 10:
        assert "5 phenomena are the fewest that can decide it" in str(dense)
    alone = table[table["control"] == "none"]
    assert not [*above_untrained(alone, pd.DataFrame([counts]), PHENOMENA)]


@pytest.mark.parametrize(
    ("own", "n_draws", "n_tasks", "verdict"),
    [(0.8, 39, 20, "yes"), (0.7, 39, 20, "no"), (0.6, 39, 20, "no"), (0.8, 20, 20, "cannot tell"),
     (0.8, 39, 8, "cannot tell")],
)  # fmt: skip
def test_the_top_dimensions_hold_more_than_those_of_random_bases(own, n_draws, n_tasks, verdict):
    others = 0.7 + np.random.default_rng(1).normal(0, 0.005, n_draws)
    table = pd.concat([beside(own, others, n_tasks, k=k) for k in (5, 50)])
    dense = pd.DataFrame({"task": [f"{task}" for task in range(20)], "k": 500, "control": "none", "draw": 0})
    table = pd.concat([table, dense.assign(accuracy=0.9, state=3)])
    few, many = concentrated(table, PHENOMENA)
    assert [few.verdict, many.verdict] == [verdict] * 2
    assert few.question == "Is what probes read concentrated in few dimensions (the top 5 of 500)?"
    assert (few.answer == "no, the opposite") == (own == 0.6)
    assert f"on the {n_tasks} of 20 tasks" in few.measure
    assert not [*concentrated(table.iloc[:0], PHENOMENA)]
    (nothing,) = concentrated(dense.assign(accuracy=0.55), PHENOMENA)
    assert (nothing.verdict, nothing.number) == ("cannot tell", "undefined")
    assert nothing.measure.startswith("there is no task of 20 on which")


def across(accuracy, words=None):
    """The table `transfer` from the pair accuracies of sparse probes, of tasks on tasks."""
    n = len(accuracy)
    kinds = [("l0", 0.2, accuracy), ("dense", NONE, accuracy), ("l0", 1.0, 1 - accuracy)]
    kinds += [] if words is None else [("bag_of_words", NONE, words)]
    tables = []
    for method, strength, matrix in kinds:
        rows = [(f"{i}", f"{j}", matrix[i, j]) for i in range(n) for j in range(n)]
        table = pd.DataFrame(rows, columns=["train_task", "test_task", "pair_accuracy"])
        tables.append(table.assign(method=method, l0_strength=strength))
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize(
    ("accuracy", "n", "verdict"),
    [(0.8, 20, "yes"), (0.2, 20, "no"), (0.5, 20, "no"), (0.8, 14, "cannot tell")],
)
def test_probes_hold_on_other_tasks(accuracy, n, verdict):
    noise = np.random.default_rng(0).normal(0, 0.01, (n, n))
    table = across(accuracy + noise - noise.mean())
    found = [*held(table, 0.2, PHENOMENA)]
    assert [one.verdict for one in found] == [verdict] * 2
    assert found[0].question == "Are sparse probes of one task right on tasks of other phenomena?"
    if n < 16:
        assert "8 phenomena are the fewest that can decide it" in str(found[0])
    assert next(held(table, 0.2, {})).question.endswith("right on tasks that it has not seen?")


def test_some_tasks_generalise_and_words_may_be_why():
    noise = np.random.default_rng(0).normal(0, 0.05, (2, 20, 20))
    accuracy = 0.5 + noise[0]
    accuracy[7] += 0.25
    alone, beyond_words = some_general(across(accuracy, 0.5 + noise[1]), 0.2, PHENOMENA)
    assert [alone.verdict, beyond_words.verdict] == ["yes", "yes"]
    assert "that of 7 is right most often" in str(alone)
    assert "mean over 9 phenomena" in str(alone)
    words = 0.5 + noise[1]
    words[7] += 0.25
    alone, beyond_words = some_general(across(accuracy, words), 0.2, PHENOMENA)
    assert alone.verdict == "yes"
    assert beyond_words.verdict != "yes"
    assert [one.verdict for one in some_general(across(0.5 + noise[0]), 0.2, PHENOMENA)] != ["yes"]


@pytest.mark.parametrize(
    ("found", "matched", "n", "verdict"),
    [(-0.2, 0.0, 8, "yes"), (0.0, -0.2, 8, "no"), (-0.1, -0.1, 8, "no"), (-0.2, 0.0, 4, "cannot tell"),
     (-0.2, 0.0, 1, "cannot tell")],
)  # fmt: skip
def test_the_model_needs_what_probes_found(found, matched, n, verdict):
    noise = np.random.default_rng(0).normal(0, 0.01, (2, n))
    noise -= noise.mean(1, keepdims=True)
    rows = [("zero", f"{task}", "found", found + noise[0, task]) for task in range(n)]
    rows += [("zero", f"{task}", "matched", matched + noise[1, task]) for task in range(n)]
    table = pd.DataFrame(rows, columns=["mode", "task", "set", "accuracy"])
    (one,) = needed(table, {})
    assert one.verdict == verdict
    assert "set to zero" in one.measure
    if 1 < n < 5:
        assert str(one).endswith(
            "(no interval: fewer than 5 tasks); 5 tasks are the fewest that can decide it. Cannot tell."
        )
    assert next(needed(table, PHENOMENA)).verdict == "cannot tell", "of at most four phenomena"
    both = needed(pd.concat([table, table.assign(mode="mean")]), {})
    asked = "Does the model need the neurons that sparse probes found (set to {})?"
    assert [one.question for one in both] == [asked.format("zero"), asked.format("their means")]


@pytest.mark.parametrize(("found", "alike", "verdict"), [(-0.2, -0.1, "yes"), (-0.1, -0.2, "no"), (-0.1, -0.1, "no")])
def test_the_model_needs_them_more_than_what_costs_as_much(found, alike, verdict):
    noise = np.resize([0.01, -0.01], 8)
    sets = {"found": found + noise, "matched": 0 * noise, "perplexity": np.where(np.arange(8) < 6, alike, NONE)}
    rows = [("mean", f"{task}", name, values[task]) for name, values in sets.items() for task in range(8)]
    _, one = needed(pd.DataFrame(rows, columns=["mode", "task", "set", "accuracy"]).dropna(), {})
    assert one.verdict == verdict
    assert (one.answer == "no, the opposite") == (alike < found)
    assert one.measure.startswith("its accuracy on 6 tasks with them set to their means, minus that with these random")
    assert f"which changes it by −{-alike:.3f}; mean over 6 tasks" in one.measure


@pytest.mark.parametrize(
    ("change", "half", "verdict"),
    [(0.2, 0.1, "yes"), (-0.2, 0.1, "no"), (0.01, 0.005, "no"), (0.2, 0.3, "cannot tell"), (0.2, NONE, "cannot tell")],
)
def test_text_becomes_more_diverse(change, half, verdict):
    rows = {"decoder": ["human", "top_k", "top_k", "top_k"], "scale": [NONE, 1.0, 0.0, 0.5], "measure": "diversity"}
    apart = pd.Series([NONE, 0.0, change, 9.0])
    ends = {"difference": apart, "difference_low": apart - half, "difference_high": apart + half}
    table = pd.DataFrame(rows | {"value": [0.8, 0.5, 0.5 + change, 9.5]} | ends)
    (found,) = diverse(table, 100)
    assert found.verdict == verdict
    assert found.question == "Is text from top-k sampling more diverse with less of b_LN?"
    assert "n-grams), 0.500 as trained and 0.800 in human text, changes by" in str(found)
    assert not [*diverse(table[table["scale"].isna() | (table["scale"] == 1)], 100)]
    assert not [*diverse(table.assign(difference=NONE), 100)]


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [(0.6, 0.5, 0.7, "yes"), (0.01, -0.01, 0.03, "no"), (-0.6, -0.7, -0.5, "no"), (0.25, -0.1, 0.6, "cannot tell"),
     (0.12, 0.11, 0.13, "cannot tell"), (0.6, NONE, NONE, "cannot tell")],
)  # fmt: skip
def test_directions_are_one_or_are_not(value, low, high, verdict):
    ends = {"value": value, "low": low, "high": high}
    pair = {"name_a": ["b_LN", "E[h]"], "name_b": "-A"}
    cosines = pd.DataFrame(pair | {f"cosine_{name}".removesuffix("_value"): at for name, at in ends.items()})
    sets = {"name_a": ["outlier dimensions", "outlier dimensions", "word frequency"]}
    sets |= {"name_b": ["neurons", "sink keys", "outlier dimensions"], "n_dims_a": 5, "n_dims_b": 10}
    sets |= {f"overlap_{name}".removesuffix("_value"): at for name, at in ends.items()}
    drawn = pd.DataFrame({"draw": range(39), "value": 0.15 * np.linspace(-1, 1, 39) ** 3})
    named = [("b_LN", "-A"), ("outlier dimensions", "sink keys")]
    rotations = pd.concat([drawn.assign(name_a=a, name_b=b) for a, b in named])
    found = list(direction_findings(cosines, pd.DataFrame(sets), rotations))
    assert [one.verdict for one in found] == [verdict] * 2
    assert found[0].question == "Does b_LN point where log-probability grows in the output embeddings (along −A)?"
    assert found[1].question == "Do the keys of attention sinks lie in outlier dimensions?"
    assert "(5 and 10 dimensions), which is the mean squared cosine" in str(found[1])
    by_construction = direction_findings(cosines.iloc[1:], pd.DataFrame(sets).iloc[2:], rotations)
    assert not [*by_construction], "E[h] is −A to first order, and outlier dimensions have a large mean"
