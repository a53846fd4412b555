"""Tables as Markdown and LaTeX."""

from asyncrl.readers.report.tables import Table
from asyncrl.readers.report.text import as_latex, as_markdown

TABLE = Table("A & B", ("", "50% | x"), (("a_b", "1 ± 2"), ("<i>", "\\x{}")), "note #1")


def test_markdown_keeps_its_columns_whatever_stands_in_them() -> None:
    assert as_markdown("t", ["not finished"], [TABLE]) == (
        "# t\n\nnot finished\n\n## A & B\n\n"
        "|  | 50% \\| x |\n| --- | ---: |\n| a_b | 1 ± 2 |\n| &lt;i> | \\\\x{} |\n\nnote #1\n"
    )


def test_latex_escapes_what_it_would_read_as_commands() -> None:
    text = as_latex("t", [], [TABLE])
    assert "\\caption{A \\& B}" in text and " & 50\\% | x \\\\" in text
    assert "a\\_b & 1 $\\pm$ 2 \\\\" in text
    assert "\\textless{}i\\textgreater{} & \\textbackslash{}x\\{\\} \\\\" in text
    assert "note \\#1" in text and text.count("\\begin{tabular}{lr}") == 1
