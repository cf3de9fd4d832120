"""What a page says of a result, where its numbers are equal, missing or of another design."""

import numpy as np
import pandas as pd
import pytest
from toys import with_tables

import interp
from interp import pages, probing
from interp.corpora import pairs
from interp.figures.runs import extremes
from interp.figures.section import change, count, direction, within
from interp.frequency import bias_effect, page as frequency
from interp.generation import page as generation


def test_numbers_are_compared_as_they_are_printed():
    assert change(0.5, 0.7, "{:.1f}") == "goes from 0.5 to 0.7"
    assert change(0.52, 0.54, "{:.1f}") == "stays at 0.5"
    assert count(1, "task") == "1 task"
    assert count(0, "task") == "0 tasks"
    values = pd.Series({"a": 0.0501, "b": 0.0499})
    assert extremes("It", values, "{:.0%}") == "It is 5% in all."
    assert extremes("It", pd.Series({"a": 0.5, "b": np.nan}), "{:.0%}") == "It is 50% in a."
    assert extremes("It", pd.Series({"a": -1e-9, "b": 1e-9}), "{:+z.1f}") == "It is +0.0 in all."
    assert extremes("It", pd.Series({"a": 0.1, "b": 0.2}), "{:.0%}") == "It goes from 10% in a to 20% in b."


@pytest.fixture
def effect(load_toy, texts):
    return bias_effect(load_toy("gpt2"), texts, unigram=np.arange(67), scales=[0, 0.5, 1], progress=False)


def test_directions_and_intervals_are_said_as_they_are():
    assert within(0.1, 0.25, "{:.1f}") == "[0.1, 0.2]"
    assert within(np.nan, np.nan, "{:.1f}") == "(no interval: too few texts)"
    assert [direction(*ends) for ends in ((0.1, 0.2), (-2.0, -1.0), (-1.0, 1.0), (np.nan, np.nan))] == [1, -1, 0, 0]


@pytest.mark.parametrize(
    ("delta", "low", "high", "expected"),
    [
        (
            0.2,
            0.1,
            0.3,
            "further from word frequency: KL(u‖q) changes by +0.200 nats [+0.100, +0.300].",
        ),
        (
            -0.2,
            -0.3,
            -0.1,
            "closer to word frequency: KL(u‖q) changes by -0.200 nats [-0.300, -0.100].",
        ),
        (
            0.2,
            -0.1,
            0.5,
            "neither clearly further from nor clearly closer to word frequency: KL(u‖q) changes by +0.2",
        ),
        (0.0, 0.0, 0.0, "neither clearly further from nor clearly closer to word frequency: KL(u‖q) changes by +0.000"),
        (
            0.2,
            np.nan,
            np.nan,
            "clearly closer to word frequency: KL(u‖q) changes by +0.200 nats (no interval: too few",
        ),
    ],
)
def test_a_direction_is_said_only_where_the_interval_leaves_0_out(effect, delta, low, high, expected):
    kl = effect.kl.assign(delta_kl=delta, delta_kl_low=low, delta_kl_high=high)
    undefined = effect.projection.assign(spearman=np.nan, slope=np.nan)
    section = pages.page.section(with_tables(effect, kl=kl, projection=undefined))
    assert section.summary.startswith("Without b_LN predictions are ")
    assert expected in section.summary
    assert "log u: undefined." in section.finding


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ([0, 1], "Without b_LN"),
        ([0.5, 1], "With b_LN times 0.5"),
        ([1, 2], "With b_LN times 2"),
        ([0.25, 0.5], "With b_LN times 0.25"),
        ([1], "As trained"),
    ],
)
def test_scales_other_than_0_are_named(effect, scales, expected):
    rows = effect.kl.iloc[[0] * len(scales)].assign(scale=[float(one) for one in scales])
    about = with_tables(effect, kl=rows.reset_index(drop=True))
    assert frequency._summary(about).startswith(expected)
    assert frequency._finding(about).startswith(expected)
    assert "nan" not in frequency._finding(about)


@pytest.fixture(scope="module")
def attended(reported):
    return reported["tiny-bert"]["attention"]


