from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import DocumentSource, DocumentState
from app.errors import InvalidInput, StorageUnavailable
from app.knowledge import folder_files, folder_sync
from app.knowledge.folder_files import scan_folder
from app.knowledge.folder_sync import FolderSync
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID, Document
from app.store.knowledge.documents import Documents
from app.store.knowledge.limits import KnowledgeLimits
from app.store.knowledge.stored_files import StoredFile, StoredFiles
from testing.fake_engine import FakeEngine


@pytest.fixture
async def database(services: Services) -> Database:
    await services.knowledge.ingest.close()  # it would read the tests' documents
    return services.database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "knowledge"
    (folder / "eu").mkdir(parents=True)
    (folder / "a.md").write_text("A")
    (folder / "eu" / "b.txt").write_text("B")
    return folder


def following(database: Database, folder: Path, max_documents: int | None = None) -> FolderSync:
    documents = Documents(database, KnowledgeLimits(max_documents=max_documents, max_bytes=None))
    return FolderSync(documents, StoredFiles(database), folder, max_file_bytes=1000)


class Clock:
    """The time of the synchronisation, which a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(folder_sync, "monotonic", clock)
    return clock


@pytest.fixture
async def followed(database: Database, folder: Path, clock: Clock) -> FolderSync:
    """The folder's synchronisation, after it has added what is there."""
    sync = following(database, folder)
    for _ in range(2):
        await sync.follow()
    return sync


async def stored(database: Database) -> dict[str, StoredFile]:
    return await StoredFiles(database).all(LOCAL_USER_ID, KNOWLEDGE_COLLECTION_ID)


async def test_new_changed_and_deleted_files_are_followed(database: Database, folder: Path) -> None:
    sync = following(database, folder)
    report = await sync.sync()
    assert (report.added, report.changed, report.removed, report.errors) == (["a.md", "eu/b.txt"], [], [], {})
    assert {one.source for one in (await stored(database)).values()} == {DocumentSource.FOLDER}
    os.utime(folder / "eu" / "b.txt", (1, 1))  # the same content
    (folder / "a.md").write_text("A, changed")
    (folder / "c.html").write_text("<p>C")
    report = await sync.sync()
    assert (report.added, report.changed, report.removed) == (["c.html"], ["a.md"], [])
    (folder / "a.md").unlink()
    report = await following(database, folder).sync()  # after a restart
    assert (report.added, report.changed, report.removed) == ([], [], ["a.md"])
    assert set(await stored(database)) == {"c.html", "eu/b.txt"}


async def test_a_file_that_could_not_be_read_is_read_again_once_it_is_touched(database: Database, folder: Path) -> None:
    sync = following(database, folder)
    await sync.sync()

    async def fail_all() -> None:
        failed = {"state": DocumentState.FAILED.value, "error": "No.", "reader": None, "lease_until": None}
        await database.write(lambda session: session.execute(sa.update(Document).values(failed)))

    await fail_all()
    assert (await sync.sync()).changed == []
    assert (await following(database, folder).sync()).changed == [], "not at each start"
    os.utime(folder / "a.md", (1, 1))
    assert (await sync.sync()).changed == ["a.md"]
    assert {name: one.state for name, one in (await stored(database)).items()} == {
        "a.md": DocumentState.WAITING,
        "eu/b.txt": DocumentState.FAILED,
    }


async def test_documents_that_came_another_way_stay(database: Database, folder: Path) -> None:
    documents = Documents(database)
    await documents.add(LOCAL_USER_ID, None, "a.md", b"uploaded", kind="markdown")
    await documents.add(LOCAL_USER_ID, None, "other.md", b"uploaded", kind="markdown")
    report = await following(database, folder).sync()
    assert (report.added, report.removed) == (["eu/b.txt"], [])
    assert report.errors == {
        "a.md": "a.md is left out: a document of this name came another way. Rename the file.",
    }
    assert (await stored(database))["a.md"].source is DocumentSource.UPLOAD


async def test_an_empty_or_missing_folder_removes_nothing(database: Database, folder: Path) -> None:
    sync = following(database, folder)
    await sync.sync()
    away = folder.rename(folder.with_name("away"))  # noqa: ASYNC240
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        await sync.sync()
    away.with_name("knowledge").mkdir()
    with pytest.raises(InvalidInput, match="not mounted"):
        await sync.sync()
    assert len(await stored(database)) == 2


