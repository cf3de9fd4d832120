"""What names and paths stand for (models, corpora, token counts), and optional packages. Imports nothing heavy.

The command line checks its arguments here before torch is imported; `models` and `corpora` use the same checks.
"""

import importlib.util
import json
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from interp.support.words import argument, meant

__all__ = ["BUNDLED", "HUB_CORPORA", "HUB_PAIRS", "TEXT_SUFFIXES", "bundled_models", "cached", "check_matplotlib"]
__all__ += [
    "adapter_directory",
    "check_mauve",
    "check_no_adapter",
    "corpus_file",
    "hub_answers",
    "is_counts",
    "is_gguf",
]
__all__ += ["local_path", "model_directory"]
__all__ += ["printable", "published_pairs", "short_name", "text_suffix"]
__dir__ = __all__.copy

BUNDLED = Path(__file__).parents[1] / "bundled"
"""The folder of the models and texts that ship with the package."""
TEXT_SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""The endings of text files. Each may be followed by `.gz`."""
_HUB_SECONDS = 3.0
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_MODEL = re.compile(r"[^\s./~][^/]*(/[^/]+)?")
_HUB_DATASET = re.compile(r"\w[\w.-]*/\w[\w-]*")

_WEBTEXT_TEST = "https://openaipublic.azureedge.net/gpt-2/output-dataset/v1/webtext.test.jsonl"
HUB_CORPORA: dict[str, dict[str, Any]] = {
    "openwebtext": {"path": "Skylion007/openwebtext", "split": "train", "column": "text"},
    "wikipedia": {"path": "wikimedia/wikipedia", "name": "20231101.en", "split": "train", "column": "text"},
    "bookcorpus": {"path": "rojagtap/bookcorpus", "split": "train", "column": "text"},
    "webtext": {"path": "json", "data_files": _WEBTEXT_TEST, "split": "train", "column": "text"},
    "stsb": {"path": "sentence-transformers/stsb", "split": "validation", "column": "sentence1"},
    "blimp": {"path": "nyu-mll/blimp", "split": "train", "column": "sentence_good"},
}
"""Named corpora: the arguments of `datasets.load_dataset`, and the column that holds the text."""
HUB_PAIRS = {"blimp": "nyu-mll/blimp", "jblimp": "polm-stability/jblimp", "multiblimp": "jumelet/multiblimp"}
"""Named minimal pairs and their datasets on the hub. multiblimp is named with a language: `multiblimp/deu`."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home directory in place of a `~` at its beginning.

    Examples:
        >>> local_path("~/runs") == Path.home() / "runs", local_path("runs/~")
        (True, PosixPath('runs/~'))
    """
    return Path(os.path.expanduser(path))


def bundled_models() -> list[str]:
    """Return the names of the models that ship with the package.

    Examples:
        >>> bundled_models()
        ['tiny-bert', 'tiny-gpt2']
    """
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


def cached(kind: Literal["models", "datasets"]) -> dict[str, Path]:
    """Return the directories of the models or datasets in the hub's cache (`HF_HOME`), by name.

    Examples:
        >>> all(directory.is_dir() for directory in cached("models").values())
        True
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    snapshots = sorted(Path(HF_HUB_CACHE).glob(f"{kind}--*/snapshots/*"))
    return {path.parents[1].name.removeprefix(f"{kind}--").replace("--", "/"): path.parents[1] for path in snapshots}


def hub_answers() -> bool:
    """Whether the hub can be reached. Asks once, for at most three seconds; never if `HF_HUB_OFFLINE` is set."""
    from huggingface_hub import constants, get_session, is_offline_mode

    with suppress(Exception):  # whatever the HTTP library of the installed huggingface_hub raises
        if not is_offline_mode():
            get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
            return True
    return False


def _check_hub(kind: Literal["models", "datasets"], name: str, expected: str) -> None:
    """Raise FileNotFoundError for a name that is not in the cache while the hub cannot be reached."""
    if hub_answers():
        return
    names = cached(kind)
    may_be_short = kind == "models" and "/" not in name and bool(names)
    if name not in names and not may_be_short:
        local = bundled_models() if kind == "models" else [*HUB_CORPORA, *HUB_PAIRS]
        subject = f"{kind.removesuffix('s')} {name!r}{meant(name, [*local, *names])}"
        problem = f"{subject} is no local {'directory' if kind == 'models' else 'file'}"
        reason = "it is not in the hub's cache and the hub cannot be reached"
        raise FileNotFoundError(f"{problem}, {reason}; connect to the network, or give {expected}")


