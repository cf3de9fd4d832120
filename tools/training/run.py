"""One training run: settings, steps, checkpoints, and the directory it leaves."""

import copy
import hashlib
import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch.nn import functional as F
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from interp.checks import check_seed, whole_number
from interp.corpora.unigrams import Unigrams, tokenizer_hash
from interp.disk import checksum, replacing, replacing_directory, uninterrupted
from training.data import BERT_SPECIAL, END_OF_TEXT, Kind, Rows, Sentences, train_tokenizer

log = logging.getLogger(__name__)

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": dict(d_model=192, n_layers=6, n_heads=6, batch_size=32, learning_rate=2e-3),
    "bert": dict(d_model=128, n_layers=6, n_heads=4, batch_size=96, learning_rate=1e-3),
}
OPTIMISER: dict[str, dict[str, Any]] = {
    "gpt2": dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
    "bert": dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01),
}
WARM_UP = 0.05  # share of the steps
HELD_OUT_TOKENS = 50_000  # of the held-out text, for the loss during training
LOG_SECONDS = 60
SAVE_SECONDS = 120
_RESUME = "resume.pt"
_CHECKSUM = 32  # bytes, before what torch saves


def train(
    kind: Kind,
    texts: Iterable[str],
    *,
    out: str | Path,
    held_out: Iterable[str],
    tokens: int,
    seed: int = 0,
    vocab_size: int = 4096,
    context: int = 128,
    d_model: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    checkpoints: Sequence[int] | None = None,
    bf16: bool = False,
    threads: int | None = None,
    progress: bool = True,
) -> Path:
    """Train a tokenizer and a small GPT-2 or BERT on paragraphs; returns the Hugging Face directory `out`.

    `gpt2`: byte-level BPE, `<|endoftext|>` before each text, packed rows of `context` tokens, next-token loss.
    `bert`: uncased WordPiece, single sentences, passages and pairs of consecutive passages (`[CLS] A [SEP] B
    [SEP]`), mostly of at most 48 tokens, 15 % masked (80 % `[MASK]`, 10 % random, 10 % kept; Devlin et al. 2019,
    section 3.1), loss at masked positions; no next-sentence loss. Both: AdamW, no dropout, linear warm-up over 5 %
    of the steps and linear decay to zero, gradient norm clipped at 1, float32 weights.

    `tokens` is the budget in tokens seen (padding not counted), `batch_size` in rows or examples, `checkpoints` the
    steps whose weights are kept (default: 0 and eight from steps/128 to the last, doubling). `bf16` runs the matrix
    products in bfloat16. The weights depend on the arguments, the data and the number of threads alone: a run that
    was killed resumes from `out/resume.pt` and ends in the same weights, bit for bit.

    Written to `out`: config.json, model.safetensors (float16), the tokenizer, training.json (settings, losses,
    versions), unigram.safetensors (`counts` [d_vocab], int64: the corpus without added special tokens) and
    checkpoints/step-N. Losses are in nats per predicted token.

    Raises ValueError for empty or too short text, for a bad shape, for numbers that are not above 0, for a seed outside
    0 … 2**63 − 1, and where `out/resume.pt` belongs to other settings or data; TypeError for numbers that must be
    whole and are not; FileExistsError where `out` holds anything else than an unfinished run.
    """
    if kind not in SHAPES:
        raise ValueError(f"kind is {kind!r}; expected 'gpt2' or 'bert'")
    chosen: dict[str, Any] = dict(d_model=d_model, n_layers=n_layers, n_heads=n_heads)
    chosen |= dict(batch_size=batch_size, learning_rate=learning_rate)
    shape = {name: SHAPES[kind][name] if value is None else value for name, value in chosen.items()}
    for name in ("d_model", "n_layers", "n_heads", "batch_size"):
        shape[name] = whole_number(shape[name], name, least=1)
    if not 0 < shape["learning_rate"] < math.inf:
        raise ValueError(f"learning_rate is {shape['learning_rate']}; expected a number above 0")
    tokens, context = whole_number(tokens, "tokens", least=1), whole_number(context, "context", least=1)
    vocab_size, seed = whole_number(vocab_size, "vocab_size"), check_seed(seed)
    if checkpoints is not None:
        checkpoints = sorted({whole_number(step, "checkpoints") for step in checkpoints})
    if threads is not None:
        threads = whole_number(threads, "threads", least=1)
    if shape["d_model"] % shape["n_heads"]:
        raise ValueError(f"d_model {shape['d_model']} is not a multiple of n_heads {shape['n_heads']}")
    if not 0 < vocab_size <= 2**16:
        raise ValueError(f"vocab_size is {vocab_size}; expected 1 to 65536 (tokens are kept as uint16)")
    train_texts, held_out_texts = _paragraphs(texts, "texts"), _paragraphs(held_out, "held_out")

    out = Path(out)
    settings = dict(kind=kind, tokens=tokens, seed=seed, vocab_size=vocab_size, context=context, **shape, bf16=bf16)
    settings |= dict(checkpoints=checkpoints, texts=_fingerprint(train_texts), held_out=_fingerprint(held_out_texts))
    state = _read_resume(out, settings)

    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        if state is None:
            tokenizer = train_tokenizer(kind, train_texts, vocab_size)
        else:
            tokenizer = Tokenizer.from_str(state["tokenizer"])
        make = Rows if kind == "gpt2" else Sentences
        data, unseen = make(tokenizer, train_texts, context), make(tokenizer, held_out_texts, context)
        Run(out, settings, tokenizer, data, unseen).fit(state, progress)
    finally:
        torch.set_num_threads(threads_before)
    return out


