"""Which child of this process each process below it descends from, on real processes."""

import subprocess
import sys

import psutil

from asyncrl.launch.meters.usage import find_families

WAIT = "print('up', flush=True); __import__('sys').stdin.read()"
WITH_A_GRANDCHILD = (
    "import subprocess, sys\n"
    f"inner = [sys.executable, '-c', {WAIT!r}]\n"
    "subprocess.run([sys.executable, '-c', 'import subprocess, sys; subprocess.run(sys.argv[1:])', *inner])\n"
)


def start(program: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


def test_every_process_below_is_in_the_family_of_the_child_it_descends_from() -> None:
    children = [start(WITH_A_GRANDCHILD), start(WAIT)]
    try:
        families = find_families()
        expected = [psutil.Process(child.pid).children(recursive=True) for child in children]
    finally:
        for child in children:
            child.communicate()
    found = {child.pid: family for child, family in families.items()}
    first, second = (found[child.pid] for child in children)
    assert [each.pid for each in first] == [children[0].pid, *(each.pid for each in expected[0])]
    assert (len(first), [each.pid for each in second]) == (3, [children[1].pid])
    # Descendants have no family of their own.
    assert not {each.pid for each in expected[0]} & found.keys()


def test_a_family_is_gone_with_its_child() -> None:
    child = start(WAIT)
    child.communicate()
    assert child.pid not in {each.pid for each in find_families()}
