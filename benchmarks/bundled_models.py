"""Install trained models in interp/bundled and measure them for their card.

    python benchmarks/bundled_models.py RUNS BOOKS BLIMP

RUNS contains tiny-gpt2, tiny-bert or both, trained with `tools/train.py`; a model that is not in it is left as it is.
BOOKS is the text they were trained on (its last 1 % is held out), and BLIMP is a directory with BLiMP's .jsonl files.
Writes the models, a dynamics.csv next to each, and the measured part of interp/bundled/README.md for both models.
"""

import argparse
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from timing import markdown
from tqdm import tqdm
from transformers import AutoTokenizer

import interp
from interp import corpora, encoding
from interp.analyses.frequency import study
from interp.analyses.probing import minimal_pair_accuracy
from interp.corpora import pairs, unigrams
from interp.corpora.unigrams import Unigrams
from interp.models.sites import Model, hook_name
from interp.support.paths import BUNDLED

NAMES = ("tiny-gpt2", "tiny-bert")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
BEGIN, END = "<!-- measured: benchmarks/bundled_models.py -->", "<!-- end -->"
BIGRAM_STRENGTH = 100.0


def install(run: Path) -> None:
    target = BUNDLED / run.name
    target.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "training.json", *TOKENIZER):
        shutil.copy(run / name, target / name)
    counts = unigrams.load(run / "unigram.safetensors").counts
    tokenizer = unigrams.tokenizer_hash(AutoTokenizer.from_pretrained(run))
    Unigrams(counts, "public-domain books, the training part", tokenizer).save(target / "unigram.safetensors")
    for path in target.iterdir():
        path.chmod(0o644)


def checkpoints(run: Path) -> Iterator[tuple[int, Model]]:
    steps = sorted((int(path.name.removeprefix("step-")), path) for path in run.glob("checkpoints/step-*"))
    for step, path in steps:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(path, directory, dirs_exist_ok=True)
            for name in TOKENIZER:
                shutil.copy(run / name, directory)
            yield step, interp.load(directory)


def options(model: Model) -> dict[str, object]:
    """Options that match training: an end-of-text token before each paragraph; BERT's masking as in the paper."""
    return {"bos": "texts"} if model.cfg.model_name == "gpt2" else {"mask_rate": 0.12}


def frequency_rows(name: str, texts: dict[str, list[str]]) -> list[dict[str, str]]:
    model = interp.load(name)
    rows = []
    for where, text in texts.items():
        batches = corpora.batches(model, text, **options(model))
        counts = unigrams.load(BUNDLED / name / "unigram.safetensors")
        effect = study(model, batches, unigram=counts, scales=(0, 1), progress=False)
        for bias, part in effect.kl.groupby("bias", sort=False):
            kl, ppl = (part.set_index("scale")[column] for column in ("kl_unigram_model", "perplexity"))
            projection = effect.projection.set_index("bias")["spearman"]
            rows.append(
                {
                    "model": name,
                    "text": where,
                    "bias": str(bias),
                    "KL(u‖q)": f"{kl[1]:.3f}",
                    "without the bias": f"{kl[0]:.3f}",
                    "perplexity": f"{ppl[1]:.1f}",
                    "without": f"{ppl[0]:.1f}",
                    "Spearman with log u": f"{projection[bias]:.2f}" if bias in projection else "",
                }
            )
    return rows


def held_out_rows() -> list[dict[str, str]]:
    rows = []
    for name in NAMES:
        record = json.loads((BUNDLED / name / "training.json").read_text(encoding="utf-8"))
        seen, held_out = record["settings"], record["held_out"]
        rows.append(
            {
                "model": name,
                "parameters": f"{record['parameters']:,}",
                "steps": f"{record['steps']:,}",
                "tokens seen": f"{record['tokens'] / 1e6:.1f} M",
                "batch": str(seen["batch_size"]),
                "learning rate": f"{seen['learning_rate']:g}",
                "held-out loss": f"{held_out['loss']:.3f}",
                "unigram loss": f"{held_out['unigram_loss']:.3f}",
                "perplexity": f"{held_out['perplexity']:.1f}",
                "unigram perplexity": f"{held_out['unigram_perplexity']:.0f}",
                "accuracy": f"{held_out['accuracy']:.3f}",
                "unigram accuracy": f"{held_out['unigram_accuracy']:.3f}",
            }
        )
    return rows


class Bigram:
    """`p(w | v) = (c(v, w) + s u(w)) / (c(v) + s)` over the model's tokens, counted in the training text."""

    def __init__(self, model: Model, texts: list[str]) -> None:
        self.tokenizer, self.bos = model.tokenizer, model.tokenizer.bos_token_id
        size = model.cfg.d_vocab
        self.counts = torch.zeros(size, size)
        for start in tqdm(range(0, len(texts), 5_000), desc="bigrams", disable=None):
            for row in self.encode(texts[start : start + 5_000]):
                np.add.at(self.counts.numpy(), (row[:-1], row[1:]), 1)
        unigram = (self.counts.sum(0) + 1) / (self.counts.sum() + size)
        strength = BIGRAM_STRENGTH
        self.log_p = ((self.counts + strength * unigram) / (self.counts.sum(1, keepdim=True) + strength)).log()

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [np.array([self.bos, *ids]) for ids in encoded]

    def accuracy(self, table: pd.DataFrame) -> pd.Series:
        good, bad = (
            np.array([self.log_p[row[:-1], row[1:]].double().sum() for row in self.encode(list(table[column]))])
            for column in ("sentence_good", "sentence_bad")
        )
        return pd.Series(good > bad).groupby(table["UID"].to_numpy(), sort=False).mean()


