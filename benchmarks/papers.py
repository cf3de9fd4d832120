"""Compare our numbers with the published ones, on the models they were published for (needs a network or a hub cache).

`python benchmarks/papers.py --paper 1 --model gpt2 [options of the command]` runs the commands of docs/papers.md on
that model and prints a Markdown table of our numbers, the published ones and their differences. The lines above the
table say how the run differs from the paper's protocol, as far as that is known. Further options are passed to the
commands that have them (`--corpus my.jsonl --unigram counts.safetensors`). `--out` keeps the runs, which otherwise go
to a temporary directory. Texts are read as the papers read them, one sequence in a row.

The script has 36 of the 288 contributions of paper 2's table 1. `--published table1.csv` gives all of them, with the
columns `layer` (from 1, as in the paper), `head` (from 1), `dim`, `key_class` (cls, sep, comma_period, other), `value`.

Paper 1 has numbers for `gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `bert-base-cased` and `bert-large-cased`, paper
2 for `bert-base-uncased`, paper 3 for `gpt2`, and paper 4 for `Meta-Llama-3-8B`. docs/papers.md gives the sources.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from timing import markdown

from interp.analyses.attention import AttentionStudy
from interp.analyses.encoding import EncodingStudy
from interp.analyses.frequency import FrequencyStudy
from interp.analyses.generation import GenerationStudy
from interp.analyses.probing import ProbingStudy
from interp.cli import main as interp

ENOUGH_TOKENS = 10_000_000
KL: dict[str, dict[str, float]] = {
    "bert-base-cased": {"with all": 0.20, "ln": 0.39, "fc": 0.22, "last": 0.23},
    "bert-large-cased": {"with all": 0.21, "ln": 0.39, "fc": 0.23, "last": 0.23},
    "gpt2": {"with all": 0.14, "ln": 0.83},
    "gpt2-medium": {"with all": 0.14, "ln": 0.34},
    "gpt2-large": {"with all": 0.14, "ln": 0.17},
    "gpt2-xl": {"with all": 0.14, "ln": 0.17},
}
MEASURES = ("diversity", "distinct_1", "distinct_2", "mauve_mean", "perplexity")
TEXT: dict[str, dict[float, tuple[float, ...]]] = {
    "gpt2": {1: (0.77, 0.29, 0.82, 0.76, 19.4), 0.5: (0.87, 0.53, 0.96, 0.07, 27.0), 0: (0.73, 0.44, 0.81, 0.03, 65.9)},
    "gpt2-medium": {
        1: (0.78, 0.31, 0.85, 0.77, 14.6), 0.3: (0.88, 0.56, 0.96, 0.25, 17.8), 0: (0.87, 0.58, 0.95, 0.08, 21.3),
    },
    "gpt2-large": {
        1: (0.74, 0.26, 0.77, 0.79, 12.7), 0.7: (0.76, 0.29, 0.80, 0.93, 12.8), 0: (0.81, 0.41, 0.89, 0.59, 13.6),
    },
    "gpt2-xl": {
        1: (0.74, 0.25, 0.76, 0.90, 11.4), 0.5: (0.78, 0.32, 0.84, 0.94, 11.6), 0: (0.82, 0.41, 0.90, 0.68, 12.1),
    },
}  # fmt: skip
CONTRIBUTIONS: dict[tuple[int, int, str], tuple[float, float, float]] = {
    (2, 308, "cls"): (11.9, 21.9, 8.8), (2, 308, "sep"): (10.0, 18.4, 7.4), (2, 308, "comma_period"): (10.7, 19.6, 7.7),
    (2, 308, "other"): (5.6, 10.2, 4.0), (6, 308, "cls"): (-9.7, -8.1, -3.5), (6, 308, "other"): (-6.7, -5.4, -2.4),
    (6, 381, "sep"): (28.1, 44.7, 18.0), (6, 381, "other"): (2.0, 3.2, 1.3), (12, 308, "other"): (-8.4, -3.7, -3.8),
    (12, 180, "sep"): (8.0, 12.2, 5.5), (12, 180, "comma_period"): (6.7, 11.5, 4.9),
    (12, 180, "other"): (0.7, 1.1, 0.5),
}  # fmt: skip
"""Mean contributions in the first three heads, by the paper's layer (from 1), dimension and class of the key."""
TABLE_1 = ["layer", "head", "dim", "key_class", "value"]
N_CONTRIBUTIONS = 288  # of the whole table
ENTROPY_NEURONS = (584, 2378, 2870, 2123, 1611, 2910)
"""In layer 11 of GPT-2, from Stolfo et al. 2024."""


class Number(NamedTuple):
    """One of our numbers, and the published one; NaN where there is none."""

    what: str
    ours: float
    published: float


Comparison: TypeAlias = tuple[list[Number], list[str]]
"""Numbers, and how the run differs from the paper's."""