def model_directory(name: str, *, weights: bool = True) -> Path | None:
    """Return the directory of a bundled or local model, or its GGUF file, or None for a hub name. With `weights=False`
    its config is enough.

    Raises:
        FileNotFoundError: there is no such directory, or no config.json or weights in it; or the name is a hub name
            that is not in the cache, and the hub cannot be reached.
        ValueError: the weights are pickled, an adapter is there instead of them or beside them, config.json is not JSON
            or does not name a kind of model, there are several GGUF files, or gguf is not installed.

    Examples:
        >>> model_directory("tiny-gpt2") == BUNDLED / "tiny-gpt2"
        True
    """
    path = BUNDLED / name if name in bundled_models() else local_path(name)
    exists = bool(name.strip()) and os.path.exists(path)
    if not exists and _HUB_MODEL.fullmatch(name):
        _check_hub("models", name, "a directory (config.json, model.safetensors) or a bundled model")
        return None
    if is_gguf(path) and exists:
        return _readable_gguf(path)
    if not exists or not path.is_dir():
        expected = "a Hugging Face directory with config.json, a .gguf file, a hub name or one of "
        expected += ", ".join(bundled_models())
        problem = "is a file, not a directory" if exists else "does not exist"
        raise FileNotFoundError(f"model {name!r}{meant(name, bundled_models())} {problem}; expected {expected}")
    check_no_adapter(path)
    config = path / "config.json"
    in_gguf = sorted(path.glob("*.gguf"))
    if not config.is_file() and len(in_gguf) == 1:
        return _readable_gguf(in_gguf[0])
    if in_gguf and (not config.is_file() or not any(path.glob("*.safetensors"))):
        names = ", ".join(file.name for file in in_gguf)
        raise ValueError(f"{path} has weights as GGUF alone ({names}); give the path of one of these files")
    if not config.is_file():
        raise FileNotFoundError(f"{path} has no config.json; expected a Hugging Face model directory")
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{config} is not valid JSON ({error})") from None
    if weights and not any(path.glob("*.safetensors")):
        if pickled := ", ".join(sorted(item.name for item in path.iterdir() if item.suffix in _PICKLED)):
            remedy = "save the model as safetensors with transformers: model.save_pretrained(directory)"
            raise ValueError(f"{path} has only pickled weights ({pickled}), which can run code when read; {remedy}")
        raise FileNotFoundError(f"{path} has no weights; expected model.safetensors")
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise ValueError(f"{config} names no model_type; expected the config.json of a transformers model")
    return path


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a GGUF file, judged by its ending.

    Examples:
        >>> is_gguf("SmolLM2-135M.Q4_1.gguf"), is_gguf("tiny-gpt2")
        (True, False)
    """
    return str(path).lower().endswith(".gguf") and not os.path.isdir(path)


def _readable_gguf(path: Path) -> Path:
    """The path of a GGUF file. Raises ValueError for another kind of file, and if gguf is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"reading {path} needs gguf, which is not installed; pip install 'interp[gguf]'")
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(4)
    if start != b"GGUF":
        raise ValueError(f"{path} is no GGUF file: it begins with {start!r}, expected b'GGUF'")
    return path


def adapter_directory(name: str) -> Path:
    """Return the directory of an adapter of PEFT.

    Raises FileNotFoundError if there is no such directory or no adapter in it, and ValueError if its weights are
    pickled or PEFT is not installed.
    """
    path = local_path(name)
    if not (path / "adapter_config.json").is_file():
        problem = "has no adapter_config.json" if path.is_dir() else "is no directory"
        raise FileNotFoundError(f"adapter {name!r} {problem}; expected a directory that PEFT's save_pretrained wrote")
    if importlib.util.find_spec("peft") is None:
        raise ValueError(f"merging {path} needs peft, which is not installed; pip install 'interp[peft]'")
    if not (path / "adapter_model.safetensors").is_file():
        if (path / "adapter_model.bin").is_file():
            content = "only pickled weights (adapter_model.bin), which can run code when read"
            raise ValueError(f"{path} has {content}; save the adapter again with PEFT, as safetensors")
        raise FileNotFoundError(f"{path} has no adapter_model.safetensors, the weights of the adapter")
    return path


def check_no_adapter(directory: Path, hub_name: str | None = None) -> None:
    """Raise ValueError for a directory with a PEFT adapter, alone or beside the weights of a model.

    transformers would add an adapter to the weights beside it, even if they contain it already.

    Args:
        hub_name: the name of the model on the hub, if the directory is in the hub's cache.

    Examples:
        >>> check_no_adapter(BUNDLED / "tiny-gpt2")  # has none
    """
    if not (directory / "adapter_config.json").is_file():
        return
    adapter = _settings(directory / "adapter_config.json")
    kind, base = str(adapter.get("peft_type")), str(adapter.get("base_model_name_or_path"))
    name = hub_name or str(directory)
    folder = f"{short_name(name) if hub_name else name}-adapter"
    merge = argument("adapter", folder if hub_name else name)
    config = _settings(directory / "config.json")
    if not config or not {path.stem for path in directory.glob("*.safetensors")} - {"adapter_model"}:
        problem = f"{name} is an adapter (PEFT, {kind}) of {base!r} and not a model; load that model with {merge}"
        download = f", after: hf download {name} --include 'adapter_*' --local-dir {folder}" if hub_name else ""
        raise ValueError(problem + download)
    if hub_name:
        target = short_name(name)
        base_alone = f"hf download {name} --exclude 'adapter_*' --local-dir {target}"
        adapter_alone = f"hf download {name} --include 'adapter_*' --local-dir {folder}"
    else:
        target = name
        quoted = shlex.quote(folder)
        base_alone = adapter_alone = f"mkdir {quoted} && mv {shlex.quote(name)}/adapter_* {quoted}"
    problem = f"{name} has an adapter (PEFT, {kind}) beside its weights, which transformers would add to them"
    remedy = f"If the weights contain it already: {base_alone} . If not: {adapter_alone} and then load {target} with "
    raise ValueError(f"{problem}; expected only one of the two. {remedy}{argument('adapter', folder)}")


