"""What a command will need: memory, operations and passes, and whether it fits.

    peak = process + weights + max(loading, every step, what is done between them, results and page)
    step = sums and copies of all its passes + the largest of its passes
    pass = what a batch adds to its sums + max(a block and what is read in it, logits + what is read of them)

An analysis declares its passes, with the bytes of its observers' sums, in a `Cost`. The rest follows from the model's
shape and the size of a batch (`interp.models.footprint`). The C library keeps about as much freed memory as a batch
takes, up to a quarter of a GiB, because pieces below 32 MiB are not returned to the system individually.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from interp.models.footprint import CONVERTING, LOADING, PROCESS, default_rows, room_for_batches
from interp.models.loading.spread import check_device_map, own_gpus
from interp.models.running import find_device
from interp.models.shapes import Shape, shape_with
from interp.support import memory
from interp.support.choices import Backend
from interp.support.paths import is_gguf, model_directory

__all__ = ["Budget", "Cost", "Pass", "Setup", "budget", "cost", "setup"]

_STEP = 64  # proposed contexts are multiples of this
_KEPT = 256 * 2**20
_NAMES = {"batch_size": "batch_size", "context": "context"}
_TEXTS = ("text", "masked text", "a sample of the text", "some of the text", "a little of the text")
_PAGE = 100 * 2**20
"""Bytes of the plotting libraries and of a page."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass over the data of an analysis. Passes with the same `step` that read the same `text` are run as one.

    Args:
        what: the name of the pass.
        text: what it reads: a value of `Analysis.reads`, or another name for data that no other analysis reads.
        step: its number in the sequence of passes that its analysis asks for.
        sums: the bytes of its observers' states. A batch needs the same again.
        copies: other bytes that its observers keep, such as copies of weights.
        per_token, per_batch: bytes held while a batch is added, per token and per batch.
        per_logit, at_once: bytes held per logit that is read, and how many logits are read at once.
        head: whether the prediction head runs. The bytes above are then held together with the logits, otherwise in a
            block.
        share: the share of the positions at which the head runs.
        flops: operations in addition to the forward pass, per token or, with `head`, per position at which it runs.
        size: the rows and tokens of its batches, if they differ from those of the text.
    """

    what: str = ""
    text: str = "text"
    step: int = 0
    sums: int = 0
    copies: int = 0
    per_token: float | int = 0
    per_batch: float | int = 0
    per_logit: float | int = 0
    at_once: float | int = float("inf")
    head: bool = False
    share: float | int = 1
    flops: float | int = 0
    size: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an analysis needs in addition to the model.

    Args:
        passes: its passes over the data.
        between: the largest number of bytes held before, between and after its passes.
        results: the bytes held while its tables are saved and drawn.
        disk: the bytes that it stores until it is finished. Default: the sums of its passes.
        numbers: more numbers for `--json`, by name.
        lines: more lines to print.
    """

    passes: tuple[Pass, ...] = ()
    between: int = 0
    results: int = 0
    disk: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()


