"""The tables in the docs of what goes beyond the papers, on the bundled models and those in ../shared.

Prints Markdown tables. Set INTERP_SHARED to use another folder in place of ../shared.

    python benchmarks/beyond.py [directions] [mean] [writers] [sinks] [cosines] [units]
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from timing import markdown

import interp
from interp import frequency
from interp.analyses.frequency.components import FrequencyWriters, writers as written
from interp.corpora import pairs
from interp.corpora.tokens import encode

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from published import SMOLLM2, directories

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))
YELP, STORIES = SHARED / "data/yelp/valid.txt", SHARED / "data/tinystories/tinystories_1000.json"
WEBTEXT, WIKITEXT = SHARED / "data/webtext/webtext.test.jsonl", SHARED / "data/tinystories/wikitext_1000.json"
MODELS = {
    "gpt2-yelp": SHARED / "models/gpt2-yelp",
    "llama-stories260k": SHARED / "models/llama-stories260k",
    "tiny-gpt2": "tiny-gpt2",
    "tiny-bert": "tiny-bert",
}
Rows = Iterator[dict[str, str]]


def directions() -> Rows:
    """The change of KL(u‖q) without each direction, compared with random ones, and which words it favours."""
    texts: dict[str, tuple[Any, dict[str, Any]]] = {
        "gpt2-yelp": (YELP, {"limit": 3_000}),
        "llama-stories260k": (STORIES, {"limit": 400, "bos": "texts"}),
        "tiny-gpt2": ("bundled", {"bos": "texts"}),
        "tiny-bert": ("bundled", {}),
    }
    for name, (text, options) in texts.items():
        study = interp.controls.study(interp.load(MODELS[name]), text, progress=False, **options)
        for bias, ranks in study.ranks.groupby("bias", sort=False):
            rank = ranks.set_index("kind")
            bands = study.bands.query("bias == @bias")
            drawn = study.controls.query("bias == @bias")["excess_nll"]
            row = {"model": name, "direction": str(bias), "ΔKL": _interval(rank.iloc[0], "delta_kl", ".3f")}
            for kind in rank.index:
                row[kind] = "{control_low:.3f} to {control_high:.3f}".format(**rank.loc[kind])
            row["excess NLL of the most frequent fifth"] = f"{bands['excess_nll'].iloc[0]:+.2f}"
            row["of the rarest"] = f"{bands['excess_nll'].iloc[-1]:+.2f}"
            row["most frequent fifth, random"] = f"{drawn.max():+.2f}"
            row["outlier dimensions"] = ", ".join(map(str, study.outlier_dims["dim"]))
            yield row


def mean() -> Rows:
    """KL(u‖q) on several texts with the mean of the head's input scaled."""
    stories = json.loads(STORIES.read_text(encoding="utf-8"))
    written = [f"<s>{story}" for story in stories[:40]]
    texts: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "the first 40 stories, <s> in the text": ("llama-stories260k", written, {"bos": False}),
        "the first 40 stories, BOS": ("llama-stories260k", stories[:40], {"bos": "texts"}),
        "917 stories in ASCII, BOS": (
            "llama-stories260k",
            [ascii_story for ascii_story in stories if ascii_story.isascii()],
            {"bos": "texts"},
        ),
        "all 1,000 stories, BOS": ("llama-stories260k", stories, {"bos": "texts"}),
        "500 reviews": ("gpt2-yelp", YELP, {"limit": 500}),
        "3,000 reviews": ("gpt2-yelp", YELP, {"limit": 3_000}),
    }
    for name, (model, text, options) in texts.items():
        few = "917" not in name and "1,000" not in name
        loaded = interp.load(MODELS[model])
        effect = frequency.study(loaded, text, directions=["mean"], progress=False, **options)
        kl = effect.kl.query("bias == 'mean'").set_index("scale")
        row = {"model": model, "text": name, "positions": f"{kl['n_tokens'].iloc[0]:,}"}
        for scale in (1.0, 0.5, 0.0):
            row[f"λ = {scale:g}"] = f"{kl.loc[scale, 'kl_unigram_model']:.4f}"
        if few:
            study = interp.controls.study(loaded, text, directions="mean", progress=False, **options)
            drawn = study.controls.query("bias == 'mean' and kind == 'norm'")["kl_unigram_model"]
            row["random"] = f"{drawn.min():.3f} to {drawn.max():.3f}"
        yield row


