"""What a run would do before it is started: a discrete-event model of servers, queue and trainer."""
