"""Files of the widget's visitors."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from app.api.cases.attachments import attachment_response
from app.api.deps import VisitorDep
from app.api.uploads import uploaded_file
from app.api.widget.routes import ContactDep, WidgetDep
from app.domain.attachments import MAX_ATTACHMENT_BYTES, attachment_name, attachment_type
from app.domain.case_views import AttachmentView
from app.errors import TooLarge

router = APIRouter(prefix="/api/widget/attachments", tags=["widget"])

_FORM = {
    "schema": {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
}


@router.post("", status_code=201, openapi_extra={"requestBody": {"content": {"multipart/form-data": _FORM}}})
async def add_attachment(
    request: Request, widget: WidgetDep, visitor: ContactDep, client: VisitorDep
) -> AttachmentView:
    """Stores the file ``file``: a picture, a PDF or a text, by its content. A message sends it."""
    widget.check_upload(visitor, client.address)
    too_large = TooLarge(f"This file is larger than {MAX_ATTACHMENT_BYTES // 2**20} MiB, which is the limit.")
    async with uploaded_file(request, MAX_ATTACHMENT_BYTES, too_large, widget.stored_at_once, max_fields=1) as file:
        type = await asyncio.to_thread(attachment_type, file.content)
        return await widget.cases.attachments.add(visitor.contact_id, attachment_name(file.name), type, file.content)


@router.get("/{attachment_id}", response_class=Response)
async def get_attachment(attachment_id: str, widget: WidgetDep, visitor: ContactDep) -> Response:
    """Returns one of the visitor's own files: a picture to show, anything else to save."""
    widget.check_rate(visitor)
    return attachment_response(*await widget.cases.attachments.read(visitor.contact_id, attachment_id))
