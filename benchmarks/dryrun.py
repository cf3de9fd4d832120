"""The peak memory that `--dry-run` estimates, compared with that of the command itself.

`python benchmarks/dryrun.py [--quick]`. Models of six shapes with random weights, and texts of a few rows. Each command
runs in its own process. Exits with an error if the estimate is more than a fifth away from the measured peak.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from timing import Row, alternate, command, note_only, peak_memory, row as timed

from interp.analyses.registry import load
from interp.cli.dryrun import budget_of, budget_of_all
from interp.corpora import pairs
from interp.support import memory

transformers.utils.logging.disable_progress_bar()
APART = 0.2
WORDS = [f"w{number}" for number in range(2_000)]
SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<eos>"}
SPECIAL_OF_BERT = {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
SPECIAL_OF_BERT["mask_token"] = "[MASK]"
RUN = "import sys; from interp.cli import main; assert not main(sys.argv[1:])"
FEW = '{"encoding": {"orders": ["random"], "bases": ["axis"]}, "probing": {"methods": ["dense"], "states": [1]}}'


@dataclass(frozen=True)
class Case:
    """A command, the model shape it runs on, its options, and the number of lines of its text, each a row or more."""

    command: str
    on: str
    config: transformers.PretrainedConfig
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    lines: int = 4


def cases(quick: bool) -> list[Case]:
    """The cases; with `quick`, only those that take about a minute."""
    llama = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=8,
        vocab_size=32_000, max_position_embeddings=2_048, pad_token_id=1, bos_token_id=2, eos_token_id=2,
    )  # fmt: skip
    wide = transformers.GPTNeoXConfig(
        hidden_size=256, intermediate_size=1_024, num_hidden_layers=6, num_attention_heads=4, vocab_size=128_000
    )
    long = transformers.GPTNeoXConfig(
        hidden_size=512, intermediate_size=2_048, num_hidden_layers=4, num_attention_heads=8, vocab_size=32_000,
        max_position_embeddings=2_048,
    )  # fmt: skip
    small = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=16_000, n_positions=256)
    probes = {"pairs": "pairs.jsonl", "limit": 20, "steps": 50}
    report = {"pairs": "pairs.jsonl", "settings": FEW}
    chosen = [
        Case("frequency", "GPT-2, 124M, float32", transformers.GPT2Config()),
        Case("attention", "4 layers of 512, rows of 2,048", long, options={"context": 2_048}),
        Case("attention", "a Llama of 0.35B, bfloat16", llama, torch.bfloat16, {"dtype": "auto"}, lines=2),
        Case("probing", "BERT-base's shape", transformers.BertConfig(pad_token_id=1), options=probes),
        Case("encoding", "6 layers of 256, 128,000 types", wide, options={"context": 256}),
        Case("report", "4 layers of 256, 16,000 types", small, options=report, lines=100),
    ]
    return chosen[:2] if quick else chosen


def write(case: Case, directory: Path) -> None:
    """Write a model with random weights and a word tokenizer to `model`, and a text and minimal pairs beside it."""
    torch.manual_seed(0)
    is_bert = case.config.model_type == "bert"
    make = transformers.BertForPreTraining if is_bert else transformers.AutoModelForCausalLM.from_config
    make(case.config).to(case.dtype).save_pretrained(directory / "model")
    table = pairs.generate(n_per_task=20)
    table.to_json(directory / "pairs.jsonl", orient="records", lines=True)
    special = SPECIAL_OF_BERT if is_bert else SPECIAL
    sentences = " ".join([*table["sentence_good"], *table["sentence_bad"]]).split()
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*special.values(), ",", ".", *sentences, *WORDS]))}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(directory / "model")
    draw = random.Random(0)
    length = case.options.get("context", 256 if case.command == "report" else 1_024) + 50
    lines = (" ".join(draw.choices([*WORDS, *[",", "."] * 100], k=length)) for _ in range(case.lines))
    (directory / "text.txt").write_text("\n".join(lines))


def row(case: Case) -> Row:
    """The estimate and the measured peak."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write(case, directory)
        model, corpus = str(directory / "model"), str(directory / "text.txt")
        options = dict(case.options)
        if "pairs" in options:
            options["pairs"] = str(directory / "pairs.jsonl")
        flags = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        if case.command == "report":
            budget = budget_of_all(model, corpus, dict(options, settings=json.loads(FEW)))
        else:
            budget = budget_of(load(case.command), model, options.get("pairs", corpus), options)
        flags += [] if case.command == "probing" else ["--corpus", corpus]
        measured = peak_memory(RUN, case.command, "--model", model, "--out", str(directory / "run"), *flags) * 2**20
    note = (
        f"estimated {memory.shown(budget.peak)}, measured {memory.shown(measured)}: ratio {budget.peak / measured:.2f}"
    )
    if not abs(budget.peak / measured - 1) <= APART:
        sys.exit(f"--dry-run of {case.command} on {case.on}: {note}, more than {APART:.0%} apart")
    return note_only(f"peak memory estimated by interp {case.command} --dry-run", case.on, note)


def waited_for(repeats: int) -> Row:
    """The seconds that a dry run of a 70B-parameter model takes, nearly all of which are spent on imports."""
    with tempfile.TemporaryDirectory() as folder:
        llama_70b = transformers.LlamaConfig(
            hidden_size=8_192, intermediate_size=28_672, num_hidden_layers=80, num_attention_heads=64,
            num_key_value_heads=8, vocab_size=128_256, max_position_embeddings=8_192,
        )  # fmt: skip
        llama_70b.save_pretrained(folder)
        command = [sys.executable, "-m", "interp", "attention", "--model", folder, "--dry-run", "--json"]
        importing = [sys.executable, "-c", "import torch, transformers"]
        runs = {"interp": command, "importing torch and transformers": importing}
        seconds = alternate(
            {name: partial(subprocess.run, words, check=True, capture_output=True) for name, words in runs.items()},
            repeats=repeats,
        )
    other = "importing torch and transformers"
    return timed("interp attention --dry-run", "a Llama of 70B", seconds["interp"], other=(other, seconds[other]))


def rows(quick: bool) -> Iterator[Row]:
    yield waited_for(3 if quick else 7)
    yield from map(row, cases(quick))


if __name__ == "__main__":
    command(rows, __doc__ or "")
