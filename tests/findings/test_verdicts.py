"""Each kind of finding on constructed tables, with the verdicts yes, partly, no and cannot tell."""

import math

import numpy as np
import pandas as pd
import pytest

from interp.analyses.attention.findings import steered
from interp.analyses.encoding.atlas.findings import atlas_findings
from interp.analyses.encoding.findings import linear, removable, steered as steers
from interp.analyses.frequency.findings import findings as of_biases
from interp.analyses.generation.findings import diverse
from interp.analyses.probing.findings import beyond, concentrated, held, needed
from interp.results.findings import Finding, findings_table, over_texts, side

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


def test_an_interval_lies_on_a_side():
    assert [side(*ends) for ends in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (NONE, NONE), (0.0, 1.0))] == [
        "yes", "no", "cannot tell", "cannot tell", "cannot tell",
    ]  # fmt: skip


def of_bias(delta, low, high, *, bias="ln", scale=0.0, spearman=0.8, control=0.3):
    kl = pd.DataFrame({"bias": bias, "scale": [scale, 1.0], "delta_kl": [delta, 0.0]})
    kl = kl.assign(delta_kl_corrected=kl["delta_kl"], delta_kl_low=[low, 0.0], delta_kl_high=[high, 0.0])
    columns = {"bias": bias, "spearman": spearman, "spearman_low": spearman - 0.1, "spearman_high": spearman + 0.1}
    projection = pd.DataFrame([columns | {"n_controls": 39, "control_spearman": control}])
    return of_biases(kl, projection.iloc[: int(bias != "fc")])


@pytest.mark.parametrize(
    ("delta", "low", "high", "spearman", "verdict"),
    [
        (0.2, 0.1, 0.3, 0.8, "yes"),
        (0.2, 0.1, 0.3, 0.25, "partly"),  # a random direction is just as close to log u
        (-0.2, -0.3, -0.1, 0.8, "no"),
        (0.2, -0.1, 0.5, 0.8, "cannot tell"),
        (0.2, NONE, NONE, 0.8, "cannot tell"),
        (0.0, 0.0, 0.0, 0.8, "cannot tell"),
    ],
)
def test_a_bias_keeps_predictions_near_word_frequency(delta, low, high, spearman, verdict):
    moved, _ = of_bias(delta, low, high, spearman=spearman)
    assert moved.question == "Are predictions further from word frequency without b_LN?"
    assert (moved.verdict, moved.value) == (verdict, delta)
    assert str(moved).endswith(". No, the opposite.") == (verdict == "no")
    assert f"with log u: {spearman:+.3f}; the largest for 39 random directions: +0.300" in str(moved)


@pytest.mark.parametrize(
    ("spearman", "control", "verdict"),
    [(0.8, 0.3, "yes"), (0.8, 0.9, "partly"), (-0.8, 0.3, "no"), (0.0, -1.0, "cannot tell")],
)
def test_what_a_bias_adds_follows_word_frequency(spearman, control, verdict):
    _, follows = of_bias(0.2, 0.1, 0.3, spearman=spearman, control=control)
    assert follows.verdict == verdict


def test_other_scales_and_biases_are_named():
    assert of_bias(0.1, 0.0, 0.2, scale=0.5)[0].question.endswith("with b_LN times 0.5?")
    assert [one.question[:4] for one in of_bias(0.0, 0.0, 0.0, scale=1.0)] == ["Does"]
    (dense,) = of_bias(0.2, 0.1, 0.3, bias="fc")
    assert (dense.verdict, dense.question[-6:]) == ("partly", " b_FC?")  # it has no control
    assert str(dense).endswith("[+0.100, +0.300]; there is no control for b_FC. Partly.")
    assert of_bias(0.1, 0.0, 0.2, spearman=NONE, control=NONE)[1:] == ()


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
        assert "it does not pass random directions with the same values. Partly." in str(found)


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


@pytest.mark.parametrize(
    ("low", "high", "before", "verdict"),
    [(0.9, 0.95, [0.5], "yes"), (0.9, 0.95, [0.99], "partly"), (0.9, 0.95, [], "partly"), (0.2, 0.3, [0.1], "no"),
     (0.4, 0.6, [0.1], "cannot tell"), (NONE, NONE, [0.1], "cannot tell")],
)  # fmt: skip
def test_token_probability_is_linear(low, high, before, verdict):
    columns = {"cv_r2": [(low + high) / 2, -0.1], "cv_r2_low": [low, -0.2], "cv_r2_high": [high, 0.0]}
    fits = pd.DataFrame({"target": ["-log alpha", "shuffled"]} | columns)
    found = linear(fits, pd.DataFrame({"step": [0] * len(before), "adj_r2": before}))
    assert found.verdict == verdict
    assert found.control == (before[0] if before else -0.1)
    assert ("; R² before training is unknown; R² with α shuffled over tokens: −0.100." in str(found)) == (not before)


