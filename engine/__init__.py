"""The inference engine: token ids in, text out. It never heard of HTTP or of a vendor's API."""