def writers() -> Rows:
    """Which components write E[h], in 160 rows of 63 tokens (of reviews, which are short, 15), with u from the text."""
    smollm2 = directories()[SMOLLM2]
    for name, directory, text in (
        (SMOLLM2, smollm2, WEBTEXT),
        (SMOLLM2, smollm2, WIKITEXT),
        (SMOLLM2, smollm2, STORIES),
        ("llama-stories260k", MODELS["llama-stories260k"], STORIES),
        ("gpt2-yelp", MODELS["gpt2-yelp"], YELP),
        ("tiny-gpt2", "tiny-gpt2", "bundled"),
    ):
        model = interp.load(directory)
        texts = encode(model.tokenizer, list(interp.corpora.load(text)))
        length = 15 if text == YELP else 63
        starts = ((ids, start) for ids in texts for start in range(0, len(ids) - length + 1, length))
        rows = [ids[start : start + length] for ids, start in islice(starts, 160)]
        counts = np.bincount(np.concatenate(texts).astype(np.int64), minlength=model.cfg.d_vocab)
        ledger = written(model, torch.tensor(rows), unigram=counts, progress=False)
        yield {"model": name, "text": Path(text).stem, **_slopes(ledger)}


def _slopes(ledger: FrequencyWriters) -> dict[str, str]:
    table, dims = ledger.components, ledger.dims
    blocks = table.dropna(subset="layer")
    last = blocks["layer"] > blocks["layer"].max() - max(1, blocks["layer"].nunique() // 5)
    components = table.set_index("component")
    row = {name: _interval(components.loc[name], "slope", ".2f") for name in ("E[h]", "all attention", "all MLP")}
    row["b_LN"] = _interval(components.loc["b_LN"], "slope", ".2f") if "b_LN" in components.index else ""
    row["last fifth of blocks"] = f"{blocks.loc[last, 'slope'].sum():+.2f}"
    row["most"] = _component(blocks.loc[blocks["slope"].idxmax()])
    row["least"] = _component(blocks.loc[blocks["slope"].idxmin()])
    for kind in ("isotropic", "embeddings"):
        row[f"p ≤ .05, {kind}"] = f"{(blocks[f'p_{kind}'] <= 0.05).sum()} of {len(blocks)}"
    row["four dimensions"] = ", ".join(map(str, dims["dim"][:4]))
    row["their share of |E[h]|²"] = _interval(dims.iloc[3], "cumulative_share", ".2f")
    return row


def _component(row: pd.Series) -> str:
    return f"{row['component']} of block {row['layer']}: {row['slope']:+.2f}"


def sinks() -> Rows:
    """How many heads are attention sinks."""
    texts: list[tuple[str, Any, dict[str, Any]]] = [
        ("tiny-gpt2", "bundled", {"limit": 300, "bos": "texts"}),
        ("tiny-gpt2", "bundled", {"limit": 300, "bos": "texts", "layout": "texts"}),
        ("tiny-bert", "bundled", {"limit": 300}),
        ("gpt2-yelp", YELP, {"limit": 300}),
        ("llama-stories260k", STORIES, {"limit": 100, "bos": "texts"}),
        ("llama-stories260k", STORIES, {"limit": 100, "bos": "texts", "layout": "texts"}),
    ]
    for name, text, options in texts:
        study = interp.sinks.study(interp.load(MODELS[name]), text, progress=False, **options)
        first = study.heads.query("first_position == 0")
        highest = first.loc[first["attention"].idxmax()]
        activations = study.writers.groupby(["dim", "first_position"])["n_activations"]
        rate = study.measures.set_index("measure").loc["rate"]
        yield {
            "model": name,
            "text": str(options),
            "rows": str(first["n_keys"].iloc[0]),
            "heads": str(len(first)),
            "sink rate": _interval(rate.rename({"low": "value_low", "high": "value_high"}), "value", ".3f"),
            "first position draws": f"{first['attention'].mean():.3f}",
            "uniform": f"{first['uniform'].iloc[0]:.3f}",
            "massive activations": str(int(activations.max().sum())),
            "head that draws most": "{layer:.0f}.{head:.0f}: ".format(**highest)
            + _interval(highest, "attention", ".2f"),
            "its rate": f"{highest['rate']:.2f}",
        }


def cosines() -> Rows:
    """Cosines of directions, and overlaps of subspaces."""
    texts: dict[str, tuple[Any, dict[str, Any]]] = {
        "gpt2-yelp": (YELP, {"limit": 3_000}),
        "llama-stories260k": (STORIES, {"limit": 200, "bos": "texts"}),
        "tiny-gpt2": ("bundled", {"limit": 200, "bos": "texts"}),
        "tiny-bert": ("bundled", {"limit": 200}),
    }
    for name, (text, options) in texts.items():
        study = interp.directions.study(interp.load(MODELS[name]), text, progress=False, **options)
        both = study.cosines.set_index(["name_a", "name_b"])
        overlaps = study.overlaps.set_index(["name_a", "name_b"])
        dims = both.loc[[pair for pair in both.index if pair[0] == "E[h]" and pair[1].startswith("dim ")]]
        along = both.loc[[pair for pair in both.index if pair[0] == "-A" and pair[1].startswith("dim ")]]
        row = {"model": name}
        for a, b in (("b_LN", "-A"), ("E[h]", "-A"), ("unigram", "-A")):
            row[f"{a}, {b}"] = _interval(both.loc[a, b], "cosine", ".3f") if (a, b) in both.index else "not here"
        row["E[h], dim"] = _nearest(dims)
        row["-A, dim"] = _nearest(along)
        row["chance"] = f"{both['null_95'].iloc[0]:.3f}"
        for other in ("principal axes", "outlier dimensions"):
            pair = "word frequency", other
            row[other] = "not here"
            if pair in overlaps.index:
                overlap = overlaps.loc[pair]
                row[other] = f"{_interval(overlap, 'overlap', '.3f')} beside {overlap['null_high']:.3f}"
        row["absent"] = str(study.left_out | study.provenance["absent"])
        yield row


def units() -> Rows:
    """The share of the top units that are found again on other pairs, and the AUC of the best unit."""
    table = pairs.load("bundled", limit=200)
    for name in ("tiny-gpt2", "tiny-bert", "llama-stories260k", "gpt2-yelp"):
        study = interp.units.study(interp.load(MODELS[name]), table, progress=False)
        again = study.found_again.set_index(["of", "control"])
        area = study.separability.groupby(["of", "control"])["auc"].mean()
        for kind in again.index.unique("of"):
            row = {"model": name, "kind": kind}
            for control in again.loc[kind].index:
                row[f"found again, {control}"] = f"{again.loc[(kind, control), 'overlap']:.3f}"
            row["labels flipped"] = f"{again.loc[(kind, 'none'), 'null']:.3f}"
            for control in again.loc[kind].index:
                row[f"AUC, {control}"] = f"{area[kind, control]:.3f}"
            yield row
        for finding in study.findings:
            print(f"{name}: {finding}\n")


def _nearest(cosines: pd.DataFrame) -> str:
    if cosines.empty:
        return "not here"
    (_, name), cosine = max(cosines["cosine"].items(), key=lambda item: abs(item[1]))
    return f"{cosine:.3f} ({name.removeprefix('dim ')})"


def _interval(row: Any, name: str, form: str) -> str:
    value, low, high = (format(row[f"{name}{end}"], form) for end in ("", "_low", "_high"))
    return value if low == high else f"{value} [{low}, {high}]"


TABLES: dict[str, Callable[[], Rows]] = {
    "directions": directions, "mean": mean, "writers": writers, "sinks": sinks, "cosines": cosines, "units": units,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"one of {', '.join(TABLES)}; all if none is named")
    for name in parser.parse_args().tables or TABLES:
        print(f"## {name}\n\n{markdown(list(TABLES[name]()))}\n", flush=True)


if __name__ == "__main__":
    main()
