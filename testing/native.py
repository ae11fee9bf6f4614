"""Skip marks and number formats for tests of the C++ decoder."""

from __future__ import annotations

import pytest
import torch

from engine.execution.native.compiler import NotCompiled, find_compiler


def _compiler_missing_because() -> str | None:
    try:
        find_compiler()
    except NotCompiled as reason:
        return str(reason)
    return None


_MISSING = _compiler_missing_because()

HAS_COMPILER = _MISSING is None
needs_compiler = pytest.mark.skipif(_MISSING is not None, reason=f"the C++ decoder cannot be built here: {_MISSING}")

needs_8_bits = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this CPU has no VNNI instructions")

#: Fields of ``EngineSettings`` for each number format, and the largest error of its logits.
FORMATS = [
    pytest.param({"dtype": "float32"}, 1e-5, id="float32"),
    pytest.param({"dtype": "bfloat16"}, 0.03, id="bfloat16"),
    pytest.param({"dtype": "bfloat16", "quantization": "int8"}, 0.1, id="int8"),
    pytest.param({"dtype": "bfloat16", "quantization": "int4"}, 0.1, id="int4"),
]
