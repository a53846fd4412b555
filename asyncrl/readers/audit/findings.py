"""Findings of an audit, and how they are printed: disagreements of two graders by kind, and their rates.

"Rewarded" is a recorded outcome of correct. Rates are shares of those responses that could disagree in this
way: undeserved rewards of the rewarded ones, refusals of the others. Undeserved rewards are also told as a
share of all responses: a hack that always pays is all of the rewards from the start, and of more and more
responses. Tasks are the unit of sampling.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypedDict

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.estimates import share_in_clusters
from asyncrl.observe.terminal.table import NOTHING, Table, print_table, printable
from asyncrl.readers.audit.grading import AuditTasks, Drawn, Regraded
from asyncrl.system.words import as_percent
from verifiers.verdict import Outcome

UNDESERVED, REFUSED, AGREED = "undeserved", "refused", "agreed"
RECORDED_FAULT, OTHER_FAULT = "recorded fault", "other fault"
KINDS = {
    UNDESERVED: "rewarded, but wrong by the other",
    REFUSED: "not rewarded, but right by the other",
    RECORDED_FAULT: "no recorded verdict",
    OTHER_FAULT: "no verdict by the other",
}
PARTS = 4
"""Ranges of steps that rates are told for."""
MOST_UNREADABLE = 5
PROMPT_CHARACTERS = 400
RESPONSE_CHARACTERS = 600


class Rate(TypedDict):
    count: int
    of: int
    """Responses that could have been of this kind."""
    num_tasks: int
    share: float | None
    """None where `of` is 0."""
    low: float | None
    """Ends of the 95% interval."""
    high: float | None


Findings = dict[str, Any]
"""The JSON of `asyncrl audit --json`."""


def kind_of(each: Regraded) -> str:
    if each.response.outcome == Outcome.FAULT:
        return RECORDED_FAULT
    if each.other.outcome is Outcome.FAULT:
        return OTHER_FAULT
    is_right = each.other.outcome is Outcome.CORRECT
    if is_rewarded(each) == is_right:
        return AGREED
    return REFUSED if is_right else UNDESERVED


def is_rewarded(each: Regraded) -> bool:
    return each.response.outcome == Outcome.CORRECT


def findings(drawn: Drawn, tasks: AuditTasks, found: dict[str, Regraded]) -> Findings:
    """All numbers of the responses graded so far."""
    # In the order of drawing: which example is shown does not depend on which verdict came first.
    order = [found[r.trajectory_id] for r in drawn.responses if r.trajectory_id in found]
    known = {*tasks.tasks, *tasks.unreadable}
    parts = list(_parts(order))
    return {
        "recorded_verifiers": sorted(tasks.recorded),
        "other_verifiers": sorted(tasks.others),
        # Responses that the sample was drawn from.
        "num_trained": drawn.num_trained,
        "num_drawn": len(drawn.responses),
        "num_graded": len(order),
        "num_compacted": drawn.num_compacted,
        "num_without_gold": drawn.num_without_gold,
        # Drawn responses whose task no row of data.train has.
        "num_without_row": sum(response.task_id not in known for response in drawn.responses),
        "unreadable_golds": {
            "num_tasks": len(tasks.unreadable),
            "num_responses": sum(response.task_id in tasks.unreadable for response in drawn.responses),
            "first": dict(list(tasks.unreadable.items())[:MOST_UNREADABLE]),
        },
        "kinds": {kind: 0 for kind in (*KINDS, AGREED)} | Counter(map(kind_of, order)),
        **_rates(order),
        "parts": parts,
        # A sentence on undeserved rewards over the steps; empty where there is one range alone.
        "change": _change(parts),
        "examples": {kind: _example(each) for each in reversed(order) if (kind := kind_of(each)) in KINDS},
    }


def _rates(graded: Sequence[Regraded]) -> dict[str, Rate]:
    """Shares of rewarded responses, and of all, that the other grader finds wrong; of those without a reward
    that it finds right. Faults of either are left out."""
    return {
        "undeserved": _rate(graded, (UNDESERVED, AGREED), is_rewarded),
        "undeserved_of_all": _rate(graded, (UNDESERVED, REFUSED, AGREED), lambda each: True),
        "refused": _rate(graded, (REFUSED, AGREED), lambda each: not is_rewarded(each)),
    }


def _rate(graded: Iterable[Regraded], kinds: Sequence[str], could: Callable[[Regraded], bool]) -> Rate:
    """Share of the first of `kinds` among responses of all `kinds` that `could` be of it."""
    clusters: defaultdict[str, list[bool]] = defaultdict(list)
    for each in graded:
        found = kind_of(each)
        if found in kinds and could(each):
            clusters[each.response.task_id].append(found == kinds[0])
    pairs = [(sum(hits), len(hits)) for hits in clusters.values()]
    count, of = sum(hits for hits, _ in pairs), sum(size for _, size in pairs)
    if not of:
        return Rate(count=0, of=0, num_tasks=0, share=None, low=None, high=None)
    estimate = share_in_clusters(pairs)
    return Rate(
        count=count, of=of, num_tasks=len(pairs), share=estimate.mean, low=estimate.low, high=estimate.high
    )


def _parts(graded: Sequence[Regraded]) -> Iterator[dict[str, Any]]:
    """Ranges of steps of about one length."""
    if not graded:
        return
    first = min(each.response.step for each in graded)
    num_steps = max(each.response.step for each in graded) - first + 1
    num_parts = min(PARTS, num_steps)
    edges = [first + num_steps * i // num_parts for i in range(num_parts + 1)]
    for begin, end in zip(edges, edges[1:], strict=False):
        inside = [each for each in graded if begin <= each.response.step < end]
        yield {"first_step": begin, "last_step": end - 1, "num_graded": len(inside), **_rates(inside)}


def _change(parts: Sequence[dict[str, Any]]) -> str:
    of_rewarded = _direction([part["undeserved"] for part in parts])
    of_all = _direction([part["undeserved_of_all"] for part in parts])
    if not of_rewarded and not of_all:
        return ""
    found = [
        f"{direction} as a share of {whole}"
        for direction, whole in ((of_rewarded, "rewarded responses"), (of_all, "all responses"))
        if direction
    ]
    return f"Over the steps, undeserved rewards {', and '.join(found)}."


def _direction(rates: Sequence[Rate]) -> str:
    """Whether the first and last range with such responses differ by more than chance: their intervals are
    apart. Empty for fewer than two."""
    ends = [(r["low"], r["high"]) for r in rates if r["low"] is not None and r["high"] is not None]
    if len(ends) < 2:
        return ""
    if ends[-1][0] > ends[0][1]:
        return "grew"
    return "shrank" if ends[-1][1] < ends[0][0] else "show no clear change"


def _example(each: Regraded) -> dict[str, Any]:
    response, other = each.response, each.other
    told = ("outcome", "extracted", "detail")
    return {
        "trajectory_id": response.trajectory_id,
        "task_id": response.task_id,
        "step": response.step,
        "prompt": excerpt(response.prompt, PROMPT_CHARACTERS),
        "response": excerpt(response.text, RESPONSE_CHARACTERS),
        "recorded": {name: getattr(response, name) for name in told},
        "other": {name: getattr(other, name) for name in told},
    }


def excerpt(text: str, most: int) -> str:
    """At most about `most` characters: a third from the beginning, the others from the end."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]} [...] {text[head - most :]}"


