"""Three commands on random bfloat16 weights of Llama-3-8B's shape: their peak memory, and the time they take.

`python benchmarks/llama8b.py [--quick] [--json]`. This needs 17 GB of disk, 22 GiB of memory with nothing else running,
and about an hour on two cores, so `python benchmarks` leaves it out. With `--quick` the model has four layers.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from timing import Row, command, note_only, peak_memory

from interp.analyses.registry import load
from interp.cli.dryrun import budget_of
from interp.corpora import load as load_text
from interp.support import memory
from interp.support.paths import model_directory

CONFIG = transformers.LlamaConfig(
    hidden_size=4_096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128_256, max_position_embeddings=8_192, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    bos_token_id=4_095, eos_token_id=4_095, tie_word_embeddings=False,
)  # fmt: skip
SENTENCES = 30
RUN = "import sys; from interp.cli import main; assert not main(sys.argv[1:])"


def write(folder: Path) -> None:
    """Write the checkpoint, with tiny-gpt2's tokenizer padded by types that occur in no text."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="2GB")
    bundled = model_directory("tiny-gpt2")
    assert bundled is not None
    for file in bundled.glob("*token*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    described = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    for number in range(len(vocabulary), CONFIG.vocab_size):
        vocabulary[f"<unused {number}>"] = number
    (folder / "tokenizer.json").write_text(json.dumps(described))


def rows(quick: bool) -> Iterator[Row]:
    if quick:
        CONFIG.num_hidden_layers = 4
    with tempfile.TemporaryDirectory() as temporary:
        folder, text = Path(temporary) / "model", Path(temporary) / "text.txt"
        write(folder)
        sentences = (" ".join(sentence.split()[:25]) for sentence in load_text("bundled", limit=SENTENCES))
        text.write_text("\n".join(sentences))
        read = {"corpus": str(text), "layout": "texts", "context": 64}
        pairs = {"pairs": "bundled", "tasks": ["reflexive_number"], "limit": SENTENCES // 2}
        for name, options in (("attention", dict(read, ablation=False)), ("probing", pairs), ("encoding", read)):
            data = options.get("corpus", options.get("pairs"))
            budget = budget_of(load(name), str(folder), str(data), dict(options, dtype="bfloat16"))
            flags = [word for key, value in options.items() for word in words(key, value)]
            out = str(Path(temporary) / name)
            start = time.perf_counter()
            peak = peak_memory(RUN, name, "--model", str(folder), "--dtype", "bfloat16", "--out", out, *flags) * 2**20
            took = f"{(time.perf_counter() - start) / 60:.0f} min, peak {memory.shown(peak)}"
            note = (
                f"{took} (weights {memory.shown(budget.run.weights)}); --dry-run estimated {memory.shown(budget.peak)}"
            )
            yield note_only(f"interp {name}", f"Llama-3-8B's shape, bfloat16, {SENTENCES} sentences", note)


def words(name: str, value: object) -> list[str]:
    """An option as it is typed on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, *map(str, value if isinstance(value, list) else [value])]


if __name__ == "__main__":
    command(rows, __doc__ or "")
