"""A forecast of a run before it is started: a discrete-event model of servers, queue and trainer."""
