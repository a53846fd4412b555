"""From tasks to scored groups: data, admission, generation, verdicts."""
