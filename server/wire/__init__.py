"""The wire: requests in, frames out, for each API dialect. Pure: no clock, no I/O, no web framework."""
