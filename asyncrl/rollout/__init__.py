"""From open groups to ready ones: generation, verdicts, baselines."""
