"""Where a run can find itself: in an event loop, in threads, in a spawned process, without a home and with LANG=C."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import interp

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TEXT = ["the boy went home and the girl came in"] * 20
SPAWNED = """
import multiprocessing
import sys

import interp


def ask(model, answers):
    answers.put(interp.frequency.study(model, {text!r}, progress=False).kl.to_csv())


if __name__ == "__main__":
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.Queue()
    process = spawning.Process(target=ask, args=(interp.load("tiny-gpt2"), answers))
    process.start()
    print(answers.get(timeout=240))
    process.join()
"""


@pytest.fixture(scope="module")
def table() -> str:
    return interp.frequency.study(interp.load("tiny-gpt2"), TEXT, progress=False).kl.to_csv()


def test_threads_of_an_event_loop_share_a_model(table: str) -> None:
    model = interp.load("tiny-gpt2")

    async def ask() -> list[interp.frequency.FrequencyStudy]:
        question = interp.frequency.study
        return await asyncio.gather(*(asyncio.to_thread(question, model, TEXT, progress=False) for _ in range(2)))

    assert [effect.kl.to_csv() for effect in asyncio.run(ask())] == [table, table]
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_a_spawned_process_asks_of_a_model_that_it_was_given(table: str, tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED.format(text=TEXT), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == table.strip()


def test_without_a_home_and_a_language(tmp_path: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    text = ["--corpus", "bundled", "--limit", "20"]
    command = ["frequency", "--model", "tiny-gpt2", *text, "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "interp", *command], env=kept | {"LANG": "C"}, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "KL(u‖q)" in done.stdout
