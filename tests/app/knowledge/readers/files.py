"""Builds files to read, so that no binary file is kept."""

from __future__ import annotations

import io
import zipfile

from docx import Document
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(*pages: str, password: str | None = None, title: str | None = None) -> bytes:
    """A PDF of pages with these lines; an empty page has none."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for lines in pages:
        page = writer.add_blank_page(600, 800)
        shown = " ".join(f"({line}) Tj 0 -20 Td" for line in lines.splitlines())
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 50 700 Td {shown} ET".encode("latin-1"))
        page[NameObject("/Contents")] = writer._add_object(content)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    result = io.BytesIO()
    writer.write(result)
    return result.getvalue()


def docx() -> bytes:
    """A DOCX with headings, a list and a table."""
    document = Document()
    document.core_properties.title = "Returns"
    document.add_heading("Refunds", 1)
    document.add_paragraph("A refund takes five days.")
    document.add_heading("By card", 2)
    document.add_paragraph("Keep the slip.", style="List Bullet")
    document.add_paragraph("Call us.", style="List Bullet")
    table = document.add_table(2, 2)
    for cell, text in zip(
        (cell for row in table.rows for cell in row.cells), ("Plan", "Days", "Basic", "5"), strict=True
    ):
        cell.text = text
    result = io.BytesIO()
    document.save(result)
    return result.getvalue()


def docx_bomb(unpacked_bytes: int) -> bytes:
    """A small DOCX whose body unpacks to this size."""
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * unpacked_bytes)
    return result.getvalue()


MARKDOWN = b"""---
title: "Shipping"
---
# Where we ship

Everywhere.

## Times

- Europe: 3 days
  or 4
- Asia: 9 days

| Plan | Days |
| --- | --- |
| Fast | 1 |

```sh
# not a heading
track 12
```

## Nothing here
"""

HTML = b"""<!doctype html><html><head><title>Returns policy</title></head><body>
<nav><a href="/">Home</a> <a href="/shop">Shop</a></nav><main><article><h1>Returns policy</h1>
<p>You may return anything within thirty days of the day on which it arrived, as long as it is whole and clean.</p>
<h2>How to return</h2><p>Write to us first, and we send a label by mail, which is glued on the parcel at home.</p>
<ul><li>Print the label</li><li>Close the parcel</li></ul>
<table><tr><th>Country</th><th>Days</th></tr><tr><td>France</td><td>30</td></tr></table>
</article></main><footer>Copyright</footer></body></html>"""

CSV = b'Question;Answer\n"How long; really?";"Five days.\nOr six."\nOnly asked;\n'