METHOD = (
    "95% intervals, tasks as the unit. Undeserved: rewarded, but wrong by the other; refused: the reverse. "
    "Right and wrong are the other verifier's: read the examples before you believe either."
)


def print_findings(found: Findings, run: str, console: Console) -> None:
    """Samples, rates, rates by steps, and one example of each kind of disagreement."""
    for line in _head(found):
        _say(console, line)
    rows = [("all", f"{found['num_graded']:,}", *_row(found))]
    if len(found["parts"]) > 1:
        rows += [
            (f"steps {part['first_step']}-{part['last_step']}", f"{part['num_graded']:,}", *_row(part))
            for part in found["parts"]
        ]
    header = (
        *("responses", "graded", "undeserved", "of rewarded", "95%"),
        *("of all", "95%", "refused", "of the rest", "95%"),
    )
    console.print()
    print_table(Table("", header, rows), console)
    if found["change"]:
        _say(console, found["change"])
    for kind, example in found["examples"].items():
        console.print()
        for line in _example_lines(kind, example, run):
            _say(console, line)
    console.print()
    _say(console, METHOD, style="dim")


def _head(found: Findings) -> Iterator[str]:
    yield (
        f"{found['num_graded']:,} of {found['num_drawn']:,} drawn responses graded again, of "
        f"{found['num_trained']:,} trained. Recorded by {', '.join(found['recorded_verifiers'])}, again by "
        f"{', '.join(found['other_verifiers'])}."
    )
    for count, why in (
        (found["num_compacted"], "compacted responses are left out: their texts are no longer kept"),
        (found["num_without_gold"], "responses are left out: --tests has no gold for their tasks"),
        (found["num_without_row"], "drawn responses are left out: no row of data.train has their task"),
        (found["kinds"][RECORDED_FAULT], "faults in the journal, in no rate"),
        (found["kinds"][OTHER_FAULT], "faults of the other verifier, in no rate"),
    ):
        if count:
            yield f"{count:,} {why}."
    unreadable = found["unreadable_golds"]
    if unreadable["num_tasks"]:
        yield (
            f"{unreadable['num_responses']:,} drawn responses are left out: the other verifier cannot read "
            f"the golds of {unreadable['num_tasks']:,} tasks:"
        )
        for task_id, why in unreadable["first"].items():
            yield f"  {task_id}: {why}"


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    _, *of_all = _cells(found["undeserved_of_all"])
    return (*_cells(found["undeserved"]), *of_all, *_cells(found["refused"]))


def _cells(rate: Rate) -> tuple[str, str, str]:
    if rate["share"] is None or rate["low"] is None or rate["high"] is None:
        return "0 of 0", NOTHING, NOTHING
    interval = f"{as_percent(rate['low'], 1)} to {as_percent(rate['high'], 1)}"
    return f"{rate['count']:,} of {rate['of']:,}", as_percent(rate["share"], 1), interval


def _example_lines(kind: str, example: dict[str, Any], run: str) -> Iterator[str]:
    name = example["trajectory_id"]
    yield f"{kind} ({KINDS[kind]}): {name}, task {example['task_id']}, step {example['step']}"
    yield f"  prompt    {_on_one_line(example['prompt'])}"
    yield f"  response  {_on_one_line(example['response'])}"
    yield f"  recorded  {_verdict(example['recorded'])}"
    yield f"  other     {_verdict(example['other'])}"
    yield f"  whole     asyncrl journal {run} --trajectory {name}"


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _verdict(told: dict[str, Any]) -> str:
    read = "" if told["extracted"] is None else f", read {told['extracted']!r}"
    return f"{told['outcome']}{read}{': ' if told['detail'] else ''}{_on_one_line(told['detail'])}"


def _say(console: Console, line: str, *, style: str = "") -> None:
    console.print(Text(printable(line), style=style), soft_wrap=True)
