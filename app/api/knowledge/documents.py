"""Knowledge API: documents, their chunks and texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.api.deps import ServicesDep, UserId
from app.api.uploads import uploaded_file
from app.domain.knowledge import ChunkView, DocumentState, DocumentView, TextSpan
from app.domain.text import shown_name
from app.knowledge.readers.kinds import promised_kind

router = APIRouter(prefix="/api/kb/documents", tags=["knowledge"])

_MAX_OFFSET = 2**30
Offset = Annotated[int, Query(ge=0, le=_MAX_OFFSET)]
_FORM = {
    "schema": {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}, "collection": {"type": "string"}},
    }
}


@dataclass(frozen=True, slots=True)
class Added:
    """The version that an upload became; its ``state`` says how far it has been read."""

    id: str
    version: int
    state: DocumentState


@dataclass(frozen=True, slots=True)
class DocumentList:
    documents: tuple[DocumentView, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ChunkList:
    chunks: tuple[ChunkView, ...]
    next_cursor: str | None


@router.post("", status_code=202, openapi_extra={"requestBody": {"content": {"multipart/form-data": _FORM}}})
async def add_document(request: Request, user_id: UserId, services: ServicesDep) -> Added:
    """Adds the file ``file`` to the collection ``collection``, to be read in the background.

    A file of a name that exists there is its new version.
    """
    knowledge = services.knowledge
    at_once, max_bytes = knowledge.stored_at_once, knowledge.max_file_bytes
    async with uploaded_file(request, max_bytes, knowledge.too_large(), at_once, max_fields=4) as file:
        name, collection = _file_name(file.name), file.form.get("collection")
        into = collection if isinstance(collection, str) and collection else None
        added = await knowledge.documents.add(user_id, into, name, file.content, kind=promised_kind(name))
        return Added(added.id, added.version, added.state)


@router.get("")
async def list_documents(
    user_id: UserId, services: ServicesDep, collection: str | None = None, cursor: str | None = None
) -> DocumentList:
    """Lists documents, latest first."""
    page = await services.knowledge.documents.page(user_id, collection, cursor=cursor)
    return DocumentList(page.items, page.next_cursor)


@router.get("/{document_id}")
async def get_document(document_id: str, user_id: UserId, services: ServicesDep) -> DocumentView:
    """Returns a document and how far it has been read."""
    return await services.knowledge.documents.get(user_id, document_id)


@router.delete("/{document_id}", status_code=204)
async def remove_document(document_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Removes a document with all its versions. Replies that cite it keep their quotations."""
    await services.knowledge.documents.remove(user_id, document_id)


@router.get("/{document_id}/chunks")
async def list_chunks(
    document_id: str,
    user_id: UserId,
    services: ServicesDep,
    version: Annotated[int | None, Query(ge=1, le=_MAX_OFFSET)] = None,
    cursor: Offset = 0,
) -> ChunkList:
    """Lists the chunks of a document, in order. Only the version that is searched has chunks."""
    page = await services.knowledge.documents.chunks(user_id, document_id, version=version, cursor=cursor)
    return ChunkList(page.items, page.next_cursor)


@router.get("/{document_id}/text")
async def get_text(
    document_id: str,
    user_id: UserId,
    services: ServicesDep,
    version: Annotated[int | None, Query(ge=1, le=_MAX_OFFSET)] = None,
    start: Offset = 0,
    end: Annotated[int | None, Query(ge=0, le=_MAX_OFFSET)] = None,
) -> TextSpan:
    """Returns a part of a version's text; also of an old version's, which citations may point into."""
    return await services.knowledge.documents.text(user_id, document_id, version=version, start=start, end=end)


def _file_name(path: str) -> str:
    """The last part of a path of any system, as it can be shown."""
    return shown_name(PurePosixPath(path.replace("\\", "/")).name)