def test_a_layer_without_a_gap_is_left_out(attended):
    gaps = attended.gaps.table
    gone = gaps["layer"] == 2
    gaps = gaps.assign(gap=gaps["gap"].mask(gone, 0.0), abs_share=gaps["abs_share"].mask(gone))
    table = pages.page.section(with_tables(attended, gaps=gaps)).tables["What sets a class apart, mean over heads"]
    assert set(table["layer"]) == {0, 1, 3, 4, 5}
    none = pages.page.section(with_tables(attended, gaps=gaps.assign(gap=np.nan, abs_share=np.nan)))
    assert "contributions" not in none.figures


def test_an_effect_on_attention_is_said_only_of_what_was_removed(attended):
    table, claims = attended.ablation, attended.claims
    first = claims.iloc[0]
    section = pages.page.section(attended)
    where = f"outlier dimension {first['dim']} changes attention to [CLS] in block {first['layer']} most"
    assert where in section.summary
    assert f"from {first['attention_before']:.4f} to {first['attention_after']:.4f}" in section.summary
    assert f"(p = {first['p_value']:.3f}; " in section.summary
    assert section.main == "ablation_0"
    for _, row in claims.iterrows():
        assert f"outlier dimension {row['dim']} changes attention to" in section.finding
    alone = pages.page.section(with_tables(attended, ablation=table[table["set"].isin(["outlier", "driver"])]))
    assert "nothing matches it in size" in alone.summary
    assert "p = " not in alone.finding
    assert "lowers attention to" in alone.finding
    assert "control dimensions" not in alone.finding
    still = pages.page.section(with_tables(attended, ablation=table.assign(attention_after=table["attention_before"])))
    assert "changes attention to no class by 0.0001 or more." in still.summary
    assert "none lowers attention to a class by 0.0001 or more." in still.finding
    assert "most" not in still.finding
    assert still.main == "attention"
    none = pages.page.section(with_tables(attended, ablation=table[table["set"] == "driver"]))
    assert none.summary.startswith("7 outlier dimensions, where noise would give 0.05 in each state; dimension 48 is")


@pytest.fixture(scope="module")
def encoded(reported):
    return reported["tiny-gpt2"]["encoding"]


def test_removed_dimensions_are_said_as_between_two_fractions(encoded):
    def said(agreement, fractions=(0.0, 0.1, 0.3, 0.5)):
        curve = encoded.pruning[(encoded.pruning["basis"] == "axis") & (encoded.pruning["order"] == "spearman")]
        curve = curve.head(len(fractions)).assign(fraction=list(fractions), top1_agreement=agreement)
        return pages.page.section(with_tables(encoded, pruning=curve)), curve

    section, curve = said([1.0, 0.97, 0.6, 0.96])
    assert "falls below 95 % between 10 % and 30 % of the dimensions removed" in section.finding
    assert with_tables(encoded, pruning=curve).removable["95%"].item() == 0.1
    section, curve = said([0.9, 0.8], (0.1, 0.3))
    assert "falls below 95 % between 0 % and 10 % of" in section.finding
    assert with_tables(encoded, pruning=curve).removable["95%"].item() == 0
    assert "stays at 95 % or more up to 50 % of the dimensions" in said([1.0, 0.99, 0.98, 0.97])[0].finding


def test_a_fit_is_said_beside_that_before_training(encoded):
    fitted = encoded.regression.set_index("target")["adj_r2"]
    unseen = encoded.regression.set_index("target").loc["-log alpha", ["cv_r2", "cv_r2_low", "cv_r2_high"]]
    step = encoded.dynamics.set_index("step")["adj_r2"]
    assert pages.page.section(encoded).summary == (
        f"A linear fit of −log α on the output embeddings has adjusted R² {fitted['-log alpha']:.3f} "
        f"({fitted['shuffled']:.3f} with α shuffled, {step[0]:.3f} before training); of types that it has not seen it "
        "explains {:.3f} [{:.3f}, {:.3f}].".format(*unseen)
    )
    without = with_tables(encoded, dynamics=encoded.dynamics[encoded.dynamics["step"] > 0])
    assert "before training" not in pages.page.section(without).summary


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


