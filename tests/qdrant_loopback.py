"""A Qdrant server on this machine: the REST calls that `QdrantIndex` makes, answered by the client's own
local mode.

It speaks Qdrant's wire format (paths, bodies read by Qdrant's own models, envelopes, error bodies), asks for
the API key, and has an
optimiser that is busy for a while. What it cannot show is a graph: local mode compares with everything.
"""

import json
import re
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

NAME = r"/collections/([^/]+)"


class QdrantLoopback:
    """`with QdrantLoopback(key) as server: QdrantIndex(server.url, 'passages', api_key=key)`; `calls` are
    (method, path, body)."""

    def __init__(self, key=None, busy=0, broken=None):
        self.key, self.busy, self.broken = (
            key,
            busy,
            broken,
        )  # looks at a collection that say yellow; a path that answers 500
        self.calls, self.lock, self.local, self.indexed = [], threading.RLock(), QdrantClient(":memory:"), {}

    def __enter__(self):
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"qdrant": self, "protocol_version": "HTTP/1.1"})
        )
        self.server.daemon_threads, self.server.block_on_close = True, False
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.local.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def made(self, method, pattern):
        "Bodies of the calls of this kind."
        return [body for m, path, body in self.calls if m == method and re.fullmatch(pattern, path)]

    def answer(self, method, path, body):
        "(status, result) of one call."
        for m, pattern, name in ROUTES:
            if m == method and (found := re.fullmatch(pattern, path)):
                try:
                    return 200, getattr(self, name)(
                        *found.groups(), **({"body": body} if body is not None else {})
                    )
                except ValueError as e:  # local mode's way of saying so
                    return 404 if "not found" in str(e) else 400, str(e)
        return 404, f"there is no {method} {path}"

    def collections(self):
        return self.local.get_collections()

    def exists(self, name):
        return {"exists": self.local.collection_exists(name)}

    def create(self, name, body):
        c = models.CreateCollection(**body)
        return self.local.create_collection(name, vectors_config=c.vectors, metadata=c.metadata)

    def change(self, name, body):
        if name in {a.alias_name for a in self.local.get_aliases().aliases}:
            raise ValueError(f"Collection {name} not found: an alias cannot be changed")
        return self.local.update_collection(name, metadata=models.UpdateCollection(**body).metadata)

    def remove(self, name):
        return self.local.delete_collection(name)

    def info(self, name):
        with self.lock:
            self.busy -= 1
        about = self.local.get_collection(name)
        return {**about.model_dump(mode="json"), "status": "yellow" if self.busy >= 0 else "green"}

    def index(self, name, body):
        field = models.CreateFieldIndex(**body)
        self.indexed.setdefault(name, {})[field.field_name] = field.field_schema.value
        return self.local.create_payload_index(name, field.field_name, field.field_schema)

    def put(self, name, body):
        return self.local.upsert(name, models.PointsBatch(**body).batch)

    def get(self, name, body):
        asked = models.PointRequest(**body)
        return self.local.retrieve(
            name, asked.ids, with_payload=asked.with_payload, with_vectors=bool(asked.with_vector)
        )

    def delete(self, name, body):
        return self.local.delete(name, models.PointIdsList(**body))

    def count(self, name, body):
        return self.local.count(name, exact=models.CountRequest(**body).exact)

    def query(self, name, body):
        return self.local.query_batch_points(name, models.QueryRequestBatch(**body).searches)

    def aliases(self):
        return self.local.get_aliases()

    def alias(self, body):
        return self.local.update_collection_aliases(models.ChangeAliasesOperation(**body).actions)


ROUTES = [
    ("GET", "/collections", "collections"),
    ("GET", "/aliases", "aliases"),
    ("POST", "/collections/aliases", "alias"),
    ("GET", f"{NAME}/exists", "exists"),
    ("PUT", NAME, "create"),
    ("PATCH", NAME, "change"),
    ("DELETE", NAME, "remove"),
    ("GET", NAME, "info"),
    ("PUT", f"{NAME}/index", "index"),
    ("PUT", f"{NAME}/points", "put"),
    ("POST", f"{NAME}/points", "get"),
    ("POST", f"{NAME}/points/delete", "delete"),
    ("POST", f"{NAME}/points/count", "count"),
    ("POST", f"{NAME}/points/query/batch", "query"),
]


class _Handler(BaseHTTPRequestHandler):
    def handle_any(self):
        q, size = self.qdrant, int(self.headers.get("Content-Length") or 0)
        body, path = json.loads(self.rfile.read(size)) if size else None, self.path.split("?")[0]
        q.calls.append((self.command, path, body))
        with q.lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # local mode has no payload indexes, and says so
            if q.key is not None and self.headers.get("api-key") != q.key:
                status, result = 401, "Must provide an API key or an Authorization bearer token"
            elif q.broken and re.fullmatch(q.broken, path):
                status, result = 500, "Service internal error"
            else:
                status, result = q.answer(self.command, path, body)
        said = TypeAdapter(object).dump_json(
            (
                {"result": result, "status": "ok", "time": 0.0}
                if status == 200
                else {"status": {"error": result}, "time": 0.0}
            ),
            exclude_none=True,
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any

    def log_message(self, format, *args):
        "Silence: a test's output is for the test."
