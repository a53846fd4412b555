"""Grades programs by tests, in the sandbox: what runs on the host, and what runs in the boxes."""
