"""Chat API: export and import of conversations."""

from __future__ import annotations

import tempfile
from typing import IO

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from app.api.chat.conversations import ChosenConversations
from app.api.deps import ServicesDep, UserId
from app.errors import InvalidInput, StorageUnavailable, TooLarge
from app.store.chat.transfer import ImportCounts
from app.transfer.filenames import attachment
from app.transfer.service import Export, ExportFormat

router = APIRouter(prefix="/api", tags=["transfer"])


class ChosenExport(ChosenConversations):
    """Some of the caller's conversations, and the form of their file."""

    format: ExportFormat = "json"


_FILE = {"schema": {"type": "string", "format": "binary"}}


@router.get("/conversations/{conversation_id}/export", response_class=StreamingResponse)
async def export_conversation(
    conversation_id: str, user_id: UserId, services: ServicesDep, format: ExportFormat = "json"
) -> StreamingResponse:
    """Exports a conversation: as ``json`` with every version of each message, or its shown branch as ``markdown``."""
    return _download(await services.transfers.export_one(user_id, conversation_id, format))


@router.get("/export", response_class=StreamingResponse)
async def export_conversations(
    user_id: UserId, services: ServicesDep, format: ExportFormat = "json"
) -> StreamingResponse:
    """Exports every conversation: as one ``json`` document, or as an archive with a ``markdown`` file for each."""
    return _download(await services.transfers.export_all(user_id, format))


@router.post("/export", response_class=StreamingResponse)
async def export_chosen(chosen: ChosenExport, user_id: UserId, services: ServicesDep) -> StreamingResponse:
    """Exports some conversations, as ``GET /api/export`` does all of them. Those that are missing are left out."""
    return _download(await services.transfers.export_some(user_id, chosen.ids, chosen.format))


@router.post("/import", openapi_extra={"requestBody": {"content": {"application/octet-stream": _FILE}}})
async def import_conversations(request: Request, user_id: UserId, services: ServicesDep) -> ImportCounts:
    """Imports the file sent as the body: Deskmate's own JSON, ChatGPT's or Open WebUI's export, ShareGPT.

    Adds all conversations that do not exist yet, or none if the file is malformed.
    """
    with services.transfers.receiving(user_id), _put_aside() as file:
        try:
            async for piece in request.stream():
                file.write(piece)
            file.seek(0)
        except TooLarge as error:  # the guard's message is about requests, not files
            raise services.transfers.too_large() from error
        except ClientDisconnect as error:
            raise InvalidInput("The upload ended before the end of the file. Nothing was imported.") from error
        except OSError as error:
            raise _no_room(error) from error
        return await services.transfers.import_file(user_id, file)


def _put_aside() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(f"The upload could not be stored ({error.strerror}). Nothing was imported.")


def _download(export: Export) -> StreamingResponse:
    return StreamingResponse(
        export.pieces, media_type=export.media_type, headers={"Content-Disposition": attachment(export.name)}
    )
