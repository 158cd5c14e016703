"""The relay and the dashboard in one process on loopback, for tests and rehearsals."""
