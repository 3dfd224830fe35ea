"""The HTTP server: several APIs into one request, one stream of output steps into several APIs."""