async def test_a_file_that_is_refused_keeps_no_other_out(database: Database, folder: Path) -> None:
    (folder / "A.txt").write_bytes(b"x" * 1001)
    report = await following(database, folder, max_documents=1).sync()
    assert report.added == ["a.md"]
    assert report.errors["A.txt"].startswith("A.txt is larger than")
    assert "may have no more" in report.errors["eu/b.txt"]


async def test_a_running_server_takes_files_that_have_settled(
    database: Database, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def read(path: Path, name: str, max_bytes: int) -> bytes:
        opened.append(name)
        return folder_files.read_file(path, name, max_bytes)

    monkeypatch.setattr(folder_sync, "read_file", read)
    sync = following(database, folder)
    await sync.follow()
    assert opened == []  # seen once: they may still be being copied
    (folder / "a.md").write_text("A, longer")
    await sync.follow()
    assert opened == ["eu/b.txt"]
    await sync.follow()
    assert opened == ["eu/b.txt", "a.md"]
    await sync.follow()
    assert opened == ["eu/b.txt", "a.md"]  # nothing changed: nothing is opened
    (folder / "a.md").unlink()
    await sync.follow()
    clock.now = folder_sync.REMOVAL_SECONDS - 1
    await sync.follow()
    assert set(await stored(database)) == {"a.md", "eu/b.txt"}
    clock.now = folder_sync.REMOVAL_SECONDS
    await sync.follow()
    assert set(await stored(database)) == {"eu/b.txt"}
    assert opened == ["eu/b.txt", "a.md"]


async def test_a_removal_that_fails_is_tried_again(
    database: Database, folder: Path, followed: FolderSync, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.md").unlink()
    await followed.follow()
    clock.now = folder_sync.REMOVAL_SECONDS

    async def fail(*_: object) -> None:
        raise StorageUnavailable("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "remove", fail)
        with pytest.raises(StorageUnavailable):
            await followed.follow()
    await followed.follow()
    assert set(await stored(database)) == {"eu/b.txt"}


async def test_as_long_as_files_come_back_none_is_removed(
    database: Database, folder: Path, followed: FolderSync, clock: Clock
) -> None:
    (folder / "a.md").unlink()
    await followed.follow()
    for number in range(4):
        clock.now += folder_sync.REMOVAL_SECONDS - 1
        (folder / f"new-{number}.md").write_text("N")
        for _ in range(2):
            await followed.follow()
    assert "a.md" in await stored(database)


async def test_a_file_that_is_copied_anew_keeps_its_document_and_versions(
    database: Database, folder: Path, followed: FolderSync, clock: Clock
) -> None:
    document = (await stored(database))["a.md"].document_id
    for round in range(4):  # missing for long in all, but never at once
        (folder / "a.md").unlink()
        await followed.follow()
        clock.now += folder_sync.REMOVAL_SECONDS - 1
        (folder / "a.md").write_text(f"A {round}")
        for _ in range(2):
            await followed.follow()
    assert (await stored(database))["a.md"].document_id == document


async def test_a_server_follows_its_folder(
    settings: AppSettings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_sync, "SCAN_SECONDS", 0.01)
    services = await Services.open(settings.model_copy(update={"knowledge_dir": folder}), FakeEngine())
    try:
        async with asyncio.timeout(60):
            while len(await stored(services.database)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await services.close()


def test_names_are_shown_as_one_line(folder: Path) -> None:
    (folder / "x\n\x1b[2Jy.md").write_text("X")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")).write_text("Y")
    assert set(scan_folder(folder)) == {"a.md", "eu/b.txt", "x [2Jy.md", "\ufffd.md"}


def test_hidden_files_and_links_out_of_the_folder_are_left_out(tmp_path: Path, folder: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret")
    (folder / "link.md").symlink_to(outside / "secret.md")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    (folder / "inside.md").symlink_to("a.md")
    (folder / "broken.md").symlink_to("nothing.md")
    (folder / "circle.md").symlink_to("circle.md")
    (folder / ".hidden.md").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.md").write_text("hidden")
    (folder / "~$open.docx").write_text("lock")
    (folder / "picture.png").write_text("picture")
    os.mkfifo(folder / "pipe.md")
    assert list(scan_folder(folder)) == ["a.md", "inside.md", "eu/b.txt"]
    (tmp_path / "link").symlink_to(folder)
    assert len(scan_folder(tmp_path / "link")) == 3