def frequency(run: Callable[..., Path], model: str) -> Comparison:
    """Table 1 and, for a decoder, table 2 (plain sampling; MAUVE with `--features gpt2-large`)."""
    effect = FrequencyStudy.load(run("frequency", corpus="webtext", layout="texts"))
    kl = effect.kl.set_index(["bias", "scale"])["kl_unigram_model"]
    ours = {"with all": kl[:, 1.0].iloc[0], **kl[:, 0.0]}
    numbers = [
        Number(f"KL(u‖q) {bias if bias == 'with all' else f'without b_{bias}'}", ours[bias], value)
        for bias, value in KL[model].items()
    ]
    differs = _other_text(effect.provenance, "webtext", 5_000)
    if (counted := effect.provenance["unigram"])["n_tokens"] < ENOUGH_TOKENS:
        differs.append(f"u was counted on {counted['n_tokens']:,} tokens ({counted['corpus']}); ten million are needed")
    if model in TEXT:
        scales = ",".join(f"{scale:g}" for scale in TEXT[model])
        text = GenerationStudy.load(run("generation", corpus="webtext", decoders="sample", scales=scales, n="100"))
        metrics = text.metrics.query("decoder == 'sample'").set_index("scale")
        for scale, values in TEXT[model].items():
            numbers += [Number(f"{measure_name}, λ = {scale:g}", metrics.loc[scale, measure_name], value)
                      for measure_name, value in zip(MEASURES, values, strict=True)]  # fmt: skip
        if (n := text.provenance["n_prompts"]) != 100:
            differs.append(f"the run has {n} prompts, the paper 100")
    return numbers, differs


def attention(run: Callable[..., Path], model: str, published: pd.DataFrame | None = None) -> Comparison:
    """Table 1, the contributions of outlier dimensions, and figure 2, attention by class and layer as a sum over the
    keys of a class and as their mean."""
    study = AttentionStudy.load(run("attention", paper=True))
    table = contributions() if published is None else published
    ours = study.scores.table.assign(layer=lambda rows: rows["layer"] + 1, head=lambda rows: rows["head"] + 1)
    keys = TABLE_1[:-1]
    merged = table.merge(ours[[*keys, "mean"]], on=keys, how="left")
    numbers = [
        Number(f"layer {row.layer} (block {row.layer - 1}), head {row.head}, dimension {row.dim}, {row.key_class}",
               row.mean, row.value)
        for row in merged.itertuples(index=False)
    ]  # fmt: skip
    for row in study.by_layer.itertuples():
        for measure in ("sum", "mean"):
            label = f"figure 2: layer {row.layer + 1}, {row.key_class}, {measure} over its keys"
            numbers.append(Number(label, getattr(row, measure), np.nan))
    differs = _other_text(study.provenance, "stsb", None)
    if len(table) < N_CONTRIBUTIONS:
        differs.append(f"{len(table)} of the {N_CONTRIBUTIONS} numbers of table 1 are compared; give --published")
    differs.append("figure 2 has no printed numbers, so ours stand alone")
    return numbers, differs


def contributions() -> pd.DataFrame:
    """The numbers of table 1 that the script has, one row each."""
    rows = [
        (layer, head, dim, key_class, value)
        for (layer, dim, key_class), values in CONTRIBUTIONS.items()
        for head, value in enumerate(values, 1)
    ]
    return pd.DataFrame(rows, columns=TABLE_1)


def read_table_1(path: Path) -> pd.DataFrame:
    """The contributions in a CSV file. Raises ValueError for other columns."""
    table = pd.read_csv(path)
    if missing := sorted(set(TABLE_1) - set(table)):
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}; expected {', '.join(TABLE_1)}")
    return table[TABLE_1]


def encoding(run: Callable[..., Path], model: str) -> Comparison:
    """How many dimensions can be removed, and the entropy neurons of Stolfo et al."""
    study = EncodingStudy.load(run("encoding", corpus="openwebtext", limit="5000", paper=True))
    removable = study.removable.query("basis == 'axis' and order == 'spearman'")["95%"].item()
    largest = study.neurons.sort_values("delta_entropy", key=abs, ascending=False).head(20)
    among = len(set(largest["neuron"]) & set(ENTROPY_NEURONS))
    numbers = [
        Number("share of dimensions that can be removed, top-1 agreement 95 % (more than)", removable, 0.30),
        Number("published entropy neurons of layer 11 among the 20 that change entropy most here", among, 6),
    ]
    differs = ["the paper gives no level of agreement; 95 % is our choice"]
    return numbers, _other_text(study.provenance, "openwebtext", 5_000) + differs


