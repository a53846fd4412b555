"""SGLang finds all that it reads of config.json: keys that transformers 5 leaves out are implied."""

from families.known import TINY


def test_sglang_finds_all_that_it_reads_in_a_config_saved_by_transformers(compared):
    assert {architecture: compared[architecture] for architecture in TINY} == dict.fromkeys(TINY, [])
