"""A Python client that uses only the standard library. Its types are generated from the server's OpenAPI document:

    datamodel-codegen --input http://127.0.0.1:7420/openapi.json --input-file-type openapi \
        --output-model-type typing.TypedDict --output sapwood_types.py

    python client.py http://127.0.0.1:7420 "$KEY" "Hello"
"""

import json
import sys
import urllib.request
from collections.abc import Iterator

from sapwood_types import NewSession, NewTurn, Session


def post(url: str, key: str, body: NewSession | NewTurn):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=60)


def talk(url: str, key: str, message: str) -> Iterator[str]:
    """Create a session, send a message, and yield the answer as it streams."""
    with post(f"{url}/v1/sessions", key, {"agent": "default"}) as created:
        session: Session = json.load(created)
    with post(f"{url}/v1/sessions/{session['id']}/turns", key, {"input": message, "stream": True}) as events:
        for line in events:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if event["type"] == "agent:token":
                    yield event["text"]


if __name__ == "__main__":
    for text in talk(*sys.argv[1:4]):
        print(text, end="", flush=True)
    print()