def probing(run: Callable[..., Path], model: str) -> Comparison:
    """Figures 3 to 5: how few neurons do nearly as well as all of them. The baseline is the L0 probe at λ = 1."""
    study = ProbingStudy.load(run("probing", pairs="blimp", paper=True))
    probes = study.probes.query("control == 'none'")
    sparse = probes[probes["method"] == "l0"]
    gates = sparse.query("l0_strength == 0.2 and state == 16")["open_fraction"].mean()
    top = probes[(probes["method"] == "topk:welch") & (probes["state"] > 0)]
    by_k = top.groupby("k")["accuracy"].mean()
    baseline = sparse[sparse["l0_strength"] == 1].groupby(["task", "state"])["accuracy"].mean().rename("baseline")
    relative = top.join(baseline, on=["task", "state"]).eval("accuracy / baseline").groupby(top["k"]).mean()
    numbers = [
        Number("gates open at λ = .2, state 16", gates, 0.115),
        Number("accuracy of the top 40, mean over states (about)", by_k.get(40, np.nan), 0.85),
        Number("accuracy of the top 1,024 over the baseline, mean over states (more than)",
               relative.get(1024, np.nan), 0.95),
        Number("open gates that give 95 % of the baseline, states 10 to 15 (about)", _needed(sparse, baseline), 0.10),
    ]  # fmt: skip
    return numbers, ["state 0 is left out of means over states: it is the same for every sentence"]


def _needed(sparse: pd.DataFrame, baseline: pd.Series) -> float:
    """The smallest share of open gates whose accuracy is 95 % of the baseline's, mean over tasks and states 10 to 15 in
    which one of the strengths reaches it."""
    middle = sparse[sparse["state"].between(10, 15)].join(baseline, on=["task", "state"])
    enough = middle[middle["accuracy"] >= 0.95 * middle["baseline"]]
    return float(enough.groupby(["task", "state"])["open_fraction"].min().mean())


PAPERS: dict[int, tuple[Callable[..., Comparison], Sequence[str]]] = {
    1: (frequency, tuple(KL)),
    2: (attention, ("bert-base-uncased",)),
    3: (encoding, ("gpt2",)),
    4: (probing, ("meta-llama-3-8b",)),
}


def _other_text(provenance: dict[str, Any], corpus: str, limit: int | None) -> list[str]:
    """How the text that was read differs from the paper's."""
    read = provenance["corpus"]
    n_texts = provenance.get("limit")
    differs = [] if read == corpus else [f"the text is {read}, the paper's is {corpus}"]
    if n_texts not in (None, limit):
        theirs = "all of them" if limit is None else f"{limit:,}"
        differs.append(f"the run reads the first {n_texts:,} texts, the paper {theirs}")
    return differs


def table(numbers: Sequence[Number]) -> list[dict[str, str]]:
    """One row per number; what was not measured is left blank."""
    return [
        {
            "what": number.what,
            "ours": "" if np.isnan(number.ours) else f"{number.ours:,.3f}",
            "published": "" if np.isnan(number.published) else f"{number.published:g}",
            "difference": "" if np.isnan(number.ours - number.published) else f"{number.ours - number.published:+,.3f}",
        }
        for number in numbers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", type=int, required=True, choices=PAPERS)
    parser.add_argument("--model", required=True, help="a model on the hub or in its cache")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--published", type=Path, help="a CSV file with the numbers of paper 2's table 1")
    arguments, extra = parser.parse_known_args()
    compare, published = PAPERS[arguments.paper]
    if arguments.published is not None:
        if arguments.paper != 2:
            parser.error("--published is the table 1 of paper 2; give --paper 2")
        compare = partial(compare, published=read_table_1(arguments.published))
    name = arguments.model.rpartition("/")[2].lower()
    if name not in published:
        parser.error(
            f"paper {arguments.paper} has no numbers for {arguments.model}; it has them for {', '.join(published)}"
        )
    given_flags = {flag for flag in extra if flag.startswith("--")}
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)

        def run(command: str, *, paper: bool = False, **options: str) -> Path:
            """Run a command with its options, unless they were given; returns where its result is."""
            flags = []
            for key, value in options.items():
                if f"--{key}" not in given_flags:
                    flags += [f"--{key}", value]
            if paper or command == "frequency":
                flags.append("--paper")
            command_flags = _command_options(command, extra)
            if code := interp([command, "--model", arguments.model, *flags, *command_flags, "--out", str(out)]):
                raise SystemExit(code)
            return out

        numbers, differs = compare(run, name)
    print(f"\n{arguments.model}, paper {arguments.paper}")
    for line in differs:
        print(f"- differs: {line}")
    print("\n" + markdown(table(numbers)))


def _command_options(command: str, extra: Sequence[str]) -> list[str]:
    """The given options that the command has, with their values."""
    from inspect import signature

    from interp.analyses.registry import load
    from interp.cli.analysis import command_of

    names = {f"--{name.replace('_', '-')}" for name in signature(command_of(load(command))).parameters}
    flags = []
    keep = False
    for part in extra:
        if part.startswith("--"):
            keep = part in names or part.replace("--no-", "--") in names
        if keep:
            flags.append(part)
    return flags


if __name__ == "__main__":
    main()
