"""Says what a file is that was given as a GGUF file and is none."""

from __future__ import annotations

from pathlib import Path


def describe_other_format(path: Path, start: bytes, size: int) -> str:
    """Returns a sentence on a file that does not begin with GGUF's magic bytes.

    Args:
        start: its first bytes.
        size: its length in bytes.
    """
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer, not the model itself. Fetch the content with: git lfs pull"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"{path} is a web page, not a GGUF file. Download the file itself instead of its page."
    if 0 < int.from_bytes(start[:8], "little") < size and start[8:9] == b"{":
        return f"{path} is a safetensors file. Give the folder that holds it and config.json."
    if start[:4] in (b"tjgg", b"fmgg", b"lmgg"):  # ggjt, ggmf and ggml of early 2023
        return f"{path} is a file of llama.cpp's formats before GGUF. Use a newer file of the model."
    if start.startswith(b"PK\x03\x04"):
        return f"{path} is a zip archive or a PyTorch file, not a GGUF file."
    if not start.strip(b"\0"):
        return f"{path} begins with zeros instead of GGUF's magic bytes: its download is incomplete. Download it again."
    return f"{path} is not a GGUF file: it does not begin with GGUF's magic bytes. Check what was downloaded."
