"""What a person waits for with SmolLM2-135M-Instruct, against transformers: CPU time of one thread.

`python benchmarks/published_models.py [--quick]`. `tools/published.py` makes the model; without the package index,
there are no rows. Sentences are the bundled pairs; transformers reads them sorted by length, 32 at a time.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from timing import Row, agrees, alternate, command, row

import interp
from interp import corpora, encoding
from interp.analyses.probing import sentence_scores
from interp.analyses.probing.states import collect
from interp.corpora import pairs

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from published import SMOLLM2, Unreachable, directories

AT_ONCE = 32
LOAD = "loading, reading every weight, a forward pass of 6 tokens"
SENTENCES = "transformers, 32 sentences at a time, sorted by length"


def rows(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        directory = directories()[SMOLLM2]
    except Unreachable as error:
        print(f"published models were left out: {error}", file=sys.stderr)
        return
    measure = partial(alternate, repeats=1 if quick else 5, clock=time.process_time)
    for dtype in (torch.float32, torch.bfloat16):
        for backend in ("hooked", "bridge"):
            ours = partial(interp.load, directory, dtype=dtype, backend=backend)
            seconds = measure({"interp": ours, "other": partial(by_transformers, directory, dtype)})
            workload = f"{SMOLLM2}, {backend}, {str(dtype).removeprefix('torch.')}"
            yield row(LOAD, workload, seconds["interp"], other=("transformers", seconds["other"]))
    model = interp.load(directory)
    plain = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    table = pairs.generate(n_per_task=1 if quick else 3)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    ids = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    yield compared(
        "log-probability of sentences", len(ids), measure,
        lambda: sentence_scores(model, sentences, bos=False, progress=False)["sum"].to_numpy(),
        lambda: in_order(plain, ids, log_probabilities),
    )  # fmt: skip
    yield compared(
        "states of every block at the last token", len(ids), measure,
        lambda: collect(model, table, position="last", bos=False, progress=False),
        lambda: in_order(plain, ids, last_states),
    )  # fmt: skip
    yield fitted(model, plain, measure)


def by_transformers(directory: Path, dtype: torch.dtype) -> None:
    transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    sum(float(parameter.detach().sum()) for parameter in model.parameters())
    model(torch.arange(6)[None])


@torch.no_grad()
def in_order(
    plain: transformers.PreTrainedModel,
    ids: list[list[int]],
    read: Callable[[transformers.PreTrainedModel, torch.Tensor, torch.Tensor], np.ndarray],
) -> np.ndarray:
    """What is read from rows, which are sorted by length and padded on the right, in the order of the rows."""
    order = np.argsort([len(row) for row in ids], kind="stable")
    values = []
    for start in range(0, len(ids), AT_ONCE):
        batch = [torch.tensor(ids[number]) for number in order[start : start + AT_ONCE]]
        tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in batch], batch_first=True)
        values.append(read(plain, tokens, mask))
    return np.concatenate(values)[np.argsort(order)]


def log_probabilities(plain: transformers.PreTrainedModel, tokens: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    log_p = plain(tokens, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    of_targets = log_p.gather(2, tokens[:, 1:, None])[..., 0] * mask[:, 1:]
    return of_targets.double().sum(1).numpy()


def last_states(plain: transformers.PreTrainedModel, tokens: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    states = plain.model(tokens, attention_mask=mask, output_hidden_states=True).hidden_states
    rows = torch.arange(len(tokens))
    return torch.stack([state[rows, mask.sum(1) - 1] for state in states], 1).numpy()


def compared(
    title: str, n: int, measure: Callable[..., dict], ours: Callable[[], object], theirs: Callable[[], np.ndarray]
) -> Row:
    results = {"interp": ours(), "other": theirs()}
    note = ""
    if isinstance(results["interp"], np.ndarray):
        difference = float(np.abs(results["interp"] - results["other"]).max())
        note = agrees("largest difference, nats", difference, 1e-3)
    seconds = measure({"interp": ours, "other": theirs})
    return row(title, f"{SMOLLM2}, {n} sentences", seconds["interp"], other=(SENTENCES, seconds["other"]), note=note)


def fitted(model: object, plain: transformers.PreTrainedModel, measure: Callable[..., dict]) -> Row:
    """The regression of −log α on the output embeddings, against a forward pass and `lstsq`."""
    batches = corpora.batches(model, corpora.load("bundled", limit=12), context=64)

    @torch.no_grad()
    def by_lstsq() -> None:
        total = sum(plain(batch.tokens).logits.softmax(-1).double().sum((0, 1)) for batch in batches)
        E = plain.lm_head.weight.double()
        X = torch.cat([E, torch.ones_like(E[:, :1])], 1)
        torch.linalg.lstsq(X, -(total / total.sum()).log()[:, None])

    seconds = measure({"interp": partial(encoding.fit, model, batches, progress=False), "other": by_lstsq})
    return row(
        "regression of −log α on the output embeddings, with its controls", f"{SMOLLM2}, 12 texts", seconds["interp"],
        other=("transformers and lstsq", seconds["other"]),
    )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)
