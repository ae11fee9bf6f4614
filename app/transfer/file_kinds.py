"""Recognises files that hold no conversations by their first bytes."""

from __future__ import annotations

ACCEPTED = "Import a JSON or JSON Lines file, or a ZIP archive with one in it."

_BEGINS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "an image (PNG)"),
    (b"\xff\xd8\xff", "an image (JPEG)"),
    (b"GIF87a", "an image (GIF)"),
    (b"GIF89a", "an image (GIF)"),
    (b"II*\0", "an image (TIFF)"),
    (b"MM\0*", "an image (TIFF)"),
    (b"\0\0\x01\0", "an image (ICO)"),
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "an archive (gzip)"),
    (b"7z\xbc\xaf\x27\x1c", "an archive (7z)"),
    (b"Rar!\x1a\x07", "an archive (RAR)"),
    (b"SQLite format 3\0", "a database (SQLite)"),
    (b"ID3", "an audio file (MP3)"),
    (b"OggS", "an audio file (Ogg)"),
    (b"fLaC", "an audio file (FLAC)"),
)
_HEIF_BRANDS = (b"avif", b"heic", b"heix", b"mif1")


def other_kind(data: bytes) -> str | None:
    """The kind of file, such as ``an image (PNG)``; None if ``data`` may be text."""
    named = next((kind for begins, kind in _BEGINS if data.startswith(begins)), None)
    if named is not None:
        return named
    if data[:4] == b"RIFF":
        return "an image (WebP)" if data[8:12] == b"WEBP" else "an audio or video file (RIFF)"
    if data[4:8] == b"ftyp":
        return "an image (HEIF)" if data[8:12] in _HEIF_BRANDS else "a video (MP4)"
    if data[:2] == b"BM" and b"\0" in data[:14]:
        return "an image (BMP)"
    text = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in text):
        return "an image (SVG)"
    if text.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    return None
