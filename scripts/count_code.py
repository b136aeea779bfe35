"""Size and granularity of the code: lines, files, functions, classes, and their lengths.

python -m scripts.count_code indexer query         # or any other folder of Python
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path

ROW = "{:<44}{:>10}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the folders named on the command line, then lines by folder."""
    roots = [Path(one) for one in (sys.argv[1:] if arguments is None else arguments)] or [
        Path("indexer"),
        Path("query"),
    ]
    files = sorted(path for root in roots for path in root.rglob("*.py"))
    for name, value in counts(files).items():
        print(ROW.format(name, value))
    print()
    folders: dict[Path, int] = {}
    for path in files:
        folders[path.parent] = folders.get(path.parent, 0) + len(path.read_text(encoding="utf-8").splitlines())
    for folder, lines in sorted(folders.items()):
        print(ROW.format(str(folder), f"{lines:,}"))
    return 0


def counts(files: Iterable[Path]) -> dict[str, str]:
    """The figures of some files, as text."""
    lines = code = blank = imports = number = classes = data_classes = public = 0
    functions: list[int] = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        number += 1
        lines += len(text.splitlines())
        blank += sum(not line.strip() for line in text.splitlines())
        marked = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        imports += len(marked)
        code += len(_lines_of_code(text, tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.ClassDef):
                classes += 1
                data_classes += any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        public += sum(not name.startswith("_") for node in tree.body for name in _names(node))
    return {
        "lines": f"{lines:,}",
        "files": f"{number:,}",
        "lines a file": f"{lines / max(number, 1):.0f}",
        "functions": f"{len(functions):,}",
        "functions per 1,000 lines": f"{1000 * len(functions) / max(lines, 1):.1f}",
        "mean / median function, lines": f"{statistics.fmean(functions):.1f} / {statistics.median(functions):.0f}",
        "lines that are code": f"{code / max(lines, 1):.0%}",
        "blank and import lines": f"{(blank + imports) / max(lines, 1):.0%}",
        "classes / data classes": f"{classes:,} / {data_classes:,}",
        "public top-level names": f"{public:,}",
    }


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _lines_of_code(text: str, tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold a token of code: no comment, docstring, import or blank line."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_import or is_text:
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    sys.exit(main())