def pair_rows(table: pd.DataFrame, model: Model, bigram: Bigram, by: str) -> list[dict[str, str]]:
    ours = minimal_pair_accuracy(model, table, bos=True).set_index("task")["accuracy"]
    scores = pd.DataFrame({"tiny-gpt2": ours, "bigram": bigram.accuracy(table)})
    groups = table.drop_duplicates("UID").set_index("UID")[by] if by != "UID" else pd.Series(ours.index, ours.index)
    grouped = scores.groupby(groups, sort=False).mean()
    grouped.loc["all"] = scores.mean()
    return [
        {
            by if by != "UID" else "task": str(name),
            "tiny-gpt2": f"{row['tiny-gpt2']:.3f}",
            "bigram": f"{row['bigram']:.3f}",
        }
        for name, row in grouped.iterrows()
    ]


@torch.no_grad()
def structure_rows(name: str, texts: list[str]) -> list[dict[str, str]]:
    """Outlier dimensions and attention to special tokens, layer by layer."""
    model = interp.load(name)
    batches = list(corpora.batches(model, texts, layout="texts", batch_size=32, bos=name == "tiny-gpt2"))
    comma, period = (model.tokenizer.convert_tokens_to_ids(mark) for mark in (",", "."))
    special = model.tokenizer.cls_token_id if name == "tiny-bert" else model.tokenizer.bos_token_id
    rows = []
    for layer in range(model.cfg.n_layers):
        site, pattern_name = hook_name(model, "resid_post", layer), hook_name(model, "pattern", layer)
        total = 0
        n = 0
        shares = {}
        uniform = {}
        for batch in batches:
            extra = {"one_zero_attention_mask": batch.mask} if name == "tiny-bert" else {}
            _, cache = model.run_with_cache(batch.tokens, names_filter=[site, pattern_name], **extra)
            real = batch.mask.bool()
            total, n = total + cache[site][real].double().sum(0), n + int(real.sum())
            allowed = (real[:, None, :] & real[:, :, None]).double()
            allowed = allowed if name == "tiny-bert" else allowed.tril()
            classes = {
                "the first token": batch.tokens == special,
                "commas and periods": (batch.tokens == comma) | (batch.tokens == period),
            }
            if name == "tiny-bert":
                classes["[SEP]"] = batch.tokens == model.tokenizer.sep_token_id
            for key, keys in classes.items():
                attention = (cache[pattern_name] * (keys & real)[:, None, None, :]).sum(-1).transpose(1, 2)[real]
                even = ((allowed * keys[:, None, :]).sum(-1) / allowed.sum(-1).clamp(min=1))[real]
                shares[key] = shares.get(key, 0) + attention.double().sum(0)
                uniform[key] = uniform.get(key, 0) + even.sum()
        mean = total / n
        z = (mean - mean.mean()) / mean.std()
        outliers = sorted((int(j) for j in (z.abs() > 3).nonzero().flatten()), key=lambda j: -abs(z[j]))
        row = {"model": name, "layer": str(layer)}
        row["outlier dimensions (z)"] = ", ".join(f"{j} ({z[j]:+.1f})" for j in outliers) or "none"
        for key in ("the first token", "[SEP]", "commas and periods"):
            if key in shares:
                largest = shares[key].max()
                ratio = float(largest / uniform[key])
                row[f"most attention to {key} (× uniform)"] = f"{float(largest / n):.2f} ({ratio:.1f})"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("runs", "books", "blimp"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    trained = [name for name in NAMES if (arguments.runs / name).is_dir()]
    if not trained:
        parser.error(f"{arguments.runs} contains neither {' nor '.join(NAMES)}")
    for name in trained:
        install(arguments.runs / name)
    texts = list(corpora.load(arguments.books))
    cut = len(texts) - max(1, int(len(texts) * 0.01))
    bundled = list(corpora.load("bundled"))
    for name in trained:
        counts = unigrams.load(BUNDLED / name / "unigram.safetensors")
        text = corpora.load("bundled")
        table = encoding.dynamics(checkpoints(arguments.runs / name), text, unigram=counts)
        table.to_csv(BUNDLED / name / "dynamics.csv", index=False, float_format="%.6g")
    gpt2 = interp.load("tiny-gpt2")
    bigram = Bigram(gpt2, texts[:cut])
    where = {"held-out books": texts[cut:], "bundled text": bundled}
    sections = {
        "Training": markdown(held_out_rows()),
        "Biases of the prediction head": markdown([row for name in NAMES for row in frequency_rows(name, where)]),
        "Bundled minimal pairs, 500 per task (accuracy; chance .5)": markdown(
            pair_rows(pairs.load("bundled"), gpt2, bigram, "UID")
        ),
        "BLiMP, 67 tasks, mean accuracy by field": markdown(
            pair_rows(pairs.load(arguments.blimp), gpt2, bigram, "field")
        ),
        "Outlier dimensions and attention, bundled text: tiny-gpt2": markdown(structure_rows("tiny-gpt2", bundled)),
        "Outlier dimensions and attention, bundled text: tiny-bert": markdown(structure_rows("tiny-bert", bundled)),
    }
    measured = "\n\n".join(f"### {title}\n\n{table}" for title, table in sections.items())
    card = BUNDLED / "README.md"
    before, after_begin = card.read_text(encoding="utf-8").split(BEGIN)
    after = after_begin.split(END)[1]
    card.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
