"""What a consumer runs against any server of these APIs. Never imports the engine or the server."""
