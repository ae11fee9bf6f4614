"""Kinds of files that hold no conversations, told by how they begin."""

from __future__ import annotations

ACCEPTED = "Import a JSON or JSON Lines file, or a ZIP archive with one in it."

_BEGINS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"GIF87a", "a picture (GIF)"),
    (b"GIF89a", "a picture (GIF)"),
    (b"II*\0", "a picture (TIFF)"),
    (b"MM\0*", "a picture (TIFF)"),
    (b"\0\0\x01\0", "a picture (ICO)"),
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "an archive (gzip)"),
    (b"7z\xbc\xaf\x27\x1c", "an archive (7z)"),
    (b"Rar!\x1a\x07", "an archive (RAR)"),
    (b"SQLite format 3\0", "a database (SQLite)"),
    (b"ID3", "a sound (MP3)"),
    (b"OggS", "a sound (Ogg)"),
    (b"fLaC", "a sound (FLAC)"),
)
_PICTURES_IN_A_CONTAINER = (b"avif", b"heic", b"heix", b"mif1")


def other_kind(data: bytes) -> str | None:
    """What ``data`` is, such as ``a picture (PNG)``; None where it may be text."""
    named = next((kind for begins, kind in _BEGINS if data.startswith(begins)), None)
    if named is not None:
        return named
    if data[:4] == b"RIFF":
        return "a picture (WebP)" if data[8:12] == b"WEBP" else "a sound or a film (RIFF)"
    if data[4:8] == b"ftyp":
        return "a picture (HEIF)" if data[8:12] in _PICTURES_IN_A_CONTAINER else "a film (MP4)"
    if data[:2] == b"BM" and b"\0" in data[:14]:
        return "a picture (BMP)"
    text = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in text):
        return "a picture (SVG)"
    if text.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    return None
