"""`interp models` and `interp corpora`: what there is to name."""

from pathlib import Path

from interp.cli.flags import JsonFlag
from interp.cli.output import show
from interp.paths import BUNDLED, HUB_CORPORA, bundled_models, cached


def models(as_json: JsonFlag = False) -> None:
    """List the models that are here.

    Bundled ones, and those in the hub's cache. Any other hub name is downloaded when it is asked for.
    """
    import pandas as pd

    places = [(name, "bundled", BUNDLED / name) for name in bundled_models()]
    places += [(name, "cached", path) for name, path in cached("models").items()]
    rows = [(name, where, _parameters(path), _size(path), str(path)) for name, where, path in places]
    table = pd.DataFrame(rows, columns=["name", "where", "parameters", "size", "path"]).astype({"parameters": "Int64"})
    show({"models": ("models for --model", table)}, as_json=as_json)


def corpora(as_json: JsonFlag = False) -> None:
    """List the texts and minimal pairs that have a name.

    And whether they are here. Files and other datasets of the hub (owner/name) do as well.
    """
    import pandas as pd

    have, text = cached("datasets"), BUNDLED / "text.txt"
    rows = [("bundled", "--corpus", "bundled", _size(text), str(text))]
    rows += [("bundled", "--pairs", "bundled", "", "generated: interp.corpora.pairs.generate")]
    for name, source in HUB_CORPORA.items():
        path = have.get(source["path"])
        here = ("cached", _size(path)) if path else ("hub", "")
        rows.append((name, "--pairs" if name == "blimp" else "--corpus", *here, source["path"]))
    table = pd.DataFrame(rows, columns=["name", "option", "where", "size", "source"])
    show({"corpora": ("texts for --corpus and minimal pairs for --pairs", table)}, as_json=as_json)


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


def _parameters(path: Path) -> int | None:
    """The number of elements in the safetensors files, from their headers; None where there is none to be read.

    A cached model's are those of its latest snapshot.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    snapshots = sorted(path.glob("snapshots/*"), key=lambda snapshot: snapshot.stat().st_mtime)
    total = 0
    for file in (snapshots[-1] if snapshots else path).rglob("*.safetensors"):
        if file.name == "unigram.safetensors":
            continue
        try:
            with safe_open(file, "np") as tensors:
                total += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
    return total or None
