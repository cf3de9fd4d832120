"""One training run: settings, steps, checkpoints, and the directory it leaves."""

import copy
import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch.nn import functional as F
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from interp.corpora.unigrams import Unigrams, tokenizer_hash
from interp.support.checks import check_choice, check_seed, whole_number
from interp.support.disk import checksum, occupied, replacing, replacing_directory, uninterrupted
from training.data import BERT_SPECIAL, END_OF_TEXT, SEPARATORS, Kind, Separator, Texts

log = logging.getLogger(__name__)


class Settings(TypedDict, total=False):
    """The settings of a training recipe.

    `warm_up` is a share of the steps or, if it is a whole number, a number of steps; after it, the learning rate falls
    linearly to zero or stays constant (`decay`). `clip` is the largest norm of a gradient, None for no limit.
    `weight_decay` acts only on matrices. `separator` is put before each text (`gpt2`). `bf16` runs the matrix products
    in bfloat16. `batch_size` is in rows or examples.
    """

    vocab_size: int
    context: int
    d_model: int
    n_layers: int
    n_heads: int
    batch_size: int
    learning_rate: float
    warm_up: float
    decay: Literal["linear", "none"]
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float | None
    separator: Separator
    bf16: bool


SETTINGS: dict[Kind, Settings] = {
    "gpt2": dict(
        vocab_size=4096, context=128, n_layers=6, warm_up=0.05, decay="linear", clip=1.0, bf16=False,
        d_model=192, n_heads=6, batch_size=32, learning_rate=2e-3, separator="end of text",
        betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1,
    ),
    "bert": dict(
        vocab_size=4096, context=128, n_layers=6, warm_up=0.05, decay="linear", clip=1.0, bf16=False,
        d_model=128, n_heads=4, batch_size=96, learning_rate=1e-3,
        betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01,
    ),
}  # fmt: skip
Measure: TypeAlias = Callable[["Run"], dict[str, float]]
HELD_OUT_TOKENS = 50_000  # held-out tokens that the loss during training is computed on
LOG_SECONDS = 60
SAVE_SECONDS = 120
FINISHED, UNFINISHED = "training.json", "resume.pt"
"""The files in a run's directory that record how it went."""
_CHECKSUM = 32  # bytes, in front of what torch saves


def train(
    kind: Kind,
    texts: Texts,
    *,
    out: str | Path,
    tokens: int,
    seed: int = 0,
    checkpoints: Sequence[int] | None = None,
    every: int | None = None,
    measure: Measure | None = None,
    threads: int | None = None,
    progress: bool = True,
    **changes: Unpack[Settings],
) -> Path:
    """Train a tokenizer and a small GPT-2 or BERT on paragraphs; returns the Hugging Face directory `out`.

    `gpt2`: byte-level BPE, `<|endoftext|>` before each text, packed rows of `context` tokens, next-token loss.
    `bert`: uncased WordPiece, single sentences, passages and pairs of consecutive passages (`[CLS] A [SEP] B
    [SEP]`), mostly of at most 48 tokens, 15 % masked (80 % `[MASK]`, 10 % random, 10 % kept; Devlin et al. 2019,
    section 3.1), loss at masked positions; no next-sentence loss. Both: AdamW, no dropout, linear warm-up over 5 %
    of the steps and linear decay to zero, gradient norm clipped at 1, float32 weights. `changes` replace single
    `SETTINGS` of that kind.

    `tokens` is the budget in tokens seen (padding not counted), and `checkpoints` are the steps whose weights are kept
    (default: 0 and eight from steps/128 to the last, doubling). The loss is recorded every `every` steps (default: 100
    times in all). At every fourth of these, at checkpoints and at the end, the result of `measure` is recorded too
    (default: the held-out loss, as `held_out`). The weights depend only on the arguments, the data and the number of
    threads: a run that was killed resumes from `out/resume.pt` and ends with the same weights, bit for bit.

    Written to `out`: config.json, model.safetensors (float16), the tokenizer, training.json (settings, losses,
    versions), unigram.safetensors (`counts` [d_vocab], int64: the corpus without added special tokens) and
    checkpoints/step-N. Losses are in nats per predicted token.

    Raises ValueError for text that is too short, a bad shape, an unknown setting, numbers that are not above 0, a seed
    outside 0 … 2**63 − 1, and if `out/resume.pt` belongs to other settings or data; TypeError for numbers that must be
    whole and are not; FileExistsError if `out` holds anything other than an unfinished run, or another process trains
    a model in it.
    """
    settings = settings_of(kind, texts, tokens=tokens, seed=seed, checkpoints=checkpoints, every=every, **changes)
    if threads is not None:
        threads = whole_number(threads, "threads", least=1)

    out = Path(out)
    threads_before = torch.get_num_threads()
    with occupied(out, f"trains a model in {out}"):
        state = _read_resume(out, settings)
        torch.set_num_threads(threads or threads_before)
        try:
            tokenizer = None if state is None else Tokenizer.from_str(state["tokenizer"])
            Run(out, settings, *texts.read(settings, tokenizer), measure=measure or held_out_loss).fit(state, progress)
        finally:
            torch.set_num_threads(threads_before)
    return out


