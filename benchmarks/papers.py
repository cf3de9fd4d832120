"""Compare our numbers with the published ones, on the models they were published for (needs a network or a hub cache).

`python benchmarks/papers.py --paper 1 --model gpt2 [options of the command]` runs the commands of docs/papers.md on
that model and prints a Markdown table of our numbers, the published ones and their differences. The lines above the
table say how the run differs from the paper's protocol, as far as that is known. Further options are passed to the
commands that have them (`--corpus my.jsonl --unigram counts.safetensors`). `--out` keeps the runs, which otherwise go
to a temporary directory.

Paper 1 has numbers for `gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `bert-base-cased` and `bert-large-cased`, paper
2 for `bert-base-uncased`, paper 3 for `gpt2`, and paper 4 for `Meta-Llama-3-8B`. docs/papers.md gives the sources.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from timing import markdown

from interp.analyses.attention import AttentionStudy
from interp.analyses.encoding import EncodingStudy
from interp.analyses.frequency import BiasEffect
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
ENTROPY_NEURONS = (584, 2378, 2870, 2123, 1611, 2910)
"""In layer 11 of GPT-2, from Stolfo et al. 2024."""


class Found(NamedTuple):
    """One of our numbers, and the published one."""

    what: str
    ours: float
    published: float


def frequency(run: Callable[..., Path], model: str) -> tuple[list[Found], list[str]]:
    """Table 1 and, for a decoder, table 2 (plain sampling; MAUVE with `--features gpt2-large`)."""
    effect = BiasEffect.load(run("frequency", corpus="webtext"))
    kl = effect.kl.set_index(["bias", "scale"])["kl_unigram_model"]
    ours = {"with all": kl[:, 1.0].iloc[0]} | kl[:, 0.0].to_dict()
    found = [
        Found(f"KL(u‖q) {bias if bias == 'with all' else f'without b_{bias}'}", ours[bias], value)
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
            found += [Found(f"{what}, λ = {scale:g}", metrics.loc[scale, what], value)
                      for what, value in zip(MEASURES, values, strict=True)]  # fmt: skip
        if (n := text.provenance["n_prompts"]) != 100:
            differs.append(f"the run has {n} prompts, the paper 100")
    return found, differs


def attention(run: Callable[..., Path], model: str) -> tuple[list[Found], list[str]]:
    """Table 1: the contributions of the outlier dimensions in the first three heads."""
    study = AttentionStudy.load(run("attention", paper=True))
    found = []
    for (layer, dim, name), values in CONTRIBUTIONS.items():
        for head, value in enumerate(values):
            ours = np.nan
            if layer <= study.provenance["n_layers"]:
                table = study.scores(layer=layer - 1, head=head).query("key_class == @name and dim == @dim")
                ours = table["mean"].sum(min_count=1)
            what = f"layer {layer} (block {layer - 1}), head {head + 1}, dimension {dim}, {name}"
            found.append(Found(what, ours, value))
    return found, _other_text(study.provenance, "stsb", None)


def encoding(run: Callable[..., Path], model: str) -> tuple[list[Found], list[str]]:
    """How many dimensions can be removed, and the entropy neurons of Stolfo et al."""
    study = EncodingStudy.load(run("encoding", corpus="openwebtext", limit="5000", paper=True))
    removable = study.removable.query("basis == 'axis' and order == 'spearman'")["95%"].item()
    largest = study.neurons.sort_values("delta_entropy", key=abs, ascending=False).head(20)
    among = len(set(largest["neuron"]) & set(ENTROPY_NEURONS))
    found = [
        Found("share of dimensions that can be removed, top-1 agreement 95 % (more than)", removable, 0.30),
        Found("published entropy neurons of layer 11 among the 20 that change entropy most here", among, 6),
    ]
    differs = ["the paper gives no level of agreement; 95 % is our choice"]
    return found, _other_text(study.provenance, "openwebtext", 5_000) + differs


def probing(run: Callable[..., Path], model: str) -> tuple[list[Found], list[str]]:
    """Figures 3 to 5: how few neurons do nearly as well as all of them."""
    study = ProbingStudy.load(run("probing", pairs="blimp", paper=True))
    probes = study.probes.query("control == 'none'")
    middle = probes.query("10 <= state <= 15")
    gates = probes.query("method == 'l0' and l0_strength == 0.2 and state == 16")["open_fraction"].mean()
    dense = middle.query("method == 'dense'")["accuracy"].mean()
    top = middle.query("method == 'topk:welch'").groupby("k")["accuracy"].mean() / dense
    found = [
        Found("gates open at λ = .2, state 16", gates, 0.115),
        Found("accuracy of the top 40 over dense, states 10 to 15 (about)", top.get(40, np.nan), 0.85),
        Found("accuracy of the top 1,024 over dense, states 10 to 15 (more than)", top.get(1024, np.nan), 0.95),
    ]
    return found, []


PAPERS: dict[int, tuple[Callable[..., tuple[list[Found], list[str]]], Sequence[str]]] = {
    1: (frequency, tuple(KL)),
    2: (attention, ("bert-base-uncased",)),
    3: (encoding, ("gpt2",)),
    4: (probing, ("meta-llama-3-8b",)),
}


def _other_text(provenance: dict[str, Any], corpus: str, limit: int | None) -> list[str]:
    """How the text that was read differs from the paper's."""
    read, n_texts = provenance["corpus"], provenance.get("limit")
    differs = [] if read == corpus else [f"the text is {read}, the paper's is {corpus}"]
    if n_texts not in (None, limit):
        theirs = "all of them" if limit is None else f"{limit:,}"
        differs.append(f"the run reads the first {n_texts:,} texts, the paper {theirs}")
    return differs


