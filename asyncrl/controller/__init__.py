"""The controller process: builds the parts of a run, connects them, answers the trainer."""
