"""What removes the effect of b_LN on word frequency: short runs that differ in one setting from a plain recipe."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.instruments.divergences import kl, perplexity
from interp.instruments.measures import correlations
from interp.support.checks import check_same
from training.data import Texts
from training.run import FINISHED, UNFINISHED, Run, Settings, load_resume, settings_of, train

log = logging.getLogger(__name__)

POSITIONS = 20_480  # held-out positions that are measured, in rows spread over the text
EVERY = 50  # steps between records of the loss; b_LN is measured every fourth time
_ROWS_AT_ONCE = 16

PLAIN: Settings = dict(
    vocab_size=4096, context=64, d_model=128, n_layers=4, n_heads=4, batch_size=16, separator="newline",
    learning_rate=1.5e-3, warm_up=200, decay="linear", betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1,
    clip=None, bf16=False,
)  # fmt: skip
"""The recipe from which each run differs in one setting; batches have 1,024 tokens."""
BUNDLED: Settings = dict(
    context=128, d_model=192, n_layers=6, n_heads=6, separator="end of text", warm_up=0.05, clip=1.0, bf16=True
)
"""What the recipe of tiny-gpt2, which sees 16 million tokens, changes in `PLAIN`."""
RUNS: dict[str, Settings] = {
    "plain": {},
    "beta2-0.95": {"betas": (0.9, 0.95)},
    "width-192": {"d_model": 192, "n_heads": 6},
    "layers-6": {"n_layers": 6},
    "context-128": {"context": 128, "batch_size": 8},
    "bfloat16": {"bf16": True},
    "rate-2e-3": {"learning_rate": 2e-3},
    "rate-constant": {"decay": "none"},
    "warm-up-5%": {"warm_up": 0.05},
    "clip-1": {"clip": 1.0},
    "end-of-text": {"separator": "end of text"},
    "vocabulary-1000": {"vocab_size": 1000},
    "decay-0": {"weight_decay": 0.0},
    "beta2-0.95-clip-1": {"betas": (0.9, 0.95), "clip": 1.0},
    "tiny-gpt2": BUNDLED,
    "tiny-gpt2-beta2-0.95": {**BUNDLED, "betas": (0.9, 0.95)},
}
"""What each run changes in `PLAIN`."""


def study(
    texts: Texts, names: Sequence[str], *, tokens: int, seeds: Sequence[int], out: Path, threads: int = 1
) -> Path:
    """Train the named runs with each of the seeds, in `out/NAME/seed-N`; finished runs are kept.

    Raises ValueError if a run is already there with other settings or text.
    """
    for seed in seeds:
        for name in names:
            where = out / name / f"seed-{seed}"
            settings: Any = {**PLAIN, **RUNS[name], "tokens": tokens, "seed": seed, "checkpoints": (), "every": EVERY}
            if (where / FINISHED).is_file():
                check_same(f"the run in {where}", _state(where)["settings"], settings_of("gpt2", texts, **settings))
                continue
            log.info("%s, seed %d", name, seed)
            train("gpt2", texts, out=where, measure=bias_effect, threads=threads, progress=False, **settings)
    return out


@torch.inference_mode()
def bias_effect(run: Run) -> dict[str, float]:
    """What b_LN does to the predictions of a GPT-2 at `POSITIONS` held-out positions.

    `held_out` and `held_out_without`: NLL with b_LN and without it, in nats per token. `kl` and `kl_without`: KL(u‖q),
    where u is the frequencies of the training text and q the mean prediction. `slope` and `spearman`: of b_LN W_U on
    log u, over types with u > 0. `norm`: ‖b_LN‖. `cosine`: of b_LN with the mean of the output embeddings.
    """
    embeddings, bias = run.model.lm_head.weight, run.model.transformer.ln_f.bias
    effect = embeddings @ bias
    shifts = torch.stack([torch.zeros_like(effect), -effect])
    summed = np.zeros((len(shifts), len(effect)))
    nll = np.zeros(len(shifts))
    n = 0
    for rows in _spread(run.held_out):
        logits, targets = run.held_out.predict(run.model, rows, np.random.default_rng(0))
        for i, shift in enumerate(shifts):
            predicted = (logits + shift).log_softmax(-1)
            nll[i] -= predicted.gather(1, targets[:, None]).sum(dtype=torch.float64).item()
            summed[i] += predicted.exp_().sum(0, dtype=torch.float64).numpy()
        n += len(targets)
    u = run.data.counts / run.data.counts.sum()
    seen = run.data.counts > 0
    line = correlations(np.log(u[seen]), effect.double().numpy()[seen])
    losses = (nll / n).tolist()
    divergences = [kl(u, q) for q in summed / n]
    return {
        "held_out": losses[0],
        "held_out_without": losses[1],
        "kl": divergences[0],
        "kl_without": divergences[1],
        "slope": line["slope"],
        "spearman": line["spearman"],
        "norm": bias.norm().item(),
        "cosine": torch.cosine_similarity(bias, embeddings.mean(0), dim=0).item(),
    }


def _spread(held_out: Any) -> Iterator[np.ndarray]:
    """The starts of rows at even distances in the text, a few at a time."""
    starts = np.concatenate(held_out.batches(_ROWS_AT_ONCE, None))
    chosen = starts[np.linspace(0, len(starts) - 1, min(len(starts), POSITIONS // held_out.context)).astype(int)]
    yield from np.split(chosen, range(_ROWS_AT_ONCE, len(chosen), _ROWS_AT_ONCE))


def histories(out: Path) -> pd.DataFrame:
    """What was measured in each run of `out`, including unfinished ones: one row per step, with `run`, `seed`,
    `planned` (the number of tokens that the run will have seen at its end) and what `bias_effect` gives.

    Raises FileNotFoundError if nothing has been measured.
    """
    rows = []
    for name in RUNS:
        files = (out / name).glob("seed-*/*")
        for where in sorted({file.parent for file in files if file.name in (FINISHED, UNFINISHED)}):
            state = _state(where)
            fields = {"run": name, "seed": state["settings"]["seed"], "planned": state["settings"]["tokens"]}
            rows += [fields | row for row in state["losses"] if "kl" in row]
    if not rows:
        raise FileNotFoundError(f"{out} has no run of this study with measurements")
    return pd.DataFrame(rows)


def _state(where: Path) -> dict[str, Any]:
    """The settings and losses of a run, finished or not."""
    if (where / FINISHED).is_file():
        return dict(json.loads((where / FINISHED).read_text(encoding="utf-8")))
    return load_resume(where / UNFINISHED)


def ends(measured: pd.DataFrame) -> list[dict[str, str]]:
    """One row per measured run, for its last step, formatted for reading."""
    last = measured.groupby(["run", "seed"], sort=False).tail(1)
    rows = []
    for row in last.to_dict("records"):
        perplexities = [perplexity(row[name]) for name in ("held_out", "held_out_without")]
        planned = "" if row["tokens"] >= row["planned"] else f" of {row['planned'] / 1e6:.2f}"
        cells = {
            "run": row["run"], "seed": str(row["seed"]), "tokens": f"{row['tokens'] / 1e6:.2f}{planned} M",
            "KL(u‖q)": f"{row['kl']:.3f}", "without b_LN": f"{row['kl_without']:.3f}",
            "rise": f"{row['kl_without'] - row['kl']:.3f}", "ratio": f"{row['kl_without'] / row['kl']:.1f}",
            "perplexity": f"{perplexities[0]:.1f}", "without": f"{perplexities[1]:.1f}",
            "Spearman": f"{row['spearman']:.2f}", "slope": f"{row['slope']:.3f}",
            "‖b_LN‖": f"{row['norm']:.2f}", "cosine": f"{row['cosine']:.2f}",
        }  # fmt: skip
        rows.append(cells)
    return rows


def courses(measured: pd.DataFrame) -> list[dict[str, str]]:
    """What removing b_LN adds to KL(u‖q), one row per run, at the steps at which all runs were measured."""
    steps = measured[measured["step"] % (4 * EVERY) == 0]
    rows = []
    for (run, seed), part in steps.groupby(["run", "seed"], sort=False):
        rises = (part["kl_without"] - part["kl"]).map("{:.3f}".format)
        row = {"run": str(run), "seed": str(seed)}
        row.update(zip(part["step"].map("{:,}".format), rises, strict=True))
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Rows as a Markdown table."""
    head = list(dict.fromkeys(column for row in rows for column in row))
    lines = [head, ["---"] * len(head), *([row.get(column, "") for column in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
