"""A web site on loopback whose pages are as slow, endless, broken or hostile as a test wants."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "The lube oil pump is started before the machine turns, and it is stopped after it."


def html(title: str, *links: str, head: str = "") -> bytes:
    anchors = "".join(
        f'<p>See <a href="{link}">the page on {n}</a> as well.</p>' for n, link in enumerate(links)
    )
    return (
        f"<html><head><title>{title}</title>{head}</head><body><main><h1>{title}</h1><p>{TEXT}"
        f" {title}.</p>{anchors}</main></body></html>".encode()
    )


class Site:
    """Pages by path: bytes, or (status, headers, body), or a function of the handler."""

    def __init__(self):
        self.pages, self.asked = {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, time.monotonic()))
                page = outer.pages.get(self.path.partition("?")[0], outer.pages.get(self.path))
                if callable(page):
                    page(self)
                    return
                status, headers, body = (
                    (404, {}, b"") if page is None else (200, {}, page) if isinstance(page, bytes) else page
                )
                self.send_response(status)
                for name, value in (
                    {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))} | headers
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def paths(self):
        return [path for path, _ in self.asked if path != "/robots.txt"]
