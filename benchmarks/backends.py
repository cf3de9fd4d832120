"""A bridge compared with a HookedTransformer and transformers, and the cost of importing interp.

`python benchmarks/backends.py [--quick]`. A GPT-2 of 124M parameters with random weights, without the prediction head.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import torch
import transformers
from models import GPT2, random_model, tokens
from timing import Row, agrees, alternate, command, row

import interp
from interp.models.running import running
from interp.models.sites import Model, trunk_output, view
from interp.models.views import Tokens

LENGTHS = (128, 1_024)
TOKENS = 1_024


@torch.no_grad()
def forward(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """The last residual stream."""
    seen: list[torch.Tensor] = []
    with running(model, [(trunk_output(model), lambda resid, hook: seen.append(resid))]):
        view(model).run(Tokens(ids, torch.ones_like(ids)), model.cfg.n_layers)
    return seen[0]


@torch.no_grad()
def plain(hf: transformers.PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return hf.base_model(ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state


def importing(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def rows(quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 15
    config = transformers.GPT2Config(n_layer=2, n_embd=96) if quick else transformers.GPT2Config()
    with random_model(config) as (hooked, sdpa), tempfile.TemporaryDirectory() as directory:
        sdpa.save_pretrained(directory)
        bridge = interp.load(directory, device="cpu", backend="bridge")
        eager = type(sdpa).from_pretrained(directory, attn_implementation="eager").eval()
        for length in LENGTHS[:1] if quick else LENGTHS:
            ids = tokens(TOKENS // length, length, config.vocab_size)
            logits, expected = forward(bridge, ids), forward(hooked, ids)
            difference = agrees("largest difference", float((logits - expected).abs().max()), 1e-3)
            models: dict[str, Callable[[], object]] = {
                "bridge": lambda ids=ids: forward(bridge, ids),
                "hooked": lambda ids=ids: forward(hooked, ids),
                "eager": lambda ids=ids: plain(eager, ids),
                "sdpa": lambda ids=ids: plain(sdpa, ids),
            }
            took = alternate(models, repeats=repeats)
            title = "a forward pass of a TransformerBridge, no head"
            workload = f"{GPT2}, {len(ids)} × {length} tokens"
            floor = ("transformers, sdpa", took["sdpa"])
            yield row(
                title,
                workload,
                took["bridge"],
                other=("HookedTransformer", took["hooked"]),
                floor=floor,
                note=difference,
            )
            yield row(title, workload, took["bridge"], other=("transformers, eager", took["eager"]), floor=floor)
    ours = "from interp.analyses.frequency import study; from interp.pages import write_page"
    imports = {"interp": ours, "transformer_lens": "import transformer_lens"}
    took = alternate({name: importing(code) for name, code in imports.items()}, repeats=repeats)
    title = "importing frequency.study and write_page"
    other = "import transformer_lens", took["transformer_lens"]
    yield row(title, "in a process of its own", took["interp"], other=other)


if __name__ == "__main__":
    command(rows, __doc__ or "")
