"""The memory and time that loading a model takes, and the memory that long rows take.

`python benchmarks/size.py [--quick]`. Models have random weights. Every number comes from a process of its own. Memory
is the peak above what that process held once everything was imported and, for long rows, the model was loaded.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from timing import Measured, Row, command, row

START = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch, transformers, transformer_lens, transformer_lens.model_bridge
import interp
from interp import corpora
from interp.instruments.profile import DimensionProfile
from interp.instruments.scores import ScoreContributions
from interp.passes.reading import observe
transformers.utils.logging.disable_progress_bar()
def held(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) / 1024
interp.load("tiny-gpt2", dtype="bfloat16")
directory, what, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = torch.randint(1, 1_000, (2 if length < 1_000 else 1, length), generator=torch.Generator().manual_seed(0))
read = {"dtype": "auto", "use_safetensors": True}
"""
LOADS = """
start, before = time.perf_counter(), held("VmRSS")
if what == "transformers":
    with torch.no_grad():
        transformers.AutoModelForCausalLM.from_pretrained(directory, **read)(ids)
else:
    interp.load(directory, backend=what, dtype="auto", device="cpu")
print(json.dumps([held("VmHWM") - before, time.perf_counter() - start]))
"""
READS = """
if what == "transformers":
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **read)
    model = model.float().base_model
    with torch.no_grad():
        model(ids[:, :16])
else:
    model = interp.load(directory, backend=what, device="cpu")
    batches = corpora.batches(model, ids)
    observers = [ScoreContributions(model, corpora.token_classes(model, {"some": [*range(100)]})),
                 DimensionProfile(model, corpora.token_classes(model, {"some": [*range(100)]}))]
    with torch.no_grad():
        model(ids[:, :16], stop_at_layer=1)
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
start, before = time.perf_counter(), held("VmRSS")
if what == "transformers":
    with torch.no_grad():
        model(ids, output_hidden_states=True, use_cache=False)
else:
    observe(model, batches, *observers, progress=False)
print(json.dumps([held("VmHWM") - before, time.perf_counter() - start]))
"""
LLAMA = "a Llama of 0.85B parameters, bfloat16"
XL = "GPT-2 XL's shape, float32"
CONFIGS = {
    LLAMA: transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8
    ),
    XL: transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25),
}
LONG = transformers.LlamaConfig(
    hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8, vocab_size=1_000,
    max_position_embeddings=8_192,
)  # fmt: skip


def saved(config: transformers.PretrainedConfig, dtype: torch.dtype, folder: Path) -> float:
    """Write random weights for a config without holding the model in memory; returns their size in MiB."""
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(empty).__name__]
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, value in empty.named_parameters():
        drawn = torch.empty(value.shape, dtype=dtype).normal_(0, 0.02, generator=generator)
        tensors[name] = drawn if value.ndim > 1 else drawn + 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) / 2**20


def measured(script: str, folder: Path, backend: str, length: int) -> tuple[float, float]:
    """The peak in MiB, and the seconds."""
    run = [sys.executable, "-c", START + script, str(folder), backend, str(length)]
    freed_at_once = dict(os.environ, MALLOC_MMAP_THRESHOLD_="131072")  # glibc otherwise keeps freed memory
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=freed_at_once)
    peak, seconds = json.loads(done.stdout.splitlines()[-1])
    return peak, seconds


def alternating(script: str, folder: Path, length: int, repeats: int) -> dict[str, Measured]:
    measurements: dict[str, list[tuple[float, float]]] = {"transformers": [], "hooked": [], "bridge": []}
    for _ in range(repeats):
        for backend, runs in measurements.items():
            runs.append(measured(script, folder, backend, length))
    return {
        backend: Measured([seconds for _, seconds in runs], statistics.median(peak for peak, _ in runs))
        for backend, runs in measurements.items()
    }


def rows(quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 3
    for name, config in CONFIGS.items():
        if quick:
            config.num_hidden_layers = 2
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            weights = saved(config, torch.bfloat16 if name == LLAMA else torch.float32, folder)
            took = alternating(LOADS, folder, 32, repeats)
            for backend in ("hooked", "bridge"):
                floor = ("transformers, loading and one forward pass", took["transformers"])
                note = f"peak {took[backend].memory / weights:.2f} × the weights"
                yield row(f"interp.load, {backend}", name, took[backend], floor=floor, note=note)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        length = 1_024 if quick else 8_192
        saved(LONG, torch.float32, folder)
        took = alternating(READS, folder, length, repeats)
        for backend in ("hooked", "bridge"):
            note = f"peak {took[backend].memory / took['transformers'].memory:.2f} × that of transformers"
            workload = f"4 layers, d 512, 8 heads, a row of {length:,} tokens, without the head"
            floor = ("transformers, sdpa, with hidden states", took["transformers"])
            yield row(f"contributions and profiles, {backend}", workload, took[backend], floor=floor, note=note)


if __name__ == "__main__":
    command(rows, __doc__ or "")
