"""What a page says about a result whose numbers are equal, missing or from another design."""

import numpy as np
import pandas as pd
import pytest
from toys import with_tables

import interp
from interp import probing
from interp.analyses.attention.shares import largest_gaps
from interp.analyses.frequency import study
from interp.analyses.generation import page as generation
from interp.corpora import pairs
from interp.figures.runs import extremes
from interp.support.words import count, within


def test_numbers_are_compared_as_they_are_printed():
    assert count(1, "task") == "1 task"
    assert count(0, "task") == "0 tasks"
    assert within(0.1, 0.25, "{:.1f}") == "[0.1, 0.2]"
    assert within(np.nan, np.nan, "{:.1f}") == "(no interval)"
    values = pd.Series({"a": 0.0501, "b": 0.0499})
    assert extremes("It", values, "{:.0%}") == "It is 5% in all runs."
    assert extremes("It", pd.Series({"a": 0.5, "b": np.nan}), "{:.0%}") == "It is 50% in a."
    assert extremes("It", pd.Series({"a": -1e-9, "b": 1e-9}), "{:+z.1f}") == "It is 0.0 in all runs."
    assert extremes("It", pd.Series({"a": 0.1, "b": 0.2}), "{:.0%}") == "It ranges from 10% in a to 20% in b."


def test_a_single_scale_has_its_number(load_toy, texts):
    effect = study(load_toy("gpt2"), texts, unigram=np.arange(67), scales=[1], progress=False)
    section = with_tables(effect, projection=effect.projection.assign(spearman=np.nan)).section
    assert section.findings == ()
    row = effect.kl.iloc[0]
    assert section.summary.startswith(f"As trained, KL(u‖q) is {row['kl_unigram_model']:.3f} nats")


@pytest.fixture(scope="module")
def attended(reported):
    return reported["tiny-bert"]["attention"]


def test_a_layer_without_a_gap_is_left_out(attended):
    gaps = attended.gaps.table
    gone = gaps["layer"] == 2
    gaps = gaps.assign(gap=gaps["gap"].mask(gone, 0.0), abs_share=gaps["abs_share"].mask(gone))
    assert set(largest_gaps(with_tables(attended, gaps=gaps).gaps)["layer"]) == {0, 1, 3, 4, 5}
    none = with_tables(attended, gaps=gaps.assign(gap=np.nan, abs_share=np.nan)).section
    assert "contributions" not in none.figures


def test_an_effect_on_attention_is_stated_only_for_removed_dimensions(attended):
    table, frames, claims = attended.ablation, attended.frames, attended.claims
    first, together = claims.iloc[0], claims.iloc[-1]
    section = attended.section
    assert section.findings == attended.findings
    steering = [one for one in section.findings if "steer attention" in one.question]
    assert "Do the outlier dimensions steer attention more than other directions do?" in str(section.findings[0])
    assert f"in block {together['layer']} for " in str(section.findings[0])
    assert "39 random directions with the same values: median " in str(section.findings[0])
    assert first["key_class"] == "cls"
    assert section.main == "ablation_0"
    assert [one.value for one in steering] == [
        together["log_odds"],
        *claims["log_odds"].iloc[:-1].sort_values(key=abs, ascending=False),
    ]
    asked = [one for one in section.findings if "raise the scores of" in one.question]
    assert {one.value for one in asked} <= set(attended.outlier_share["share_beyond"])
    bare = frames[frames["kind"] == "removed"]
    alone = with_tables(
        attended,
        frames=bare,
        ablation=table[table["set"].isin(["outlier", "driver"])],
        outlier_share=attended.outlier_share.iloc[:0],
    ).section
    assert {one.verdict for one in alone.findings} == {"cannot tell"}
    driven = alone.notes[-1]
    assert "most when removed from the keys of block" in driven
    assert "control dimensions" not in driven
    unmoved = table.assign(attention_after=table["attention_before"])
    still = with_tables(attended, ablation=unmoved, frames=frames.assign(log_odds=0.0)).section
    assert "none lowers attention to a class by 0.0001 or more." in still.notes[-1]
    assert still.main == "attention"
    nothing = table[table["set"] == "driver"]
    none = with_tables(
        attended, ablation=nothing, frames=frames.iloc[:0], outlier_share=attended.outlier_share.iloc[:0]
    ).section
    assert none.findings == ()
    assert none.notes[0].startswith("7 outlier dimensions, where noise would give 0.05 in each state; dimension 48 is")


@pytest.fixture(scope="module")
def encoded(reported):
    return reported["tiny-gpt2"]["encoding"]


@pytest.mark.parametrize(
    ("agreement", "fractions", "largest"),
    [([1.0, 0.97, 0.6, 0.96], [0.0, 0.1, 0.3, 0.5], 0.1), ([0.9, 0.8], [0.1, 0.3], 0), ([1.0, 0.99], [0.0, 0.3], 0.3)],
)
def test_what_can_be_removed(encoded, agreement, fractions, largest):
    curve = encoded.pruning[(encoded.pruning["basis"] == "axis") & (encoded.pruning["order"] == "spearman")]
    curve = curve.head(len(fractions)).assign(fraction=fractions, top1_agreement=agreement)
    assert with_tables(encoded, pruning=curve).removable["95%"].item() == largest


