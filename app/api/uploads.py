"""Reads the one file of a multipart form, within its limit of size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.auth.request_body import BODY_SECONDS, limit_upload
from app.errors import InvalidInput, StorageUnavailable, TooLarge

_FORM_BYTES = 64 * 1024  # of the form around a file: its boundaries, names and headers


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """The form's field ``file``, and the form with its other fields."""

    name: str  #: as the client says: any text
    content: bytes
    form: FormData


@asynccontextmanager
async def uploaded_file(
    request: Request, max_bytes: int, too_large: TooLarge, at_once: asyncio.Semaphore, *, max_fields: int
) -> AsyncIterator[UploadedFile]:
    """Yields the file of a form. What arrives goes to a temporary file; within the block it is in memory, and stored.

    Args:
        too_large: the error for a file of more than ``max_bytes``.
        at_once: held within the block, so that few files are in memory.
        max_fields: of the form, besides the file.

    Raises:
        InvalidInput: the form is broken, or has no file, or the client left.
        TooLarge: ``too_large``.
        StorageUnavailable: the disk is full.
    """
    limited = limit_upload(request.scope, request.receive, max_bytes + _FORM_BYTES, BODY_SECONDS)
    try:
        async with Request(request.scope, limited).form(max_files=1, max_fields=max_fields) as form, at_once:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidInput("The upload has no file. Send it as the form's field 'file'.")
            content = await file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise too_large
            yield UploadedFile(file.filename or "", content, form)
    except ClientDisconnect as error:
        raise InvalidInput("The upload ended before the end of the file. Nothing was added.") from error
    except HTTPException as error:  # the form cannot be parsed
        raise InvalidInput(f"The upload is not a form with one file ({error.detail}).") from error
    except TooLarge:  # the guard's message is about requests, not files
        raise too_large from None
    except OSError as error:
        raise StorageUnavailable(f"The upload could not be stored ({error.strerror}). Nothing was added.") from error
