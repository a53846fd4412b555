"""Programs that only read run folders: page, report, comparison, trackers, status."""