def cost(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of an analysis that declares none: one pass."""
    return Cost(passes=(Pass(what="reading", head=True),))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is run: its shape, the type of its weights, its device (or `spread` over all GPUs of the process),
    the rows and tokens of a batch, and whether its weights are converted first (`interp.models.loading.conversion`)."""

    shape: Shape
    dtype: torch.dtype
    backend: Backend
    device: str
    rows: int
    context: int
    spread: bool = False
    converted: bool = False

    @property
    def available(self) -> int:
        """The memory that is available for it."""
        return sum(map(memory.available, _devices(self.device, self.spread)))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def weights(self) -> int:
        return self.shape.weights_bytes(self.dtype, self.backend)

    @property
    def copied(self) -> int:
        """The bytes of a second model next to the first: all of its weights; or, if memory has no room for them, all
        except the matrices of blocks, plus those of one block while it runs (`interp.models.untrained`)."""
        block = self.shape.block_weights * self.itemsize
        weights = self.weights
        outside = self.weights - self.shape.n_layers * block
        return weights if 2 * weights + PROCESS <= memory.available(self.device) else outside + block

    @property
    def mapped(self) -> bool:
        """Whether the weights stay in their files, which the system reads and drops as needed."""
        return (self.backend, self.device) == ("bridge", "cpu") and self.dtype == self.shape.dtype("auto")


def _devices(device: str, spread: bool) -> list[str]:
    """The devices of a model: all GPUs of the process if it is spread over them."""
    gpus = own_gpus() if spread else []
    return [f"cuda:{gpu}" for gpu in gpus] or [device]


def setup(name: str, options: Mapping[str, Any]) -> Setup:
    """Determine how a model is run with these options, which are those of an analysis and of
    `interp.analyses.options.ModelOptions`.

    Raises ValueError for a context longer than the model's or an unknown dtype, and the errors of
    `interp.models.shapes.shape`.

    Examples:
        >>> found = setup("tiny-gpt2", {"context": 64})
        >>> found.rows, found.context
        (64, 64)
    """
    model_shape = shape_with(name, options)
    spread = options.get("device_map") is not None
    dtype = model_shape.dtype(options.get("dtype"))
    backend = model_shape.backend("bridge" if spread else options.get("backend"))
    model_shape = replace(model_shape, eager=model_shape.eager_bridge and backend == "bridge")
    if spread:
        check_device_map(options["device_map"], options.get("device"), options.get("backend"))
    device = str(find_device(options.get("device")))
    context = model_shape.row(options.get("context"))
    devices = _devices(device, spread)
    share = model_shape.weights_bytes(dtype, backend) // len(devices)
    room = room_for_batches(dict.fromkeys(devices, share))
    rows = options.get("batch_size") or default_rows(model_shape, context, itemsize=dtype.itemsize, room=room)
    settings: dict[str, Any] = {"dtype": dtype, "backend": backend, "device": device, "rows": rows, "context": context}
    source = model_directory(name, weights=False)
    converted = options.get("adapter") is not None or (source is not None and is_gguf(source))
    return Setup(shape=model_shape, spread=spread, converted=converted, **settings)


def _with_freed(n_bytes: float) -> float:
    """Bytes with the freed memory that the C library keeps."""
    return n_bytes + min(n_bytes, _KEPT)


@dataclass(frozen=True)
class Budget:
    """What a command needs: the `costs` of its analyses, by name, for a model that is run in this way.

    `names` has the names of its options of the kinds `batch_size` and `context`, which a proposal may change.
    """

    run: Setup
    costs: Mapping[str, Cost]
    names: Mapping[str, str]

    @property
    def passes(self) -> list[list[Pass]]:
        """Every pass over a text, each as the list of the analyses' passes that share it. Equal ones are one, because
        equal observers are filled once."""
        groups: dict[tuple[int, str], list[Pass]] = {}
        for cost in self.costs.values():
            for reading in cost.passes:
                group = groups.setdefault((reading.step, reading.text), [])
                if reading not in group:
                    group.append(reading)
        return list(groups.values())

    @property
    def process(self) -> int:
        """The bytes that imported libraries take; 0 on a GPU, where only its own memory counts."""
        return 0 if self.run.device.startswith("cuda") else PROCESS

    @property
    def loading(self) -> int:
        """The bytes held in addition to the weights while they are loaded, or before that while they are converted. If
        weights stay in their files, this is the block being checked, twice in float32."""
        run = self.run
        if run.converted:
            return max(round(LOADING * run.weights), CONVERTING * run.shape.parameters - run.weights)
        return 8 * run.shape.block_weights if run.mapped else round(LOADING * run.weights)

    @property
    def reading(self) -> int:
        """The bytes of the largest step. Passes that are asked for together hold their sums at the same time."""
        sums: Counter[int] = Counter()
        working: Counter[int] = Counter()
        for group in self.passes:
            step = group[0].step
            sums[step] += sum(part.sums + part.copies for part in group)
            working[step] = max(working[step], self._held_bytes(group))
        return max((sums + working).values(), default=0)

    @property
    def between(self) -> int:
        """The most bytes held by work between passes."""
        return max((cost.between for cost in self.costs.values()), default=0)

    @property
    def results(self) -> int:
        """The bytes of the tables of all analyses and their page."""
        return _PAGE + sum(cost.results for cost in self.costs.values())

    @property
    def disk(self) -> int:
        """The bytes that are stored so that a run can be resumed."""
        stored = 0
        for cost in self.costs.values():
            stored += sum(part.sums for part in cost.passes) if cost.disk is None else cost.disk
        return stored

    @property
    def peak(self) -> int:
        """The most memory held at once, in bytes."""
        return self.process + self.run.weights + max(self.loading, self.reading, self.between, self.results)

    @property
    def flops(self) -> float:
        """Operations per token, for all passes together."""
        return sum(map(self._operations, self.passes))

    @property
    def text_flops(self) -> float:
        """Operations per token of the passes over the text, without those over sentences and generated text."""
        return sum(self._operations(group) for group in self.passes if group[0].text in _TEXTS)

    @property
    def first_flops(self) -> float:
        """Operations per token of the passes that are asked for first."""
        first = min((group[0].step for group in self.passes), default=0)
        return sum(self._operations(group) for group in self.passes if group[0].step == first)

    def _held_bytes(self, group: Sequence[Pass]) -> int:
        run = self.run
        rows, context = self._batch_shape(group)
        tokens = rows * context
        in_block = at_head = share = 0.0
        for part in group:
            working = self._working_bytes(part, tokens)
            if part.head:
                at_head = max(at_head, working)
                share = max(share, part.share)
            else:
                in_block = max(in_block, working)
        block = _with_freed(run.shape.block_bytes(rows, context, run.itemsize) + in_block)
        head = run.shape.head_bytes(share * tokens, run.itemsize) + _with_freed(at_head)
        return round(sum(part.sums for part in group) + max(block, head))

    def _working_bytes(self, part: Pass, tokens: int) -> float:
        logits = min(part.at_once, part.share * tokens * self.run.shape.d_vocab)
        return float(part.per_token * tokens + part.per_batch + part.per_logit * logits)

    def _batch_shape(self, group: Sequence[Pass]) -> tuple[int, int]:
        for part in group:
            if part.size:
                return part.size
        return self.run.rows, self.run.context

    def _operations(self, group: Sequence[Pass]) -> float:
        sizes = self.run.shape
        share = measures = 0.0
        for part in group:
            measures += part.flops * (part.share if part.head else 1)
            share = max(share, part.share if part.head else 0.0)
        head = 2.0 * share * sizes.d_model * sizes.d_vocab
        return float(sizes.forward + sizes.attention(self._batch_shape(group)[1]) + head + measures)

    @property
    def needed(self) -> int:
        """The peak in bytes, without weights that stay in their files."""
        return self.peak - (self.run.weights if self.run.mapped else 0)

    def verdict(self, available: int) -> tuple[str, dict[str, Any]]:
        """Whether it fits in the available memory, in words and as values by name; if not, what would fit.

        The proposal is the largest power of two of rows that fits, or one row of the largest multiple of 64 tokens.
        """
        values: dict[str, Any] = {"available_bytes": available, "fits": self.needed <= available}
        compared = f"{memory.shown(self.needed)} of {memory.shown(available)} available"
        if values["fits"]:
            return f"fits in memory: {compared}", values
        least = self.needed
        for change in self._smaller_runs():
            least = replace(self, run=replace(self.run, **change)).needed
            if least <= available:
                kinds = {"rows": "batch_size", "context": "context"}
                values["advice"] = {}
                flags = ""
                for name, value in change.items():
                    option = self.names[kinds[name]]
                    values["advice"][option] = value
                    flags += f" --{option.replace('_', '-')} {value}"
                return f"does not fit: {compared}; try{flags}", values
        memory_words = (
            f"{memory.shown(least)} of {memory.shown(available)} available, weights {memory.shown(self.run.weights)}"
        )
        values["advice"] = None
        return f"does not fit in memory: at least {memory_words}{self._lighter_advice(available)}", values

    def _smaller_runs(self) -> Iterator[dict[str, Any]]:
        """Smaller batches, the largest first."""
        run = self.run
        least = {"rows": 1} if "batch_size" in self.names else {}
        if least:
            for power in reversed(range((run.rows - 1).bit_length())):
                yield {"rows": 2**power}
        if "context" in self.names:
            for context in range((run.context - 1) // _STEP * _STEP, 0, -_STEP):
                yield dict(least, context=context)

    def _lighter_advice(self, available: int) -> str:
        """The setting with which the weights take less memory, if there is one."""
        run = self.run
        stored = self.run.shape.dtype("auto")
        light = replace(run, dtype=torch.bfloat16, rows=1)
        files = replace(run, dtype=stored, backend="bridge", rows=1)
        if light.weights < run.weights and replace(self, run=light).needed <= available:
            return f"; with --dtype bfloat16 they take {memory.shown(light.weights)}"
        if files.mapped and not run.mapped and replace(self, run=files).needed <= available:
            return "; --backend bridge --dtype auto leaves the weights in their files, which is slow"
        return ""

    @property
    def numbers(self) -> dict[str, Any]:
        """The whole estimate by name, for `--json`: bytes, and operations per token."""
        run = self.run
        dtype = str(self.run.dtype).removeprefix("torch.")
        numbers = asdict(run.shape)
        numbers.update(
            dtype=dtype, backend=run.backend, device=run.device, context=run.context, batch_size=run.rows,
            passes=len(self.passes), forward=run.shape.forward, flops=self.flops, process_bytes=self.process,
            weights_bytes=run.weights, loading_bytes=self.loading, reading_bytes=self.reading,
            between_bytes=self.between, results_bytes=self.results, peak_bytes=self.peak, needed_bytes=self.needed,
            disk_bytes=self.disk,
        )  # fmt: skip
        for cost in self.costs.values():
            numbers.update(cost.numbers)
        return numbers

    @property
    def lines(self) -> list[str]:
        """The whole estimate as lines of text."""
        run, size = self.run, self.run.shape
        dtype = str(run.dtype).removeprefix("torch.")
        weights = f"weights: {size.parameters:,} numbers in {dtype}, {memory.shown(run.weights)}"
        lines = [
            f"{size.n_layers} layers, {size.n_heads} heads, d_model {size.d_model}, {size.d_vocab:,} types",
            weights + (", which stay in their files" if run.mapped else ""),
        ]
        for number, group in enumerate(self.passes, 1):
            lines.append(f"pass {number}: {self._described(group)}")
        lines.append(f"blocks of the forward pass: {size.forward / 1e9:,.3f} GFLOP per token")
        lines.append(f"all passes, with attention and the prediction head: {self.flops / 1e9:,.3f} GFLOP per token")
        for cost in self.costs.values():
            lines.extend(cost.lines)
        parts = {
            "loading them": self.loading, "a pass": self.reading, "work between passes": self.between,
            "tables and page": self.results,
        }  # fmt: skip
        largest = ", ".join(f"{memory.shown(size)} for {label}" for label, size in parts.items() if size)
        always = f"{memory.shown(self.process)} for libraries + {memory.shown(run.weights)} for weights"
        return [*lines, f"memory: {always} + the most of {largest} = {memory.shown(self.peak)}"]

    def _described(self, group: Sequence[Pass]) -> str:
        rows, context = self._batch_shape(group)
        names = " + ".join(dict.fromkeys(part.what for part in group))
        return f"{names}, {rows:,} row{'s' * (rows > 1)} of {context:,} tokens at once"


def budget(
    name: str, costs: Mapping[str, Cost], options: Mapping[str, Any], names: Mapping[str, str] = _NAMES
) -> Budget:
    """Estimate what a command needs with these options, which are those of `interp.analyses.options.ModelOptions`,
    `batch_size` and `context`. The command calls the last two by these `names`, which are the same by default.

    Raises the errors of `setup`.

    Examples:
        >>> found = budget("tiny-gpt2", {"reading": Cost(passes=(Pass(what="reading", head=True),))}, {"batch_size": 8})
        >>> found.verdict(2**33)[1]["fits"], found.verdict(2**20)[0].partition(":")[0]
        (True, 'does not fit in memory')
    """
    return Budget(setup(name, options), costs, names)
