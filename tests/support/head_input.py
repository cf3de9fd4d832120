"""Plain transformers whose unembedding reads another input: a vector added to it, or only parts of it."""

from typing import Any

import numpy as np
import torch
from oracles import frequency

COUNTS = np.arange(67)
U = COUNTS / COUNTS.sum()


@torch.no_grad()
def inputs_of(hf: Any, ids: torch.Tensor) -> torch.Tensor:
    """The input of the unembedding, `[rows, pos, d_model]`."""
    seen = []
    handle = hf.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    hf(ids)
    handle.remove()
    return seen[0].double()


@torch.no_grad()
def log_p_of(
    hf: Any, ids: torch.Tensor, added: torch.Tensor | None = None, keep: torch.Tensor | None = None
) -> torch.Tensor:
    """Log-probabilities with a vector added to the unembedding's input, or only parts of it kept."""

    def edit(module: Any, args: Any) -> Any:
        h = args[0] if added is None else args[0] + added.to(args[0])
        return (h if keep is None else h * keep.to(h),)

    handle = hf.get_output_embeddings().register_forward_pre_hook(edit)
    logits = hf(ids).logits
    handle.remove()
    return logits.double().log_softmax(-1)


def kl_and_nll(log_p: torch.Tensor, ids: torch.Tensor) -> tuple[float, np.ndarray]:
    """KL(U‖q), and the NLL of the next token by position."""
    return frequency.kl(U, frequency.mean_distribution(log_p)), frequency.nll(log_p, ids)