def _paragraphs(texts: Iterable[str], name: str) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"{name} is one string; expected a sequence of strings, one a paragraph")
    kept = [text for text in texts if text.strip()]
    if not kept:
        raise ValueError(f"{name} holds no text; expected a sequence of strings, one a paragraph")
    return kept


def _fingerprint(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _build(settings: dict[str, Any]) -> Any:
    size = {name: settings[name] for name in ("vocab_size", "d_model", "n_layers", "n_heads", "context")}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(settings["seed"])
        return _gpt2(**size) if settings["kind"] == "gpt2" else _bert(**size)


def _gpt2(vocab_size: int, d_model: int, n_layers: int, n_heads: int, context: int) -> Any:
    size: dict[str, Any] = dict(
        vocab_size=vocab_size, n_positions=context, n_embd=d_model, n_layer=n_layers, n_head=n_heads
    )
    size |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    model: Any = transformers.GPT2LMHeadModel(config)
    for block in model.transformer.h:
        block.mlp.act = torch.nn.GELU("tanh")  # gelu_new in one operation
    return model


def _bert(vocab_size: int, d_model: int, n_layers: int, n_heads: int, context: int) -> Any:
    size: dict[str, Any] = dict(vocab_size=vocab_size, max_position_embeddings=context, hidden_size=d_model)
    size |= dict(intermediate_size=4 * d_model, num_hidden_layers=n_layers, num_attention_heads=n_heads)
    size |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(**size, hidden_act="gelu", type_vocab_size=2, pad_token_id=0)
    return transformers.BertForMaskedLM(config)


class Run:
    """One training run: the plan of its batches, its model and optimiser, and what it writes."""

    def __init__(self, out: Path, settings: dict[str, Any], tokenizer: Tokenizer, data: Any, held_out: Any) -> None:
        self.out, self.settings, self.tokenizer = out, settings, tokenizer
        self.data, self.held_out, self.seed = data, held_out, settings["seed"]
        self.plan: list[np.ndarray] = []
        planned = epoch = 0
        while planned < settings["tokens"]:
            for batch in data.batches(settings["batch_size"], np.random.default_rng((self.seed, 0, epoch))):
                if planned >= settings["tokens"]:
                    break
                self.plan.append(batch)
                planned += data.size(batch)
            epoch += 1
        self.steps, self.epochs = len(self.plan), epoch
        kept = settings["checkpoints"]
        self.kept = {0, *(self.steps * 2**k // 128 for k in range(8))} if kept is None else set(kept)
        if not self.kept <= set(range(self.steps + 1)):
            raise ValueError(f"checkpoints are {kept}, the last step is {self.steps}; pass steps from 0 to that")
        self.model = _build(settings)
        if settings["bf16"]:
            self.model.set_attn_implementation("eager")  # backward in bfloat16: twice as fast as sdpa on a CPU
        parameters = list(self.model.parameters())
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, fused=True, **OPTIMISER[settings["kind"]])

    def fit(self, state: dict[str, Any] | None, progress: bool) -> None:
        step, seen, seconds, losses, window = 0, 0, 0.0, [], []
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            step, seen, seconds = state["step"], state["seen"], state["seconds"]
            losses, window = state["losses"], state["window"]
            log.info("resuming from step %d of %d", step, self.steps)

        def resume() -> dict[str, Any]:
            spent = seconds + time.monotonic() - began
            done = dict(step=step, seen=seen, seconds=spent, losses=losses, window=window)
            weights = dict(model=self.model.state_dict(), optimiser=self.optimiser.state_dict())
            return dict(settings=self.settings, tokenizer=self.tokenizer.to_str(), **weights, **done)

        began = logged = saved = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)
        write_resume(self.out, resume())
        if step == 0 and step in self.kept:
            self.keep(step)
        every = max(1, self.steps // 100)
        held_out = next((row["held_out"] for row in reversed(losses) if "held_out" in row), math.nan)
        quiet = not (progress and sys.stderr.isatty())
        with tqdm(total=self.steps, initial=step, unit="step", desc="train", disable=quiet) as bar:
            while step < self.steps:
                try:
                    with uninterrupted():
                        window.append(self.update(step))
                        seen += self.data.size(self.plan[step])
                        step += 1
                        bar.update()
                        if step in self.kept:
                            self.keep(step)
                        marked = step in self.kept or step == self.steps
                        if marked or step % every == 0:
                            losses.append(dict(step=step, tokens=seen, loss=math.fsum(window) / len(window)))
                            window.clear()
                            if marked or step % (4 * every) == 0:
                                held_out = losses[-1]["held_out"] = self.evaluate(HELD_OUT_TOKENS)["loss"]
                            bar.set_postfix(loss=f"{losses[-1]['loss']:.3f}", held_out=f"{held_out:.3f}")
                        now = time.monotonic()
                        if losses and (now - logged >= LOG_SECONDS or step == self.steps):
                            logged = now
                            where = (
                                f"step {step} of {self.steps}, {seen / 1e6:.2f} M tokens, {seconds + now - began:.0f} s"
                            )
                            log.info("%s: loss %.4f, held-out loss %.4f", where, losses[-1]["loss"], held_out)
                        if now - saved >= SAVE_SECONDS:
                            write_resume(self.out, resume())
                            saved = now
                except KeyboardInterrupt:
                    with uninterrupted():
                        write_resume(self.out, resume())
                    raise
        self.finish(seen, losses, seconds + time.monotonic() - began)

    def update(self, step: int) -> float:
        warm_up = max(1, round(WARM_UP * self.steps))
        share = min((step + 1) / warm_up, (self.steps - step) / max(1, self.steps - warm_up))
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings["learning_rate"] * share
        rng = np.random.default_rng((self.seed, 1, step))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings["bf16"]):
            logits, targets = self.data.predict(self.model, self.plan[step], rng)
        loss = F.cross_entropy(logits.float(), targets)
        if not torch.isfinite(loss):
            rate = self.settings["learning_rate"]
            raise FloatingPointError(f"the loss is {loss.item()} at step {step}; pass learning_rate below {rate}")
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return loss.item()

    @torch.inference_mode()
    def evaluate(self, budget: int | None = None) -> dict[str, Any]:
        """Held-out loss and accuracy, beside those of the training corpus's unigram distribution (add-one).

        In float32, on the first `budget` tokens; BERT with the same masks every time.
        """
        rng = np.random.default_rng(0)
        prior = torch.from_numpy((self.data.prior + 1) / (self.data.prior + 1).sum()).log()
        n = tokens = 0
        sums = np.zeros(4)
        for batch in self.held_out.batches(32, None):
            logits, targets = self.held_out.predict(self.model, batch, rng)
            model = F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets
            unigram = -prior[targets], targets == prior.argmax()
            sums += [values.sum().item() for values in (*model, *unigram)]
            n += len(targets)
            tokens += self.held_out.size(batch)
            if budget is not None and tokens >= budget:
                break
        means = dict(zip(("loss", "accuracy", "unigram_loss", "unigram_accuracy"), (sums / n).tolist(), strict=True))
        perplexities = dict(perplexity=math.exp(means["loss"]), unigram_perplexity=math.exp(means["unigram_loss"]))
        return means | perplexities | dict(tokens=tokens, targets=n)

    def keep(self, step: int) -> None:
        with replacing_directory(self.out / "checkpoints" / f"step-{step}", listed=os.listdir) as temporary:
            self.save(temporary)

    def save(self, where: Path) -> None:
        """In float16, without the progress bar that transformers shows for every file."""
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            copy.deepcopy(self.model).half().save_pretrained(where)
        finally:
            if bars:
                transformers_logging.enable_progress_bar()

    def finish(self, seen: int, losses: list[dict[str, Any]], seconds: float) -> None:
        kind = self.settings["kind"]
        if kind == "gpt2":
            make, names = "GPT2TokenizerFast", dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT)
        else:
            make = "BertTokenizerFast"
            names = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_SPECIAL, strict=True))
        options = {f"{name}_token": token for name, token in names.items()}
        tokenizer = getattr(transformers, make)(
            tokenizer_object=self.tokenizer, model_max_length=self.settings["context"], **options
        )
        packages = ("torch", "transformers", "tokenizers", "numpy", "safetensors")
        record: dict[str, Any] = dict(settings=self.settings)
        record |= dict(optimiser=dict(name="AdamW", warm_up=WARM_UP, clip=1.0, **OPTIMISER[kind]))
        record |= dict(steps=self.steps, tokens=seen, epochs=self.epochs, corpus_tokens=int(self.data.counts.sum()))
        record |= dict(parameters=self.model.num_parameters(), seconds=round(seconds), threads=torch.get_num_threads())
        record |= dict(held_out=self.evaluate(), losses=losses, checkpoints=sorted(self.kept))
        record |= dict(versions={name: version(name) for name in packages})
        whole = self.out / ".finished"
        with replacing_directory(whole, listed=os.listdir) as temporary:
            tokenizer.save_pretrained(temporary)
            self.save(temporary)
            counts = Unigrams(self.data.counts, "the training text", tokenizer_hash(tokenizer))
            counts.save(temporary / "unigram.safetensors")
            (temporary / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        for file in whole.iterdir():
            os.replace(file, self.out / file.name)
        whole.rmdir()
        (self.out / _RESUME).unlink()


def write_resume(out: Path, state: dict[str, Any]) -> None:
    """A checksum, and what torch saves, which has none."""
    content = io.BytesIO()
    torch.save(state, content)
    with replacing(out / _RESUME) as temporary:
        temporary.write_bytes(checksum(content.getvalue()).encode() + content.getvalue())


def load_resume(path: Path) -> dict[str, Any]:
    """The state of an unfinished run. Raises ValueError for a damaged file."""
    content = path.read_bytes()
    known, saved = content[:_CHECKSUM], content[_CHECKSUM:]
    if checksum(saved).encode() != known:
        raise ValueError(
            f"{path} is damaged (the checksum does not match); delete what is in {path.parent} and start anew"
        )
    return dict(torch.load(io.BytesIO(saved), weights_only=True))


def _read_resume(out: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    path = out / _RESUME
    if not path.exists():
        if out.exists() and any(not item.name.startswith(f".{_RESUME}.") for item in out.iterdir()):
            raise FileExistsError(f"{out} is not empty and holds no unfinished run; pass another out or empty it")
        return None
    state = load_resume(path)
    found = state["settings"]
    different = [name for name in sorted({*settings, *found}) if settings.get(name) != found.get(name)]
    if different:
        what = "; ".join(f"{name} is {settings.get(name)!r}, was {found.get(name)!r}" for name in different)
        raise ValueError(f"{path} belongs to another run: {what}. Pass the same settings and data, or another out")
    return state
