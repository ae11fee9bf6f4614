"""Converts the bench's models to the formats that one peer alone has, with that peer's own converter."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.model_files import BenchModel, cache_dir, make_once

CONVERT_FOR_CTRANSLATE2 = """
import sys
from ctranslate2.converters import TransformersConverter
TransformersConverter(sys.argv[1]).convert(sys.argv[2], quantization=sys.argv[3])
"""


def make_ctranslate2(model: BenchModel, format_: str, python: str) -> Path:
    """Makes the model's folder in CTranslate2's format; returns its path.

    Args:
        model: the model.
        format_: int8.
        python: an interpreter that has ``ctranslate2``, ``transformers`` and ``torch``.

    Raises:
        subprocess.CalledProcessError: the converter failed.
    """

    def convert(path: Path) -> None:
        command = [python, "-c", CONVERT_FOR_CTRANSLATE2, str(model.path), str(path), format_]
        subprocess.run(command, check=True, capture_output=True, text=True)

    return make_once(cache_dir() / f"{model.name}-{format_}-ctranslate2", convert)


def make_onnx(model: BenchModel, format_: str, python: str) -> Path:
    """Makes the model's folder for ONNX Runtime GenAI with its model builder; returns its path.

    Weights are quantized in blocks of 32 and multiplied by activations in 8 bits (accuracy level 4), the builder's
    defaults and the fastest on a CPU. The folder ``chat`` has the model for one chat, in which only the last token of a
    prompt goes through the output layer. In ``batch`` each does: in a padded batch the prompts end at different tokens.

    Args:
        model: the model.
        format_: int8 or int4.
        python: an interpreter that has ``onnxruntime_genai``, ``onnx_ir``, ``transformers`` and ``torch``.

    Raises:
        subprocess.CalledProcessError: the builder failed.
    """

    def build(path: Path) -> None:
        for name, prune in (("chat", "true"), ("batch", "false")):
            with TemporaryDirectory() as parts:
                command = [python, "-m", "onnxruntime_genai.models.builder", "-i", str(model.path)]
                command += ["-o", str(path / name), "-p", format_, "-e", "cpu", "-c", parts, "--extra_options"]
                command += ["block_size=32", "accuracy_level=4", f"prune_lm_head={prune}", "hf_token=false"]
                subprocess.run(command, check=True, capture_output=True, text=True)

    return make_once(cache_dir() / f"{model.name}-{format_}-onnx", build)
