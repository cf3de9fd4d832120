"""The published models, each loaded once per session by interp and by transformers."""

import os
from typing import Any, NamedTuple

import published as made
import pytest
import torch
import transformers

import interp


class Both(NamedTuple):
    """A model in interp and in transformers, and its tokenizer."""

    model: Any
    plain: Any
    tokenizer: Any


@pytest.fixture(scope="session")
def published() -> dict[str, Any]:
    """The directories by name. They are only made if `INTERP_PUBLISHED_NEEDED` is 1; without it, absent ones skip."""
    needed = os.environ.get("INTERP_PUBLISHED_NEEDED") == "1"
    try:
        return made.directories(make=needed)
    except (OSError, RuntimeError) as error:
        if needed and not isinstance(error, made.Unreachable):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2(published: dict[str, Any]) -> Both:
    return both(published[made.SMOLLM2], transformers.LlamaForCausalLM)


@pytest.fixture(scope="session")
def minilm(published: dict[str, Any]) -> Both:
    return both(published[made.MINILM], transformers.BertModel)


def both(directory: Any, kind: Any) -> Both:
    plain = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return Both(interp.load(directory), plain, transformers.AutoTokenizer.from_pretrained(directory))
