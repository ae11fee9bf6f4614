"""The chat page's modules as one script, and its stylesheets as one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.ui.html_head import ENTRIES, JOINED_FILES, PAGE_SCRIPT
from app.ui.joined_files import JoinedFile, find_modules, join_modules, join_styles, without_comments
from app.ui.static_files import STATIC_DIR
from app.ui.theme import PAGE_STYLE, STYLES

ROOT = STATIC_DIR.parent.parent
NODE = shutil.which("node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "node"


def write(folder: Path, **modules: str) -> Path:
    for name, source in modules.items():
        (folder / f"{name}.js").write_text(source, "utf-8")
    return folder


def run(script: str, *arguments: str, cwd: Path = ROOT) -> str:
    """What a module prints in Node."""
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", script, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_modules_find_what_they_import_and_are_evaluated_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        base="// why\nexport const one = 1;\nconst hidden = 2;\nconsole.log('base');\n",
        kinds="export class A { static a = 1 }\nexport function f() { return 'f'; }\nexport async function g() {}\n",
        library="const x = 3, y = 4;export{x as default,y as other};\n//# sourceMappingURL=library.js.map",
        middle='import three, { other as four } from "./library.js";\nimport {\n  one,\n} from "./base.js";\n'
        'import "./base.js";\nexport { A } from "./kinds.js";\nconst hidden = three + four + one;\n'
        "export const sum = hidden;\nexport const here = import.meta.url;\n",
        entry='import { A, here, sum } from "./middle.js";\nimport { one } from "./base.js";\n'
        "export const all = [A.a, sum, one, here];\n",
    )
    assert find_modules(tmp_path, ["entry.js"])[-1] == "entry.js"
    (tmp_path / "joined.js").write_text(join_modules(tmp_path, ["entry.js", "base.js"]), "utf-8")
    print_all = (
        'const { modules } = await import(process.argv[1]);console.log(JSON.stringify(modules["entry.js"].all));'
        'console.log(JSON.stringify(Object.keys(modules["base.js"])))'
    )
    base, values, names = run(print_all, (tmp_path / "joined.js").as_uri()).splitlines()
    assert base == "base"
    assert json.loads(values) == [1, 8, 1, (tmp_path / "middle.js").as_uri()]
    assert json.loads(names) == ["one"]


@pytest.mark.parametrize(
    "statement",
    [
        "export let a = 1;",
        'import * as all from "./b.js";',
        'export * from "./b.js";',
        "export default 1;",
        'const later = import("./b.js");',
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path: Path, statement: str) -> None:
    write(tmp_path, a=f"const before = 1;\n{statement}\n", b="export const b = 1;\n")
    with pytest.raises(ValueError, match=r"a\.js has a statement that cannot be joined"):
        join_modules(tmp_path, ["a.js"])


def test_a_name_that_is_not_exported_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a='import { b, c } from "./b.js";\n', b="export const b = 1, c = 2;\n")
    with pytest.raises(ValueError, match=r"a\.js takes c from b\.js"):
        join_modules(tmp_path, ["a.js"])


def test_modules_that_import_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a='import { b } from "./b.js";\n', b='import { a } from "./a.js";\n')
    with pytest.raises(ValueError, match=r"import each other: a\.js, b\.js, a\.js"):
        join_modules(tmp_path, ["a.js"])


def test_a_style_finds_its_pictures_from_where_all_are_one(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/a.css").write_text(
        '/* why */\na { background: url("x.svg"); }\nb { background: url(/y.svg); }\n'
    )
    (tmp_path / "b.css").write_text("c { background: url('data:image/svg+xml,z'); }\n")
    assert join_styles(tmp_path, ["shared/a.css", "b.css"]) == (
        'a { background: url("shared/x.svg"); }\nb { background: url(/y.svg); }\n'
        "c { background: url('data:image/svg+xml,z'); }\n"
    )


def test_a_changed_file_makes_it_anew(tmp_path: Path) -> None:
    write(tmp_path, a="export const a = 1;\n")
    names = ["a.js"]
    file = JoinedFile("text/javascript", tmp_path, lambda: names, lambda: join_modules(tmp_path, ["a.js"]))
    first = file.read()
    assert file.read() is first
    write(tmp_path, a="export const a = 1000;\n")
    assert b"1000" in file.read().content
    assert file.read().etag != first.etag


def test_only_comments_are_left_out_of_the_pages_scripts() -> None:
    """By the tokens of a parser: a template literal, for example, could have a line that looks like a comment."""
    names = find_modules(STATIC_DIR, ENTRIES)
    pairs = [
        [source, without_comments(source)] for source in ((STATIC_DIR / name).read_text("utf-8") for name in names)
    ]
    compare = """
    import { readFileSync } from "node:fs";
    import { tokenize } from "./tests/web/node_modules/espree/espree.js";
    const options = { ecmaVersion: "latest", sourceType: "module" };
    const tokens = (source) => JSON.stringify(tokenize(source, options).map(({ type, value }) => [type, value]));
    const pairs = JSON.parse(readFileSync(0, "utf-8"));
    console.log(JSON.stringify(pairs.map(([one, other]) => tokens(one) === tokens(other))));
    """
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", compare],
        cwd=ROOT,
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    same = json.loads(done.stdout)
    assert [name for name, is_same in zip(names, same, strict=True) if not is_same] == []
    assert sum(len(after) for _, after in pairs) < 0.85 * sum(len(before) for before, _ in pairs)


def test_the_page_has_its_scripts_and_styles() -> None:
    script = JOINED_FILES[PAGE_SCRIPT].read().content.decode()
    for entry in ENTRIES:
        assert json.dumps(entry) in script.splitlines()[-1]
    style = JOINED_FILES[PAGE_STYLE].read().content.decode()
    assert style.count("{") == style.count("}") > len(STYLES)
    assert "LICENSE" in script or "Copyright" in script, "of the libraries in it"
