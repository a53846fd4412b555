"""Names of the processes of trainer ranks, by which GPUs, places and logs are found."""

_BEGINNING = "trainer "


def rank_name(rank: int) -> str:
    return f"{_BEGINNING}{rank}"


def is_rank_name(name: str) -> bool:
    """Whether the process of that name is a trainer rank, and no server."""
    return name.startswith(_BEGINNING)
