"""Answers of a server that repeat the key they were sent."""

from ragbench.testing.loopback import Answer

KEY = "sk-0123456789-secret"
LEAKS = {
    "401 that echoes": Answer(f"Incorrect API key provided: {KEY}. You can find yours at …", status=401),
    "500 that echoes": Answer(f"proxy error, headers: Authorization: Bearer {KEY}", status=500),
    "no JSON": Answer(body=f"debug: {KEY}"),
    "hang-up": Answer(KEY, cut=True),
}