def settings_of(
    kind: Kind,
    texts: Texts,
    *,
    tokens: int,
    seed: int,
    checkpoints: Sequence[int] | None,
    every: int | None,
    **changes: Unpack[Settings],
) -> dict[str, Any]:
    """Everything that decides the weights of a run, except threads, as `train` records it.

    Raises the same errors as `train`.
    """
    if kind not in SETTINGS:
        raise ValueError(f"kind is {kind!r}; expected 'gpt2' or 'bert'")
    settings: dict[str, Any] = {**SETTINGS[kind], **changes}
    if unknown := sorted(set(settings) - set(Settings.__annotations__)):
        expected = f"expected some of {', '.join(Settings.__annotations__)}"
        raise ValueError(f"unknown settings {', '.join(unknown)}; {expected}")
    for name in ("context", "d_model", "n_layers", "n_heads", "batch_size"):
        settings[name] = whole_number(settings[name], name, least=1)
    settings["vocab_size"] = whole_number(settings["vocab_size"], "vocab_size")
    if not 0 < settings["learning_rate"] < math.inf:
        raise ValueError(f"learning_rate is {settings['learning_rate']}; expected a number above 0")
    if settings["d_model"] % settings["n_heads"]:
        raise ValueError(f"d_model {settings['d_model']} is not a multiple of n_heads {settings['n_heads']}")
    if not 0 < settings["vocab_size"] <= 2**16:
        raise ValueError(f"vocab_size is {settings['vocab_size']}; expected 1 to 65536 (tokens are kept as uint16)")
    if kind == "gpt2":
        check_choice("separator", settings["separator"], SEPARATORS)
    check_choice("decay", settings["decay"], ("linear", "none"))
    tokens = whole_number(tokens, "tokens", least=1)
    seed = check_seed(seed)
    if checkpoints is not None:
        checkpoints = sorted({whole_number(step, "checkpoints") for step in checkpoints})
    if every is not None:
        every = whole_number(every, "every", least=1)
    settings |= dict(kind=kind, tokens=tokens, seed=seed, checkpoints=checkpoints, every=every)
    return settings | texts.fingerprints


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

    def __init__(
        self, out: Path, settings: dict[str, Any], tokenizer: Tokenizer, data: Any, held_out: Any, measure: Measure
    ) -> None:
        self.out, self.settings, self.tokenizer, self.measure = out, settings, tokenizer, measure
        self.data = data
        self.held_out = held_out
        self.seed = settings["seed"]
        self.plan: list[np.ndarray] = []
        planned = epoch = 0
        while planned < settings["tokens"]:
            for batch in data.batches(settings["batch_size"], np.random.default_rng((self.seed, 0, epoch))):
                if planned >= settings["tokens"]:
                    break
                self.plan.append(batch)
                planned += data.size(batch)
            epoch += 1
        self.steps = len(self.plan)
        self.epochs = epoch
        checkpoints = settings["checkpoints"]
        self.kept = {0, *(self.steps * 2**k // 128 for k in range(8))} if checkpoints is None else set(checkpoints)
        if not self.kept <= set(range(self.steps + 1)):
            raise ValueError(
                f"checkpoints are {checkpoints}, but the last step is {self.steps}; pass steps from 0 to that"
            )
        self.model = _build(settings)
        if settings["bf16"]:
            self.model.set_attn_implementation("eager")  # backward in bfloat16: twice as fast as sdpa on a CPU
        parameters = list(self.model.parameters())
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        chosen = {name: settings[name] for name in ("betas", "eps", "weight_decay")}
        self.optimiser = torch.optim.AdamW(groups, fused=True, **chosen)

    def fit(self, state: dict[str, Any] | None, progress: bool) -> None:
        step = 0
        seen = 0
        seconds = 0.0
        losses = []
        window = []
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
        write_resume(self.out, resume())
        if step == 0 and step in self.kept:
            self.keep(step)
        interval = self.settings["every"] or max(1, self.steps // 100)
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
                        if marked or step % interval == 0:
                            losses.append(dict(step=step, tokens=seen, loss=math.fsum(window) / len(window)))
                            window.clear()
                            if marked or step % (4 * interval) == 0:
                                losses[-1] |= self.measure(self)
                                held_out = losses[-1]["held_out"]
                            bar.set_postfix(loss=f"{losses[-1]['loss']:.3f}", held_out=f"{held_out:.3f}")
                        moment = time.monotonic()
                        if losses and (moment - logged >= LOG_SECONDS or step == self.steps):
                            logged = moment
                            spent = seconds + moment - began
                            where = f"step {step} of {self.steps}, {seen / 1e6:.2f} M tokens, {spent:.0f} s"
                            log.info("%s: loss %.4f, held-out loss %.4f", where, losses[-1]["loss"], held_out)
                        if moment - saved >= SAVE_SECONDS:
                            write_resume(self.out, resume())
                            saved = moment
                except KeyboardInterrupt:
                    with uninterrupted():
                        write_resume(self.out, resume())
                    raise
        self.finish(seen, losses, seconds + time.monotonic() - began)

    def update(self, step: int) -> float:
        warm_up = self.settings["warm_up"]
        rising = warm_up if isinstance(warm_up, int) else max(1, round(warm_up * self.steps))
        falling = (self.steps - step) / max(1, self.steps - rising) if self.settings["decay"] == "linear" else 1.0
        share = min((step + 1) / max(1, rising), falling)
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
        if self.settings["clip"] is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings["clip"])
        self.optimiser.step()
        return loss.item()

    @torch.inference_mode()
    def evaluate(self, budget: int | None = None) -> dict[str, Any]:
        """Held-out loss and accuracy, with those of the training corpus's unigram distribution (add-one).

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
        means.update(perplexity=math.exp(means["loss"]), unigram_perplexity=math.exp(means["unigram_loss"]))
        means.update(tokens=tokens, targets=n)
        return means

    def keep(self, step: int) -> None:
        with replacing_directory(self.out / "checkpoints" / f"step-{step}", listed=os.listdir) as temporary:
            self.save(temporary)

    def save(self, where: Path) -> None:
        """Save in float16, without the progress bar that transformers shows for every file."""
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
            make = "GPT2TokenizerFast"
            names = dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT)
        else:
            make = "BertTokenizerFast"
            names = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_SPECIAL, strict=True))
        options = {f"{name}_token": token for name, token in names.items()}
        tokenizer = getattr(transformers, make)(
            tokenizer_object=self.tokenizer, model_max_length=self.settings["context"], **options
        )
        packages = ("torch", "transformers", "tokenizers", "numpy", "safetensors")
        record = dict(
            settings=self.settings, optimiser="AdamW", steps=self.steps, tokens=seen, epochs=self.epochs,
            corpus_tokens=int(self.data.counts.sum()), parameters=self.model.num_parameters(), seconds=round(seconds),
            threads=torch.get_num_threads(), held_out=self.evaluate(), losses=losses, checkpoints=sorted(self.kept),
            versions={name: version(name) for name in packages},
        )  # fmt: skip
        finished = self.out / ".finished"
        with replacing_directory(finished, listed=os.listdir) as temporary:
            tokenizer.save_pretrained(temporary)
            self.save(temporary)
            read = transformers.AutoTokenizer.from_pretrained(temporary)
            counts = Unigrams(self.data.counts, "the training text", tokenizer_hash(read))
            counts.save(temporary / "unigram.safetensors")
            (temporary / FINISHED).write_text(json.dumps(record, indent=1) + "\n")
        for file in finished.iterdir():
            os.replace(file, self.out / file.name)
        finished.rmdir()
        (self.out / UNFINISHED).unlink()


def held_out_loss(run: Run) -> dict[str, float]:
    """The loss on the beginning of the held-out text."""
    return {"held_out": run.evaluate(HELD_OUT_TOKENS)["loss"]}


def write_resume(out: Path, state: dict[str, Any]) -> None:
    """Write a checksum in front of what torch saves, which has none of its own."""
    content = io.BytesIO()
    torch.save(state, content)
    with replacing(out / UNFINISHED) as temporary:
        temporary.write_bytes(checksum(content.getvalue()).encode() + content.getvalue())


def load_resume(path: Path) -> dict[str, Any]:
    """The state of an unfinished run. Raises ValueError for a damaged file."""
    content = path.read_bytes()
    expected, saved = content[:_CHECKSUM], content[_CHECKSUM:]
    if checksum(saved).encode() != expected:
        raise ValueError(
            f"{path} is damaged (the checksum does not match); delete what is in {path.parent} and start again"
        )
    return dict(torch.load(io.BytesIO(saved), weights_only=True))


def _read_resume(out: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    path = out / UNFINISHED
    if not path.exists():
        if out.exists() and any(not item.name.startswith(f".{UNFINISHED}.") for item in out.iterdir()):
            raise FileExistsError(f"{out} is not empty and holds no unfinished run; pass another out or empty it")
        return None
    state = load_resume(path)
    recorded = state["settings"]
    different = [name for name in sorted({*settings, *recorded}) if settings.get(name) != recorded.get(name)]
    if different:
        differences = "; ".join(f"{name} is {settings.get(name)!r}, was {recorded.get(name)!r}" for name in different)
        raise ValueError(
            f"{path} belongs to another run: {differences}. Pass the same settings and data, or another out"
        )
    return state
