"""The picture of imports: what it calls upward, and that nothing in this tree is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "import_picture.py"


def draw(*folder: str) -> str:
    return subprocess.run([sys.executable, SCRIPT, *folder], capture_output=True, text=True, check=True).stdout


def test_no_import_of_this_tree_points_upwards() -> None:
    assert draw().count("0 imports pointing upwards.") == 2


def test_an_upward_import_is_named(tmp_path: Path) -> None:
    files = {
        "engine/low/a.py": "import engine.high.b",  # the one that does not belong
        "engine/low/c.py": "",
        "engine/high/b.py": "import engine.low.a\nimport engine.low.c",
        "app/a.py": "import engine.high.b",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in (path.parent, path.parents[1]):
            if folder != tmp_path:
                (folder / "__init__.py").touch()
    drawn = draw(str(tmp_path))
    assert "1 import pointing upwards:\n      engine.low.a -> engine.high.b" in drawn
    assert "   1  engine.high" in drawn
    assert "   0  engine.low" in drawn