@pytest.mark.parametrize(
    ("agreement", "reach", "verdict"),
    [
        (0.99, 0.01, "yes"),
        (0.9, 0.01, "partly"),
        (0.7, 0.01, "no"),
        (0.8, 0.1, "cannot tell"),
        (0.9, NONE, "cannot tell"),
    ],
)
def test_dimensions_can_be_removed(agreement, reach, verdict):
    rows = {"basis": "axis", "order": ["spearman", "random"], "fraction": 0.3, "top1_agreement": [agreement, 0.8]}
    ends = {f"top1_agreement_{name}": [agreement + at, 0.8 + at] for name, at in (("low", -reach), ("high", reach))}
    (found,) = removable(pd.DataFrame(rows | ends))
    assert (found.verdict, found.control) == (verdict, 0.8)
    assert not [*removable(pd.DataFrame(rows | ends).iloc[:1])]


@pytest.mark.parametrize(
    ("missed", "tokens", "verdict"),
    [(0.01, 9, "yes"), (0.3, 9, "partly"), (3.0, 9, "no"), (np.log(2), 9, "cannot tell"), (0.01, 1, "cannot tell")],
)
def test_steering_does_what_is_asked(missed, tokens, verdict):
    requested = np.tile([0.5, 2.0], tokens)
    error = missed + np.repeat(np.linspace(-0.005, 0.005, tokens), 2)
    rows = {"text": "fitted", "shift": "regression", "weights": "least_norm", "token_id": np.repeat(range(tokens), 2)}
    table = pd.DataFrame(rows | {"requested": requested, "achieved": requested * np.exp(error)})
    (found,) = steers(pd.concat([table, table.assign(text="other"), table.assign(shift="exact")]))
    assert found.verdict == verdict
    assert found.value == pytest.approx(missed, abs=1e-6) if tokens > 1 else True
    assert found.control == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("low", "high", "above", "below", "verdict"),
    [(0.1, 0.3, 12, 0, "yes"), (0.1, 0.3, 3, 1, "partly"), (-0.1, 0.3, 3, 1, "partly"), (-0.3, -0.1, 0, 5, "no"),
     (-0.1, 0.1, 0, 0, "cannot tell"), (0.1, 0.3, 1, 1, "cannot tell")],
)  # fmt: skip
def test_probes_tell_more_than_words(low, high, above, below, verdict):
    row = {"probe": "dense", "against": "bag_of_words", "difference": (low + high) / 2, "low": low, "high": high}
    table = pd.DataFrame([row | {"above": above, "below": below, "n_tasks": 20}])
    (found,) = beyond(table)
    assert found.verdict == verdict
    few = ", fewer than half," * (verdict == "partly")
    assert f"better on {above} of 20 tasks{few} and worse on {below} (McNemar" in str(found)
    assert ("in accuracy, whose interval includes 0, is" in str(found)) == (verdict == "partly" and low < 0)
    assert not [*beyond(table.assign(against="anything"))]
    both = pd.concat([table.assign(probe=probe, against=f"{probe}_untrained") for probe in ("l0", "topk")])
    assert [one.question for one in beyond(both)] == [
        "Are sparse probes more accurate than those of an untrained model?"
    ]
    assert len([*beyond(both.iloc[1:])]) == 1


@pytest.mark.parametrize(
    ("ratios", "low", "verdict"),
    [
        ([6.0], 4.0, "yes"),
        ([6.0, NONE, NONE], 4.0, "partly"),
        ([1.2], 0.8, "cannot tell"),
        ([NONE], NONE, "cannot tell"),
    ],
)
def test_dimensions_of_the_top_are_worth_more(ratios, low, verdict):
    table = pd.DataFrame({"n_top": 4, "ratio": ratios, "low": low, "high": 9.0, "censored": math.isnan(low)})
    table = table.assign(top_accuracy=0.7, top_low=0.4)
    (found,) = concentrated(table.assign(high=table["high"].where(table["ratio"].notna())))
    assert found.verdict == verdict
    assert not [*concentrated(table.iloc[:0])]


def test_many_tasks_have_a_median():
    ratios = np.linspace(3, 5, 21)
    table = pd.DataFrame({"n_top": 1, "ratio": ratios, "low": 1.0, "high": 99.0, "censored": False})
    (found,) = concentrated(table)
    assert (found.value, found.verdict) == (4.0, "yes")
    assert 3 < found.low < 4 < found.high < 5


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.8, "yes"), (0.2, "no"), (0.5, "cannot tell")])
def test_probes_hold_on_other_tasks(accuracy, verdict):
    noise = np.random.default_rng(0).normal(0, 0.01, (8, 8))
    rows = [(f"{i}", f"{j}", accuracy + (noise - noise.mean())[i, j]) for i in range(8) for j in range(8)]
    table = pd.DataFrame(rows, columns=["train_task", "test_task", "pair_accuracy"])
    sparse, dense = (table.assign(method=name, l0_strength=one) for name, one in (("l0", 0.2), ("dense", NONE)))
    assert [one.verdict for one in held(pd.concat([sparse, dense]), 0.2)] == [verdict] * 2