def _settings(path: Path) -> dict[str, Any]:
    """What a JSON file says, or nothing if it is not an object or cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        settings = json.loads(path.read_text(encoding="utf-8"))
        return settings if isinstance(settings, dict) else {}
    return {}


def printable(name: str) -> str:
    """Return a file's name, with a replacement character for bytes that are not UTF-8.

    Examples:
        >>> printable(os.fsdecode(b"caf\\xe9.txt"))  # Latin-1
        'caf�.txt'
    """
    return os.fsencode(name).decode("utf-8", "replace")


def short_name(name: str) -> str:
    """Return the last part of a hub name or directory, used as the name of a model. It is never `.` or `..`.

    Examples:
        >>> short_name("EleutherAI/pythia-70m")
        'pythia-70m'
    """
    last = Path(name).name
    return Path(name).resolve().name if last in ("", "..") else last


def corpus_file(name: str) -> Path | None:
    """Return the file of a local or bundled corpus, or None for a name on the hub.

    Raises:
        FileNotFoundError: there is no such file or name, or the dataset is not in the cache and the hub cannot be
            reached.
        ValueError: the file is empty or of an unknown kind.

    Examples:
        >>> corpus_file("bundled") == BUNDLED / "text.txt"
        True
    """
    path = BUNDLED / "text.txt" if name == "bundled" else local_path(name)
    exists = bool(name) and os.path.exists(path)  # the path of no name is the working directory
    if not exists and (name in HUB_CORPORA or _HUB_DATASET.fullmatch(name)):
        dataset = HUB_CORPORA.get(name, {"path": name})["path"]
        if dataset != "json" and not os.path.isdir(dataset):
            _check_hub("datasets", dataset, f"a file ({', '.join(TEXT_SUFFIXES)}) or 'bundled'")
        return None
    if not os.path.isfile(path):
        problem = (
            "does not exist" if not exists else "is a directory" if os.path.isdir(path) else "is not a regular file"
        )
        excerpt = name if len(name) <= 300 else f"{name[:150]}…{name[-150:]}"
        named = f"'bundled', one of {', '.join(HUB_CORPORA)}, or a hub dataset 'owner/name'"
        expected = f"a {', '.join(TEXT_SUFFIXES)} file (or .gz of one), {named}"
        if not exists and re.search(r"\s", name):
            expected += "; if it is a text itself, put it in a file or, in Python, give a list of strings"
        suggestion = meant(name, ["bundled", *HUB_CORPORA])
        raise FileNotFoundError(f"corpus {excerpt!r}{suggestion} {problem}; expected {expected}")
    text_suffix(path)
    if path.stat().st_size == 0:
        raise ValueError(f"corpus {path} is empty: it has no text in it")
    return path


def published_pairs(name: str) -> bool:
    """Whether a name stands for published minimal pairs on the hub and not for a file.

    Raises FileNotFoundError if they are not in the cache and the hub cannot be reached.

    Examples:
        >>> published_pairs("my_pairs.csv")
        False
    """
    dataset = HUB_PAIRS.get(name.partition("/")[0])
    if dataset is None or os.path.exists(name):
        return False
    if not os.path.isdir(dataset):
        _check_hub("datasets", dataset, "the path of the files of these pairs, or 'bundled'")
    return True


def is_counts(name: str) -> bool:
    """Whether a name is that of a file of token counts, judged by its ending. Raises FileNotFoundError if there is no
    such file.

    Examples:
        >>> is_counts(str(BUNDLED / "tiny-gpt2" / "unigram.safetensors"))
        True
        >>> is_counts("wikipedia")
        False
    """
    path = local_path(name)
    if path.suffix not in (".safetensors", ".json"):
        return False
    if not path.is_file():
        raise FileNotFoundError(f"unigram counts {name!r} do not exist; expected a file of counts or a corpus")
    return True


def text_suffix(path: Path) -> str:
    """Return the ending of a text file, without `.gz`, in small letters. Raises ValueError if it is unknown.

    Examples:
        >>> text_suffix(Path("texts.jsonl.gz")), text_suffix(Path("TEXT.TXT"))
        ('.jsonl', '.txt')
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in TEXT_SUFFIXES:
        raise ValueError(f"{path} has an unknown ending; expected one of {', '.join(TEXT_SUFFIXES)}, or .gz")
    return suffix


def check_mauve() -> None:
    """Raise ValueError unless mauve-text, which is optional, is installed."""
    if importlib.util.find_spec("mauve") is None:
        raise ValueError("MAUVE needs mauve-text, which is not installed; pip install 'interp[mauve]'")


def check_matplotlib() -> None:
    """Raise ValueError unless matplotlib, which is optional, is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("figures for a paper need matplotlib, which is not installed; pip install 'interp[figures]'")
