"""A forecast of a run before it is started: a small event loop of servers, queue and trainer."""
