"""Log-probabilities of sentences, against minicons and plain transformers on the same sentences.

`python benchmarks/sentences.py [--quick]`. Models with random weights read the bundled minimal pairs, tokenised by the
bundled models' tokenizers; a causal model gets a token before each sentence. Each contestant makes its own batches.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import transformers
from minicons import scorer
from models import BERT, GPT2, random_model
from timing import Row, agrees, alternate, command, row

from interp.analyses.probing import sentence_scores
from interp.corpora import pairs
from interp.models.sites import Model

SCORES = "log-probability of sentences"
PSEUDO = "pseudo-log-likelihood of sentences"


def rows(quick: bool) -> Iterator[Row]:
    table = pairs.generate(n_per_task=1 if quick else 5)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    repeats = 1 if quick else 5
    gpt2 = transformers.GPT2Config(vocab_size=4_096, eos_token_id=0, bos_token_id=0)
    with random_model(gpt2, "tiny-gpt2") as (model, hf):
        theirs = scorer.IncrementalLMScorer(hf, "cpu", tokenizer=model.tokenizer)
        for whole_words, score_name in ((False, SCORES), (True, f"{SCORES}, word boundaries corrected")):
            peer = partial(by_minicons, theirs, sentences, 32, bow_correction=whole_words)
            yield scored(
                score_name, GPT2, model, sentences, "minicons, 32 at a time", peer, repeats, whole_words=whole_words
            )
    with random_model(transformers.BertConfig(), "tiny-bert") as (model, hf):
        few = sentences[: len(sentences) // 4]
        name = "transformers, one sentence at a time"
        one_by_one = partial(masked_in_turn, hf, model.tokenizer, few)
        yield scored(PSEUDO, BERT, model, few, name, one_by_one, repeats)
        model.tokenizer.batch_encode_plus = (
            model.tokenizer.__call__
        )  # minicons calls this method, which transformers 5 no longer has
        theirs = scorer.MaskedLMScorer(hf, "cpu", tokenizer=model.tokenizer)
        metrics = {"original": (False, PSEUDO), "within_word_l2r": (True, f"{PSEUDO}, rest of each word masked too")}
        for metric, (whole_words, score_name) in metrics.items():
            peer = partial(by_minicons, theirs, few, 4, PLL_metric=metric)
            yield scored(score_name, BERT, model, few, "minicons, 4 at a time", peer, repeats, whole_words=whole_words)


def by_minicons(theirs: scorer.LMScorer, sentences: list[str], at_once: int, **options: object) -> np.ndarray:
    scores = []
    for start in range(0, len(sentences), at_once):
        part = sentences[start : start + at_once]
        scores += theirs.sequence_score(part, reduction=lambda log_p: log_p.double().sum(0).item(), **options)
    return np.array(scores)


@torch.no_grad()
def masked_in_turn(
    hf: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, sentences: list[str]
) -> np.ndarray:
    """Pseudo-log-likelihoods: each sentence is a batch with one row per token."""
    scores = []
    for sentence in sentences:
        ids = torch.tensor(tokenizer(sentence)["input_ids"])
        inner = torch.arange(1, len(ids) - 1)
        masked = ids.repeat(len(inner), 1)
        masked[torch.arange(len(inner)), inner] = tokenizer.mask_token_id
        log_p = hf(masked).logits[torch.arange(len(inner)), inner].log_softmax(-1)
        scores.append(float(log_p[torch.arange(len(inner)), ids[1:-1]].sum()))
    return np.array(scores)


def scored(
    score_name: str,
    name: str,
    model: Model,
    sentences: list[str],
    other: str,
    peer: Callable[[], np.ndarray],
    repeats: int,
    *,
    whole_words: bool = False,
) -> Row:
    results = {}

    def ours() -> None:
        table = sentence_scores(model, sentences, bos=True, whole_words=whole_words, progress=False)
        results["interp"] = table["sum"].to_numpy()

    def theirs() -> None:
        results["other"] = peer()

    seconds = alternate({"interp": ours, "other": theirs}, repeats=repeats)
    differ = np.abs(results["interp"] - results["other"]).max()
    return row(
        score_name, f"{name}, {len(sentences)} sentences", seconds["interp"], other=(other, seconds["other"]),
        note=agrees("largest difference, nats", float(differ), 1e-3),
    )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)
