"""Long commands that are killed, stopped or given a full disk, and restarted, write the same files as undisturbed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from naming import naming
from processes import Command, often, signalled, without_room
from toys import ROOT, run_command

from interp.analyses.probing.states import States
from interp.cli import main
from interp.cli.jobs import Job
from interp.cli.output import unfinished
from interp.passes.checkpoint import Checkpoint, kept
from interp.support import disk
from interp.support.disk import occupied


@pytest.fixture
def commands(hf_directory, texts, tmp_path):
    """Small command lines by name, each with a file that exists once there is something to resume from."""
    (tmp_path / "c.txt").write_text("\n".join(texts * 4))
    pairs = [f'{{"sentence_good": "w1 w{i}", "sentence_bad": "w2 w{i + 1}", "UID": "t"}}' for i in range(30)]
    (tmp_path / "p.jsonl").write_text("\n".join(pairs))
    model = ["--model", str(hf_directory("gpt2"))]
    corpus = ["--corpus", str(tmp_path / "c.txt")]
    read = [*model, *corpus, "--batch-size", "8"]
    return {
        "frequency": (["frequency", *read], ".frequency/pass-1.safetensors"),
        "attention": (["attention", *read], ".attention/pass-1.safetensors"),
        "encoding": (["encoding", *read, "--orders", "random", "--bases", "axis", "--ratios", "2"],
                     ".encoding/pass-1.safetensors"),
        "probing": (["probing", *model, "--pairs", str(tmp_path / "p.jsonl"), "--methods", "dense,random"],
                  ".probing/sweeps/sweep-0.safetensors"),
        "generation": (["generation", *model, "--corpus", str(tmp_path / "c.txt"), "--n", "4", "--prompt-tokens", "3",
                      "--new-tokens", "6", "--decoders", "greedy,sample"], ".generation/greedy-0.0.safetensors"),
        "train": (["train", "--kind", "gpt2", "--corpus", "bundled", "--tokens", "4000", "--batch-size", "4"],
                  "resume.pt"),
    }  # fmt: skip


def slow(*case):
    """A case that only `make slow` runs; `make test` runs the one for another command."""
    return pytest.param(*case, marks=pytest.mark.slow)


def begin(arguments: list[str], out: Path) -> Command:
    return Command([*arguments, "--out", out], prepare=often)


def same(out: Path, whole: Path) -> None:
    """Check that there are the same files and no others, with tables and weights equal bit for bit."""
    found, expected = ({str(p.relative_to(d)): p for p in d.rglob("*") if p.is_file()} for d in (out, whole))
    assert sorted(found) == sorted(expected)
    for name, path in expected.items():
        if path.suffix in (".parquet", ".safetensors"):
            assert found[name].read_bytes() == path.read_bytes(), name


@pytest.mark.parametrize("name", ["attention", *map(slow, ["encoding", "probing", "generation", "train"])])
def test_killed_and_started_again(name, commands, tmp_path):
    """SIGKILL as soon as there is something to resume from; `frequency` is in test_observers."""
    arguments, kept_file = commands[name]
    begin(arguments, tmp_path / "out").when(tmp_path / "out" / kept_file).send(signal.SIGKILL).end(-signal.SIGKILL)
    for folder in ("out", "whole"):
        begin(arguments, tmp_path / folder).end()
    same(tmp_path / "out", tmp_path / "whole")


def test_killed_at_the_very_end(commands, tmp_path, capsys):
    """When everything is written, and only what was kept for resuming still has to be removed."""
    arguments, _ = commands["frequency"]
    out = tmp_path / "out"
    dying = partial(signalled, "shutil:rmtree", 1, signal.SIGKILL, "..frequency")
    Command([*arguments, "--out", out], prepare=dying).end(-signal.SIGKILL)
    assert len(list(out.glob("..frequency*"))) == 1
    assert main([*arguments, "--out", str(out)]) == 2
    assert "already holds frequency" in capsys.readouterr().err
    assert not list(out.glob("..frequency*"))
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    same(out, tmp_path / "whole")


def test_only_the_same_command_continues_saving(commands, tmp_path, capsys, monkeypatch):
    """The mark of a run that was killed while saving keeps any other command from taking its place."""
    arguments, _ = commands["frequency"]
    line = [*arguments, "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        patched.setattr("interp.cli.output.remove", lambda path: None)
        assert main(line) == 0
    mark = tmp_path / "out" / ".frequency" / "saving"
    saving = json.loads(mark.read_text())
    mark.write_text(json.dumps(saving | {"options": saving["options"] | {"model": "tiny-bert"}}))
    assert main(line) == 2
    assert "already holds frequency" in capsys.readouterr().err
    mark.write_text(json.dumps(saving))
    assert main(line) == 0
    assert not mark.parent.exists()


def test_a_second_process_with_the_same_command_is_refused(commands, tmp_path, capsys):
    arguments, kept_file = commands["frequency"]
    out = tmp_path / "out"
    first = begin(arguments, out).when(out / kept_file).send(signal.SIGSTOP)
    assert main([*arguments, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"another process runs interp frequency in {out}; wait until it has ended, or choose another" in said
    first.send(signal.SIGCONT).end()
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    same(out, tmp_path / "whole")


def test_a_result_written_since_the_command_looked_is_kept(commands, tmp_path, capsys, monkeypatch):
    """By a command with other options, which ended while this one was still importing."""
    arguments, _ = commands["frequency"]
    out, other = tmp_path / "out", tmp_path / "other"
    assert main([*arguments, "--out", str(other)]) == 0

    @contextmanager
    def late(*given, **how):
        with occupied(*given, **how):
            shutil.copytree(other, out, dirs_exist_ok=True)
            yield

    monkeypatch.setattr("interp.cli.output.occupied", late)
    assert main([*arguments, "--limit", "20", "--out", str(out)]) == 2
    assert "already holds frequency; choose another --out" in capsys.readouterr().err
    assert not (out / ".frequency").exists()
    same(out, other)


def test_ranks_that_end_leave_the_work_to_the_one_that_still_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("interp.passes.distributed.writes", lambda: False)
    with unfinished(tmp_path, Job("frequency", {}), lambda: None) as directory:
        pass
    assert directory.exists()


def test_ctrl_c(commands, tmp_path):
    arguments, kept_file = commands["frequency"]
    out = tmp_path / "out"
    said = begin(arguments, out).when(out / kept_file).send(signal.SIGINT).end(130)[1]
    assert said.splitlines()[-1].startswith("interp: error: stopped; the same command resumes from")
    assert "Traceback" not in said
    assert not list(out.rglob("*.tmp"))
    assert main([*arguments, "--out", str(out)]) == 0
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    same(out, tmp_path / "whole")


@pytest.mark.parametrize("command", [["-m", "interp", "models"], [str(ROOT / "tools" / "train.py"), "--help"]])
def test_ctrl_c_while_importing(command):
    run = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    maps = Path(f"/proc/{run.pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    while "_ctypes" not in maps.read_text() and run.poll() is None and "_json" not in maps.read_text():
        time.sleep(0.001)
    run.send_signal(signal.SIGINT)
    said = run.communicate()[1]
    assert run.returncode in (0, 130)
    assert "Traceback" not in said


def test_a_full_disk(commands, tmp_path):
    """Files cannot grow any more, so there is no room for a checkpoint."""
    arguments, _ = commands["frequency"]
    out = tmp_path / "out"
    said = Command([*arguments, "--out", out], prepare=without_room).end(3)[1]
    assert said.splitlines()[-1].startswith(f"interp: error: no room to write {out}/.frequency/pass-1.safetensors: ")
    assert not out.exists()
    assert main([*arguments, "--out", str(out)]) == 0


def test_a_folder_takes_the_place_of_another_or_leaves_it(tmp_path):
    target = tmp_path / "t"
    with disk.replacing_directory(target) as temporary:
        (temporary / "a").write_text("first")

    def fail():
        with disk.replacing_directory(target) as temporary:
            (temporary / "a").write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (target / "a").read_text() == "first"
    with disk.replacing_directory(target) as temporary:
        (temporary / "b").write_text("third")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["t", "t/.interp", "t/b"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_folder_is_there_before_and_after(dies, tmp_path, monkeypatch):
    """Ctrl-C or SIGKILL between renaming the old folder and the new one: one of the two has the name afterwards."""
    target = tmp_path / "t"
    with disk.replacing_directory(target) as temporary:
        (temporary / "a").write_text("first")
    code = (
        "import os, signal, sys; from pathlib import Path; from interp.support import disk\n"
        "rename, sent = os.replace, signal.SIGKILL if sys.argv[2] == 'True' else signal.SIGINT\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def replaces(a, b):\n"
        "    rename(a, b)\n"
        "    if Path(b).name == 'old': os.kill(os.getpid(), sent)\n"
        "os.replace = replaces\n"
        "with disk.replacing_directory(Path(sys.argv[1])) as temporary:\n"
        "    (temporary / 'a').write_text('second')\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(target), str(dies)], capture_output=True, check=False)
    assert run.returncode == -(signal.SIGKILL if dies else signal.SIGINT)
    disk.tidy(target)
    assert (target / "a").read_text() == ("first" if dies else "second")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_folder_takes_the_place_of_one_that_another_process_has_just_put_there(tmp_path, monkeypatch):
    target, rename, theirs = tmp_path / "t", os.replace, []

    def late(source, to):
        if Path(to) == target and not theirs:
            theirs.append(target)
            target.mkdir()
            (target / "a").write_text("theirs")
        rename(source, to)

    monkeypatch.setattr(os, "replace", late)
    with disk.replacing_directory(target) as temporary:
        (temporary / "a").write_text("ours")
    assert (target / "a").read_text() == "ours"
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_damaged_tables_are_refused(tmp_path):
    import pandas as pd

    make = lambda: {"t": pd.DataFrame({"x": range(9)})}  # noqa: E731
    checkpoint = Checkpoint(tmp_path / "k.safetensors", {"a": 1})
    assert kept(checkpoint, make)["t"].equals(kept(checkpoint, lambda: {})["t"])
    content = checkpoint.path.read_bytes()
    described = content.index(b'\\"a\\": 1')
    for damaged in (content[:-1], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
                    content[:described + 7] + b"2" + content[described + 8:], b"", b"mine"):  # fmt: skip
        checkpoint.path.write_bytes(damaged)
        with pytest.raises(ValueError, match=naming(checkpoint.path, "checkpoint")):
            kept(checkpoint, make)


def test_damaged_states_are_refused(load_toy, tmp_path):
    import pandas as pd

    from interp.analyses.probing import collect

    pairs = pd.DataFrame({"sentence_good": ["w1 w2"], "sentence_bad": ["w2 w1"], "UID": ["t"]})
    states: States = collect(load_toy("gpt2"), pairs, directory=tmp_path, progress=False)
    states.load(0)
    shard = tmp_path / "states-00000.safetensors"
    content = bytearray(shard.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    content[first] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=naming(shard, "checksum")):
        [states.load(state) for state in states.states]


def test_damaged_training_is_refused(commands, tmp_path, capsys):
    arguments, kept_file = commands["train"]
    out = tmp_path / "out"
    begin(arguments, out).when(out / kept_file).send(signal.SIGKILL).end(-signal.SIGKILL)
    for content in ((out / kept_file).read_bytes()[:-1], b""):
        (out / kept_file).write_bytes(content)
        assert run_command([*arguments, "--out", str(out)]) == 2
        assert "resume.pt is damaged (the checksum does not match)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "function", "calls", "kept_file"),
    [
        ("frequency", "interp.passes.reading:feed", 1, None),
        ("frequency", "interp.passes.reading:feed", 4, ".frequency/pass-1.safetensors"),
        slow("attention", "interp.passes.reading:feed", 8, ".attention/pass-1.safetensors"),
        slow("probing", "interp.analyses.probing.states:forward", 1, None),
        slow("generation", "interp.instruments.decoding:decode_batch", 1, None),
        slow("generation", "interp.instruments.decoding:continuation", 7, ".generation/greedy-0.0.safetensors"),
        slow("train", "training.run:Run.update", 4, "resume.pt"),
    ],
)
def test_ctrl_c_writes_a_checkpoint_first(name, function, calls, kept_file, commands, tmp_path):
    """It does so long before the 20 seconds after which one is written anyway, and the message is true."""
    arguments, _ = commands[name]
    out, whole = tmp_path / "out", tmp_path / "whole"
    stopping = partial(signalled, function, calls, signal.SIGINT)
    error = Command([*arguments, "--out", out], prepare=stopping).end(130)[1]
    assert "Traceback" not in error
    said = error.splitlines()[-1]
    if kept_file is None:
        assert said == "interp: error: stopped with nothing to resume from; the same command starts from the beginning"
        assert not out.exists()
    else:
        assert said.startswith("interp: error: stopped; the same command resumes from ")
        assert (out / kept_file).exists()
    assert run_command([*arguments, "--out", str(out)]) == 0
    assert run_command([*arguments, "--out", str(whole)]) == 0
    same(out, whole)


def test_ctrl_c_while_states_are_collected(load_toy, tmp_path, monkeypatch):
    """The sentences that were read are kept and not read again."""
    import pandas as pd

    from interp.analyses.probing import collect, states

    model = load_toy("gpt2")
    sentences = [" ".join(f"w{i + j}" for j in range(2 + i % 9)) for i in range(40)]
    pairs = pd.DataFrame({"sentence_good": sentences, "sentence_bad": sentences[::-1], "UID": ["t"] * 40})
    monkeypatch.setattr(states, "TOKENS_AT_ONCE", 30)
    real, calls = states.forward, []
    monkeypatch.setattr(states, "forward", lambda *given: (calls.append(given), real(*given)))
    whole = collect(model, pairs, progress=False)
    batches = len(calls)
    assert batches > 20
    calls.clear()

    def stopping(*given):
        calls.append(given)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(states, "forward", stopping)
    with pytest.raises(KeyboardInterrupt):
        collect(model, pairs, directory=tmp_path, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["states-00000.safetensors"]
    found = collect(model, pairs, directory=tmp_path, progress=False)
    assert len(calls) == 1 + batches, "8 before the stop, the one that was stopped, and the rest"
    assert all((found.load(state) == whole.load(state)).all() for state in whole.states)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["states-00000.safetensors"]


def test_sampling_goes_on_with_its_random_numbers(load_toy, tmp_path):
    """Text that was stopped between two batches and then finished is the same as text written in one go."""
    from transformers import GenerationConfig

    from interp.instruments.decoding import decode, resolved

    model = load_toy("gpt2")
    rows = [[7 + i, 9] for i in range(9)]
    config = resolved(model, GenerationConfig(do_sample=True, top_k=0), 6)
    config.use_cache, config.min_new_tokens = True, 6
    options = {"seed": 3, "batch_size": 2}
    whole = decode(model, rows, config, [], **options)
    begun = Checkpoint(tmp_path / "b.safetensors", {"run": 1})
    calls = []

    def stopping(logits, hook):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(model, rows, config, [("unembed.hook_out", stopping)], checkpoint=begun, **options)
    calls.clear()
    assert decode(model, rows, config, [("unembed.hook_out", lambda logits, hook: calls.append(1))], checkpoint=begun,
                  **options) == whole  # fmt: skip
    assert len(calls) == 6 * 3, "two batches of five were there"
    with pytest.raises(ValueError, match=naming(begun.path, "run", 1, 2)):
        decode(model, rows, config, [], checkpoint=Checkpoint(begun.path, {"run": 2}), **options)
    content = bytearray(begun.path.read_bytes())
    content[-1] ^= 1
    begun.path.write_bytes(content)
    with pytest.raises(ValueError, match=naming(begun.path, "checksum")):
        decode(model, rows, config, [], checkpoint=begun, **options)


def test_ctrl_c_waits_for_the_end_of_what_must_not_be_interrupted():
    import threading

    from interp.support.disk import uninterrupted

    done = []

    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("all")
        done.append("too much")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["all"]
    thread = threading.Thread(target=lambda: uninterrupted().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
