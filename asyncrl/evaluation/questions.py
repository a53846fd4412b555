"""Questions that a recipe's evaluations ask, to leave them out of what is trained."""

from asyncrl.data.questions import question_digest
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Unanswered, heldout_rows, rows_of
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.evaluation.evaluation_set import SPLIT
from asyncrl.recipe import Recipe


def evaluated_questions(recipe: Recipe) -> set[bytes]:
    """Digests of the questions of data.heldout, evaluation.benchmarks and evaluation.sets: of all their rows.

    Fetches rows that are of a hub. Raises InputError for what cannot be read.
    """
    found: set[bytes] = set()
    sources = (
        [heldout_rows(recipe.data, recipe.verifying, RowUse())] if recipe.data.heldout is not None else []
    )
    for each in benchmarks_of(recipe):
        key = f"the evaluation set {each.name}"
        sources.append(rows_of(each.sources(), key, recipe.verifying, RowUse(), split=SPLIT))
    for rows in sources:
        found.update(question_digest(row.prompt) for row in rows if not isinstance(row, Unanswered))
    return found
