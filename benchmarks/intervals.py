"""How often 95 % intervals over texts contain the true value, by the number of texts that were read.

`python benchmarks/intervals.py [--corpora 300] [--texts 20 40 160]`: a small decoder with random weights reads texts of
1 to 6 rows. Each text draws its words from its own distribution, so that the tokens of a text are alike. The true
values are those over a million positions.

`python benchmarks/intervals.py --pool FILE [--model NAME] [--corpora 400] [--texts 40 160]`: a trained model reads
texts that are drawn from those of a file, each text once a corpus. The true values are those over the whole file. That
of diversity, which depends on the number of texts, is its mean over corpora; that of the balanced NLL is the mean over
the types that a draw averages.

Prints the Markdown tables that docs/intervals.md quotes.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import interp
from interp import corpora
from interp.analyses.attention.ablation import KeyAblation
from interp.analyses.attention.patterns import attention_by_class
from interp.analyses.controls.bands import band_table, frequency_bands
from interp.analyses.encoding import fit
from interp.analyses.frequency import study
from interp.analyses.generation.metrics import frequent_types, intervals
from interp.corpora import Batches
from interp.corpora.tokens import encode
from interp.instruments.measures import FEWEST_OCCURRENCES
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.scores import ScoreContributions
from interp.instruments.shares import gaps
from interp.models.head import prediction_head
from interp.models.sites import Model
from interp.passes.reading import observe
from interp.testing import toy_decoder

CONTEXT, WORDS = 24, 60
MEASURES = {
    "KL(u‖q)": "kl", "ΔKL, without b_LN": "delta_kl", "JS": "js", "perplexity": "perplexity",
    "Δ perplexity, without b_LN": "delta_perplexity", "balanced NLL": "balanced_nll",
}  # fmt: skip
SPREAD = {
    "NLL by band": "bands", "Δ NLL by band, without b_LN": "bands", "calibration error": "bands",
    "attention by class": "heads × classes", "change without a dimension": "layers × dimensions × classes",
    "score": "heads × classes", "contributions": "heads × classes", "gap": "layers × classes × dimensions",
}  # fmt: skip
"""Measures with many values, and what the values are for."""
BANDS = 5
DIMS = (3, 8, 12)
CLASSES = {"common": list(range(7, 12)), "rare": list(range(37, 67))}
GENERATED = ("diversity", "repetition", "frequent_share")


def zipfian(n: int, rng: np.random.Generator) -> list[str]:
    """Texts whose words follow Zipf's law overall, while each text has its own distribution."""
    base = 1 / np.arange(1, WORDS + 1)
    texts = []
    for _ in range(n):
        word_shares = rng.dirichlet(8 * base / base.sum())
        texts.append(" ".join(f"w{word}" for word in rng.choice(WORDS, CONTEXT * rng.integers(1, 7), p=word_shares)))
    return texts


def of_pool(pool: list[str], n: int, rng: np.random.Generator) -> list[str]:
    return [pool[number] for number in rng.choice(len(pool), n, replace=False)]


