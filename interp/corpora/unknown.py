"""How much of a text its tokenizer does not know."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer

from interp.checks import warn

__all__ = ["Unknown", "unknown_id"]

_WARN_ABOVE = 0.05


def unknown_id(tokenizer: Any) -> int | None:
    """The id of the token that stands for what a tokenizer does not know, None where it knows everything.

    Byte-level tokenizers do; what GPT-2's calls unknown is its end-of-text token.
    """
    token_id = getattr(tokenizer, "unk_token_id", None)
    others = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    return None if token_id is None or token_id in others else int(token_id)


@dataclass(frozen=True)
class Unknown:
    """Tokens of a text, and how many of them are unknown."""

    n_tokens: int = 0
    n_unknown: int = 0

    @property
    def share(self) -> float | None:
        """Of the tokens; None where none was read."""
        return self.n_unknown / self.n_tokens if self.n_tokens else None

    @classmethod
    def of(cls, ids: Integer[np.ndarray, "..."], tokenizer: Any, where: str) -> "Unknown":
        """Of token ids that are all there; raises and warns as `check` does."""
        found = cls(ids.size, int((ids == unknown_id(tokenizer)).sum()))
        found.check(tokenizer, where)
        return found

    def check(self, tokenizer: Any, where: str, *, quiet: bool = False) -> None:
        """Raise ValueError where every token is unknown; warn above 5 %, unless `quiet`."""
        share, does_not_know = self.share or 0.0, "this model's tokenizer does not know"
        if share == 1.0:
            what = f"all {self.n_tokens:,} tokens that were read of {where} are {tokenizer.unk_token}"
            raise ValueError(f"{what}: {does_not_know} its script; give a text in a language of the model")
        if share > _WARN_ABOVE and not quiet:
            what = f"{share:.0%} of the tokens of {where} are {tokenizer.unk_token}"
            warn(f"{what}, which {does_not_know}; they count as one word")
