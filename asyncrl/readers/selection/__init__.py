"""A selection of responses of a run, as data for SFT and DPO."""