def test_probes_of_one_task_are_said_as_numbers(probed):
    section = pages.page.section(probed)
    accuracy = probed.probes.groupby(["method", "control"])["accuracy"].mean()
    means = probed.means.set_index("probe")
    kinds = {"dense": ("dense", "none"), "l0": ("l0", "none"), "l0_untrained": ("l0", "untrained")}
    for name, kind in kinds.items():
        assert means.loc[name, "accuracy"] == pytest.approx(accuracy[kind])
    assert means.loc["bag_of_words", "accuracy"] == pytest.approx(probed.tasks["bag_of_words"].item())
    seeds = probed.probes.query("method == 'l0' and control == 'none'")["accuracy"]
    sd = f"SD over 2 seeds {seeds.std():.3f}, " if seeds.std() > 0 else ""
    dense, sparse, words = (in_words(probed.means, name) for name in ("dense", "l0", "bag_of_words"))
    untrained, random = (in_words(probed.means, f"l0_{name}") for name in ("untrained", "rotated"))
    assert section.summary.startswith("Accuracy at state 3, 1 task: sparse probes with ")
    assert section.summary.endswith(
        f"{sparse} ({sd}untrained model {untrained}, random basis {random}); dense probes {dense} "
        f"(untrained model {in_words(probed.means, 'dense_untrained')}); a bag of words {words}."
    )
    row = probed.differences.set_index(["probe", "against"]).loc[("dense", "bag_of_words")]
    gap = f"{row['difference']:+z.3f} [{row['low']:+z.3f}, {row['high']:+z.3f}]"
    counted = f"on {row['above']:.0f} of 1 task, below on {row['below']:.0f}; difference {gap}."
    assert f"Dense probes are above the bag of words {counted}" in section.finding
    assert "1 tasks" not in section.finding
    assert section.summary in section.finding


def test_top_k_alone_has_its_number(probed):
    probes = probed.probes[probed.probes["method"] == "topk:welch"]
    others = {name: getattr(probed, name).iloc[:0] for name in ("transfer", "general", "overlap", "ablation", "views")}
    means = probed.means[probed.means["probe"].isin(["topk", "bag_of_words"])]
    differences = probed.differences[probed.differences["probe"] == "topk"]
    alone = {"probes": probes, "means": means, "differences": differences, "agreement": probed.agreement.iloc[:0]}
    section = pages.page.section(with_tables(probed, **alone, **others))
    accuracy = probes.loc[(probes["k"] == 4) & (probes["control"] == "none"), "accuracy"].item()
    assert in_words(means, "topk").startswith(f"{accuracy:.3f} [")
    assert f"1 task: probes of the top 4 dimensions {in_words(means, 'topk')}; a bag of words" in section.summary


def test_texts_are_compared_at_the_scales_that_runs_share():
    def sweep(scales):
        rows = [{"decoder": "greedy", "scale": one, "diversity": one / 2, "perplexity": 9 - one} for one in scales]
        rows.append({"decoder": "human", "scale": np.nan, "diversity": 0.7, "perplexity": np.nan})
        return interp.generation.GenerationStudy({}, pd.DataFrame({"decoder": []}), pd.DataFrame(rows), pd.DataFrame())

    sides = generation.sides({"a": sweep([0, 0.5, 1]), "b": sweep([0.25, 0.5, 1]), "c": sweep([1.0])})
    assert sides.numbers["largest_scale"].tolist() == [1, 1, 1]
    assert sides.numbers["smallest_scale"].tolist() == [0.5] * 3
    assert sides.numbers["greedy_at_smallest"].tolist()[:2] == [0.25, 0.25]
    assert sides.numbers[["perplexity_at_smallest", "greedy_at_smallest"]].loc["c"].isna().all()
    assert sides.summary == "What scaling b_LN from λ = 1 to 0.5 adds to the perplexity is +0.50 in a, b."
    single = generation.sides({"a": sweep([1.0]), "b": sweep([1.0])})
    assert single.numbers["perplexity_at_largest"].tolist() == [8, 8]
    assert single.summary.endswith("is known of no run.")
    apart = generation.sides({"a": sweep([0.0, 0.5]), "b": sweep([0.25, 1.0])})
    assert apart.summary.endswith("is known of no run.")