@dataclass
class Setting:
    """A model, how texts are drawn for it, all texts, and what is measured."""

    model: Model
    draw: Callable[[int, np.random.Generator], list[str]]
    everything: list[str]
    classes: dict[str, list[int]] | None
    context: int

    def __post_init__(self) -> None:
        self.counts = corpora.count_unigrams(self.model, self.everything)
        self.nll_by_type: np.ndarray | None = None  # without b_LN, over everything

    def batches(self, texts: list[str]) -> Batches:
        return corpora.batches(self.model, texts, layout="texts", context=self.context, batch_size=64)

    def read(self, texts: list[str]) -> pd.DataFrame:
        """The value and the interval of each measure."""
        prepared = self.batches(texts)
        effect = study(self.model, prepared, unigram=self.counts, scales=[0, 1], progress=False)
        row = effect.kl.query("bias == 'ln'").set_index("scale").loc[0]
        rows = {
            name: (row.get(column, row["kl_unigram_model"]), row[f"{column}_low"], row[f"{column}_high"])
            for name, column in MEASURES.items()
        }
        attention = attention_by_class(self.model, prepared, key_classes=self.classes, progress=False)
        for (layer, head, key_class), mean in attention.set_index(["layer", "head", "key_class"]).iterrows():
            rows[f"attention by class: {layer} {head} {key_class}"] = mean["sum"], mean["sum_low"], mean["sum_high"]
        rows |= self._edits(prepared) | self._regression(prepared)
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"]).assign(true=np.nan)
        if self.nll_by_type is not None:
            promised = self.counts.distribution * row["n_scored"] >= FEWEST_OCCURRENCES
            table.loc["balanced NLL", "true"] = np.nanmean(self.nll_by_type[promised])
        return table

    def read_everything(self) -> pd.Series:
        """The true values."""
        table = self.read(self.everything)
        predictions = MeanPredictions(self.model, [self._without()])
        observe(self.model, self.batches(self.everything), predictions, progress=False)
        self.nll_by_type = predictions.means(0).nll_by_class
        return table["value"]

    def _without(self) -> Variant:
        """The model without b_LN."""
        return Variant(-prediction_head(self.model).effect("ln").double())

    def _edits(self, prepared: Batches) -> dict[str, tuple[float, float, float]]:
        """NLL and calibration by band, what removing dimensions does to attention, scores and gaps."""
        model, counts = self.model, self.counts
        u = counts.distribution
        bands = frequency_bands(counts.distribution, BANDS)
        predictions = MeanPredictions(model, [self._without(), Variant()], grouped=True, bands=bands)
        classes = corpora.token_classes(model, self.classes)
        removed = KeyAblation(model, classes, {layer: dict.fromkeys(DIMS, 0.0) for layer in range(model.cfg.n_layers)})
        scores = ScoreContributions(model, classes)
        observe(model, prepared, predictions, removed, scores, progress=False)
        rows: dict[str, tuple[float, float, float]] = {}
        edits = pd.DataFrame({"bias": ["ln"], "scale": [0.0]})
        for row in band_table(predictions, edits, u, bands, unedited=1).itertuples():
            rows[f"NLL by band: {row.band}"] = row.nll, row.nll_low, row.nll_high
            rows[f"Δ NLL by band, without b_LN: {row.band}"] = row.delta_nll, row.delta_nll_low, row.delta_nll_high
            ends = row.calibration_error_low, row.calibration_error_high
            rows[f"calibration error: {row.band}"] = row.calibration_error, *ends
        for layer in range(model.cfg.n_layers):
            change = removed.jackknife(
                lambda sums, n: sums / n[..., None, None], removed.changes(layer), removed.queries
            )
            for place in np.ndindex(change.value.shape):
                name = "change without a dimension: " + " ".join(map(str, (layer, *place)))
                rows[name] = change.value[place], change.low[place], change.high[place]
        for row in scores.totals.itertuples():
            where = f"{row.layer} {row.head} {row.key_class}"
            rows[f"score: {where}"] = row.score, row.score_low, row.score_high
            rows[f"contributions: {where}"] = row.contributions, row.contributions_low, row.contributions_high
        gap_means = gaps(scores.scores).mean("head", ["gap"])
        gap_means = gap_means[gap_means["dim"] < 16]
        for row, reach in zip(gap_means.itertuples(), scores.gap_half(gap_means), strict=True):
            rows[f"gap: {row.layer} {row.key_class} {row.dim}"] = row.gap, row.gap - reach, row.gap + reach
        return rows

    def _regression(self, prepared: Batches) -> dict[str, tuple[float, float, float]]:
        regression = fit(self.model, prepared, progress=False)
        across = regression.regression.iloc[0]
        rows = {"R² over types": (across["cv_r2"], across["cv_r2_low"], across["cv_r2_high"])}
        for row in regression.theory.itertuples():
            rows[f"R², {row.predictor}"] = row.r2, row.r2_low, row.r2_high
        return rows

    def diversity(self, texts: list[str]) -> pd.DataFrame:
        """The measures of generated text, of these texts."""
        ids = encode(self.model.tokenizer, texts)
        table = pd.DataFrame({"decoder": "own", "scale": 1.0, "prompt_id": range(len(ids)), "token_ids": ids})
        measures = intervals(table, frequent_types(self.counts)).set_index("measure")
        return measures.loc[list(GENERATED), ["value", "low", "high"]].assign(true=np.nan)


def covered(setting: Setting, repetitions: int, sizes: list[int]) -> pd.DataFrame:
    """The share of corpora whose interval contains the true value, by measure and number of texts."""
    everything = setting.read_everything()
    shares = {}
    for n in sizes:
        draws = [setting.draw(n, np.random.default_rng([seed, n])) for seed in range(1, repetitions + 1)]
        tables = [pd.concat([setting.read(texts), setting.diversity(texts)]) for texts in draws]
        value, low, high, true = (
            pd.concat([table[name] for table in tables], axis=1, ignore_index=True)
            for name in ("value", "low", "high", "true")
        )
        fixed = everything.reindex(value.index)
        fixed[list(GENERATED)] = value.loc[list(GENERATED)].mean(axis=1)
        true = true.T.fillna(fixed).T
        inside = (low <= true) & (true <= high)
        shares[n] = inside.where(low.notna()).astype(float).mean(axis=1)
    return pd.DataFrame(shares)


def printed(share: pd.DataFrame, repetitions: int) -> str:
    """A Markdown table of the coverage."""
    lines = [f"| {repetitions} draws of | " + " | ".join(f"{n} texts" for n in share) + " |"]
    lines.append("|---|" + "---|" * share.shape[1])
    single = share[~share.index.str.contains(": ")]
    for name, row in single.iterrows():
        lines.append(
            f"| {name} | "
            + " | ".join("none" if np.isnan(share_of_size) else f"{share_of_size:.1%}" for share_of_size in row)
            + " |"
        )
    for name, unit in SPREAD.items():
        many = share[share.index.str.startswith(f"{name}: ")]
        cells = [
            "none" if many[n].isna().all() else f"{many[n].mean():.1%} ({many[n].min():.0%}–{many[n].max():.0%})"
            for n in many
        ]
        lines.append(f"| {name} (mean and range of {len(many)} {unit}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=int)
    parser.add_argument("--texts", type=int, nargs="+")
    parser.add_argument("--positions", type=int, default=1_000_000, help="positions used for the true values")
    parser.add_argument("--pool", type=Path, help="a file with one text a line")
    parser.add_argument("--model", default="tiny-gpt2", help="the model that reads the texts of --pool")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="no token of class")
    if arguments.pool:
        pool = [line for line in arguments.pool.read_text(encoding="utf-8").splitlines() if line.strip()]
        setting = Setting(interp.load(arguments.model), partial(of_pool, pool), pool, None, 64)
        repetitions, sizes = arguments.corpora or 400, arguments.texts or [40, 160]
    else:
        many = zipfian(round(arguments.positions / (3.5 * CONTEXT)), np.random.default_rng(0))
        setting = Setting(toy_decoder(n_positions=CONTEXT), zipfian, many, CLASSES, CONTEXT)
        repetitions, sizes = arguments.corpora or 300, arguments.texts or [20, 40, 160]
    print(printed(covered(setting, repetitions, sizes), repetitions))


if __name__ == "__main__":
    main()
