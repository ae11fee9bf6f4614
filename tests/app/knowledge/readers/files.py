"""Builds files to read, so that no binary file is kept."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

from docx import Document
from docx.enum.style import WD_STYLE_TYPE
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls, qn
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
    return _saved(document)


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


def rich_docx() -> bytes:
    """A DOCX as Word writes it after a review, with content controls, a text box and a table in a cell."""
    document = Document()
    document.add_heading("Terms", 1)
    period = document.add_paragraph("The period is ")
    period._p.append(_xml('<w:ins w:id="1" w:author="x"><w:r><w:t>thirty</w:t></w:r></w:ins>'))
    period._p.append(_xml('<w:del w:id="2" w:author="x"><w:r><w:delText>ten</w:delText></w:r></w:del>'))
    period._p.append(_xml('<w:moveFrom w:id="3" w:author="x"><w:r><w:t>moved away</w:t></w:r></w:moveFrom>'))
    period.add_run("\tdays.")
    document.element.body.insert(
        2, _xml("<w:sdt><w:sdtContent><w:p><w:r><w:t>In a control.</w:t></w:r></w:p></w:sdtContent></w:sdt>")
    )
    name = document.add_paragraph("Name: ")
    name._p.append(_xml("<w:sdt><w:sdtContent><w:r><w:t>inline control</w:t></w:r></w:sdtContent></w:sdt>"))
    box = "<w:txbxContent><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></w:txbxContent>"
    name._p.append(
        _xml(
            "<w:r><mc:AlternateContent><mc:Choice Requires='wps'>"
            f"{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent></w:r>"
        )
    )
    table = document.add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "Both"
    table.cell(0, 2).merge(table.cell(1, 2)).text = "Tall"
    table.cell(1, 0).text = "outer"
    inner = table.cell(1, 0).add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "inner", "also inner"
    return _saved(document)


def _box(text: str, inside: str = "") -> str:
    return f"<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>{text}</w:t></w:r>{inside}</w:p></w:txbxContent></w:pict></w:r>"


def docx_with_boxes() -> bytes:
    document = Document()
    paragraph = document.add_paragraph("Before.")
    paragraph._p.append(_xml(_box("Outer.", _box("Inner."))))
    paragraph._p.append(_xml(f'<w:del w:id="1" w:author="x">{_box("Deleted.")}</w:del>'))
    table = document.add_table(1, 1)
    table.cell(0, 0).text = "Cell."
    table.cell(0, 0).paragraphs[0]._p.append(_xml(_box("In the cell's box.")))
    document.add_paragraph("After.")
    return _saved(document)


def docx_with_span(columns: str) -> bytes:
    """A DOCX with a table whose only cell is as wide as so many columns."""
    document = Document()
    cell = document.add_table(1, 1).cell(0, 0)
    cell.text = "wide"
    cell._tc.get_or_add_tcPr().append(_xml(f'<w:gridSpan w:val="{columns}"/>'))
    return _saved(document)


def nested_html(depth: int) -> bytes:
    """A page whose second paragraph stands in so many elements."""
    text = "<p>You may return anything within thirty days of the day on which it arrived.</p>"
    inner = "<p>Abroad it is ninety days, which are counted from the stamp on the parcel.</p>"
    outside = 3  # html, body and the paragraph itself
    divs = depth - outside
    return f"<!doctype html><html><body>{text}{'<div>' * divs}{inner}{'</div>' * divs}{text}</body></html>".encode()


def nested_docx(controls: int) -> bytes:
    """A DOCX with a paragraph in so many content controls, which are two elements each."""
    document = Document()
    start, end = "<w:sdt><w:sdtContent>" * controls, "</w:sdtContent></w:sdt>" * controls
    document.element.body.insert(0, _xml("<w:sdt/>"))
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_saved(document))) as saved, zipfile.ZipFile(result, "w") as nested:
        for name in saved.namelist():
            content = saved.read(name)
            if name == "word/document.xml":
                paragraph = f"{start}<w:p><w:r><w:t>Deep.</w:t></w:r></w:p>{end}"
                content = re.sub(rb"<w:sdt[^>]*/>", paragraph.encode(), content)
            nested.writestr(name, content)
    return result.getvalue()


def german_docx() -> bytes:
    """A DOCX whose styles have the ids that a German Word gives them."""
    document = Document()
    ids = {"Title": "Titel", "Heading 1": "berschrift1", "Heading 2": "berschrift2", "List Bullet": "Aufzhlungszeichen"}
    for name, id in ids.items():
        document.styles[name].element.set(qn("w:styleId"), id)
    document.styles.add_style("Eigene", WD_STYLE_TYPE.PARAGRAPH).base_style = document.styles["Heading 2"]
    for text, style in (
        ("Handbuch", "Title"),
        ("Rückgabe", "Heading 1"),
        ("In 30 Tagen.", "Normal"),
        ("Ausland", "Eigene"),
        ("Porto", "List Bullet"),
        ("Zoll", "List Bullet"),
    ):
        document.add_paragraph(text, style=style)
    return _saved(document)


def _xml(text: str) -> Any:
    spaces = f'{nsdecls("w")} xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    return parse_xml(re.sub(r"^<([\w:]+)", rf"<\1 {spaces}", text))


def _saved(document: Any) -> bytes:
    result = io.BytesIO()
    document.save(result)
    return result.getvalue()