def table(found: Sequence[Found]) -> list[dict[str, str]]:
    """One row per number; what was not measured is left blank."""
    return [
        {
            "what": one.what,
            "ours": "" if np.isnan(one.ours) else f"{one.ours:,.3f}",
            "published": f"{one.published:g}",
            "difference": "" if np.isnan(one.ours) else f"{one.ours - one.published:+,.3f}",
        }
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", type=int, required=True, choices=PAPERS)
    parser.add_argument("--model", required=True, help="a model on the hub or in its cache")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    asked, more = parser.parse_known_args()
    compare, published = PAPERS[asked.paper]
    name = asked.model.rpartition("/")[2].lower()
    if name not in published:
        parser.error(f"paper {asked.paper} has no numbers for {asked.model}; it has them for {', '.join(published)}")
    given = {flag for flag in more if flag.startswith("--")}
    with tempfile.TemporaryDirectory() as temporary:
        out = asked.out or Path(temporary)

        def run(command: str, *, paper: bool = False, **options: str) -> Path:
            """Run a command with its options, unless they were given; returns where its result is."""
            own = [part for key, value in options.items() if f"--{key}" not in given for part in (f"--{key}", value)]
            own += ["--paper"] if paper or command == "frequency" else []
            known = _known(command, more)
            if code := interp([command, "--model", asked.model, *own, *known, "--out", str(out)]):
                raise SystemExit(code)
            return out

        found, differs = compare(run, name)
    print(f"\n{asked.model}, paper {asked.paper}")
    for line in differs:
        print(f"- differs: {line}")
    print("\n" + markdown(table(found)))


def _known(command: str, more: Sequence[str]) -> list[str]:
    """The given options that the command has, with their values."""
    from inspect import signature

    from interp.analyses.registry import load
    from interp.cli.analysis import command_of

    names = {f"--{name.replace('_', '-')}" for name in signature(command_of(load(command))).parameters}
    kept, keep = [], False
    for part in more:
        if part.startswith("--"):
            keep = part in names or part.replace("--no-", "--") in names
        if keep:
            kept.append(part)
    return kept


if __name__ == "__main__":
    main()
