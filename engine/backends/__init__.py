"""The engines behind one protocol; each backend is the only place that imports its library."""