@pytest.mark.parametrize(
    ("found", "matched", "n", "verdict"),
    [(-0.2, 0.0, 8, "yes"), (0.0, -0.2, 8, "no"), (-0.1, -0.1, 8, "cannot tell"), (-0.2, 0.0, 1, "cannot tell")],
)
def test_the_model_needs_what_probes_found(found, matched, n, verdict):
    noise = np.random.default_rng(0).normal(0, 0.01, (2, n))
    noise -= noise.mean(1, keepdims=True)
    rows = [("zero", f"{task}", "found", found + noise[0, task]) for task in range(n)]
    rows += [("zero", f"{task}", "matched", matched + noise[1, task]) for task in range(n)]
    table = pd.DataFrame(rows, columns=["mode", "task", "set", "accuracy"])
    (one,) = needed(table)
    assert one.verdict == verdict
    assert "set to zero" in one.measure
    both = needed(pd.concat([table, table.assign(mode="mean")]))
    asked = "Does the model need the neurons that sparse probes found (set to {})?"
    assert [one.question for one in both] == [asked.format("zero"), asked.format("their means")]


@pytest.mark.parametrize(
    ("found", "alike", "verdict"), [(-0.2, -0.1, "yes"), (-0.1, -0.2, "no"), (-0.1, -0.1, "cannot tell")]
)
def test_the_model_needs_them_more_than_what_costs_as_much(found, alike, verdict):
    noise = np.resize([0.01, -0.01], 8)
    sets = {"found": found + noise, "matched": 0 * noise, "perplexity": np.where(np.arange(8) < 6, alike, NONE)}
    rows = [("mean", f"{task}", name, values[task]) for name, values in sets.items() for task in range(8)]
    _, one = needed(pd.DataFrame(rows, columns=["mode", "task", "set", "accuracy"]).dropna())
    assert one.verdict == verdict
    assert one.answer == {"no": "no, the opposite"}.get(verdict, verdict)
    assert one.measure.startswith("its accuracy on 6 tasks with them set to their means, minus that with these random")
    assert one.control == pytest.approx(alike)


@pytest.mark.parametrize(
    ("change", "half", "verdict"),
    [(0.2, 0.1, "yes"), (-0.2, 0.1, "no"), (0.2, 0.3, "cannot tell"), (0.2, NONE, "cannot tell")],
)
def test_text_becomes_more_diverse(change, half, verdict):
    rows = {"decoder": ["human", "top_k", "top_k", "top_k"], "scale": [NONE, 1.0, 0.0, 0.5], "measure": "diversity"}
    apart = pd.Series([NONE, 0.0, change, 9.0])
    ends = {"difference": apart, "difference_low": apart - half, "difference_high": apart + half}
    table = pd.DataFrame(rows | {"value": [0.8, 0.5, 0.5 + change, 9.5]} | ends)
    (found,) = diverse(table)
    assert found.verdict == verdict
    assert found.question == "Is text from top-k sampling more diverse with less of b_LN?"
    assert "Without b_LN, its diversity (the mean share of distinct n-grams), 0.500 as trained, changes by" in str(
        found
    )
    assert not [*diverse(table[table["scale"].isna() | (table["scale"] == 1)])]
    assert not [*diverse(table.assign(difference=NONE))]


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (0.6, 0.5, 0.7, "yes"),
        (0.1, 0.05, 0.15, "no"),
        (0.25, 0.15, 0.35, "cannot tell"),
        (0.6, NONE, NONE, "cannot tell"),
    ],
)
def test_directions_are_one_or_are_not(value, low, high, verdict):
    ends = {"value": value, "low": low, "high": high}
    pair = {"name_a": ["b_LN", "E[h]"], "name_b": "-A", "null_95": 0.2}
    atlas = pd.DataFrame(pair | {f"cosine_{name}".removesuffix("_value"): one for name, one in ends.items()})
    sets = {"name_a": "outlier dimensions", "name_b": ["neurons", "sink keys"], "n_dims_a": 5, "n_dims_b": 10}
    sets |= {f"overlap_{name}".removesuffix("_value"): one for name, one in ends.items()}
    found = list(atlas_findings(atlas, pd.DataFrame(sets | {"null_high": 0.2})))
    assert [one.verdict for one in found] == [verdict] * 2
    assert found[0].question == "Does b_LN point where log-probability grows in the output embeddings (along −A)?"
    assert found[1].question == "Do the keys of attention sinks lie in outlier dimensions?"
    assert "(5 and 10 dimensions), which is the mean squared cosine" in str(found[1])
    assert next(atlas_findings(atlas.iloc[1:], pd.DataFrame(sets).iloc[:0])).question.startswith("Does E[h] point")
