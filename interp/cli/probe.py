"""`interp probe`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.options import MAX_SEED, JsonOption, ModelOption, items, parse_layers
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.disk.marks import check_page
from interp.paths import model_directory

_METHODS = ("l0", "topk", "random", "dense")
_POSITIONS = ("eos", "last", "mean", "cls")
_PAPER_STATE = 16
_PAPER_KS = (1, 2, 4, 8, 16, 32, 40, 64, 128, 256, 512, 1024)


def probe(
    model: ModelOption,
    pairs: Annotated[
        str,
        typer.Option(help="Minimal pairs: file (.jsonl, .csv, .parquet), directory of .jsonl, 'blimp' or 'bundled'."),
    ],
    out: Annotated[Path | None, typer.Option(help="Directory to write to.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Names, separated by commas.  [default: all]")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Hidden states: 0 (embeddings) to n_layers, as 0,4.  [default: all]")
    ] = None,
    methods: Annotated[str, typer.Option(help="Of l0,topk,random,dense.")] = ",".join(_METHODS),
    position: Annotated[
        str | None, typer.Option(help="Where a sentence is read: eos, last, mean, cls.  [default: eos; cls for BERT]")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Read only the first N pairs of each task.", metavar="N", min=1, max=2**62)
    ] = None,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="A token before each sentence.  [default: as TransformerLens has it]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, gates and their noise.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's: raw states, k to 1,024, transfer at layer 16; no flipped labels."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print memory, FLOPs and time from the config.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Sparse probes for grammar.

    Which few neurons of the residual stream tell good sentences from bad? Writes DIR/probing/*.parquet,
    result.json and DIR/index.html. A run that was killed goes on where it was.
    """
    from interp.corpora import pairs as minimal_pairs

    chosen_methods: Any = items(methods, "--methods", _METHODS)
    if position is not None:
        items(position, "--position", _POSITIONS)
    states = parse_layers(layers)
    model_directory(model, weights=not dry_run)
    table = minimal_pairs.load(pairs, tasks=None if tasks is None else items(tasks, "--tasks"), limit=limit)
    if dry_run:
        _print_cost(model, table, states, chosen_methods, paper, as_json)
        return
    if out is None:
        raise ValueError("--out is missing; expected a directory to write to")
    check_output(out, "probing", overwrite=overwrite)
    check_page(out)

    from interp import models, pages, probing

    with progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    protocol: dict[str, Any] = {}
    if paper:
        known = states or list(range(loaded.cfg.n_layers + 1))
        ks = [k for k in _PAPER_KS if k <= loaded.cfg.d_model]
        state = _PAPER_STATE if _PAPER_STATE in known else known[len(known) // 2]
        protocol = {"raw": True, "ks": ks, "state": state, "controls": ["none"]}
    with unfinished(out, "probing") as directory:
        found = probing.study(
            loaded, table, layers=states, methods=chosen_methods, position=position,  # type: ignore[arg-type]
            bos=bos, seeds=[seed], device=device, directory=directory, **protocol,
        )  # fmt: skip
        save({out: [found]}, directory)
        page = pages.write_page(out)
    where = f"{Path(model).name} on {table.attrs['source']}"
    tables = {"by_state": (f"accuracy of probes by state, mean over tasks: {where}", found.by_state)}
    if not found.general.empty:
        tables["never_seen"] = (f"probes on tasks they have not seen: {where}", found.never_seen)
    removed = f"neurons removed at state {found.provenance['state']}: {where}"
    show(tables | {"ablation": (removed, found.ablated)}, page, as_json=as_json)


def _print_cost(
    model: str, table: Any, states: list[int] | None, methods: list[str], paper: bool, as_json: bool
) -> None:
    from interp.probing.costs import cost, rate
    from interp.probing.sweeps import STRENGTHS

    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    n_tasks = table["UID"].nunique()
    columns = len(STRENGTHS) * (1 if paper else 3) if "l0" in methods else 0
    found = cost(
        model, sentences, n_tasks=n_tasks, columns=columns, n_layers=None if states is None else len(states)
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    speed = rate()
    typer.echo(
        f"{model}: {found.n_states} states of {found.d_model}; {n_tasks} tasks, {len(sentences):,} sentences, about "
        f"{found.n_tokens:,} tokens\n"
        f"hidden states: {found.states_bytes / 2**30:,.2f} GiB on disk, {found.one_state_bytes / 2**30:,.2f} GiB in "
        "memory\n"
        f"forward passes: {found.forward / 1e12:,.1f} TFLOP\n"
        f"L0 probes, {found.columns:,} a state: {found.sparse / 1e12:,.1f} TFLOP\n"
        f"a float32 matrix product runs at {speed / 1e9:,.0f} GFLOP/s here: {found.forward / speed / 3600:,.1f} h and "
        f"{found.sparse / speed / 3600:,.1f} h at that rate"
    )
