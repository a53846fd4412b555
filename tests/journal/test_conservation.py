"""The books: every generated token has one fate."""

from asyncrl.journal.conservation import Conservation


def test_balanced_books_miss_nothing() -> None:
    books = Conservation({"generated": 10, "trained": 7, "queued": 1, "dropped: stale": 2})
    assert books.missing_tokens() == 0


def test_a_token_nobody_accounts_for_is_missing_and_one_counted_twice_is_negative() -> None:
    assert Conservation({"generated": 10, "trained": 7}).missing_tokens() == 3
    assert Conservation({"generated": 10, "trained": 7, "queued": 4}).missing_tokens() == -1


def test_fates_come_with_their_share_trained_first_then_the_largest() -> None:
    books = Conservation(
        {"generated": 10, "dropped: stale": 2, "queued": 3, "trained": 5, "dropped: fault": 0},
        {"trained": 4, "queued": 1},
    )
    assert [(fate.name, fate.tokens, fate.groups, fate.share) for fate in books.fates()] == [
        ("trained", 5, 4, 0.5),
        ("queued", 3, 1, 0.3),
        ("dropped: stale", 2, 0, 0.2),
    ]
    assert books.generated_groups() == 5


def test_a_run_that_generated_nothing_has_an_empty_table() -> None:
    (trained,) = Conservation({"generated": 0, "trained": 0}).fates()
    assert (trained.tokens, trained.share) == (0, 0.0)
