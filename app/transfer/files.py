"""Opens a file to import: JSON, or a ZIP archive with JSON files. Its type is told by its bytes, not its name."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from app.errors import BrokenFile, TooLarge
from app.transfer.file_kinds import ACCEPTED, other_kind

MIB = 1024 * 1024
_ARCHIVE_BEGINS = (b"PK\x03\x04", b"PK\x05\x06")
#: The signature of each member's entry in an archive.
_MEMBER = b"PK\x01\x02"
_MAX_MEMBERS = 100_000
_JSON_NAMES = (".json", ".jsonl")


def json_files(file: IO[bytes], name: str, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yields the JSON files in ``file``, each with a name for messages: the file itself, or members of an archive.

    Args:
        max_bytes: size limit of the file, and of all that is unpacked from it.

    Raises:
        BrokenFile: the archive is damaged or encrypted, or the file is an image or the like.
        TooLarge: the file or its unpacked content exceeds ``max_bytes``.
    """
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    if not data.startswith(_ARCHIVE_BEGINS):
        if kind := other_kind(data):
            raise BrokenFile(f"{name} is {kind}, and holds no conversations. {ACCEPTED} Nothing was imported.")
        yield name, data
        return
    if data.count(_MEMBER) > _MAX_MEMBERS:
        raise BrokenFile(f"{name} holds more than {_MAX_MEMBERS:,} files. Unpack it and import the JSON files in it.")
    del data
    file.seek(0)
    remaining_bytes = max_bytes
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if not member.filename.lower().endswith(_JSON_NAMES) or member.is_dir():
                    continue
                with archive.open(member) as opened:
                    content = opened.read(remaining_bytes + 1)
                remaining_bytes -= len(content)
                if remaining_bytes < 0:
                    raise too_large(f"The content of {name}", max_bytes)
                yield f"{member.filename} in {name}", content
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        reason = "it is locked by a password" if "password" in str(error) else f"{error or 'it ends too early'}".lower()
        raise BrokenFile(f"{name} cannot be unpacked: {reason.rstrip('.')}. Nothing was imported.") from error


def too_large(name: str, max_bytes: int) -> TooLarge:
    return TooLarge(
        f"{name} is larger than {max_bytes / MIB:g} MiB, the most that is imported at once. Import it in parts, or "
        "ask an admin to raise APP_MAX_IMPORT_MB."
    )
