"""A version on its way to the servers: buckets, digests, receivers."""