def test_a_fit_is_stated_beside_the_theory(encoded):
    fit, *theory = encoded.theory.to_dict("records")
    best = max(theory, key=lambda row: row["r2"])
    form = "{:.3f}, minus that of the theory without a fit ({}), {:.3f}, is {:+.3f} "
    said = form.format(fit["r2"], best["predictor"], best["r2"], best["beyond"]).replace("-", "−")
    assert said in str(encoded.section.findings[0])


@pytest.fixture(scope="module")
def probed():
    table = pairs.generate(n_per_task=40, tasks=["reflexive_number"])
    return probing.study(
        interp.load("tiny-gpt2"), table, states=[3], bos=True, methods=["l0", "topk", "dense"], l0_strengths=(0.4,),
        ks=(1, 4), controls=["none", "rotation"], steps=50, seeds=(0, 1), progress=False,
    )  # fmt: skip


def in_words(means, probe):
    row = means.set_index("probe").loc[probe]
    return f"{row['accuracy']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def test_probes_of_one_task_are_stated_as_numbers(probed):
    section = probed.section
    accuracy = probed.probes.groupby(["method", "control"])["accuracy"].mean()
    means = probed.means.set_index("probe")
    kinds = {"dense": ("dense", "none"), "l0": ("l0", "none"), "l0_untrained": ("l0", "untrained")}
    for name, kind in kinds.items():
        assert means.loc[name, "accuracy"] == pytest.approx(accuracy[kind])
    assert means.loc["bag_of_words", "accuracy"] == pytest.approx(probed.tasks["bag_of_words"].item())
    seeds = probed.probes.query("method == 'l0' and control == 'none'")["accuracy"]
    assert means.loc["l0", "sd"] == pytest.approx(seeds.std())
    row = probed.differences.set_index(["probe", "against"]).loc[("dense", "bag_of_words")]
    gap = f"{row['difference']:+z.3f}".replace("-", "−")
    counted = f"better on {row['above']:.0f} of 1 task and worse on {row['below']:.0f} (McNemar's test, p ≤ .05); "
    counted += f"the difference in accuracy (mean over 1 phenomenon) is {gap} (no interval: fewer than 5 phenomena); "
    assert str(section.findings[0]).startswith("Are dense probes more accurate than a bag of words? ")
    assert counted in str(section.findings[0])
    assert str(section.findings[0]).endswith("5 phenomena are the fewest that can decide it. Cannot tell.")


def test_top_k_alone_has_its_number(probed):
    probes = probed.probes[probed.probes["method"] == "topk:welch"]
    others = {name: getattr(probed, name).iloc[:0] for name in ("transfer", "general", "overlap", "ablation", "views")}
    means = probed.means[probed.means["probe"].isin(["topk", "bag_of_words"])]
    differences = probed.differences[probed.differences["probe"] == "topk"]
    alone = {"probes": probes, "means": means, "differences": differences, "agreement": probed.agreement.iloc[:0]}
    section = with_tables(probed, **alone, **others).section
    accuracy = probes.loc[(probes["k"] == 4) & (probes["control"] == "none"), "accuracy"].item()
    assert in_words(means, "topk").startswith(f"{accuracy:.3f} [")
    assert str(section.findings[0]).startswith("Are probes of the top dimensions more accurate than a bag of words? ")


def test_texts_are_compared_at_the_scales_that_runs_share():
    def sweep(scales):
        rows = [{"decoder": "greedy", "scale": one, "diversity": one / 2, "perplexity": 9 - one} for one in scales]
        rows.append({"decoder": "human", "scale": np.nan, "diversity": 0.7, "perplexity": np.nan})
        texts, none = pd.DataFrame({"decoder": []}), pd.DataFrame()
        return interp.generation.GenerationStudy({}, texts, pd.DataFrame(rows), none, none)

    sides = generation.sides({"a": sweep([0, 0.5, 1]), "b": sweep([0.25, 0.5, 1]), "c": sweep([1.0])})
    assert sides.numbers["largest_scale"].tolist() == [1, 1, 1]
    assert sides.numbers["smallest_scale"].tolist() == [0.5] * 3
    assert sides.numbers["greedy_at_smallest"].tolist()[:2] == [0.25, 0.25]
    assert sides.numbers[["perplexity_at_smallest", "greedy_at_smallest"]].loc["c"].isna().all()
    assert sides.summary == "What scaling b_LN from λ = 1 to 0.5 adds to the perplexity is +0.50 in a, b."
    single = generation.sides({"a": sweep([1.0]), "b": sweep([1.0])})
    assert single.numbers["perplexity_at_largest"].tolist() == [8, 8]
    assert single.summary.endswith("is not known for any run.")
    apart = generation.sides({"a": sweep([0.0, 0.5]), "b": sweep([0.25, 1.0])})
    assert apart.summary.endswith("is not known for any run.")
