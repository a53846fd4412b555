"""A report's tables as Markdown and as LaTeX (package booktabs)."""

from collections.abc import Sequence

from asyncrl.readers.report.tables import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def as_markdown(title: str, remarks: Sequence[str], tables: Sequence[Table]) -> str:
    parts = [f"# {_line(title)}", *(_line(remark) for remark in remarks)]
    for table in tables:
        rows = [table.header, ("---", *("---:" for _ in table.header[1:])), *table.rows]
        lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
        parts += [f"## {_line(table.title)}", "\n".join(lines), *([_line(table.note)] if table.note else [])]
    return "\n\n".join(parts) + "\n"


def as_latex(title: str, remarks: Sequence[str], tables: Sequence[Table]) -> str:
    parts = [f"% {_line(title)}. Needs \\usepackage{{booktabs}}.", *(f"% {_line(text)}" for text in remarks)]
    parts += [_latex_table(table) for table in tables]
    return "\n".join(parts) + "\n"


def _latex_table(table: Table) -> str:
    columns = "l" + "r" * (len(table.header) - 1)
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in (table.header, *table.rows)]
    note = [f"\\par\\footnotesize {_latex(table.note)}"] if table.note else []
    return "\n".join(
        [
            r"\begin{table}",
            f"\\caption{{{_latex(table.title)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *note,
            r"\end{table}",
        ]
    )


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in _line(text))
