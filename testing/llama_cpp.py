"""Asks llama.cpp what it makes of a GGUF file: the witness that our reading of it is right.

Runs in a process of its own, in the interpreter of ``BENCH_LLAMA_PYTHON`` (by default this one), because its package is
no dependency of Deskmate: ``pip install llama-cpp-python``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_PROGRAM = """
import ctypes, json, sys
import numpy as np
import llama_cpp

def model(path, **options):
    return llama_cpp.Llama(path, verbose=False, n_threads=2, **options)

def tokenize(path, texts):
    vocabulary = model(path, vocab_only=True)
    return [vocabulary.tokenize(text.encode(), add_bos=True, special=True) for text in texts]

def logits(path, ids, target):
    read = model(path, logits_all=True, n_ctx=256, n_batch=256, flash_attn=False)
    read.eval(ids)
    np.save(target, np.array(read.scores[: len(ids)]))

def greedy(path, ids, count):
    read = model(path, logits_all=True, n_ctx=512)
    read.eval(ids)
    new = []
    for _ in range(count):
        new.append(int(np.argmax(read.scores[read.n_tokens - 1])))
        read.eval(new[-1:])
    return new

def quantize(source, target, kind):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = kind, 2
    assert llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) == 0

job = json.load(sys.stdin)
print("\\n" + json.dumps(globals()[job["call"]](*job["arguments"])))
"""


def require_llama_cpp() -> None:
    """Skips the test if llama.cpp is not installed."""
    if not _is_installed():
        pytest.skip("llama-cpp-python is not installed; BENCH_LLAMA_PYTHON may name an interpreter that has it")


def tokenize(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of texts, with ``bos`` where the file asks for it."""
    ids: list[list[int]] = _ask("tokenize", str(path), list(texts))
    return ids


def logits(path: Path, ids: Sequence[int]) -> Any:
    """Returns float32 ``[len(ids), vocabulary]``."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "logits.npy")
        _ask("logits", str(path), list(ids), str(target))
        return np.load(target)


def greedy(path: Path, ids: Sequence[int], count: int) -> list[int]:
    """Returns the tokens that follow with temperature 0."""
    new: list[int] = _ask("greedy", str(path), list(ids), count)
    return new


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Writes a model in another format, such as file type 15, ``Q4_K_M``."""
    _ask("quantize", str(source), str(target), file_type)


def _python() -> str:
    return os.environ.get("BENCH_LLAMA_PYTHON", sys.executable)


@cache
def _is_installed() -> bool:
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"
    return Path(_python()).exists() and subprocess.run([_python(), "-c", look], cwd="/").returncode == 0


def _ask(call: str, *arguments: object) -> Any:
    job = json.dumps({"call": call, "arguments": arguments})
    done = subprocess.run([_python(), "-c", _PROGRAM], input=job, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
